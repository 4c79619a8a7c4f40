"""The caretaker: a sensor that keeps what Dagster shows true while nobody is looking.

Each tick does what is due, for a bounded time, and remembers which shards are right. All it does
can be done twice: a tick that dies is done again by the next one, and a lost cursor costs another
look at every shard. Duties, in this order:

- runs that died are marked failed, their slots freed, and what they did not tell is told;
- tenants of the fleet file become partition keys, limits are set, and keys of tenants that left it
  go once no run and no backfill targets them;
- tenants that became keys of a shard which has run before are asked for, by one run for them;
- Dagster's view of a shard whose journal changed, or on which a run ended badly, is reconciled;
- the shard's asset checks are reported where they have changed.
"""

import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from dagster import (
    DagsterInstance,
    DagsterRun,
    DagsterRunStatus,
    DefaultSensorStatus,
    RunRequest,
    RunsFilter,
    SensorDefinition,
    SensorEvaluationContext,
    SensorResult,
)

from tenant_pipelines.engine.cycles import known_cycles, newest_cycle
from tenant_pipelines.engine.runner import read_histories
from tenant_pipelines.errors import JournalUnusable, TenantPipelinesError
from tenant_pipelines.fleet.model import Fleet
from tenant_pipelines.journal.fold import Cycle
from tenant_pipelines.journal.journal import Journal
from tenant_pipelines.orchestration import names
from tenant_pipelines.orchestration.checks import report_checks
from tenant_pipelines.orchestration.current_fleet import Current, CurrentFleet
from tenant_pipelines.orchestration.dagster_internals import assets_in_backfills
from tenant_pipelines.orchestration.looked_at import (
    LookedAt,
    instant_of,
    mark_of,
    period_of,
)
from tenant_pipelines.orchestration.reconcile import mend, reconcile_shard
from tenant_pipelines.orchestration.register import register_shards
from tenant_pipelines.orchestration.request import config_for_tenants
from tenant_pipelines.orchestration.run_targets import (
    is_at_work,
    shards_at_work,
    shards_of,
    targets_tenant,
    unfinished_runs,
)

INTERVAL_SECONDS = 10
# a sensor's tick has 60 s by default (dagster/_core/definitions/sensor_definition.py); half of it
# leaves room for the bite that is being taken when the time is over
_BUDGET_SECONDS = 30.0
# events of one bite, some 6 ms each on SQLite
_BITE = 200
# a run whose end was written late must not be missed
_OVERLAP = timedelta(seconds=20)
_MOST_RUNS = 500
# what people change in Dagster (a key, a wipe, a report by hand) leaves no trace in a mark
_LOOK_AGAIN_SECONDS = 3600.0
# a name of a shard begins with a letter
_KEYS = "/keys/"
_ENDED_SINCE = "/ended_since"
_ENDED = "/ended/"


def caretaker_sensor(fleet: Fleet, *, jobs: Sequence[Any]) -> SensorDefinition:
    """Return the caretaker of a fleet; on from the start.

    Args:
        fleet: the fleet as Dagster loaded it; its file is read again when it changes.
        jobs: the jobs of its shards, which new tenants are asked for by.
    """
    current = CurrentFleet(fleet)

    def tick(context: SensorEvaluationContext) -> SensorResult:
        now = current.look()
        seen = LookedAt.from_cursor(context.cursor)
        done = take_care(context.instance, now, seen, until=time.monotonic() + _BUDGET_SECONDS)
        if now.error is not None:
            # the work above is done and need not be remembered; the tick has to fail
            raise now.error
        return SensorResult(
            run_requests=done.requests,
            skip_reason=None if done.requests else done.summary,
            cursor=seen.to_cursor(),
        )

    return SensorDefinition(
        name=names.caretaker(fleet.name),
        evaluation_fn=tick,
        jobs=jobs,
        minimum_interval_seconds=INTERVAL_SECONDS,
        default_status=DefaultSensorStatus.RUNNING,
        description=f"Keeps what Dagster shows of {fleet.name} equal to its journals.",
    )


@dataclass(slots=True)
class Care:
    """What one tick did."""

    said: list[str] = field(default_factory=list)
    requests: list[RunRequest] = field(default_factory=list)

    @property
    def summary(self) -> str:
        """What a person reads beside the tick."""
        return "; ".join(self.said) or "Dagster shows what the journals say"


def take_care(
    instance: DagsterInstance,
    current: Current,
    seen: LookedAt,
    *,
    until: float,
    clock: Callable[[], float] = time.monotonic,
    now: Callable[[], float] = time.time,
) -> Care:
    """Do one tick's work.

    Args:
        instance: the Dagster instance.
        current: the fleet as its file has it.
        seen: what earlier ticks remembered; brought up to date.
        until: when to begin nothing more, by ``clock``, in seconds.
        clock: measures the tick.
        now: the present, in seconds since 1970.
    """
    fleet = current.fleet
    care = Care()
    care.said += [f"{what}: reload the code location" for what in current.to_reload]
    mended = mend(instance, fleet, limit=_BITE)
    care.said += [f"run {run_id} had died: marked failed" for run_id in mended.ended]
    care.said += [
        f"{one.shard}: {one.green + one.red} cells told for a dead run"
        + (f", {one.left} left" if one.left else "")
        for one in mended.reconciled
        if one.green or one.red or one.left
    ]
    ended_badly = _shards_of_bad_ends(instance, fleet, seen)
    care.said += [f"{shard}: {why}" for shard, why in mended.unusable]
    at_work = shards_at_work(fleet, unfinished_runs(instance))
    seconds = _LOOK_AGAIN_SECONDS
    if fleet.stale_after is not None:
        # a staleness of an hour is told within minutes
        seconds = min(seconds, max(fleet.stale_after.total_seconds() / 10, 60.0))
    keys = _Keys(instance, fleet)
    dirty: list[str] = []
    marks: dict[str, str] = {}
    for shard in fleet.shards:
        period = period_of(shard, seconds, now())
        of_keys = f"{current.version}:{period}"
        if seen.marks.get(_KEYS + shard) != of_keys and clock() < until:
            # also while a run is at work: who looks for a new tenant must find it
            is_right = keys.put_right(shard, care)
            seen.marks[_KEYS + shard] = of_keys if is_right else ""
        # taken before the look: what changes meanwhile makes another one
        marks[shard] = mark_of(fleet, shard, current.version, period)
        if shard in ended_badly:
            seen.marks.pop(shard, None)
        if seen.marks.get(shard) != marks[shard] and shard not in at_work:
            dirty.append(shard)
    if not dirty:
        return care
    known, unusable = known_cycles(fleet)
    cycle = newest_cycle(known)
    for shard in dirty:
        if clock() >= until:
            care.said.append(f"more shards than one tick has time for; {shard} is next")
            break
        is_right = shard not in unusable
        if not is_right:
            care.said.append(f"{shard}: damaged journal, see tenant-pipelines status")
        elif cycle is not None:  # a fleet that never ran is only registered
            try:
                is_right = _look_at(instance, fleet, shard, cycle, care, until, clock)
            except TenantPipelinesError as error:
                # one shard's trouble ends no other's care
                is_right = False
                care.said.append(f"{shard}: {error}")
        if is_right:
            seen.marks[shard] = marks[shard]
    return care


def _look_at(
    instance: DagsterInstance,
    fleet: Fleet,
    shard: str,
    cycle: Cycle,
    care: Care,
    until: float,
    clock: Callable[[], float],
) -> bool:
    """Reconcile a shard and report its checks; tell whether all of it is right now."""
    changed = 0
    while True:
        if shard in shards_at_work(fleet, unfinished_runs(instance)):
            return False  # a run that began since tells Dagster itself
        bite = reconcile_shard(instance, fleet, shard, limit=_BITE)
        changed += bite.green + bite.red
        if not bite.left or clock() >= until:
            break
    if changed:
        care.said.append(f"{shard}: {changed} cells shown as they are")
    if bite.busy:
        return False
    if bite.left:
        care.said.append(f"{shard}: {bite.left} cells are still shown wrongly")
        return False
    if is_at_work(instance, fleet, shard, unfinished_runs(instance)):
        # Dagster has planned the checks for it: a word of ours now would hide its own at the end
        return False
    report_checks(instance, fleet, shard, cycle=cycle, now=datetime.now(UTC))
    return True


def _shards_of_bad_ends(instance: DagsterInstance, fleet: Fleet, seen: LookedAt) -> set[str]:
    """Return the shards on which runs ended badly since the last tick.

    One that failed before its op could begin, such as for want of its code, left every key that
    Dagster had planned for it failed, and nothing in a journal.
    """
    since = instant_of(seen.notes.get(_ENDED_SINCE))
    known = {note for note in seen.notes if note.startswith(_ENDED)}
    # a clock that was set back must not hide what ends until it has caught up
    after = min(since, datetime.now(UTC)) - _OVERLAP if since is not None else None
    records = instance.get_run_records(
        RunsFilter(
            statuses=[DagsterRunStatus.FAILURE, DagsterRunStatus.CANCELED], updated_after=after
        ),
        limit=_MOST_RUNS,
        order_by="update_timestamp",
        ascending=False,
    )
    newest = max((record.update_timestamp for record in records), default=None)
    if newest is not None:
        seen.notes[_ENDED_SINCE] = newest.astimezone(UTC).isoformat()
    for note in known:
        del seen.notes[note]
    found: set[str] = set()
    for record in records:
        note = _ENDED + record.dagster_run.run_id
        seen.notes[note] = ""
        if note not in known:
            found |= shards_of(record.dagster_run, fleet)
    return found


class _Keys:
    """Partition keys and pool limits of the shards; asks for runs and backfills once a tick."""

    def __init__(self, instance: DagsterInstance, fleet: Fleet) -> None:
        self._instance = instance
        self._fleet = fleet
        self._targets: tuple[list[DagsterRun], frozenset[str]] | None = None

    def put_right(self, shard: str, care: Care) -> bool:
        """Add, set and remove what is due; tell whether nothing is left to do."""
        name = names.partition_set(self._fleet.name, shard)
        keys = list(self._instance.get_dynamic_partitions(name))
        known = set(keys)
        added = [tenant for tenant in self._fleet.shard(shard).tenants if tenant not in known]
        list(register_shards(self._instance, self._fleet, [shard]))
        if added:
            care.said.append(f"{shard}: {len(added)} tenants became partition keys")
            request = _request_for(self._fleet, shard, added)
            care.requests += [request] if request is not None else []
        gone = [key for key in keys if key not in self._fleet.shard(shard).tenants]
        kept = 0
        for key in gone:
            if self._is_targeted(shard, key, keys):
                kept += 1
                continue
            self._instance.delete_dynamic_partition(name, key)
            care.said.append(f"{shard}: {key} left the fleet file, its partition key is gone")
        if kept:
            care.said.append(f"{shard}: {kept} keys of tenants that left are still in use")
        return not kept

    def _is_targeted(self, shard: str, key: str, keys: Sequence[str]) -> bool:
        if self._targets is None:
            in_backfills = {
                asset.path[1]
                for asset in assets_in_backfills(self._instance)
                if len(asset.path) == 3 and asset.path[0] == self._fleet.name
            }
            self._targets = unfinished_runs(self._instance), frozenset(in_backfills)
        runs, shards = self._targets
        return shard in shards or any(
            shard in shards_of(run, self._fleet) and targets_tenant(run, key, keys) for run in runs
        )


def _request_for(fleet: Fleet, shard: str, added: Sequence[str]) -> RunRequest | None:
    """Return the one run for tenants that became keys, where the shard has run before.

    A tick that dies between the two leaves them to the resume sensor, which asks for what is
    missing.
    """
    try:
        journal = Journal.existing(fleet.journal_path(shard), fleet=fleet.name, shard=shard)
    except JournalUnusable:
        return None
    if journal is None:
        return None
    with journal:
        if not journal.tenants():
            return None
    # one with history here is not new, and one with history elsewhere is held until that moves
    known = read_histories(fleet)
    new = [name for name in added if name not in known]
    if not new:
        return None
    return RunRequest(
        run_key=f"new:{shard}:{hashlib.sha256(repr(sorted(new)).encode()).hexdigest()[:16]}",
        job_name=names.shard_job(fleet.name, shard),
        run_config=config_for_tenants(names.cells_op(fleet.name, shard), new),
    )
