"""What doctor finds: decisions from facts, and the facts of a real instance."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from dagster import DagsterRunStatus

from tenant_pipelines.engine.run_locks import hold_run_lock
from tenant_pipelines.fleet.pipeline import step
from tenant_pipelines.journal.fold import Cycle
from tenant_pipelines.journal.journal import Journal
from tenant_pipelines.orchestration import health, names
from tenant_pipelines.orchestration.dagster_settings import Settings
from tenant_pipelines.orchestration.health import Pool, Severity, SlotHolder
from tenant_pipelines.orchestration.instance import INSTANCE_SETTINGS
from tenant_pipelines_tests.engine.fleets import make_fleet, run_shard
from tenant_pipelines_tests.orchestration.conftest import Rig

_FIX = "the command"
_FILE = Path("/home/dagster.yaml")
_WELL = Settings(
    granularity="op",
    default_pool_limit=4,
    is_monitored=True,
    free_slots_after_seconds=30,
    has_run_retries=False,
)


@step
def extract(ctx: object) -> None:
    return None


@step
def load(ctx: object, extract: None) -> None:
    return None


def _look(rig: Rig) -> list[health.Finding]:
    home = rig.fleet.path.parent / "home"
    return health.look(rig.instance, rig.fleet, home=home, fix_command=_FIX)


def test_a_registered_fleet_in_an_instance_of_ours_is_well(rig: Rig) -> None:
    """An alarm that always rings is none."""
    assert _look(rig) == []


def test_a_damaged_journal_and_a_cycle_of_the_future_are_told(rig: Rig) -> None:
    """One stops its shard; the other tells that a clock ran ahead."""
    for shard in ("shard_1", "shard_2"):
        run_shard(rig.fleet, shard)
    rig.fleet.journal_path("shard_1").write_bytes(b"no journal" * 1000)
    (found,) = _look(rig)
    assert found.subjects == ("shard_1",)
    assert found.severity is Severity.PROBLEM
    assert str(rig.fleet.journal_path("shard_1")) in found.what
    cycle = Cycle(instant="2226-03-01T03:00:00.000000Z", name="ahead")
    with Journal(rig.fleet.journal_path("shard_2"), fleet="story", shard="shard_2") as journal:
        journal.open_cycle(cycle, run_id="x")
    _, warning = _look(rig)
    assert warning.subjects == ("ahead",)
    assert warning.severity is Severity.WARNING


@pytest.mark.parametrize(
    ("changed", "path"),
    [
        ({"granularity": "run"}, ("concurrency", "pools", "granularity")),
        ({"default_pool_limit": None}, ("concurrency", "pools", "default_limit")),
        ({"is_monitored": False}, ("run_monitoring", "enabled")),
        (
            {"free_slots_after_seconds": None},
            ("run_monitoring", "free_slots_after_run_end_seconds"),
        ),
        ({"has_run_retries": True}, ("run_retries", "enabled")),
    ],
)
def test_each_setting_that_hurts_is_told_with_the_lines_that_mend_it(
    changed: dict[str, object], path: tuple[str, ...]
) -> None:
    """The lines are YAML for the file that is named, with the value of our own dagster.yaml."""
    settings = Settings(
        **{
            "granularity": _WELL.granularity,
            "default_pool_limit": _WELL.default_pool_limit,
            "is_monitored": _WELL.is_monitored,
            "free_slots_after_seconds": _WELL.free_slots_after_seconds,
            "has_run_retries": _WELL.has_run_retries,
            **changed,
        }  # type: ignore[arg-type] # one of them is changed by name
    )
    (found,) = health.settings_findings(settings, _FILE)
    assert found.severity is Severity.PROBLEM
    place, lines = found.advice.split("\n", 1)
    assert str(_FILE) in place
    told, wanted = yaml.safe_load(lines), INSTANCE_SETTINGS
    for key in path:
        assert list(told) == [key]
        told, wanted = told[key], wanted[key]
    assert told == wanted


def test_settings_that_are_right_are_no_finding() -> None:
    """Telemetry is the user's own business, too."""
    assert health.settings_findings(_WELL, _FILE) == []


def test_pools_are_told_by_what_is_wrong_with_them(tmp_path: Path) -> None:
    """A default is not the shard's own limit: it changes with dagster.yaml."""
    fleet = make_fleet(tmp_path, [extract], {name: ["t"] for name in "abcd"})
    wanted = fleet.shard("a").limits.runs_at_once
    pools = {
        "fleet/a": Pool(wanted, is_default=False),
        "fleet/b": Pool(wanted, is_default=True),
        "fleet/c": Pool(None, is_default=True),
        "fleet/d": Pool(wanted + 1, is_default=False),
    }
    unset, wrong = health.pool_findings(fleet, pools, _FIX)
    assert (unset.subjects, wrong.subjects) == (("fleet/b", "fleet/c"), ("fleet/d",))
    assert f"fleet/d has {wanted + 1} and not {wanted}" in wrong.what
    assert {unset.advice, wrong.advice} == {_FIX}


def test_keys_too_few_are_fixed_and_keys_too_many_are_told_by_name(tmp_path: Path) -> None:
    """A removed tenant's key may be in use; the caretaker knows, a command does not."""
    fleet = make_fleet(tmp_path, [extract], {"a": ["t1", "t2"], "b": ["t3"], "c": ["t4"]})
    known = {"a": ["t2"], "b": ["t3", "gone", "t9"], "c": ["t4"]}
    few, many = health.key_findings(fleet, known, _FIX)
    assert (few.subjects, few.advice) == (("a",), _FIX)
    assert "a (1 of 2)" in few.what
    assert many.subjects == ("gone", "t9")
    assert names.caretaker("fleet") in many.advice


def test_a_large_shard_is_a_warning_that_says_what_it_costs(tmp_path: Path) -> None:
    """1,000 tenants are fine; it is the UI's own planned events that take the time."""
    tenants = [f"t{number}" for number in range(2_001)]
    fleet = make_fleet(tmp_path, [extract, load], {"big": tenants[:-1], "small": ["x"]})
    keys = {"big": 2_000, "small": 1}
    (found,) = health.size_findings(fleet, keys)
    assert (found.subjects, found.severity) == (("big",), Severity.WARNING)
    assert "4,000 planned events, about 24 s" in found.what
    (few,) = health.size_findings(fleet, {**keys, "small": 100_001})[1:]
    assert (few.subjects, few.severity) == (("small",), Severity.WARNING)
    assert "100,001 partition keys" in few.what
    at_most = make_fleet(tmp_path, [extract], {"big": tenants[:1_000]})
    assert health.size_findings(at_most, {"big": 100_000}) == []


_HOLDER = """
import os, signal, sys
from pathlib import Path
from tenant_pipelines.engine.run_locks import hold_run_lock
with hold_run_lock(Path(sys.argv[1]), sys.argv[2], "shard_2"):
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_slots_that_nobody_needs_are_found_and_freed_and_all_others_stay(rig: Rig) -> None:
    """A slot of a run that waits, works or is on its way out is somebody's limit."""
    job = rig.run(first="hooli").job_def
    storage, pool = rig.instance.event_log_storage, names.partition_set("story", "shard_2")
    storage.set_concurrency_slots(pool, 10)

    def holding(status: DagsterRunStatus) -> str:
        run = rig.instance.create_run_for_job(job, status=status)
        assert storage.claim_concurrency_slot(pool, run.run_id, "step").is_claimed
        return run.run_id

    dead, working = (holding(DagsterRunStatus.STARTED) for _ in range(2))
    failed, leaving = (holding(DagsterRunStatus.FAILURE) for _ in range(2))
    starting = holding(DagsterRunStatus.STARTING)
    deleted = holding(DagsterRunStatus.SUCCESS)
    rig.instance.delete_run(deleted)
    assert storage.claim_concurrency_slot(pool, deleted, "step").is_claimed
    state = rig.fleet.state
    killed = subprocess.run([sys.executable, "-c", _HOLDER, str(state), dead], check=False)
    assert killed.returncode == -signal.SIGKILL
    with hold_run_lock(state, working, "shard_2"), hold_run_lock(state, leaving, "shard_2"):
        holders = health.find_slot_holders(rig.instance, rig.fleet)
        assert {holder.run_id: holder for holder in holders} == {
            dead: SlotHolder(dead, "STARTED", 1, is_dead=True),
            failed: SlotHolder(failed, "FAILURE", 1, is_dead=False),
            deleted: SlotHolder(deleted, None, 1, is_dead=False),
        }
        told = health.run_findings(holders, _FIX)
        assert sorted(one.subjects for one in told) == sorted([(dead,), (failed,), (deleted,)])
        health.fix(rig.instance, rig.fleet)
        assert _look(rig) == []
    claimed = storage.get_concurrency_info(pool).claimed_slots
    assert {slot.run_id for slot in claimed} == {working, leaving, starting}
    ended = rig.instance.get_run_by_id(dead)
    assert ended is not None
    assert ended.status is DagsterRunStatus.FAILURE


def test_what_a_fleet_file_adds_is_found_and_mended_and_the_rest_is_left(rig: Rig) -> None:
    """Looking changes nothing: the second look finds the same."""
    storage = rig.instance.event_log_storage
    rig.instance.delete_dynamic_partition("story/shard_1", "globex")
    rig.instance.add_dynamic_partitions("story/shard_3", ["gone"])
    storage.set_concurrency_slots("story/shard_1", 2)
    storage.delete_concurrency_limit("story/shard_3")
    before = _look(rig)
    assert [found.subjects for found in before] == [
        ("story/shard_3",),
        ("story/shard_1",),
        ("shard_1",),
        ("gone",),
    ]
    assert _look(rig) == before
    health.fix(rig.instance, rig.fleet)
    assert _look(rig) == before[3:]
    assert list(rig.instance.get_dynamic_partitions("story/shard_3")) == ["wonka", "gone"]
