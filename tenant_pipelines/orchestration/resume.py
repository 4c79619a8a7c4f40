"""The resume sensor: asks again for shards that a cycle has left unfinished.

One authority retries beyond a step's own retries, and this is it: after 1, 2, 4 … minutes, an hour
at most, 8 times a cycle unless the fleet file says otherwise, then it says so and stops. How often
it has asked is counted in Dagster's runs, and since when it waits is read from the journal, so a
lost cursor neither loses nor repeats anything.
"""

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
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

from tenant_pipelines.engine.overview import FleetReader, ShardView
from tenant_pipelines.engine.plan import Action, Request
from tenant_pipelines.fleet.model import Fleet, Resume
from tenant_pipelines.journal.fold import Cycle
from tenant_pipelines.orchestration import names
from tenant_pipelines.orchestration.current_fleet import CurrentFleet
from tenant_pipelines.orchestration.looked_at import LookedAt, instant_of, mark_of
from tenant_pipelines.orchestration.run_targets import (
    is_at_work,
    shards_at_work,
    shards_of,
    unfinished_runs,
)

INTERVAL_SECONDS = 15
_BUDGET_SECONDS = 30.0
_LONGEST_WAIT_SECONDS = 3600.0
_LEFT_ALONE = timedelta(minutes=10)
# a name of a shard begins with a letter
_DUE = "/due/"
_GAVE_UP = "/gave_up/"
_SAID = "/said/"


class Decision(StrEnum):
    """What the sensor does about an unfinished shard."""

    ASK = "ask"
    WAIT = "wait"
    GIVE_UP = "give_up"
    LEAVE = "leave"


@dataclass(frozen=True, slots=True, kw_only=True)
class Unfinished:
    """A shard with cells to run and nobody at work on them.

    Attributes:
        since: when anything happened to it last in the newest cycle, aware.
        asked: how often the sensor has asked for it in that cycle.
        was_stopped: whether a person stopped the run that worked on it last.
    """

    since: datetime
    asked: int
    was_stopped: bool = False


def decide(shard: Unfinished, resume: Resume, *, now: datetime) -> tuple[Decision, datetime]:
    """Decide what to do about an unfinished shard, and when it is due to be asked for.

    Args:
        shard: the shard.
        resume: the fleet's setting.
        now: the present, aware; a clock that was set back makes the wait longer by so much.

    Returns:
        The decision, and the instant before which it stays the same.
    """
    wait = min(resume.wait_seconds * 2.0 ** min(shard.asked, 60), _LONGEST_WAIT_SECONDS)
    due = shard.since + timedelta(seconds=max(wait, resume.wait_seconds))
    if shard.was_stopped:
        return Decision.LEAVE, due
    if shard.asked >= resume.attempts:
        return Decision.GIVE_UP, due
    return (Decision.ASK if now >= due else Decision.WAIT), due


def resume_sensor(fleet: Fleet, *, jobs: Sequence[Any]) -> SensorDefinition:
    """Return the resume sensor of a fleet; on from the start.

    Args:
        fleet: the fleet as Dagster loaded it; its file is read again when it changes.
        jobs: the jobs of its shards.
    """
    current = CurrentFleet(fleet)

    def tick(context: SensorEvaluationContext) -> SensorResult:
        now = current.look()
        seen = LookedAt.from_cursor(context.cursor)
        asked = ask_again(
            context.instance,
            now.fleet,
            seen,
            version=now.version,
            until=time.monotonic() + _BUDGET_SECONDS,
        )
        for line in asked.gave_up:
            context.log.error(line)
        return SensorResult(
            run_requests=asked.requests,
            skip_reason=None if asked.requests else asked.summary,
            cursor=seen.to_cursor(),
        )

    return SensorDefinition(
        name=names.resume(fleet.name),
        evaluation_fn=tick,
        jobs=jobs,
        minimum_interval_seconds=INTERVAL_SECONDS,
        default_status=DefaultSensorStatus.RUNNING,
        description=f"Asks again for what the newest cycle of {fleet.name} has not finished.",
    )


@dataclass(slots=True)
class Asked:
    """What one tick asked for, and what it says."""

    requests: list[RunRequest] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    gave_up: list[str] = field(default_factory=list)

    @property
    def summary(self) -> str:
        """What a person reads beside the tick."""
        return "; ".join([*self.gave_up, *self.said]) or "nothing to ask for now"


def ask_again(
    instance: DagsterInstance,
    fleet: Fleet,
    seen: LookedAt,
    *,
    version: str,
    until: float,
    clock: Callable[[], float] = time.monotonic,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> Asked:
    """Do one tick's work.

    Args:
        instance: the Dagster instance.
        fleet: the fleet.
        seen: what earlier ticks remembered; brought up to date.
        version: changes with the fleet file's content.
        until: when to stop, by ``clock``, in seconds.
        clock: measures the tick.
        now: the present, aware.
    """
    asked = Asked()
    if not fleet.resume.attempts:
        asked.said.append("resume.attempts is 0 in the fleet file")
        return asked
    unfinished = unfinished_runs(instance)
    at_work = shards_at_work(fleet, unfinished)
    todo: dict[str, str] = {}
    for shard in fleet.shards:
        mark = mark_of(fleet, shard, version)
        due = instant_of(seen.notes.get(_DUE + shard))
        is_due = due is not None and now() >= due
        if shard not in at_work and (seen.marks.get(shard) != mark or is_due):
            todo[shard] = mark
    if not todo:
        asked.said += _standing(seen)
        return asked
    reader = FleetReader(fleet, environ=os.environ)
    if reader.cycle is None:
        asked.said.append("the fleet has never run")
        return asked
    for shard, mark in todo.items():
        if clock() >= until:
            break
        if is_at_work(instance, fleet, shard, unfinished):
            continue
        view = reader.shard(shard, Request(root=""))
        seen.notes.pop(_DUE + shard, None)
        seen.notes.pop(_SAID + shard, None)
        if view.damage is not None:
            # looked at again until it can be read
            seen.notes[_SAID + shard] = f"{shard}: damaged journal, see tenant-pipelines status"
            continue
        if _has_work(view):
            due, said = _ask_for(instance, fleet, reader.cycle, view, asked, seen, now())
            if due is not None:
                seen.notes[_DUE + shard] = due.isoformat()
        else:
            held = sum(cell.action is Action.HOLD for cell in view.cells)
            said = f"{held} cells are held, see tenant-pipelines status" if held else ""
        if said:
            seen.notes[_SAID + shard] = f"{shard}: {said}"
        seen.marks[shard] = mark
    asked.said += _standing(seen)
    return asked


def _standing(seen: LookedAt) -> list[str]:
    return [said for note, said in seen.notes.items() if note.startswith(_SAID)]


def _has_work(view: ShardView) -> bool:
    return any(cell.action in {Action.RUN, Action.CHECK} for cell in view.cells)


def _ask_for(
    instance: DagsterInstance,
    fleet: Fleet,
    cycle: Cycle,
    view: ShardView,
    asked: Asked,
    seen: LookedAt,
    now: datetime,
) -> tuple[datetime | None, str]:
    """Ask for a shard if it is due.

    Returns:
        When to look again, None for when it changes; and what to say of it until then.
    """
    shard = view.shard
    # the instant too: a fresh state folder begins with the names of an old one
    of_cycle = f"{shard}:{cycle.name}:{cycle.instant}"
    tag = f"{fleet.name}:{of_cycle}"
    past = [
        record
        for record in instance.get_run_records(RunsFilter(tags={names.RESUME_TAG: tag}))
        if record.dagster_run.parent_run_id is None  # a re-execution by hand carries the tag too
    ]
    # not their count: a person may delete a run, and a run key is used once
    asked_before = max((_number_of(record.dagster_run) for record in past), default=0)
    last_at, last_run = max(
        ((cell.cell.at, cell.cell.run_id) for cell in view.cells if cell.cell.at),
        default=(cycle.instant, ""),
    )
    since = datetime.fromisoformat(last_at)
    facts = Unfinished(
        # a tenant that is new in the file is the caretaker's to ask for, alone
        since=max([since, _changed_at(fleet, now), *(record.update_timestamp for record in past)]),
        asked=asked_before,
        was_stopped=_was_stopped(instance, fleet, shard, last_run=last_run, since=since),
    )
    decision, due = decide(facts, fleet.resume, now=now)
    left = sum(cell.action in {Action.RUN, Action.CHECK} for cell in view.cells)
    match decision:
        case Decision.ASK:
            asked.requests.append(
                RunRequest(
                    run_key=f"resume:{of_cycle}:{asked_before + 1}",
                    job_name=names.shard_job(fleet.name, shard),
                    tags={names.RESUME_TAG: tag},
                )
            )
            return now + timedelta(seconds=INTERVAL_SECONDS), ""
        case Decision.WAIT:
            return due, f"{left} cells left, asked for again at {due:%H:%M:%S} UTC"
        case Decision.LEAVE:
            return now + _LEFT_ALONE, f"{left} cells left; a person stopped its run"
        case Decision.GIVE_UP:
            if seen.notes.get(_GAVE_UP + shard) != cycle.name:
                seen.notes[_GAVE_UP + shard] = cycle.name
                asked.gave_up.append(
                    f"{shard}: {left} cells of cycle {cycle.name} are still not done after "
                    f"{facts.asked} resumed runs; nothing asks for them any more. See why with: "
                    f"tenant-pipelines status --fleet {fleet.path} --shard {shard}"
                )
    return None, f"{left} cells left; it has asked for them {facts.asked} times"


def _was_stopped(
    instance: DagsterInstance, fleet: Fleet, shard: str, *, last_run: str, since: datetime
) -> bool:
    """Tell whether a person stopped the run that worked on a shard last, or one since then."""
    records = instance.get_run_records(
        RunsFilter(updated_after=since), order_by="update_timestamp", ascending=False
    )
    newest = next(
        (r.dagster_run for r in records if shard in shards_of(r.dagster_run, fleet)), None
    )
    run = newest or (instance.get_run_by_id(last_run) if last_run else None)
    return run is not None and run.status is DagsterRunStatus.CANCELED


def _number_of(run: DagsterRun) -> int:
    """Return which of a cycle's resumed runs of its shard this is, from 1."""
    number = run.tags.get(names.RUN_KEY_TAG, "").rpartition(":")[2]
    return int(number) if number.isdecimal() else 1


def _changed_at(fleet: Fleet, now: datetime) -> datetime:
    """Return when the fleet file was written last, 1970 if it cannot be read."""
    try:
        seconds = fleet.path.stat().st_mtime
    except OSError:
        seconds = 0.0
    # a file of the future must not put off what is due
    return min(datetime.fromtimestamp(seconds, UTC), now)
