"""The schema: Alembic revisions carry the tables, one ``.sql`` file each carries a function.

Two rules for whoever changes it:

* A migration must work while processes of the version before it still run. Tables are changed by addition, a
  function keeps its arguments (a new set of arguments is a new overload or a new name, and the old file stays for a
  release), and only a later revision removes what nobody calls any more.
* A change of any function file needs a new revision, also if the tables stay as they are: functions are installed
  when a database moves to the newest revision, and a database that is already there would keep the old ones.
  ``create or replace`` cannot change a return type; a revision that needs that drops the function first.
"""
