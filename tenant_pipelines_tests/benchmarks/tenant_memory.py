"""What one large tenant needs: peak resident memory of extract, transform and load in one process.

Each number is of a fresh process that runs a tenant with few rows, which imports everything, notes
what it holds then, runs the large one and reads ``VmHWM`` (see ``memory``). The floor is the
largest DataFrame as pandas counts it, ``memory_usage(deep=True)``, in the same process.
"""

import multiprocessing
import tempfile
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING

from tenant_pipelines.fleet.context import StepContext
from tenant_pipelines.fleet.model import Fleet
from tenant_pipelines.fleet.pipeline import Step, step
from tenant_pipelines.storage.sql_source import sql_extract
from tenant_pipelines.storage.sql_warehouse import sql_load
from tenant_pipelines_tests.benchmarks import lines
from tenant_pipelines_tests.benchmarks.memory import status_mib
from tenant_pipelines_tests.benchmarks.report import Contestant, Measurement, Target, compare
from tenant_pipelines_tests.benchmarks.trivial import Ran, begin, run_shard
from tenant_pipelines_tests.engine.fleets import make_fleet

if TYPE_CHECKING:
    import pandas as pd

_TENANT = "acme"


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What a process held, in MiB.

    Attributes:
        grown: peak resident memory over that after the imports.
        artifact: the largest DataFrame that a step returned.
    """

    grown: float
    artifact: float


def _steps(source: Path, sizes: list[int]) -> tuple[Step, Step, Step]:
    @step
    def transform(ctx: StepContext, extract: "pd.DataFrame") -> "pd.DataFrame":
        changed = extract.assign(units=extract["units"] + 1, amount=extract["amount"] * 2)
        sizes.extend(int(frame.memory_usage(deep=True).sum()) for frame in (extract, changed))
        return changed

    return (
        sql_extract(
            source=f"sqlite:///{source}",
            table="lines",
            tenant_column="_tenant",
            columns=lines.COLUMNS,
        ),
        transform,
        sql_load(table="lines", key=lines.KEY),
    )


def _fleet(folder: Path, steps: tuple[Step, ...]) -> Fleet:
    return make_fleet(
        folder, steps, {"shard_1": [_TENANT]}, warehouse=f"sqlite:///{folder}/warehouse.db"
    )


def _run(folder: Path, small: Path, source: Path, result: Connection) -> None:
    _run_chain(folder / "small", small)  # imports everything
    before = status_mib("VmRSS")
    artifact = _run_chain(folder / "large", source)
    result.send(Held(grown=status_mib("VmHWM") - before, artifact=artifact / 2**20))


def _run_chain(folder: Path, source: Path) -> int:
    """Run the tenant; return the bytes of the largest DataFrame that its steps saw."""
    sizes: list[int] = []
    fleet = _fleet(folder, _steps(source, sizes))
    ran = Ran()
    run_shard(fleet, "shard_1", begin(fleet), ran)
    ran.check(ran=len(fleet.pipeline.steps))
    return max(sizes)


def held_by_chain(folder: Path, small: Path, source: Path) -> Held:
    """Run one tenant in a new process, after another one with few rows."""
    spawn = multiprocessing.get_context("spawn")
    here, there = spawn.Pipe(duplex=False)
    process = spawn.Process(target=_run, args=(folder, small, source, there))
    process.start()
    there.close()
    held: Held = here.recv()
    process.join()
    return held


def measure(folder: Path, *, scale: float, rounds: int) -> dict[str, Measurement]:
    """Measure one tenant of 1,000,000 rows."""
    rows = max(lines.LINES_OF_AN_ACCOUNT, round(1_000_000 * scale))
    with tempfile.TemporaryDirectory(dir=folder) as name:
        small, source = Path(name) / "small.db", Path(name) / "source.db"
        lines.make_source(small, rows=lines.LINES_OF_AN_ACCOUNT, tenant=_TENANT)
        lines.make_source(source, rows=rows, tenant=_TENANT)
        held: list[Held] = []

        def chain() -> float:
            with tempfile.TemporaryDirectory(dir=name) as state:
                held.append(held_by_chain(Path(state), small, source))
            return held[-1].grown

        chain()
        return {
            "tenant_memory": compare(
                f"peak memory of extract, transform and load of {rows:,} rows of one tenant",
                unit="MiB",
                floor=Contestant(title="its largest DataFrame", once=lambda: held[-1].artifact),
                subjects={
                    "chain": Contestant(
                        title="peak over a process that has imported everything",
                        once=chain,
                        target=Target(ratio_at_most=3),
                    )
                },
                rounds=rounds,
            )
        }
