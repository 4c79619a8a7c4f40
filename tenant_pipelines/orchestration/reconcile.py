"""Brings what Dagster shows of a shard back to what its journal says, from outside of any run.

A run that ends by itself does this on its way out (view.py); a killed one cannot. Nothing is read
from the run that died but what it was asked for. Every change is made under its tenant's lease,
from a fresh look at the journal, so that a run at work is never contradicted: a tenant whose lease
is taken is left to its run. A crash in between is harmless, since only what is still shown wrongly
is changed, by whoever looks next.
"""

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping, Set
from dataclasses import dataclass
from datetime import UTC, datetime

from dagster import DagsterInstance, DagsterRun, DagsterRunStatus

from tenant_pipelines.engine.cycles import newest_cycle
from tenant_pipelines.engine.leases import TenantLeases
from tenant_pipelines.engine.plan import Request, done_steps
from tenant_pipelines.engine.run_locks import DeadRun, dead_runs, forget
from tenant_pipelines.errors import TenantPipelinesError
from tenant_pipelines.fleet.model import Fleet
from tenant_pipelines.fleet.pipeline import Pipeline
from tenant_pipelines.journal.entries import instant
from tenant_pipelines.journal.fold import Cycle, Outcome, TenantState, cycles_of, fold_tenant
from tenant_pipelines.journal.journal import Journal
from tenant_pipelines.orchestration import names
from tenant_pipelines.orchestration.dagster_internals import KeyColours, colours_of, log_planned
from tenant_pipelines.orchestration.instance import end_dead_runs
from tenant_pipelines.orchestration.request import asked_without_keys, root_of, steps_asked
from tenant_pipelines.orchestration.run_targets import shards_of
from tenant_pipelines.orchestration.view import restatement


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconciled:
    """What one look at a shard changed.

    Attributes:
        shard: name of the shard.
        green: done cells that Dagster did not show done, and does now.
        red: cells left undone by their newest run that Dagster did not show failed, and does now.
        left: cells that are still shown wrongly, for the next look.
        busy: tenants that a run works on, and that were left to it.
    """

    shard: str
    green: int = 0
    red: int = 0
    left: int = 0
    busy: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Mended:
    """What ``mend`` did.

    Attributes:
        ended: ids of the dead runs that were marked failed.
        reconciled: the shards in which a run had died.
        unusable: shards whose journal cannot be read, and why; they are left as they are.
    """

    ended: tuple[str, ...] = ()
    reconciled: tuple[Reconciled, ...] = ()
    unusable: tuple[tuple[str, str], ...] = ()


def mend(
    instance: DagsterInstance,
    fleet: Fleet,
    *,
    shards: Collection[str] | None = None,
    limit: int | None = None,
) -> Mended:
    """End the fleet's dead runs, free their slots, and make good what they did not tell Dagster.

    Args:
        instance: the Dagster instance.
        fleet: the fleet.
        shards: look at these only; None for all. Dead runs are ended in any case.
        limit: events to log at most; None for no limit.

    Returns:
        What was done. With a limit, what is left is done by the next call.
    """
    ended = end_dead_runs(instance, fleet)
    dead = dead_runs(fleet.state)
    to_tell: dict[str, list[str]] = {}
    for run in dead:
        for shard in _shards_to_tell(instance, fleet, run):
            if shards is None or shard in shards:
                to_tell.setdefault(shard, []).append(run.run_id)
    done: list[Reconciled] = []
    unusable: list[tuple[str, str]] = []
    untold = set(to_tell)
    for shard, run_ids in to_tell.items():
        left = None if limit is None else limit - sum(one.green + one.red for one in done)
        if left is not None and left <= 0:
            break
        try:
            one = reconcile_shard(instance, fleet, shard, dead=run_ids, limit=left)
        except TenantPipelinesError as error:
            unusable.append((shard, str(error)))
            continue
        done.append(one)
        if not one.left and not one.busy:
            untold.discard(shard)
    for run in dead:
        waits = any(shard in untold and run.run_id in ids for shard, ids in to_tell.items())
        for part in run.parts:
            is_told = part in to_tell and part not in untold
            # the run's own parts last: they remember the shards that it never came to
            if is_told or (part.startswith("_") and shards is None and not waits):
                forget(fleet.state, run.run_id, part)
    return Mended(ended=tuple(ended), reconciled=tuple(done), unusable=tuple(unusable))


def _shards_to_tell(instance: DagsterInstance, fleet: Fleet, dead: DeadRun) -> set[str]:
    """Return the shards in which a run died, and those that a run of the fleet never came to."""
    found = set(dead.parts) & set(fleet.shards)
    run = instance.get_run_by_id(dead.run_id)
    if run is not None and run.job_name == names.fleet_job(fleet.name):
        ops = {names.fleet_op(fleet.name, shard): shard for shard in shards_of(run, fleet)}
        stats = instance.get_run_step_stats(run.run_id, list(ops))
        begun = {ops[step.step_key] for step in stats if step.start_time is not None}
        found |= set(ops.values()) - begun
    return found


def reconcile_shard(
    instance: DagsterInstance,
    fleet: Fleet,
    shard: str,
    *,
    dead: Collection[str] = (),
    limit: int | None = None,
) -> Reconciled:
    """Make Dagster show a shard as its journal has it.

    A cell that is done in the shard's newest cycle is shown so, with its original data version; a
    cell that failed, was interrupted, or is blocked by one of those, is shown failed by the run
    that left it so. Cells that nobody has asked for stay as they are.

    Args:
        instance: the Dagster instance.
        fleet: the fleet.
        shard: name of the shard.
        dead: ids of runs that died in the shard: what they were asked for and is not done is shown
            failed, also where they never came to it.
        limit: events to log at most; None for no limit.

    Raises:
        JournalUnusable: the journal is damaged, foreign or newer; Dagster's view stays as it is.
    """
    journal = Journal.existing(fleet.journal_path(shard), fleet=fleet.name, shard=shard)
    if journal is None:
        return Reconciled(shard=shard)
    locks = fleet.shard_state(shard) / "locks"
    with journal, contextlib.closing(TenantLeases(locks)) as leases:
        cycle = newest_cycle(cycles_of(journal.cycle_entries()))
        if cycle is None:
            return Reconciled(shard=shard)
        look = _Look(instance, fleet, shard, cycle, dead)
        green = red = left = busy = 0
        states = {
            tenant: fold_tenant(entries)
            for tenant, entries in journal.outcomes_by_tenant(cycle.name)
        }
        for tenant in fleet.shard(shard).tenants:
            wrong = look.wrong(tenant, states.get(tenant) or TenantState())
            if not wrong.is_right:
                if limit is not None and green + red >= limit:
                    left += wrong.count
                    continue
                if not leases.try_take(tenant):
                    busy += 1  # its run may do other cells than those that are shown wrongly
                    continue
                try:
                    now = fold_tenant(journal.of_tenant(cycle=cycle.name, tenant=tenant))
                    wrong = look.wrong(tenant, now)
                    look.mend(tenant, now, wrong)
                finally:
                    leases.give_back(tenant)
                green += len(wrong.green)
                red += len(wrong.red)
    return Reconciled(shard=shard, green=green, red=red, left=left, busy=busy)


@dataclass(frozen=True, slots=True)
class _Wrong:
    """The cells of one tenant that are shown wrongly; ``red`` with the run that left each."""

    green: tuple[str, ...]
    red: tuple[tuple[str, str], ...]

    @property
    def count(self) -> int:
        return len(self.green) + len(self.red)

    @property
    def is_right(self) -> bool:
        return not self.count


def left_undone(
    pipeline: Pipeline,
    state: TenantState,
    *,
    done: Set[str],
    asked: Mapping[str, str],
    asks: Callable[[str, str], bool],
) -> dict[str, str]:
    """Return the cells of a tenant that a run left undone, with the id of that run.

    Args:
        pipeline: the steps.
        state: of the tenant, in the newest cycle.
        done: the steps whose cell is done.
        asked: by step, the run that died and was asked for it.
        asks: whether a run, by its id, was asked for a step: a blocked one that nobody asked for
            stays as it was.
    """
    found: dict[str, str] = {}
    for step in pipeline.steps:
        if step.name in done:
            continue
        cell = state.cell(step.name)
        if cell.outcome in {Outcome.FAILED, Outcome.STARTED}:
            found[step.name] = cell.run_id
            continue
        blocking = [found[name] for name in step.upstream if name in found]
        by_blocked = (run_id for run_id in blocking if asks(run_id, step.name))
        run_id = next(by_blocked, None) or asked.get(step.name)
        if run_id is not None:
            found[step.name] = run_id
    return found


class _Look:
    """One look at a shard: what Dagster shows of it, and which of its runs ended how."""

    def __init__(
        self,
        instance: DagsterInstance,
        fleet: Fleet,
        shard: str,
        cycle: Cycle,
        dead: Collection[str],
    ) -> None:
        self._instance = instance
        self._fleet = fleet
        self._shard = shard
        self._cycle = cycle
        self._runs: dict[str, DagsterRun | None] = {}
        self._steps: dict[str, frozenset[str]] = {}
        partitions = names.partitions_of(fleet.name, shard)
        self._shown: dict[str, KeyColours] = {
            step: colours_of(instance, names.asset_key(fleet.name, shard, step), partitions)
            for step in fleet.pipeline.names
        }
        self._asked = list(self._asked_by(dead))

    def _asked_by(self, dead: Collection[str]) -> Iterator[tuple[str, Request]]:
        """Yield what dead runs asked of this cycle, where Dagster did not plan it by keys."""
        for run_id in dead:
            record = self._instance.get_run_record_by_id(run_id)
            if record is None:
                continue
            run, began_at = record.dagster_run, record.start_time
            was_open = began_at is not None and self._cycle.instant <= instant(
                datetime.fromtimestamp(began_at, UTC)
            )
            if not was_open and self._cycle.root != root_of(run):
                continue
            asked = asked_without_keys(run, shard=self._shard, fleet=self._fleet)
            if asked is not None:
                yield run_id, asked

    def _run(self, run_id: str) -> DagsterRun | None:
        if run_id not in self._runs:
            self._runs[run_id] = self._instance.get_run_by_id(run_id)
        return self._runs[run_id]

    def wrong(self, tenant: str, state: TenantState) -> _Wrong:
        """Decide which cells of a tenant Dagster shows wrongly."""
        pipeline = self._fleet.pipeline
        asked = {
            step: run_id
            for run_id, request in self._asked
            if request.tenants is None or tenant in request.tenants
            for step in request.asked_steps(pipeline)
        }
        done = done_steps(pipeline, state)
        green = [
            step for step in pipeline.names if step in done and not self._is_green(tenant, step)
        ]
        red = [
            (step, run_id)
            for step, run_id in left_undone(
                pipeline, state, done=done, asked=asked, asks=self._asks
            ).items()
            if tenant not in self._shown[step].failed and self._has_failed(run_id)
        ]
        return _Wrong(tuple(green), tuple(red))

    def _asks(self, run_id: str, step: str) -> bool:
        if run_id not in self._steps:
            run = self._run(run_id)
            self._steps[run_id] = (
                steps_asked(run, fleet=self._fleet, shard=self._shard) if run else frozenset()
            )
        return step in self._steps[run_id]

    def _is_green(self, tenant: str, step: str) -> bool:
        shown = self._shown[step]
        return tenant in shown.materialized and tenant not in shown.failed

    def _has_failed(self, run_id: str) -> bool:
        """Tell whether Dagster knows the run as failed: one that a user ended changes no colour."""
        run = self._run(run_id)
        return run is not None and run.status is DagsterRunStatus.FAILURE

    def mend(self, tenant: str, state: TenantState, wrong: _Wrong) -> None:
        """Log what makes Dagster show the tenant's cells as they are."""
        for step in wrong.green:
            self._instance.report_runless_asset_event(
                restatement(
                    self._fleet.name,
                    shard=self._shard,
                    cycle=self._cycle.name,
                    tenant=tenant,
                    step=step,
                    cell=state.cell(step),
                )
            )
        for step, run_id in wrong.red:
            run = self._run(run_id)
            if run is not None:
                log_planned(
                    self._instance,
                    run_id=run_id,
                    job_name=run.job_name,
                    step_key=names.fleet_op(self._fleet.name, self._shard),
                    keys=[(names.asset_key(self._fleet.name, self._shard, step), tenant)],
                )
