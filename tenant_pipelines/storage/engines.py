"""SQLAlchemy engines for sources and warehouses, and SQLite opened the way it must be.

Writing is one transaction at a time per process (a lock, so threads wait in line instead of
polling) and per file (``BEGIN IMMEDIATE`` with a 60 s busy timeout). Reading never creates a file.
An engine is not used across a fork: the child makes its own and leaves the parent's untouched.
"""

import contextlib
import os
import sqlite3
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.pool import NullPool, QueuePool

from tenant_pipelines.errors import WarehouseRefused
from tenant_pipelines.storage.files import sync_folder

_BUSY_SECONDS = 60
# what SQLite says when no later attempt can succeed either
_LASTING = ("not a database", "malformed", "no such", "readonly", "unable to open", "has no column")


@dataclass(frozen=True, slots=True)
class Place:
    """What errors name: the table, and the tenant it is used for."""

    table: str
    tenant: str

    def refused(self, *, found: str, wanted: str, fix: str) -> WarehouseRefused:
        """Return the error that says so."""
        return WarehouseRefused(
            table=self.table, tenant=self.tenant, found=found, wanted=wanted, fix=fix
        )


@dataclass(frozen=True, slots=True)
class _Writer:
    engine: sa.Engine
    lock: threading.Lock = field(default_factory=threading.Lock)


_writers: dict[str, _Writer] = {}
_readers: dict[str, sa.Engine] = {}
_cache_lock = threading.Lock()
_inherited: list[object] = []


def _leave_to_parent() -> None:
    # closing a connection that was opened before the fork would act on the parent's database:
    # https://www.sqlite.org/howtocorrupt.html#_carrying_an_open_database_file_across_a_fork_
    global _cache_lock
    _inherited.extend([*_writers.values(), *_readers.values()])
    _writers.clear()
    _readers.clear()
    _cache_lock = threading.Lock()


os.register_at_fork(after_in_child=_leave_to_parent)


@contextlib.contextmanager
def writing(url: str, place: Place) -> Iterator[sa.Connection]:
    """Open the one writing transaction; commits at the end, rolls back on any exception.

    Args:
        url: SQLAlchemy URL of a SQLite file, made with its folder when missing.
        place: what errors name.

    Raises:
        WarehouseRefused: the URL or the file cannot be used as a warehouse.
    """
    path = sqlite_path(url, place)
    if path is None:
        raise place.refused(
            found=f"a warehouse on {sa.make_url(url).get_backend_name()}",
            wanted="a SQLite file: loads into other databases are not built yet",
            fix="Write warehouse: sqlite:///{state}/warehouse.db in the fleet file.",
        )
    if url not in _writers:
        _check_application(url, place)
    with _cache_lock:
        writer = _writers.get(url)
        if writer is None:
            _make_folder(path.parent)
            writer = _writers[url] = _Writer(_sqlite_engine(path, mode="rwc"))
    with refusing(place), writer.lock, writer.engine.begin() as connection:
        yield connection


def _check_application(url: str, place: Place) -> None:
    """Refuse a SQLite file that says whose it is, before its journal mode is changed."""
    with reading(url, place) as connection:
        # https://www.sqlite.org/pragma.html#pragma_application_id
        owner = connection and connection.exec_driver_sql("PRAGMA application_id").scalar()
    if owner:
        raise place.refused(
            found=f"a file of another application (its application_id is {owner:#x})",
            wanted="a SQLite file for the warehouse alone",
            fix="Name another file as warehouse: in the fleet file; nothing was written.",
        )


@contextlib.contextmanager
def reading(url: str, place: Place) -> Iterator[sa.Connection | None]:
    """Open a connection that cannot write; None when the SQLite file does not exist.

    Its engine is kept, for databases that are read often.

    Raises:
        WarehouseRefused: the URL or the file cannot be used.
    """
    path = sqlite_path(url, place)
    if path is not None and not path.exists():
        yield None
        return
    with _cache_lock:
        engine = _readers.get(url)
        if engine is None:
            engine = _sqlite_engine(path, mode="ro") if path else _server_engine(url, place)
            _readers[url] = engine
    with refusing(place), engine.connect() as connection:
        yield connection


@contextlib.contextmanager
def reading_once(url: str, place: Place) -> Iterator[sa.Connection]:
    """Open a connection that cannot write, and keep nothing: a tenant may have its own source.

    Raises:
        WarehouseRefused: the URL cannot be used, or the SQLite file does not exist.
    """
    path = sqlite_path(url, place)
    if path is not None and not path.exists():
        raise place.refused(
            found=f"no file {path}", wanted="an existing SQLite file", fix="Correct the source."
        )
    if path is not None:
        engine = _sqlite_engine(path, mode="ro", pool=NullPool)
    else:
        engine = _server_engine(url, place, pool=NullPool)
    with refusing(place), engine.connect() as connection:
        yield connection


def sqlite_path(url: str, place: Place) -> Path | None:
    """Return the file of a SQLite URL, None for another database.

    Raises:
        WarehouseRefused: it is no URL, or a SQLite database without a file.
    """
    try:
        parsed = sa.make_url(url)
    except sa.exc.ArgumentError:
        raise place.refused(
            found="a database address that is not a SQLAlchemy URL (not shown, it may hold a "
            "password)",
            wanted="for example sqlite:////folder/file.db or postgresql+psycopg://user@host/name",
            fix="Correct the address.",
        ) from None
    if parsed.get_backend_name() != "sqlite":
        return None
    if not parsed.database or parsed.database == ":memory:" or parsed.database.startswith("file:"):
        raise place.refused(
            found=f"the address {parsed.render_as_string()}",
            wanted="a SQLite file such as sqlite:////folder/file.db, which outlives the process",
            fix="Correct the address.",
        )
    return Path(parsed.database).absolute()


def shown(url: str) -> str:
    """Return a URL for an error: without its password."""
    return sa.make_url(url).render_as_string(hide_password=True)


@contextlib.contextmanager
def refusing(place: Place) -> Iterator[None]:
    """Turn the database's lasting complaints into WarehouseRefused; let passing ones through."""
    try:
        yield
    except sa.exc.DatabaseError as error:
        said = str(error.orig)
        if isinstance(error, sa.exc.IntegrityError) or any(text in said for text in _LASTING):
            raise place.refused(
                found=f"a database that answers {said!r}",
                wanted="a database with the tables and columns of this step",
                fix="Look at the database; nothing was written.",
            ) from error
        raise


def _server_engine(url: str, place: Place, *, pool: type[sa.Pool] = QueuePool) -> sa.Engine:
    try:
        return sa.create_engine(url, poolclass=pool, hide_parameters=True)
    except (sa.exc.NoSuchModuleError, ImportError) as error:
        raise place.refused(
            found=f"a kind of database without a driver here ({error})",
            wanted="sqlite, or a database whose driver is installed",
            fix="Correct the address or install the driver.",
        ) from None


def _sqlite_engine(path: Path, *, mode: str, pool: type[sa.Pool] = QueuePool) -> sa.Engine:
    uri = f"file:{quote(str(path))}?mode={mode}"

    def connect() -> sqlite3.Connection:
        return sqlite3.connect(
            uri,
            uri=True,
            timeout=_BUSY_SECONDS,
            check_same_thread=False,
            # pysqlite would otherwise leave DDL and SELECT outside of the transaction
            isolation_level=None,
        )

    limits = {} if pool is NullPool else {"max_overflow": -1}
    engine = sa.create_engine(
        "sqlite://", creator=connect, poolclass=pool, hide_parameters=True, **limits
    )

    @event.listens_for(engine, "connect")
    def prepare(connection: Any, record: Any) -> None:
        record.info["file"] = _identity(path)
        if mode == "rwc":
            _use_wal(connection)
            connection.execute("PRAGMA synchronous=FULL")

    @event.listens_for(engine, "checkout")
    def check(_connection: Any, record: Any, _proxy: Any) -> None:
        # the file was replaced or deleted: a kept connection would write into nowhere
        if record.info["file"] != _identity(path):
            raise sa.exc.DisconnectionError

    @event.listens_for(engine, "begin")
    def begin(connection: sa.Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE" if mode == "rwc" else "BEGIN")

    return engine


def _use_wal(connection: sqlite3.Connection) -> None:
    """Switch to WAL, which does not wait for other processes that are doing the same."""
    deadline = time.monotonic() + _BUSY_SECONDS
    while connection.execute("PRAGMA journal_mode").fetchone() != ("wal",):
        try:
            connection.execute("PRAGMA journal_mode=WAL")
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.005)


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino


def _make_folder(folder: Path) -> None:
    missing = [entry for entry in (folder, *folder.parents) if not entry.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for entry in missing:
        sync_folder(entry.parent)
