"""Many runs of the flights sample, each killed at some moment, and then one that is left alone."""

import os
import random
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from dagster import DagsterRunStatus

from tenant_pipelines.engine.overview import FleetReader, ShardStatus
from tenant_pipelines.engine.plan import Request
from tenant_pipelines.journal.entries import EntryKind
from tenant_pipelines.orchestration.dagster_internals import executor_process
from tenant_pipelines.orchestration.instance import end_dead_runs
from tenant_pipelines.samples.flights.feed import feed
from tenant_pipelines.samples.flights.source import source_path
from tenant_pipelines_tests.crash.rig import Rig, rig_of

pytestmark = pytest.mark.slow

KILLS = int(os.environ.get("TENANT_PIPELINES_KILLS", "30"))
SEED = int(os.environ.get("TENANT_PIPELINES_SEED", "") or random.SystemRandom().randrange(10**6))

_ROUTES = 100_000  # rows of a day and a route, of which the data set alone has more
_STEPS = ("extract", "transform", "load")


def test_runs_killed_at_random_moments_leave_nothing_that_one_more_run_does_not_finish_exactly(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """The promise of the package: kill -9 at any instant, run again, and all of it is right.

    Our command and ``dagster job execute`` take turns, and the kills are spread over the whole
    length of a run, from Dagster's start-up to its end. A run that finds everything done opens the
    next cycle, and reports that touch most days come before each, so that there is always work to
    be killed in.
    """
    print(f"TENANT_PIPELINES_SEED={SEED}")
    chance = random.Random(SEED)
    folders = tmp_path / "clean", tmp_path / "killed"
    for folder in folders:
        folder.mkdir()
    with rig_of(folders[0], sample="flights") as clean:
        # builds the source, which no later run does
        assert clean.call("run", "--json").code == 0
        _feed(clean, seed=0)
        began_at = time.monotonic()
        ended = clean.call("run", "--json", "--new-cycle", "2")
        whole_seconds = time.monotonic() - began_at
        assert ended.code == 0, ended.err
        source = source_path(clean.fleet.state).read_bytes()

    with rig_of(folders[1], sample="flights") as rig:
        rig.fleet.state.mkdir(parents=True)
        source_path(rig.fleet.state).write_bytes(source)
        # one in each slice of a run's length, in any order
        moments = [(number + chance.random()) / KILLS for number in range(KILLS)]
        chance.shuffle(moments)
        survivors = 0
        for number, moment in enumerate(moments):
            lived_seconds = _start_and_kill(rig, number, after_seconds=moment * whole_seconds)
            if lived_seconds is not None:
                survivors += 1
                # the machine is faster than it was
                whole_seconds = min(whole_seconds, lived_seconds)
        interrupted = _interrupted(rig)
        record_property("seed", SEED)
        record_property("run_seconds", round(whole_seconds, 1))
        record_property("kills", KILLS - survivors)
        record_property("interrupted_steps", interrupted)
        assert interrupted, "no kill met a step at work: the test shows nothing"

        # a run that starts anything ends the dead ones first; one without work need not look
        opens = ["--new-cycle", "last"] if _is_all_done(rig) else []
        ended = rig.call("run", "--json", *opens)
        assert ended.code == 0, ended.err
        assert {shard["status"] for shard in ended.document["shards"]} == {"completed"}
        _check_journals(rig)
        verified = rig.call("verify", "--json")
        assert verified.code == 0, verified.out
        assert sum(load["rows"] for load in verified.document["loads"]) > _ROUTES
        assert rig.artifact_files() == rig.published_files()
        rig.check_nothing_held()
        _end_the_runs_that_died_before_they_told_who_they_are(rig)
        assert set(rig.run_statuses()) <= {"SUCCESS", "FAILURE", "CANCELED", "NOT_STARTED"}
        assert list((rig.fleet.state / "runs").glob("*")) == []
        assert rig.call("doctor", "--json").document["findings"] == []
        verified = rig.call("journal", "verify", "--json")
        assert verified.code == 0, verified.out


def _end_the_runs_that_died_before_they_told_who_they_are(rig: Rig) -> None:
    """Let minutes pass, which is what makes such a run dead; every other one has ended by now."""
    with rig.instance() as instance:
        left = {run.run_id for run in instance.get_runs() if run.status is DagsterRunStatus.STARTED}
        assert {run_id for run_id in left if executor_process(instance, run_id)} == set()
        ended = end_dead_runs(instance, rig.fleet, now=lambda: time.time() + 600)
        assert set(ended) == left


def _feed(rig: Rig, *, seed: int) -> None:
    feed(source_path(rig.fleet.state), late=300, corrections=300, seed=seed)


def _start_and_kill(rig: Rig, number: int, *, after_seconds: float) -> float | None:
    """Start a run and kill it; return how long it took when it had ended before."""
    _feed(rig, seed=number + 1)
    began_at = time.monotonic()
    if number % 2:
        run = rig.start_job()
    elif _is_all_done(rig):
        run = rig.start("run", "--json", "--new-cycle", f"after_{number}_kills")
    else:
        run = rig.start("run", "--json")
    while time.monotonic() < began_at + after_seconds and not run.has_ended():
        time.sleep(0.005)
    lived_seconds = None
    if run.has_ended():
        lived_seconds = time.monotonic() - began_at
        ended = run.finish()
        assert ended.code == 0, ended.err
    run.kill()
    rig.check_nothing_held()
    return lived_seconds


def _is_all_done(rig: Rig) -> bool:
    reader = FleetReader(rig.fleet, environ=rig.environ)
    views = [reader.shard(name, Request(root="")) for name in rig.fleet.shards]
    return all(view.status is ShardStatus.COMPLETED and not view.lags for view in views)


def _interrupted(rig: Rig) -> int:
    """Return how many attempts began and have no end in the journals."""
    kinds = Counter(entry.kind for shard in rig.fleet.shards for entry in rig.entries(shard))
    assert not kinds[EntryKind.FAILED]
    return kinds[EntryKind.STARTED] - kinds[EntryKind.COMPLETED]


def _check_journals(rig: Rig) -> None:
    """Check that each cell of each cycle was completed exactly once, in its first generation."""
    cycles = {
        entry.cycle
        for shard in rig.fleet.shards
        for entry in rig.entries(shard)
        if entry.kind is EntryKind.CYCLE_OPENED
    }
    assert rig.completed() == sorted(
        (tenant, step, cycle, 1)
        for shard in rig.fleet.shards.values()
        for tenant in shard.tenants
        for step in _STEPS
        for cycle in cycles
    )
