"""The first schema.

Revision ID: 0001
Revises:
"""

from pgbroker.postgres import installer

revision = "0001"
down_revision = None


def upgrade() -> None:
    installer.execute(installer.tables("0001_initial"))
