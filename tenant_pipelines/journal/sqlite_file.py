"""Opening a journal's SQLite file: created whole or not at all, diagnosed without touching it.

A file that is not this shard's healthy journal is left byte for byte as it was: the header and the
identity are read through an immutable connection, which takes no lock and writes nothing
(https://www.sqlite.org/uri.html#uriimmutable), and a suspicious length is judged on a copy.
"""

import contextlib
import errno
import os
import shutil
import sqlite3
import tempfile
import threading
import urllib.parse
from collections import Counter
from pathlib import Path

from sqlalchemy import URL, Engine, create_engine, event, insert
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import ConnectionPoolEntry, NullPool

from tenant_pipelines.errors import JournalUnusable
from tenant_pipelines.journal import schema

_HEADER_BYTES = 100
_IDENTITY = "SELECT name, value FROM identity"
_MAGIC = b"SQLite format 3\x00"
_RESTORE = (
    "Restore the file from a backup, or move it away and run with --new-cycle: everything of this "
    "shard then runs again (docs/operations.md)"
)


def create_file(path: Path, *, fleet: str, shard: str) -> None:
    """Create an empty journal at ``path``, durable, whole or not at all; an existing file wins.

    Raises:
        JournalUnusable: the folder or the file cannot be written.
    """
    if path.with_name(path.name + "-wal").exists() and not path.exists():
        raise JournalUnusable(
            path=path, found="the journal is gone, but its write-ahead log is there", fix=_RESTORE
        )
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=path.name + ".", suffix=".new", dir=path.parent)
        os.close(handle)
        temporary = Path(name)
        _fill(temporary, fleet=fleet, shard=shard)
        with contextlib.suppress(FileExistsError):
            os.link(temporary, path)
        _fsync_folders(path.parent)
    except (OSError, sqlite3.Error, DBAPIError) as error:
        cause = error.orig if isinstance(error, DBAPIError) and error.orig else error
        raise _unwritable(path, cause) from error
    finally:
        if temporary is not None:
            for suffix in ("", "-wal", "-shm"):
                temporary.with_name(temporary.name + suffix).unlink(missing_ok=True)


def _fill(path: Path, *, fleet: str, shard: str) -> None:
    engine = connect_engine(path)
    with engine.connect() as connection:
        # first, before a page is written: an entry dirties few bytes of few pages, and each page
        # goes to the log whole
        connection.exec_driver_sql("PRAGMA page_size = 1024")
        connection.exec_driver_sql(f"PRAGMA application_id = {schema.APPLICATION_ID}")
        connection.exec_driver_sql(f"PRAGMA user_version = {schema.SCHEMA_VERSION}")
        # WAL is a property of the file; https://www.sqlite.org/wal.html#persistence_of_wal_mode
        connection.exec_driver_sql("PRAGMA journal_mode = WAL")
        schema.metadata.create_all(connection)
        connection.execute(
            insert(schema.identity),
            [{"name": "fleet", "value": fleet}, {"name": "shard", "value": shard}],
        )
        connection.commit()
        # closing moves the log into the file too, but keeps silent when the disk is full
        busy, *_ = connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)").one()
    engine.dispose()
    log = path.with_name(path.name + "-wal")
    if busy or (log.exists() and log.stat().st_size):
        raise OSError(errno.ENOSPC, "the new journal's log could not be moved into its file")
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _fsync_folders(folder: Path) -> None:
    # the folders above may be new as well; three levels reach the fleet's state folder
    for parent in (folder, *list(folder.parents)[:3]):
        handle = os.open(parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


# (device, inode) of each journal open in this process, and how often
_open_here: Counter[tuple[int, int]] = Counter()
_open_here_lock = threading.Lock()


def claim_checked(path: Path, *, fleet: str, shard: str) -> tuple[int, int]:
    """Check a journal unless it is open in this process, and count it as open; see ``release``.

    Closing any descriptor of a file drops every POSIX lock that the process has on it, SQLite's own
    too (https://www.sqlite.org/howtocorrupt.html, 2.2): another process would then take the
    write-ahead log away from under this one. So a file is never opened beside SQLite while it is
    in use here; it was checked when it was opened first.

    Raises:
        JournalUnusable: see ``check_file``.
    """
    with _open_here_lock:
        if not _open_here[_identity(path)]:
            check_file(path, fleet=fleet, shard=shard)
        claim = _identity(path)
        _open_here[claim] += 1
        return claim


def release(claim: tuple[int, int] | None) -> None:
    """Count a journal as closed once, after its connections are."""
    if claim is not None:
        with _open_here_lock:
            _open_here[claim] -= 1


def _identity(path: Path) -> tuple[int, int]:
    try:
        status = path.stat()
    except OSError:
        return (0, 0)  # of no file: nothing is open under it, and check_file says why
    return status.st_dev, status.st_ino


def check_file(path: Path, *, fleet: str, shard: str) -> None:
    """Check that ``path`` is this shard's healthy journal, without changing or creating anything.

    Raises:
        JournalUnusable: it is not; says what was found and the way out.
    """
    try:
        with path.open("rb") as file:
            header = file.read(_HEADER_BYTES)
            size = os.fstat(file.fileno()).st_size
    except IsADirectoryError:
        raise JournalUnusable(
            path=path, found="a directory where the journal should be", fix=_RESTORE
        ) from None
    except OSError as error:
        raise JournalUnusable(
            path=path,
            found=f"the journal cannot be read ({_strerror(error)})",
            fix="Make it readable for this user",
        ) from error
    if len(header) < _HEADER_BYTES or not header.startswith(_MAGIC):
        raise damaged(path, f"{size} bytes that are not an SQLite file")
    application_id = int.from_bytes(header[68:72], "big")
    version = int.from_bytes(header[60:64], "big")
    if application_id != schema.APPLICATION_ID:
        raise JournalUnusable(
            path=path,
            found="an SQLite file of another application",
            fix="Move it away; a journal of this package is made in its place",
        )
    if version > schema.SCHEMA_VERSION:
        raise JournalUnusable(
            path=path,
            found=f"schema version {version}, newer than {schema.SCHEMA_VERSION}, the newest known",
            fix="Install the newer tenant-pipelines that wrote it",
        )
    page = int.from_bytes(header[16:18], "big")
    pages = int.from_bytes(header[28:32], "big")
    if size < pages * (65536 if page == 1 else page):
        # a checkpoint that a crash cut short looks the same, and the write-ahead log mends it
        found = _identity_of_copy(path)
    else:
        found = _identity_in_place(path)
    if (found.get("fleet"), found.get("shard")) != (fleet, shard):
        raise JournalUnusable(
            path=path,
            found=f"the journal of shard {found.get('shard')!r} of fleet {found.get('fleet')!r}, "
            f"where that of shard {shard!r} of fleet {fleet!r} should be",
            fix="Move it back to where it belongs, and restore this shard's own journal",
        )


def _identity_in_place(path: Path) -> dict[str, str]:
    uri = f"file:{urllib.parse.quote(str(path))}?mode=ro&immutable=1"
    try:
        with contextlib.closing(sqlite3.connect(uri, uri=True)) as connection:
            return dict(connection.execute(_IDENTITY))
    except sqlite3.Error as error:
        raise damaged(path, f"an SQLite file that cannot be read ({error})") from error


def _identity_of_copy(path: Path) -> dict[str, str]:
    problem = ""
    for _ in range(3):  # a live checkpoint can tear a copy; a damaged file stays damaged
        with tempfile.TemporaryDirectory(prefix="tenant-pipelines-") as folder:
            copy = Path(folder) / path.name
            try:
                shutil.copyfile(path, copy)
                with contextlib.suppress(FileNotFoundError):
                    wal = path.name + "-wal"
                    shutil.copyfile(path.with_name(wal), copy.with_name(wal))
                with contextlib.closing(sqlite3.connect(copy)) as connection:
                    problem = str(connection.execute("PRAGMA quick_check(1)").fetchone()[0])
                    if problem == "ok":
                        return dict(connection.execute(_IDENTITY))
            except (OSError, sqlite3.Error) as error:
                problem = str(error)
    raise damaged(path, f"an SQLite file that is cut short or damaged ({problem})")


def damaged(path: Path, found: str) -> JournalUnusable:
    """Return the error for a journal whose content is not what was written."""
    return JournalUnusable(path=path, found=f"the journal is damaged: {found}", fix=_RESTORE)


def _strerror(error: BaseException) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def _unwritable(path: Path, error: BaseException) -> JournalUnusable:
    is_full = getattr(error, "sqlite_errorname", "") == "SQLITE_FULL"
    if is_full or (isinstance(error, OSError) and error.errno == errno.ENOSPC):
        return JournalUnusable(path=path, found="the disk is full", fix="Free space and run again")
    return JournalUnusable(
        path=path,
        found=f"the journal cannot be written ({_strerror(error)})",
        fix="Make the folder writable for this user and run again",
    )


def unusable(path: Path, error: BaseException) -> JournalUnusable:
    """Return what an SQLite error while using the journal means to a person."""
    cause = getattr(error, "orig", None) or error
    name = getattr(cause, "sqlite_errorname", "") or ""
    if name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")):
        return damaged(path, str(cause))
    if name.startswith("SQLITE_FULL"):
        return JournalUnusable(path=path, found="the disk is full", fix="Free space and run again")
    if name.startswith("SQLITE_BUSY"):
        return JournalUnusable(
            path=path,
            found="another process holds the journal's write lock for more than a minute",
            fix="End that process (a database tool, a backup), and run again",
        )
    return _unwritable(path, cause)


def connect_engine(path: Path) -> Engine:
    """Return an engine whose connections begin nothing by themselves and commit durably."""
    engine = create_engine(
        URL.create("sqlite", database=str(path)),
        connect_args={"timeout": 60.0, "check_same_thread": False},
        poolclass=NullPool,
    )

    @event.listens_for(engine, "connect")
    def _configure(connection: DBAPIConnection, _record: ConnectionPoolEntry) -> None:
        connection.isolation_level = None
        cursor = connection.cursor()
        # FULL: a commit that has returned survives a power cut (https://www.sqlite.org/pragma.html)
        cursor.execute("PRAGMA synchronous = FULL")
        cursor.close()

    return engine
