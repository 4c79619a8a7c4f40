"""The resume sensor: when it asks again, how often, and when it leaves a shard alone."""

import json
import time
from datetime import UTC, datetime, timedelta

import pytest
from dagster import DagsterRunStatus, DefaultSensorStatus, RunRequest, build_sensor_context

from tenant_pipelines.engine.cycles import known_cycles, newest_cycle
from tenant_pipelines.fleet.model import Resume
from tenant_pipelines.orchestration.build import build_definitions
from tenant_pipelines.orchestration.looked_at import LookedAt
from tenant_pipelines.orchestration.resume import Asked, Decision, Unfinished, ask_again, decide
from tenant_pipelines_tests.engine.fleets import run_shard
from tenant_pipelines_tests.orchestration.conftest import Rig

_AT = datetime(2026, 3, 1, 12, tzinfo=UTC)
_RESUME = Resume(attempts=8, wait_seconds=60)


def test_the_wait_doubles_up_to_an_hour_and_ends_after_eight(rig: Rig) -> None:
    """A source that is down for the night is not asked every minute."""
    dues = []
    for asked in range(8):
        shard = Unfinished(since=_AT, asked=asked)
        decision, due = decide(shard, _RESUME, now=_AT)
        assert decision is Decision.WAIT
        assert decide(shard, _RESUME, now=due) == (Decision.ASK, due)
        dues.append((due - _AT).total_seconds() / 60)
    assert dues == [1, 2, 4, 8, 16, 32, 60, 60]
    done = Unfinished(since=_AT, asked=8)
    assert decide(done, _RESUME, now=_AT + timedelta(days=9))[0] is Decision.GIVE_UP
    endless = Unfinished(since=_AT, asked=999)
    assert decide(endless, Resume(attempts=1000), now=_AT)[1] == _AT + timedelta(hours=1)


def test_what_a_person_stopped_is_left_to_people(rig: Rig) -> None:
    """Whoever terminates a run does not want it back in a minute."""
    stopped = Unfinished(since=_AT, asked=0, was_stopped=True)
    assert decide(stopped, _RESUME, now=_AT + timedelta(days=1))[0] is Decision.LEAVE


class _Clock:
    """A present that passes when a test says so."""

    def __init__(self) -> None:
        self.passed = timedelta()

    def __call__(self) -> datetime:
        return datetime.now(UTC) + self.passed


def _ask(rig: Rig, clock: _Clock, seen: LookedAt | None = None) -> Asked:
    return ask_again(
        rig.instance, rig.fleet, LookedAt() if seen is None else seen,
        version="1", until=time.monotonic() + 60, now=clock,
    )  # fmt: skip


def _launch(rig: Rig, request: RunRequest) -> None:
    """Do what the daemon does with a request."""
    assert request.job_name is not None
    assert request.run_key is not None
    tags = {**request.tags, "dagster/run_key": request.run_key}
    rig.run(request.job_name.removeprefix("story__"), tags=tags)


def _instant(rig: Rig) -> str:
    cycle = newest_cycle(known_cycles(rig.fleet)[0])
    assert cycle is not None
    return cycle.instant


def test_a_fleet_that_never_ran_and_a_finished_one_are_left_alone(rig: Rig) -> None:
    """Nothing is unfinished before somebody asked for it."""
    clock = _Clock()
    clock.passed = timedelta(hours=2)
    assert _ask(rig, clock).summary == "the fleet has never run"
    for shard in rig.fleet.shards:
        run_shard(rig.fleet, shard)
    asked = _ask(rig, clock)
    assert (asked.requests, asked.summary) == ([], "nothing to ask for now")


def test_a_failed_shard_is_asked_for_after_its_wait_until_it_is_done(rig: Rig) -> None:
    """And each time only that shard, with only what is missing; the cursor is lost each time."""
    clock = _Clock()
    rig.fault.touch()
    for shard in rig.fleet.shards:
        rig.run(shard)
    assert _ask(rig, clock).requests == []
    assert "shard_2: 2 cells left, asked for again at" in _ask(rig, clock).summary
    clock.passed += timedelta(minutes=1)
    (first,) = _ask(rig, clock).requests
    assert first.job_name == "story__shard_2"
    assert first.run_key == f"resume:shard_2:1:{_instant(rig)}:1"
    # the request was lost with its tick: asked for under the same key, which Dagster runs once
    assert [request.run_key for request in _ask(rig, clock).requests] == [first.run_key]
    _launch(rig, first)
    assert _ask(rig, clock).requests == []
    clock.passed += timedelta(minutes=1)
    (second,) = _ask(rig, clock).requests
    assert second.run_key == f"resume:shard_2:1:{_instant(rig)}:2"
    rig.fault.unlink()
    _launch(rig, second)
    assert set(rig.shown().values()) == {"green"}
    clock.passed += timedelta(days=1)
    assert _ask(rig, clock).summary == "nothing to ask for now"


def test_after_its_last_attempt_it_says_so_once_and_stops(rig: Rig) -> None:
    """A message each tick is one that nobody reads."""
    clock = _Clock()
    clock.passed = timedelta(days=1)
    rig.fault.touch()
    for shard in rig.fleet.shards:
        rig.run(shard)
    # the first of the eight was deleted by a person
    for number in range(2, 9):
        rig.tagged_run(
            "shard_2",
            {
                "tenant_pipelines/resume": f"story:shard_2:1:{_instant(rig)}",
                "dagster/run_key": f"resume:shard_2:1:{_instant(rig)}:{number}",
            },
        )
    seen = LookedAt()
    asked = _ask(rig, clock, seen)
    assert asked.requests == []
    (line,) = asked.gave_up
    assert line.startswith("shard_2: 2 cells of cycle 1 are still not done after 8 resumed runs")
    assert "tenant-pipelines status" in line
    again = _ask(rig, clock, seen)
    assert (again.gave_up, again.summary) == (
        [],
        "shard_2: 2 cells left; it has asked for them 8 times",
    )
    # a new cycle begins to count again
    rig.run(config={"new_cycle": "2"})
    (request,) = (one for one in _ask(rig, clock, seen).requests if "shard_2" in str(one.job_name))
    assert request.run_key == f"resume:shard_2:2:{_instant(rig)}:1"


def test_a_shard_with_a_run_at_work_or_in_the_queue_is_not_asked_for(rig: Rig) -> None:
    """One at a time; the queue may be long."""
    clock = _Clock()
    rig.fault.touch()
    for shard in rig.fleet.shards:
        rig.run(shard)
    clock.passed = timedelta(hours=2)
    job = build_definitions(rig.fleet).resolve_job_def("story__shard_2")
    waiting = rig.instance.create_run_for_job(job, status=DagsterRunStatus.NOT_STARTED)
    seen = LookedAt()
    assert _ask(rig, clock, seen).requests == []
    rig.instance.report_run_failed(waiting)
    assert len(_ask(rig, clock, seen).requests) == 1


def test_a_shard_whose_run_a_person_terminated_is_not_asked_for(rig: Rig) -> None:
    """Until somebody runs it again."""
    clock = _Clock()
    rig.fault.touch()
    for shard in rig.fleet.shards:
        rig.run(shard)
    clock.passed = timedelta(hours=2)
    rig.tagged_run("shard_2", {"tenant_pipelines/shard": "story/shard_2"}, status="CANCELED")
    asked = _ask(rig, clock)
    assert asked.requests == []
    assert asked.summary == "shard_2: 2 cells left; a person stopped its run"
    rig.run()
    clock.passed += timedelta(hours=2)
    assert len(_ask(rig, clock).requests) == 1


def test_a_fleet_run_that_a_person_terminated_early_is_not_asked_for(rig: Rig) -> None:
    """It carries no shard's tag, and left no entry in any journal."""
    clock = _Clock()
    for shard in rig.fleet.shards:
        rig.run(shard)
    rig.run("shard_1", config={"new_cycle": "2"})
    clock.passed = timedelta(hours=2)
    rig.tagged_run(None, {}, status="CANCELED")
    asked = _ask(rig, clock)
    assert asked.requests == []
    assert "shard_3: 3 cells left; a person stopped its run" in asked.summary


def test_a_shard_that_has_not_opened_the_newest_cycle_is_asked_for(rig: Rig) -> None:
    """A run of the fleet that died early leaves shards that nobody began."""
    clock = _Clock()
    for shard in rig.fleet.shards:
        rig.run(shard)
    rig.run("shard_1", config={"new_cycle": "2"})
    clock.passed = timedelta(minutes=2)
    jobs = {request.job_name for request in _ask(rig, clock).requests}
    assert jobs == {"story__shard_2", "story__shard_3"}


@pytest.mark.parametrize("name", ["story__resume", "story__caretaker"])
def test_the_sensors_are_on_from_the_start_and_survive_their_cursors(rig: Rig, name: str) -> None:
    """Nobody remembers to switch on what only matters at three in the morning."""
    sensor = build_definitions(rig.fleet).resolve_sensor_def(name)
    assert sensor.default_status is DefaultSensorStatus.RUNNING
    rig.run()
    odd = {"shard_2": 3, "/due/shard_1": [], "/gave_up/shard_1": {}, "/said/shard_3": None,
           "/ended_since": "soon", "/due/shard_2": "2026-03-01T03:00:00"}  # fmt: skip
    for cursor in ("broken", json.dumps({"marks": odd, "notes": odd})):
        data = sensor.evaluate_tick(build_sensor_context(rig.instance, cursor=cursor))
    assert data.cursor is not None
    again = sensor.evaluate_tick(build_sensor_context(rig.instance, cursor=data.cursor))
    assert again.run_requests == []


def test_what_it_waits_for_is_said_with_every_tick(rig: Rig) -> None:
    """Whoever is paged reads the newest tick only."""
    clock, seen = _Clock(), LookedAt()
    rig.fault.touch()
    for shard in rig.fleet.shards:
        rig.run(shard)
    first = _ask(rig, clock, seen).summary
    assert first.startswith("shard_2: 2 cells left, asked for again at ")
    assert _ask(rig, clock, LookedAt.from_cursor(seen.to_cursor())).summary == first
    rig.fleet.journal_path("shard_1").write_bytes(b"no journal" * 1000)
    assert "shard_1: damaged journal" in _ask(rig, clock, seen).summary
