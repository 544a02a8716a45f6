"""Alembic revisions, oldest first; :data:`pgbroker.postgres.revisions.REVISIONS` lists them."""
