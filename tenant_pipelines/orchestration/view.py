"""Keeps what Dagster shows equal to what the journals say, from inside a run.

The rules are those of the README's section on the UI: a failed run turns every planned key without
a materialization of its own red, so done cells are restated (an event with the original data
version, no work done); a run without planned keys leaves failed cells as they were, so it plans
them before it fails.
"""

from collections.abc import Collection, Iterator
from typing import Any

from dagster import AssetMaterialization, MetadataValue

from tenant_pipelines.engine.plan import done_steps
from tenant_pipelines.engine.work import CellCompleted, ShardReport
from tenant_pipelines.fleet.model import Fleet
from tenant_pipelines.journal.fold import CellState, fold_tenant
from tenant_pipelines.journal.journal import Journal
from tenant_pipelines.orchestration import names
from tenant_pipelines.orchestration.dagster_internals import KeyColours

_UNREACHED = " (the run was stopped, or a newer cycle was opened meanwhile)"


def materialization(fleet: str, event: CellCompleted) -> AssetMaterialization:
    """Return the event that stands for a cell this run completed."""
    attempt, output = event.attempt, event.output
    return _materialization(
        fleet,
        shard=attempt.shard,
        step=attempt.step,
        tenant=attempt.tenant,
        digest=output.digest,
        code_version=event.code_version,
        metadata={
            "cycle": attempt.cycle,
            "generation": attempt.generation,
            "attempt": attempt.attempt,
            "rows": output.rows,
            "accounted_rows": output.accounted,
            "bytes": output.size_bytes,
            "seconds": event.seconds,
            "digest": output.digest,
            "artifact": output.path,
        },
    )


def restatement(
    fleet: str, *, shard: str, cycle: str, tenant: str, step: str, cell: CellState
) -> AssetMaterialization:
    """Return the event that says again, with its original data version, that a cell is done."""
    output = cell.output or {}
    return _materialization(
        fleet,
        shard=shard,
        step=step,
        tenant=tenant,
        digest=str(cell.digest),
        code_version=cell.code_version,
        metadata={
            "reused": True,
            "cycle": cycle,
            "generation": cell.generation,
            "attempt": cell.attempts,
            "rows": output.get("rows"),
            "accounted_rows": output.get("accounted"),
            "bytes": output.get("bytes"),
            "seconds": cell.seconds,
            "digest": cell.digest,
            "completed_at": cell.at,
            "completed_by": cell.run_id,
        },
    )


def _materialization(
    fleet: str,
    *,
    shard: str,
    step: str,
    tenant: str,
    digest: str,
    code_version: str,
    metadata: dict[str, Any],
) -> AssetMaterialization:
    tags = {names.DATA_VERSION_TAG: digest}
    if code_version:
        tags[names.CODE_VERSION_TAG] = code_version
    shown: dict[str, Any] = {}
    for name, value in metadata.items():
        if isinstance(value, float):
            shown[name] = MetadataValue.float(round(value, 6))
        elif value is not None:
            shown[name] = value
    return AssetMaterialization(
        asset_key=names.asset_key(fleet, shard, step),
        partition=tenant,
        metadata=shown,
        tags=tags,
    )


def cells_to_restate(
    fleet: Fleet,
    journal: Journal,
    *,
    cycle: str,
    tenants: Collection[str],
    steps: Collection[str],
    logged: Collection[tuple[str, str]],
    colours: dict[str, KeyColours] | None,
) -> Iterator[tuple[str, str, CellState]]:
    """Yield the done cells that need an event of this run, as (tenant, step, state).

    Args:
        fleet: the fleet.
        journal: the shard's journal.
        cycle: the run's cycle.
        tenants: the tenants that the run was asked for.
        steps: the steps that the run was asked for.
        logged: (tenant, step) of the materializations that this run logged itself.
        colours: what Dagster shows, by step; only cells that it shows wrongly are yielded. None
            yields every done cell.
    """
    asked = set(tenants)
    for tenant, entries in journal.by_tenant(cycle):
        if tenant not in asked:
            continue
        state = fold_tenant(entries)
        done = done_steps(fleet.pipeline, state)
        for step in fleet.pipeline.names:
            if step not in steps or step not in done or (tenant, step) in logged:
                continue
            if colours is not None:
                shown = colours[step]
                if tenant in shown.materialized and tenant not in shown.failed:
                    continue
            yield tenant, step, state.cell(step)


def keys_not_done(report: ShardReport) -> list[tuple[str, str]]:
    """Return (tenant, step) of the cells that a failing run has to show red."""
    failed = [(cell.tenant, step) for cell in report.failed for step in (cell.step, *cell.blocked)]
    return failed + [(cell.tenant, cell.step) for cell in report.held]


def summary(report: ShardReport, *, limit: int = 20) -> str:
    """Return what a person reads about a shard's run: counts, then what is not done and why."""
    lines = [
        f"shard {report.shard}, cycle {report.cycle}: {report.ran} ran, {report.skipped} skipped, "
        f"{len(report.failed)} failed, {len(report.held)} held"
        + (f", {report.unreached} not reached{_UNREACHED}" if report.unreached else "")
    ]
    for failure in report.failed[:limit]:
        blocked = f" (blocked: {', '.join(failure.blocked)})" if failure.blocked else ""
        lines.append(
            f"{failure.tenant}:{failure.step} failed{blocked}: "
            f"{failure.error['type']}: {failure.error['message'][:300]}"
        )
    lines += [
        f"{cell.tenant}:{cell.step} held: {cell.reason.value}"
        + (f": {cell.detail}" if cell.detail else "")
        for cell in report.held[:limit]
    ]
    more = max(0, len(report.failed) - limit) + max(0, len(report.held) - limit)
    if more:
        lines.append(f"… and {more} more; tenant-pipelines status shows all")
    return "\n".join(lines)
