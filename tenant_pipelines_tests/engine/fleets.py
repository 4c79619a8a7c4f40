"""Small fleets for tests: steps defined in the test, state in its temporary folder."""

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tenant_pipelines.engine.cycles import open_cycle
from tenant_pipelines.engine.plan import Request
from tenant_pipelines.engine.ports import CellStore
from tenant_pipelines.engine.runner import ShardRun
from tenant_pipelines.engine.work import CellCompleted, CellEvent, ShardReport
from tenant_pipelines.fleet.model import Fleet, Limits, Shard, Tenant
from tenant_pipelines.fleet.pipeline import Pipeline, Step
from tenant_pipelines.journal.fold import CellState, fold_tenant
from tenant_pipelines.journal.journal import Journal
from tenant_pipelines.storage.artifacts import ArtifactStore


def make_fleet(
    folder: Path,
    steps: Iterable[Step],
    shards: Mapping[str, Sequence[str | Tenant]],
    *,
    max_concurrent: int = 2,
    warehouse: str | None = None,
) -> Fleet:
    """Return a fleet whose state is below ``folder``."""
    return Fleet(
        name="fleet",
        path=folder / "fleet.yaml",
        pipeline=Pipeline(steps),
        shards={
            name: Shard(
                name=name,
                tenants={
                    tenant.name: tenant
                    for tenant in (
                        Tenant(name=entry) if isinstance(entry, str) else entry for entry in tenants
                    )
                },
                limits=Limits(max_concurrent=max_concurrent),
            )
            for name, tenants in shards.items()
        },
        state=folder / "state",
        warehouse=warehouse,
        artifacts=str(folder / "state" / "artifacts"),
    )


@dataclass(slots=True)
class Ran:
    """What one run in one shard did."""

    report: ShardReport
    events: list[CellEvent] = field(default_factory=list)

    @property
    def cells(self) -> list[tuple[str, str]]:
        """(tenant, step) of the completed cells, sorted."""
        return sorted(
            (event.attempt.tenant, event.attempt.step)
            for event in self.events
            if isinstance(event, CellCompleted)
        )


def run_shard(
    fleet: Fleet,
    shard: str = "a",
    *,
    store: CellStore | None = None,
    environ: Mapping[str, str] | None = None,
    new_cycle: str | None = None,
    root: str | None = None,
    **request: Any,
) -> Ran:
    """Run one shard to its end in this process."""
    run_id = root or uuid.uuid4().hex
    cycle = open_cycle(fleet, asked=new_cycle, root=run_id, run_id=run_id)
    with Journal(fleet.journal_path(shard), fleet=fleet.name, shard=shard) as journal:
        run = ShardRun(
            fleet=fleet,
            shard=shard,
            journal=journal,
            store=store or ArtifactStore(fleet.artifacts),
            cycle=cycle,
            run_id=run_id,
            request=Request(root=run_id, **request),
            environ=environ or {},
        )
        events = list(run.events())
    return Ran(run.report, events)


def cell_states(fleet: Fleet, shard: str = "a", *, cycle: str = "1") -> dict[str, CellState]:
    """Return every cell's state as ``tenant:step``."""
    with Journal(fleet.journal_path(shard), fleet=fleet.name, shard=shard) as journal:
        return {
            f"{tenant}:{step}": cell
            for tenant, entries in journal.by_tenant(cycle)
            for step, cell in fold_tenant(entries).cells.items()
        }
