"""Which schema revisions this version knows.

A list in a module of its own, so that a process that only asks whether its schema fits need not import Alembic.
"""

from __future__ import annotations

#: Every revision, oldest first; the names of the Alembic revisions in ``migrations/versions``.
REVISIONS = ("0001",)

#: The revision that this version of pgbroker needs.
HEAD = REVISIONS[-1]

#: Alembic's table of the revision, inside our schema.
VERSION_TABLE = "alembic_version"
