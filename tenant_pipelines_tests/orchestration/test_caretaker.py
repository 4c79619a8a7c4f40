"""The caretaker's ticks, one by one, on a real instance."""

import time
from pathlib import Path
from typing import Any

import pytest
from dagster import (
    DagsterInstance,
    DagsterRunStatus,
    DefaultSensorStatus,
    RunRequest,
    build_sensor_context,
)

from tenant_pipelines.errors import InvalidFleetFile
from tenant_pipelines.fleet.file import load_fleet
from tenant_pipelines.fleet.model import Fleet
from tenant_pipelines.orchestration import names
from tenant_pipelines.orchestration.build import build_definitions
from tenant_pipelines.orchestration.caretaker import Care, take_care
from tenant_pipelines.orchestration.current_fleet import Current, CurrentFleet
from tenant_pipelines.orchestration.dagster_internals import log_planned, newest_check
from tenant_pipelines.orchestration.looked_at import LookedAt
from tenant_pipelines_tests.crash.rig import rig_of
from tenant_pipelines_tests.engine.fleets import run_shard
from tenant_pipelines_tests.orchestration.conftest import Rig, shown_of

_NOTHING = "Dagster shows what the journals say"


def _tick(
    instance: DagsterInstance, current: Current, seen: LookedAt | None = None, seconds: float = 60
) -> Care:
    until = time.monotonic() + seconds
    return take_care(instance, current, LookedAt() if seen is None else seen, until=until)


def _of(fleet: Fleet) -> Current:
    return CurrentFleet(fleet).look()


def _rewritten(rig: Rig, **tenants: str) -> Current:
    """Give shards of the fleet file other tenants, while the loaded fleet stays the same."""
    lines = rig.fleet.path.read_text().splitlines()
    for number, line in enumerate(lines):
        shard = line.strip().partition(":")[0]
        if shard in tenants:
            lines[number] = f"  {shard}: {{tenants: [{tenants[shard]}]}}"
    rig.fleet.path.write_text("\n".join(lines))
    return _of(rig.fleet)


def _keys(rig: Rig, shard: str = "shard_2") -> list[str]:
    return list(rig.instance.get_dynamic_partitions(names.partition_set("story", shard)))


def _tenants(request: RunRequest) -> Any:
    return request.run_config["ops"]["story__shard_2__cells"]["config"]["tenants"]


def test_a_fleet_that_never_ran_is_only_registered(rig: Rig) -> None:
    """Nobody wants a first run of everything because a file was saved."""
    current = _rewritten(rig, shard_2="initech, umbrella, hooli, pied_piper")
    care = _tick(rig.instance, current)
    assert _keys(rig) == ["initech", "umbrella", "hooli", "pied_piper"]
    assert care.requests == []
    assert care.summary == "shard_2: 1 tenants became partition keys"


def test_tenants_new_to_a_shard_that_has_run_are_asked_for_alone_and_once(rig: Rig) -> None:
    """Also when the cursor is lost, and when some of them are still waiting for their run."""
    rig.run()
    seen = LookedAt()
    current = _rewritten(rig, shard_2="initech, umbrella, hooli, gavin, pied_piper")
    (request,) = _tick(rig.instance, current, seen).requests
    assert (request.job_name, _tenants(request)) == ("story__shard_2", ["gavin", "pied_piper"])
    assert _tick(rig.instance, current, seen).requests == []
    assert _tick(rig.instance, current).requests == []
    more = _rewritten(rig, shard_2="initech, umbrella, hooli, gavin, pied_piper, dinesh")
    (one,) = _tick(rig.instance, more).requests
    assert _tenants(one) == ["dinesh"]


def test_the_run_for_new_tenants_runs_them_and_nobody_else(rig: Rig) -> None:
    """And they are green then, each under its own key."""
    rig.run()
    current = _rewritten(rig, shard_2="initech, umbrella, hooli, gavin")
    (request,) = _tick(rig.instance, current).requests
    job = build_definitions(load_fleet(rig.fleet.path)).resolve_job_def("story__shard_2")
    result = job.execute_in_process(
        instance=rig.instance, run_config=request.run_config, tags=request.tags
    )
    assert result.success
    steps = rig.fleet.pipeline.names
    assert rig.materializations(result.run_id) == {f"gavin:{step}": False for step in steps}


def test_a_tenant_with_history_in_another_shard_is_not_asked_for(rig: Rig) -> None:
    """Running it here would extract and pay again; its cells are held, and the check says so."""
    rig.run("shard_1")
    rig.run()
    moved = _rewritten(rig, shard_1="globex", shard_2="initech, umbrella, hooli, acme")
    assert _tick(rig.instance, moved).requests == []
    shown = newest_check(rig.instance, names.asset_key("story", "shard_2", "load"), "complete")
    assert shown is not None
    assert shown.description == "1 of 4 tenants late: acme: extract, transform, load"


def test_a_removed_tenants_key_goes_once_nothing_targets_it_and_its_data_stays(rig: Rig) -> None:
    """A key that goes under a running backfill would fail the whole range."""
    rig.run()
    journal = rig.fleet.journal_path("shard_2").read_bytes()
    artifacts = sorted(Path(rig.fleet.artifacts).rglob("*"))
    job = build_definitions(rig.fleet).resolve_job_def("story__shard_2")
    tags = {"dagster/asset_partition_range_start": "initech",
            "dagster/asset_partition_range_end": "umbrella"}  # fmt: skip
    waiting = rig.instance.create_run_for_job(job, status=DagsterRunStatus.NOT_STARTED, tags=tags)
    seen = LookedAt()
    current = _rewritten(rig, shard_2="initech")
    care = _tick(rig.instance, current, seen)
    # umbrella is in the range that waits, hooli is not
    assert _keys(rig) == ["initech", "umbrella"]
    assert "1 keys of tenants that left are still in use" in care.summary
    rig.instance.report_run_canceled(waiting)
    _tick(rig.instance, current, seen)
    assert _keys(rig) == ["initech"]
    assert rig.fleet.journal_path("shard_2").read_bytes() == journal
    assert sorted(Path(rig.fleet.artifacts).rglob("*")) == artifacts
    assert _tick(rig.instance, current, seen).summary == _NOTHING


def test_keys_of_a_run_that_failed_before_its_op_began_get_their_colour_back(rig: Rig) -> None:
    """Dagster planned every key for it and shows all of them failed; the journal knows better."""
    rig.run()
    seen = LookedAt()
    _tick(rig.instance, _of(rig.fleet), seen)
    assert _tick(rig.instance, _of(rig.fleet), seen).summary == _NOTHING
    job = build_definitions(rig.fleet).resolve_job_def("story__shard_2")
    run = rig.instance.create_run_for_job(job, status=DagsterRunStatus.STARTING)
    log_planned(
        rig.instance, run_id=run.run_id, job_name=run.job_name, step_key="x",
        keys=[(names.asset_key("story", "shard_2", "load"), "hooli")],
    )  # fmt: skip
    rig.instance.report_run_failed(run, "no module named pipelines")
    assert rig.shown()["hooli:load"] == "red"
    assert _tick(rig.instance, _of(rig.fleet), seen).summary == "shard_2: 1 cells shown as they are"
    assert rig.shown()["hooli:load"] == "green"
    assert _tick(rig.instance, _of(rig.fleet), seen).summary == _NOTHING


def test_what_a_person_changed_in_dagster_is_put_right_within_the_hour(rig: Rig) -> None:
    """A key deleted in the UI and an asset wiped there leave no trace in journal or fleet file."""
    rig.run()
    seen, current = LookedAt(), _of(rig.fleet)
    _tick(rig.instance, current, seen)
    rig.instance.delete_dynamic_partition(names.partition_set("story", "shard_2"), "hooli")
    rig.instance.wipe_assets([names.asset_key("story", "shard_2", "load")])
    assert "hooli" not in _keys(rig)
    take_care(
        rig.instance, current, seen, until=time.monotonic() + 60, now=lambda: time.time() + 3600
    )
    assert "hooli" in _keys(rig)
    assert set(rig.shown().values()) == {"green"}


def test_a_tick_out_of_time_goes_on_with_the_next(rig: Rig) -> None:
    """However large the fleet, a tick ends; and nothing is passed over for good."""
    for shard in rig.fleet.shards:
        run_shard(rig.fleet, shard)
    seen = LookedAt()
    care = _tick(rig.instance, _of(rig.fleet), seen, seconds=-1)
    assert care.summary == "more shards than one tick has time for; shard_1 is next"
    assert set(rig.shown("shard_1").values()) == {"none"}
    _tick(rig.instance, _of(rig.fleet), LookedAt.from_cursor(seen.to_cursor()))
    for shard in rig.fleet.shards:
        assert set(rig.shown(shard).values()) == {"green"}


def test_the_checks_of_a_shard_with_a_run_on_its_way_are_left_to_it(rig: Rig) -> None:
    """Dagster plans them when the run is made; a newer result would hide the run's own."""
    rig.run()
    asset = names.asset_key("story", "shard_2", "load")
    rig.report("hooli", "load")
    job = build_definitions(rig.fleet).resolve_job_def("story__shard_2")
    run = rig.instance.create_run_for_job(job, status=DagsterRunStatus.NOT_STARTED)
    seen = LookedAt()
    _tick(rig.instance, _of(rig.fleet), seen)
    assert newest_check(rig.instance, asset, "complete") is None
    rig.instance.report_run_failed(run)
    _tick(rig.instance, _of(rig.fleet), seen)
    shown = newest_check(rig.instance, asset, "complete")
    assert shown is not None
    assert shown.passed


@pytest.mark.parametrize("cursor", ["", "no json", "[]", '{"marks": 3}', '{"notes": []}', "7"])
def test_a_cursor_that_is_none_of_ours_counts_as_lost(cursor: str) -> None:
    """People edit cursors in the UI."""
    assert LookedAt.from_cursor(cursor) == LookedAt()


def test_a_fleet_file_broken_meanwhile_keeps_the_last_good_fleet_and_fails_the_tick(
    rig: Rig,
) -> None:
    """The tick names file and line; keys stay, and what died is still mended."""
    rig.run()
    sensor = build_definitions(rig.fleet).resolve_sensor_def("story__caretaker")
    assert sensor.default_status is DefaultSensorStatus.RUNNING
    sensor.evaluate_tick(build_sensor_context(rig.instance))
    good = rig.fleet.path.read_text()
    run_shard(rig.fleet, "shard_3")
    rig.fleet.path.write_text(good + "\nshards: {}\n")
    with pytest.raises(InvalidFleetFile, match=r"fleet.yaml:\d+: "):
        sensor.evaluate_tick(build_sensor_context(rig.instance))
    assert _keys(rig) == ["initech", "umbrella", "hooli"]
    assert set(rig.shown("shard_3").values()) == {"green"}
    rig.fleet.path.unlink()
    with pytest.raises(InvalidFleetFile, match="cannot be read"):
        sensor.evaluate_tick(build_sensor_context(rig.instance))
    rig.fleet.path.write_text(good)
    sensor.evaluate_tick(build_sensor_context(rig.instance))
    assert _keys(rig) == ["initech", "umbrella", "hooli"]


def test_what_needs_a_reload_is_said(rig: Rig) -> None:
    """A new shard has no assets until the code location is reloaded."""
    text = rig.fleet.path.read_text()
    rig.fleet.path.write_text(text + "\n  shard_4: {tenants: [x]}\nschedule: '0 3 * * *'\n")
    care = _tick(rig.instance, _of(rig.fleet))
    assert care.said == [
        "shard shard_4 is new: reload the code location",
        "the schedule changed: reload the code location",
    ]


_DIES = """
@step
def extract(ctx: StepContext) -> dict:
    if ctx.tenant == "umbrella":
        die_at("extract")
    return {}

@step
def load(ctx: StepContext, extract: dict) -> None:
    pass

pipeline = Pipeline([extract, load])
"""


@pytest.mark.slow
def test_two_ticks_after_a_kill_the_run_is_failed_its_slot_free_and_dagster_right(
    tmp_path: Path,
) -> None:
    """Dagster alone leaves the run STARTED, its slot taken and its keys in progress for good."""
    with rig_of(tmp_path, module=_DIES, shards={"b": ["initech", "umbrella"]},
                defaults={"max_concurrent": 1}) as rig:  # fmt: skip
        with rig.dying_at("extract"):
            rig.start_job(shard="b").die()
        with rig.instance() as instance:
            pool = names.partition_set(rig.name, "b")
            storage = instance.event_log_storage
            assert storage.get_concurrency_info(pool).claimed_slots
            seen = LookedAt()
            for _ in range(2):
                _tick(instance, _of(rig.fleet), seen)
            assert not storage.get_concurrency_info(pool).claimed_slots
            assert [run.status.value for run in instance.get_runs()] == ["FAILURE"]
            assert shown_of(instance, rig.fleet, "b") == {
                "initech:extract": "green",
                "initech:load": "green",
                "umbrella:extract": "red",
                "umbrella:load": "red",
            }
            shown = newest_check(instance, names.asset_key(rig.name, "b", "load"), "complete")
            assert shown is not None
            assert shown.description == "1 of 2 tenants late: umbrella: extract, load"
            assert _tick(instance, _of(rig.fleet), seen).summary == _NOTHING
