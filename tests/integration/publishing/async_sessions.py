"""SQLAlchemy's asynchronous sessions on the drivers that it has for PostgreSQL."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

DRIVERS = ("asyncpg", "psycopg")


@asynccontextmanager
async def async_session(database: Any, driver: str) -> AsyncIterator[AsyncSession]:
    """A session on an engine of its own, closed without a commit at the end of the block."""
    words = dict(database.dsn)
    if driver == "asyncpg":
        words["database"] = words.pop("dbname")
    engine = create_async_engine(f"postgresql+{driver}://", connect_args=words)
    try:
        async with AsyncSession(engine) as session:
            yield session
    finally:
        await engine.dispose()
