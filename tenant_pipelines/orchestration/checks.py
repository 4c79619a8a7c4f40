"""The asset checks of a shard: every tenant is done, and no extracted row is lost.

They are on the shard's last step. Its op reports them before it fails, since a check downstream of
a failed op does not run; the caretaker reports them where no run could.
"""

import hashlib
import os
from collections.abc import Mapping, Sequence
from datetime import datetime

from dagster import (
    AssetCheckEvaluation,
    AssetCheckResult,
    AssetCheckSpec,
    DagsterInstance,
    MetadataValue,
    OpExecutionContext,
    TableColumn,
    TableRecord,
    TableSchema,
)

from tenant_pipelines.engine.completeness import accounted_rows, late_cells
from tenant_pipelines.engine.cycles import newest_cycle
from tenant_pipelines.engine.overview import FleetReader
from tenant_pipelines.engine.plan import Request
from tenant_pipelines.fleet.model import Fleet
from tenant_pipelines.journal.entries import instant
from tenant_pipelines.journal.fold import Cycle, cycles_of
from tenant_pipelines.journal.journal import Journal
from tenant_pipelines.orchestration import names
from tenant_pipelines.orchestration.dagster_internals import newest_check, report_check

_MOST_ROWS = 100
_MOST_DESCRIBED = 5
_FINGERPRINT = "fingerprint"


def check_specs(fleet: Fleet, shard: str) -> list[AssetCheckSpec]:
    """Return the checks of a shard, on its last step's asset."""
    asset = names.asset_key(fleet.name, shard, fleet.pipeline.names[-1])
    return [
        AssetCheckSpec(
            names.COMPLETE_CHECK,
            asset=asset,
            description="Every tenant is done in the newest cycle, and not longer ago than "
            "stale_after of the fleet file.",
        ),
        AssetCheckSpec(
            names.ROWS_CHECK,
            asset=asset,
            description="Of each tenant, the rows that a step accounted for (ctx.account) are "
            "those that were extracted.",
        ),
    ]


def evaluate_checks(
    fleet: Fleet, shard: str, *, cycle: Cycle | None = None, now: datetime
) -> list[AssetCheckEvaluation]:
    """Evaluate a shard's checks from its journal.

    Args:
        fleet: the fleet.
        shard: name of the shard.
        cycle: the fleet's newest cycle; None for the newest that the shard knows.
        now: the present, aware.

    Raises:
        JournalUnusable: the shard's journal cannot be read.
    """
    journal = Journal.existing(fleet.journal_path(shard), fleet=fleet.name, shard=shard)
    if cycle is None and journal is not None:
        cycle = newest_cycle(cycles_of(journal.cycle_entries()))
    view = FleetReader(fleet, environ=os.environ, cycle=cycle).shard(shard, Request(root=""))
    if view.damage is not None:
        raise view.damage
    oldest = instant(now - fleet.stale_after) if fleet.stale_after is not None else None
    asked: dict[str, Mapping[str, str]] = {}

    def last_done(tenant: str) -> Mapping[str, str]:
        # a person reads the first ones; each costs a query
        if tenant not in asked and journal is not None and len(asked) < _MOST_ROWS:
            ended = journal.completions_of(tenant)
            asked[tenant] = {entry.step: entry.at for entry in ended if not entry.item}
        return asked.get(tenant, {})

    try:
        late = late_cells(view.cells, last_done=last_done, oldest=oldest)
    finally:
        if journal is not None:
            journal.close()
    last_step = names.asset_key(fleet.name, shard, fleet.pipeline.names[-1])
    steps: dict[str, list[str]] = {}
    for cell in late:
        steps.setdefault(cell.tenant, []).append(cell.step)
    every = len(fleet.shard(shard).tenants)
    complete = AssetCheckEvaluation(
        asset_key=last_step,
        check_name=names.COMPLETE_CHECK,
        passed=not late,
        description=_late_said(steps, every),
        metadata={
            "cycle": view.cycle or "none",
            "tenants": every,
            "late_tenants": len(steps),
            "late_cells": len(late),
            "late": _table(
                ("tenant", "step", "reason", "age"),
                [(c.tenant, c.step, c.reason, _age(c.last_done_at, now)) for c in late],
            ),
            _FINGERPRINT: _fingerprint(view.cycle, (every, late)),
        },
    )
    counted = accounted_rows(fleet.pipeline, view.cells)
    wrong = [one for one in counted if one.extracted != one.accounted]
    rows = AssetCheckEvaluation(
        asset_key=last_step,
        check_name=names.ROWS_CHECK,
        passed=not wrong,
        description=_rows_said(len(counted), len(wrong)),
        metadata={
            "cycle": view.cycle or "none",
            "tenants": len(counted),
            "extracted_rows": sum(one.extracted for one in counted),
            "accounted_rows": sum(one.accounted for one in counted),
            "differing": _table(
                ("tenant", "extracted", "accounted"),
                [(one.tenant, str(one.extracted), str(one.accounted)) for one in wrong],
            ),
            _FINGERPRINT: _fingerprint(view.cycle, counted),
        },
    )
    return [complete, rows]


def _late_said(steps: Mapping[str, Sequence[str]], every: int) -> str:
    if not steps:
        return f"all {every} tenants done"
    said = [f"{tenant}: {', '.join(late)}" for tenant, late in steps.items()]
    more = "; …" if len(said) > _MOST_DESCRIBED else ""
    return f"{len(steps)} of {every} tenants late: {'; '.join(said[:_MOST_DESCRIBED])}{more}"


def _rows_said(counted: int, wrong: int) -> str:
    if not counted:
        return "no step called ctx.account(rows=…) for a tenant that is done: nothing to compare"
    return f"{wrong} of {counted} tenants differ" if wrong else f"right for {counted} tenants"


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> MetadataValue:
    return MetadataValue.table(
        [TableRecord(dict(zip(columns, row, strict=True))) for row in rows[:_MOST_ROWS]],
        schema=TableSchema([TableColumn(name) for name in columns]),
    )


def _age(at: str, now: datetime) -> str:
    """Return how long ago a cell was done last, for people."""
    if not at:
        return "never done"
    minutes = int((now - datetime.fromisoformat(at)).total_seconds() // 60)
    if minutes < 120:
        return f"{minutes} min"
    return f"{minutes // 60} h" if minutes < 48 * 60 else f"{minutes // 1440} d"


def _fingerprint(cycle: str | None, found: object) -> str:
    """Return the same text for the same finding, whatever time has passed since."""
    return hashlib.sha256(repr((cycle, found)).encode()).hexdigest()[:16]


def result_of(evaluation: AssetCheckEvaluation) -> AssetCheckResult:
    """Return an evaluation as what an op yields for a check that its run selected."""
    return AssetCheckResult(
        asset_key=evaluation.asset_key,
        check_name=evaluation.check_name,
        passed=evaluation.passed,
        description=evaluation.description,
        metadata=evaluation.metadata,
    )


def log_check(context: OpExecutionContext, evaluation: AssetCheckEvaluation) -> None:
    """Log an evaluation as an event of a run that did not select the check."""
    # it takes every event of a user's; its annotation names only some
    context.log_event(evaluation)  # type: ignore[arg-type]


def report_checks(
    instance: DagsterInstance,
    fleet: Fleet,
    shard: str,
    *,
    cycle: Cycle | None = None,
    now: datetime,
) -> int:
    """Report the checks of a shard that Dagster does not show as they are; return how many.

    Args:
        instance: the Dagster instance.
        fleet: the fleet.
        shard: name of the shard.
        cycle: see ``evaluate_checks``.
        now: the present, aware.

    Raises:
        JournalUnusable: the shard's journal cannot be read.
    """
    return sum(
        report_hidden(instance, evaluation)
        for evaluation in evaluate_checks(fleet, shard, cycle=cycle, now=now)
    )


def report_hidden(instance: DagsterInstance, evaluation: AssetCheckEvaluation) -> bool:
    """Report an evaluation unless Dagster shows it; tell whether that was needed.

    An op needs it too: Dagster keeps a run's result where it planned it, when the run was made, so
    that whatever anybody reported since hides it.
    """
    shown = newest_check(instance, evaluation.asset_key, evaluation.check_name)
    is_hidden = shown is None or _told(shown) != _told(evaluation)
    if is_hidden:
        report_check(instance, evaluation)
    return is_hidden


def _told(evaluation: AssetCheckEvaluation) -> tuple[bool, object]:
    fingerprint = evaluation.metadata.get(_FINGERPRINT)
    return evaluation.passed, fingerprint.value if fingerprint is not None else None
