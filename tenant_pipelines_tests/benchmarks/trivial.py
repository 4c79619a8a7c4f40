"""A fleet whose steps cost nothing, so that what is measured is the engine; and running it."""

import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tenant_pipelines.engine.cycles import open_cycle
from tenant_pipelines.engine.plan import Request
from tenant_pipelines.engine.runner import ShardRun
from tenant_pipelines.fleet.context import StepContext
from tenant_pipelines.fleet.model import Fleet
from tenant_pipelines.fleet.pipeline import step
from tenant_pipelines.journal.fold import Cycle
from tenant_pipelines.journal.journal import Journal
from tenant_pipelines.storage.artifacts import ArtifactStore
from tenant_pipelines_tests.engine.fleets import make_fleet


@step
def extract(ctx: StepContext) -> Any:
    return {"rows": 1}


@step
def transform(ctx: StepContext, extract: Any) -> Any:
    return {"rows": extract["rows"] + 1}


@step
def load(ctx: StepContext, transform: Any) -> Any:
    return {"rows": transform["rows"] + 1}


STEPS = (extract, transform, load)


def trivial_fleet(folder: Path, *, tenants: int, shards: int = 1, max_concurrent: int = 2) -> Fleet:
    """Return a fleet of ``tenants`` in all, spread over the shards."""
    return make_fleet(
        folder,
        STEPS,
        {
            f"shard_{shard}": [f"tenant-{number}" for number in range(shard, tenants, shards)]
            for shard in range(shards)
        },
        max_concurrent=max_concurrent,
    )


@dataclass(slots=True)
class Ran:
    """What became of the cells of a run, over its shards."""

    ran: int = 0
    skipped: int = 0
    problems: list[object] = field(default_factory=list)

    def check(self, *, ran: int, skipped: int = 0) -> None:
        """Refuse a measurement of anything but what was meant to happen."""
        wanted = Ran(ran=ran, skipped=skipped)
        if self != wanted:
            raise RuntimeError(f"the run did {self}, wanted {wanted}")


def begin(fleet: Fleet) -> Cycle:
    """Open the fleet's newest cycle in every journal, as the start of a run does."""
    run_id = uuid.uuid4().hex
    return open_cycle(fleet, asked=None, root=run_id, run_id=run_id)


def run_shard(fleet: Fleet, shard: str, cycle: Cycle, ran: Ran) -> float:
    """Run one shard, keeping no event; add to ``ran``.

    Returns:
        Seconds with the journal open: planning, every cell, the end of the threads.
    """
    run_id = uuid.uuid4().hex
    with Journal(fleet.journal_path(shard), fleet=fleet.name, shard=shard) as journal:
        began = time.perf_counter()
        run = ShardRun(
            fleet=fleet,
            shard=shard,
            journal=journal,
            store=ArtifactStore(fleet.artifacts),
            cycle=cycle,
            run_id=run_id,
            request=Request(root=run_id),
            environ={},
        )
        for _ in run.events():
            pass
        seconds = time.perf_counter() - began
    ran.ran += run.report.ran
    ran.skipped += run.report.skipped
    ran.problems += [*run.report.failed, *run.report.held]
    return seconds


def run_fleet(fleet: Fleet) -> Ran:
    """Run every shard in this process, one after another, the opening of the cycle included."""
    ran = Ran()
    cycle = begin(fleet)
    for shard in fleet.shards:
        run_shard(fleet, shard, cycle, ran)
    return ran
