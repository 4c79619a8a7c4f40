"""``sql_load`` of one large DataFrame beside sqlite3's own executemany of the same rows.

The floor gets its rows as Python tuples, made before and not counted, and writes them into the
same table of a file with the same PRAGMAs in one transaction: no check, no ledger, no cursor.
"""

import functools
import sqlite3
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from tenant_pipelines.fleet.pipeline import Step
from tenant_pipelines.storage.sql_warehouse import sql_load
from tenant_pipelines_tests.benchmarks import lines
from tenant_pipelines_tests.benchmarks.report import Contestant, Measurement, Target, compare
from tenant_pipelines_tests.storage.cells import context

_TENANT, _CYCLE = "acme", "1"


def measure(folder: Path, *, scale: float, rounds: int) -> dict[str, Measurement]:
    """Measure the load of 1,000,000 rows, and loads that first delete what is there."""
    rows = max(lines.LINES_OF_AN_ACCOUNT, round(1_000_000 * scale))
    frame = lines.make_frame(rows)
    tuples = list(lines.tuples(frame, _TENANT, _CYCLE))
    # by whole groups that the second half of the rows touches, and by everything of the tenant
    loads = {
        groups: sql_load(table="lines", key=lines.KEY, replaces=groups)
        for groups in (None, ("account",), ())
    }

    kept: list[sqlite3.Connection] = []

    def rows_per_second(write: Callable[[Path], None], before: Callable[[Path], None]) -> float:
        with tempfile.TemporaryDirectory(dir=folder) as name:
            before(Path(name))
            began = time.perf_counter()
            write(Path(name))
            seconds = time.perf_counter() - began
            while kept:
                kept.pop().close()
            with closing(sqlite3.connect(Path(name) / "warehouse.db")) as connection:
                (found,) = connection.execute("SELECT count(*) FROM lines").fetchone()
        if found != rows:
            raise RuntimeError(f"{found} rows in the table, wanted {rows}")
        return rows / seconds

    def raw(state: Path) -> None:
        connection = sqlite3.connect(state / "warehouse.db", isolation_level=None)
        kept.append(connection)  # as sql_load keeps its own
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("BEGIN IMMEDIATE")
        connection.execute(lines.TABLE)
        connection.executemany(
            f"INSERT INTO lines VALUES ({', '.join('?' * len(tuples[0]))})", tuples
        )
        connection.execute("COMMIT")

    def load(step: Step, state: Path, *, cycle: str = _CYCLE, generation: int = 1) -> None:
        step(context(state, cycle=cycle, generation=generation), transform=frame)

    def again(title: str, step: Step, *, cycle: str = _CYCLE, generation: int = 1) -> Contestant:
        """Load what another load of the same rows has left to delete."""
        return Contestant(
            title=title,
            once=lambda: rows_per_second(
                functools.partial(load, step, cycle=cycle, generation=generation),
                functools.partial(load, step),
            ),
        )

    return {
        "load": compare(
            f"load of {rows:,} rows of {len(lines.COLUMNS)} columns into SQLite",
            unit="rows/s",
            floor=Contestant(
                title="sqlite3 alone: executemany, one transaction",
                once=lambda: rows_per_second(raw, lambda _: None),
            ),
            subjects={
                "first": Contestant(
                    title="sql_load into a new table",
                    once=lambda: rows_per_second(
                        functools.partial(load, loads[None]), lambda _: None
                    ),
                    target=Target(ratio_at_least=0.5),
                ),
                "generation": again(
                    "sql_load of the next generation: delete, insert", loads[None], generation=2
                ),
                "merge": again(
                    "sql_load in the next cycle: every key known", loads[None], cycle="2"
                ),
                "replaces_groups": again(
                    f"sql_load(replaces=[account]): {rows // lines.LINES_OF_AN_ACCOUNT:,} groups",
                    loads["account",],
                    cycle="2",
                ),
                "replaces_all": again("sql_load(replaces=[])", loads[()], cycle="2"),
            },
            rounds=rounds,
        )
    }
