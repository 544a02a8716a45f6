"""The exception tree: families, messages, and survival across process borders."""

from __future__ import annotations

import copy
import inspect
import pickle
import subprocess
import sys

import pytest

from pgbroker import errors
from pgbroker.errors import (
    BatchFailed,
    BatchTooLarge,
    ConnectionLost,
    DatabaseError,
    DatabaseUnreachable,
    DedupeNotSupported,
    DuplicateJob,
    EmbeddedUnavailable,
    ExchangeNotFound,
    MessageTooLarge,
    NotInTransaction,
    OptionError,
    OtherDatabase,
    PermissionDenied,
    PgBrokerError,
    PreconditionFailed,
    QueueNotFound,
    ResourceLocked,
    SchemaError,
    SchemaMissing,
    SchemaTooNew,
    SchemaTooOld,
    StatementTimeout,
    TransactionFailed,
    Unroutable,
)

EXAMPLES: list[PgBrokerError] = [
    PgBrokerError("broken"),
    OptionError("no such option"),
    EmbeddedUnavailable("extra is missing"),
    DatabaseError("division by zero", sqlstate="22012"),
    DatabaseError("no code"),
    StatementTimeout("canceled", sqlstate="57014"),
    PermissionDenied("denied for table jobs", sqlstate="42501"),
    DatabaseUnreachable("connection refused"),
    ConnectionLost("terminated", sqlstate="57P01"),
    SchemaError("pgbroker", "lacks a function"),
    SchemaMissing("pgbroker"),
    SchemaTooOld("pgbroker", "0001", "0002"),
    SchemaTooNew("pgbroker", "0003", "0002"),
    DuplicateJob(17, "a-b-c"),
    BatchFailed("message 17 of the batch", "value out of range", sqlstate="22008"),
    BatchTooLarge(1000),
    MessageTooLarge(300, 200),
    NotInTransaction("the connection is in autocommit mode"),
    OtherDatabase("pgbroker://server/a", "database b"),
    TransactionFailed("deadlock detected", sqlstate="40P01"),
    DedupeNotSupported("not on a chord"),
    Unroutable("events", "a.b"),
    QueueNotFound("celery"),
    ExchangeNotFound("events"),
    PreconditionFailed("celery", "it is in use"),
    ResourceLocked("reply.celery"),
]

CLASSES = [cls for _, cls in inspect.getmembers(errors, inspect.isclass) if issubclass(cls, Exception)]


def test_examples_cover_every_class() -> None:
    assert {type(error) for error in EXAMPLES} == set(CLASSES)


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda e: type(e).__name__)
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_pickle_keeps_class_message_and_attributes(error: PgBrokerError, protocol: int) -> None:
    back = pickle.loads(pickle.dumps(error, protocol))
    assert type(back) is type(error)
    assert (str(back), back.args, vars(back)) == (str(error), error.args, vars(error))


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda e: type(e).__name__)
def test_arguments_rebuild_the_error(error: PgBrokerError) -> None:
    # Celery's JSON result backends keep the class and `args` only.
    assert str(type(error)(*error.args)) == str(error)
    assert str(copy.copy(error)) == str(error)


@pytest.mark.parametrize("cls", CLASSES, ids=lambda c: c.__name__)
def test_every_class_is_in_the_tree_and_documented(cls: type[Exception]) -> None:
    assert issubclass(cls, PgBrokerError)
    assert cls.__doc__


@pytest.mark.parametrize(
    ("cls", "parents"),
    [
        (OptionError, (ValueError,)),
        (StatementTimeout, (DatabaseError,)),
        (PermissionDenied, (DatabaseError,)),
        (DatabaseUnreachable, (ConnectionError, OSError)),
        (ConnectionLost, (DatabaseUnreachable,)),
        (SchemaMissing, (SchemaError,)),
        (SchemaTooOld, (SchemaError,)),
        (SchemaTooNew, (SchemaError,)),
    ],
)
def test_families(cls: type[Exception], parents: tuple[type[Exception], ...]) -> None:
    for parent in parents:
        assert issubclass(cls, parent)


def test_unreachable_is_no_failed_statement() -> None:
    assert not issubclass(DatabaseUnreachable, DatabaseError)


def test_docstring_is_the_message_where_none_is_given() -> None:
    assert str(OptionError()).startswith("A URL or an option is wrong;")
    assert str(ConnectionLost()).startswith("An existing connection died")


@pytest.mark.parametrize("cls", [DatabaseError, StatementTimeout, DatabaseUnreachable, ConnectionLost])
def test_sqlstate(cls: type[DatabaseError]) -> None:
    assert cls("x").sqlstate is None
    assert cls("x", sqlstate="25006").sqlstate == "25006"


@pytest.mark.parametrize(
    "error", [SchemaMissing("acme"), SchemaTooOld("acme", "1", "2"), SchemaTooNew("acme", "3", "2")]
)
def test_schema_errors_name_schema_and_command(error: SchemaError) -> None:
    assert error.schema == "acme"
    assert '"acme"' in str(error)
    assert "celery -A APP pgbroker migrate" in str(error)


def test_revisions_are_named() -> None:
    error = SchemaTooOld("acme", "0001", "0002")
    assert (error.found, error.needed) == ("0001", "0002")
    assert "0001" in str(error)
    assert "0002" in str(error)


def test_details_are_attributes_and_in_the_message() -> None:
    duplicate = DuplicateJob(job_id=17, task_id="abc")
    assert (duplicate.job_id, duplicate.task_id) == (17, "abc")
    assert "17" in str(duplicate)
    assert "abc" in str(duplicate)
    unroutable = Unroutable("events", "a.b")
    assert (unroutable.exchange, unroutable.routing_key) == ("events", "a.b")
    assert "'events'" in str(unroutable)
    assert "'a.b'" in str(unroutable)
    assert QueueNotFound("q1").name == ResourceLocked("q1").name == "q1"
    assert "'q1'" in str(QueueNotFound("q1"))
    assert "'q1'" in str(ResourceLocked("q1"))


def test_module_loads_neither_celery_nor_driver() -> None:
    path = inspect.getsourcefile(errors)
    code = (
        "import runpy, sys; runpy.run_path(sys.argv[1]);"
        "print([m for m in ('kombu', 'celery', 'psycopg2', 'sqlalchemy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
