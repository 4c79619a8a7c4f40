"""What a fleet looks like: state, plan and reason of every asked-for cell, read without writing.

Needs no secrets and no Dagster. A cell is running when a live process holds its tenant's lease.
"""

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import NamedTuple

from tenant_pipelines.engine.cycles import cycle_to_open, known_cycles, newest_cycle
from tenant_pipelines.engine.leases import TenantLeases
from tenant_pipelines.engine.plan import Action, PlannedCell, Reason, Request, plan_tenant
from tenant_pipelines.engine.ports import has_artifact
from tenant_pipelines.engine.runner import as_spent, find_moved, hold_reason, read_histories
from tenant_pipelines.errors import JournalUnusable, TenantMoved, TenantSettingMissing
from tenant_pipelines.fleet.model import Fleet, Shard
from tenant_pipelines.fleet.settings import resolve_settings
from tenant_pipelines.journal.entries import Entry
from tenant_pipelines.journal.fold import CellState, Cycle, Outcome, TenantState, fold_tenant
from tenant_pipelines.journal.journal import Journal
from tenant_pipelines.storage.artifacts import ArtifactStore


class State(StrEnum):
    """How a cell stands, for people."""

    COMPLETED = "completed"
    FAILED = "failed"
    INTERRUPTED = "interrupted"
    RUNNING = "running"
    MISSING = "missing"
    HELD = "held"


class ShardStatus(StrEnum):
    """How a shard stands in the newest cycle."""

    COMPLETED = "completed"
    PARTIAL_FAILURE = "partial_failure"
    INCOMPLETE = "incomplete"
    NOT_STARTED = "not_started"
    DAMAGED = "damaged"


class CellView(NamedTuple):
    """One asked-for cell: how it stands, what a run would do with it, and why."""

    tenant: str
    step: str
    state: State
    action: Action
    reason: Reason
    cell: CellState
    detail: str = ""


@dataclass(slots=True, kw_only=True)
class ShardView:
    """One shard in the fleet's newest cycle.

    Attributes:
        shard: name of the shard.
        cycle: the fleet's newest cycle; None when there is none.
        cells: asked-for cells, tenant by tenant in the fleet file's order.
        damage: why the journal cannot be used, None when it can.
        lags: whether the shard has not opened the cycle yet.
    """

    shard: str
    cycle: str | None
    cells: list[CellView] = field(default_factory=list)
    damage: JournalUnusable | None = None
    lags: bool = True

    @property
    def status(self) -> ShardStatus:
        """The shard's status, by its asked-for cells."""
        if self.damage is not None:
            return ShardStatus.DAMAGED
        if all(cell.action is Action.SKIP and cell.reason is Reason.DONE for cell in self.cells):
            return ShardStatus.COMPLETED
        states = {cell.state for cell in self.cells}
        if states & {State.FAILED, State.INTERRUPTED}:
            return ShardStatus.PARTIAL_FAILURE
        return ShardStatus.NOT_STARTED if states == {State.MISSING} else ShardStatus.INCOMPLETE

    @property
    def has_work(self) -> bool:
        """Whether a run has anything to do or to say here."""
        return self.damage is not None or any(cell.reason is not Reason.DONE for cell in self.cells)


class FleetReader:
    """Reads the shards of a fleet; creates nothing."""

    def __init__(
        self, fleet: Fleet, *, environ: Mapping[str, str], cycle: Cycle | None = None
    ) -> None:
        """Find the fleet's newest cycle.

        Args:
            fleet: the fleet.
            environ: for ``${…}`` in settings; an unset one shows as held.
            cycle: the newest cycle, from a caller who knows it; None reads every journal for it.
        """
        self.fleet = fleet
        self._environ = environ
        self._store = ArtifactStore(fleet.artifacts)
        self._known: list[Cycle] = [cycle] if cycle is not None else []
        self.unusable: dict[str, JournalUnusable] = {}
        if cycle is None:
            self._known, self.unusable = known_cycles(fleet)
        self.cycle: Cycle | None = newest_cycle(self._known)

    @functools.cached_property
    def _histories(self) -> dict[str, str]:
        return read_histories(self.fleet)

    def opens_cycle(self, asked: str | None, *, root: str) -> bool:
        """Tell whether a run that asks for a new cycle opens one, and does not resume it.

        Raises:
            InvalidRequest: see ``cycle_to_open``; told before anything starts.
        """
        now = datetime.now(UTC)
        cycle = cycle_to_open(self._known, asked=asked, root=root, now=now)
        return all(known.name != cycle.name for known in self._known)

    def shard(
        self,
        name: str,
        request: Request,
        *,
        notice: Callable[[Entry], None] | None = None,
        new_cycle: bool = False,
    ) -> ShardView:
        """Read one shard.

        Args:
            name: the shard.
            request: which cells, and whether they are forced.
            notice: called with each entry of the newest cycle; without it fewer are read.
            new_cycle: show what a run would do after opening a new cycle: everything.
        """
        shard = self.fleet.shard(name)
        view = ShardView(shard=name, cycle=self.cycle.name if self.cycle else None)
        try:
            if name in self.unusable:
                raise self.unusable[name]
            path = self.fleet.journal_path(name)
            journal = Journal.existing(path, fleet=self.fleet.name, shard=name)
            if journal is None:
                view.cells = list(self._cells(shard, request, None, {}))
                return view
            with journal:
                states: dict[str, TenantState] = {}
                if self.cycle is not None and not new_cycle:
                    request = as_spent(request, journal, self.cycle.name)
                    view.lags = self.cycle.name not in {
                        entry.cycle for entry in journal.cycle_entries()
                    }
                    read = journal.by_tenant if notice else journal.outcomes_by_tenant
                    for tenant, entries in read(self.cycle.name):
                        states[tenant] = fold_tenant(entries)
                        if notice is not None:
                            for entry in entries:
                                notice(entry)
                view.cells = list(self._cells(shard, request, journal, states))
        except JournalUnusable as error:
            view.damage = error
        return view

    def _cells(
        self,
        shard: Shard,
        request: Request,
        journal: Journal | None,
        states: Mapping[str, TenantState],
    ) -> Iterator[CellView]:
        asked = request.asked_tenants(shard.tenants)
        strangers = [name for name in asked if name not in states]
        moved = find_moved(shard, journal, strangers, lambda: self._histories)
        leases = TenantLeases(self.fleet.shard_state(shard.name) / "locks", query_only=True)
        plan = functools.partial(
            plan_tenant,
            self.fleet.pipeline,
            request=request,
            has_artifact=functools.partial(has_artifact, self._store),
        )
        for tenant in asked:
            state = states.get(tenant) or TenantState()
            started = any(cell.outcome is Outcome.STARTED for cell in state.cells.values())
            is_leased = started and leases.is_leased(tenant)
            cells = plan(state, is_leased=is_leased)
            hold, detail = None, ""
            # nothing of a done tenant can be held
            if any(cell.action is not Action.SKIP for cell in cells):
                hold, detail = self._hold(shard, tenant, moved)
                if hold is not None:
                    cells = plan(state, is_leased=is_leased, hold=hold)
            for planned in cells:
                cell = state.cell(planned.step)
                yield CellView(
                    tenant=tenant,
                    step=planned.step,
                    state=_state(planned, cell),
                    action=planned.action,
                    reason=planned.reason,
                    cell=cell,
                    detail=detail if planned.reason is hold else "",
                )
        leases.close()

    def _hold(
        self, shard: Shard, tenant: str, moved: Mapping[str, TenantMoved]
    ) -> tuple[Reason | None, str]:
        try:
            if tenant in moved:
                raise moved[tenant]
            resolve_settings(self.fleet.path, shard.tenants[tenant], self._environ)
        except (TenantSettingMissing, TenantMoved) as error:
            return hold_reason(error), str(error)
        return None, ""


def _state(planned: PlannedCell, cell: CellState) -> State:
    if planned.reason is Reason.RUNNING:
        return State.RUNNING
    match cell.outcome:
        case Outcome.COMPLETED:
            return State.COMPLETED
        case Outcome.FAILED:
            return State.FAILED
        case Outcome.STARTED:
            return State.INTERRUPTED
        case Outcome.MISSING:
            return State.HELD if planned.action is Action.HOLD else State.MISSING
