"""What a chain does once it has its tenant's lease, before its first cell: look, clean, settle."""

import logging

from tenant_pipelines.engine.window import open_window
from tenant_pipelines.engine.work import ShardWork
from tenant_pipelines.errors import LedgerDisagrees
from tenant_pipelines.fleet.context import Window
from tenant_pipelines.journal.entries import Draft, EntryKind
from tenant_pipelines.journal.fold import Outcome, TenantState, fold_tenant
from tenant_pipelines.storage.engines import shown
from tenant_pipelines.storage.ledger import LedgerRow

_log = logging.getLogger(__name__)

_UNENDED = frozenset({Outcome.STARTED, Outcome.FAILED})


def read_what_others_wrote(work: ShardWork, tenant: str, state: TenantState) -> None:
    """Bring the state up to date: another process may have worked on the tenant meanwhile."""
    cycle = work.cycle.name
    state.apply(work.journal.of_tenant(cycle=cycle, tenant=tenant, after_seq=state.last_seq))


def collect_leftovers(work: ShardWork, tenant: str, state: TenantState) -> None:
    """Delete artifacts that no entry names, when an attempt ended without saying so."""
    if not any(cell.outcome in _UNENDED for cell in state.cells.values()):
        return
    named = {entry.payload["output"]["path"] for entry in work.journal.completions_of(tenant)}
    try:
        work.store.collect(tenant=tenant, keep=named - {None})
    except OSError as error:
        # a leftover costs space and nothing else; the next unended attempt tries again
        _log.warning("engine.leftovers_kept", extra={"tenant": tenant, "error": str(error)})


def effects_to_settle(work: ShardWork, tenant: str, state: TenantState) -> list[LedgerRow]:
    """Return the loads that took effect before a crash could journal them.

    Raises:
        LedgerDisagrees: a load took effect that the journal does not know: one was damaged.
    """
    found: list[LedgerRow] = []
    if work.ledger is None:
        return found
    newest = work.ledger.newest(tenant)
    if newest is None:
        return found
    if newest.cycle != work.cycle.name:
        opened = {entry.cycle for entry in work.journal.cycle_entries()}
        if newest.cycle not in opened:
            raise _unknown_effect(work, newest)
    for row in work.ledger.settled(tenant=tenant, cycle=work.cycle.name):
        if row.step not in work.fleet.pipeline.names:
            continue  # of a step that the pipeline had once
        cell = state.cell(row.step)
        never_started = row.generation == cell.generation and cell.attempts == 0
        if row.generation > cell.generation or never_started:
            raise _unknown_effect(work, row)
        if row.generation == cell.generation and cell.outcome in _UNENDED:
            found.append(row)
    return found


def _unknown_effect(work: ShardWork, row: LedgerRow) -> LedgerDisagrees:
    return LedgerDisagrees(
        warehouse=shown(work.fleet.warehouse or ""),
        shard=work.shard.name,
        tenant=row.tenant,
        step=row.step,
        cycle=row.cycle,
        generation=row.generation,
        found="a load took effect that the journal does not know",
    )


def find_window(work: ShardWork, tenant: str) -> Window:
    """Return the tenant's window of this cycle, its end still open; see ``open_window``."""
    pipeline, cycle = work.fleet.pipeline, work.cycle.name
    if work.ledger is None:
        return Window(after=None, to=None)
    before = work.journal.cycle_before(cycle, tenant=tenant, steps=pipeline.every_name)
    previous, settled = TenantState(), list[LedgerRow]()
    if before is not None:
        previous = fold_tenant(work.journal.of_tenant(cycle=before, tenant=tenant))
        settled = work.ledger.settled(tenant=tenant, cycle=before)
    tables = {load.name: load.target.table for load in pipeline.loads if load.target}
    committed = work.ledger.cursors(tenant, tables)
    return open_window(
        pipeline, committed=committed, before=before, previous=previous, settled=settled
    )


def open_forced(work: ShardWork, tenant: str, state: TenantState) -> None:
    """Open a new generation of each cell that the run forces, once per root run."""
    drafts = []
    for step in work.fleet.pipeline.steps:
        cell = state.cell(step.name)
        if not work.request.forces(step.name, cell):
            continue
        drafts.append(
            Draft(
                kind=EntryKind.FORCED,
                cycle=work.cycle.name,
                run_id=work.run_id,
                tenant=tenant,
                step=step.name,
                generation=cell.generation + 1,
                payload={"root": work.request.root},
            )
        )
    work.journal.append(*drafts)
    for draft in drafts:
        state.apply_one(draft)
