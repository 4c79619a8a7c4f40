"""Rows as big warehouse tables have them: two keys, numbers, text, times, a few values missing."""

import itertools
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

KEY = ("account", "line")
COLUMNS = (*KEY, "quantity", "units", "amount", "name", "city", "at")
# what sql_load makes for such a frame
TABLE = (
    "CREATE TABLE lines (_tenant TEXT NOT NULL, _cycle TEXT NOT NULL, account BIGINT NOT NULL, "
    "line BIGINT NOT NULL, quantity BIGINT, units BIGINT, amount FLOAT, name TEXT, city TEXT, "
    "at DATETIME, PRIMARY KEY (_tenant, account, line)) WITHOUT ROWID"
)
LINES_OF_AN_ACCOUNT = 100
_MISSING = 0.01


def make_frame(rows: int) -> "pd.DataFrame":
    """Return the same rows for the same number; one in a hundred amounts and names is missing."""
    import numpy as np
    import pandas as pd

    random = np.random.default_rng(7)
    letters = np.frombuffer(b"abcdefghijklmnopqrstuvwxyz", dtype=np.uint8)

    def texts() -> list[str]:
        ends = np.cumsum(random.integers(10, 31, rows)).tolist()
        everything = letters[random.integers(0, 26, ends[-1])].tobytes().decode()
        return [everything[start:end] for start, end in itertools.pairwise([0, *ends])]

    def with_gaps(values: "pd.Series[Any]") -> "pd.Series[Any]":
        return values.mask(random.random(rows) < _MISSING)

    numbers = np.arange(rows)
    seconds = random.integers(0, 10**13, rows).astype("timedelta64[us]")
    columns: list[Any] = [
        numbers // LINES_OF_AN_ACCOUNT,
        numbers % LINES_OF_AN_ACCOUNT,
        random.integers(0, 10**6, rows),
        random.integers(0, 10**12, rows),
        with_gaps(pd.Series(1_000 * random.random(rows))),
        with_gaps(pd.Series(texts(), dtype="str")),
        pd.Series(texts(), dtype="str"),
        pd.Series(np.datetime64("2026-01-01T00:00:00.000000") + seconds),
    ]
    return pd.DataFrame(dict(zip(COLUMNS, columns, strict=True)))


def tuples(frame: "pd.DataFrame", *constants: str) -> Iterator[tuple[Any, ...]]:
    """Yield the rows as sqlite3 takes them, the constants before each."""
    values: list[list[Any]] = []
    for name in COLUMNS:
        column: pd.Series[Any] = frame[name]
        if name == "at":
            values.append(column.dt.strftime("%Y-%m-%d %H:%M:%S.%f").tolist())
        else:
            values.append([None if value != value else value for value in column.tolist()])
    return zip(*map(itertools.repeat, constants), *values, strict=False)


def make_source(path: Path, *, rows: int, tenant: str) -> None:
    """Write the rows of one tenant to a table ``lines`` of a new SQLite file."""
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(TABLE)
        connection.executemany(
            f"INSERT INTO lines VALUES ({', '.join('?' * (len(COLUMNS) + 2))})",
            tuples(make_frame(rows), tenant, "1"),
        )
        connection.commit()
