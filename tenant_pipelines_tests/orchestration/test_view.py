"""What Dagster shows: every row of the view's rules, with a real instance and real runs."""

from typing import Any

import pytest
from dagster import DagsterRunStatus

from tenant_pipelines.fleet.file import load_fleet
from tenant_pipelines_tests.engine.fleets import run_shard
from tenant_pipelines_tests.orchestration.conftest import Rig

_CELLS = [
    f"{t}:{s}" for t in ("initech", "umbrella", "hooli") for s in ("extract", "transform", "load")
]
_ALL_GREEN = dict.fromkeys(_CELLS, "green")
_UMBRELLA_RED = {**_ALL_GREEN, "umbrella:transform": "red", "umbrella:load": "red"}
_RANGE: dict[str, Any] = {"first": "initech", "last": "hooli"}


def test_a_failing_tenant_alone_is_red(rig: Rig) -> None:
    """One bad tenant fails alone, in one run, and the run is red."""
    rig.fault.touch()
    result = rig.run(**_RANGE)
    assert not result.success
    assert rig.shown() == _UMBRELLA_RED
    made = rig.materializations(result.run_id)
    assert sorted(made) == sorted(
        cell for cell, colour in _UMBRELLA_RED.items() if colour == "green"
    )
    assert not any(made.values())


def test_the_same_run_failing_again_changes_no_colour(rig: Rig) -> None:
    """Stock Dagster turns the whole range red here: done cells are restated."""
    rig.fault.touch()
    rig.run(**_RANGE)
    again = rig.run(**_RANGE)
    assert not again.success
    assert rig.shown() == _UMBRELLA_RED
    made = rig.materializations(again.run_id)
    assert len(made) == 7
    assert all(made.values())


def test_a_re_executed_run_that_succeeds_logs_only_what_it_ran(rig: Rig) -> None:
    """Two materializations, and every key is green."""
    rig.fault.touch()
    failed = rig.run(**_RANGE)
    rig.fault.unlink()
    again = rig.reexecute(failed.run_id)
    assert again.success
    assert rig.materializations(again.run_id) == {
        "umbrella:transform": False,
        "umbrella:load": False,
    }
    assert rig.shown() == _ALL_GREEN


def test_a_re_executed_run_that_fails_again_changes_no_colour(rig: Rig) -> None:
    """Re-execution from failure with the fault still there."""
    rig.fault.touch()
    failed = rig.run(**_RANGE)
    again = rig.reexecute(failed.run_id)
    assert not again.success
    assert rig.shown() == _UMBRELLA_RED


def test_cells_that_the_journal_has_and_dagster_never_heard_of_are_restated(rig: Rig) -> None:
    """A run that died between the journal's entry and the event heals with the next one."""
    run_shard(rig.fleet, "shard_2")
    assert set(rig.shown().values()) == {"none"}
    result = rig.run(**_RANGE)
    assert result.success
    assert rig.shown() == _ALL_GREEN
    assert rig.materializations(result.run_id) == dict.fromkeys(_CELLS, True)


def test_the_same_holds_for_a_run_without_keys(rig: Rig) -> None:
    """The shard's job without a partition means every tenant."""
    run_shard(rig.fleet, "shard_2")
    result = rig.run()
    assert result.success
    assert rig.shown() == _ALL_GREEN


def test_materializing_a_done_tenant_does_nothing_and_says_how_to_force_it(rig: Rig) -> None:
    """Green, no event, and a message with the config."""
    rig.run(**_RANGE)
    result = rig.run(first="umbrella")
    assert result.success
    assert rig.materializations(result.run_id) == {}
    assert rig.shown() == _ALL_GREEN
    messages = [entry.user_message for entry in rig.instance.all_logs(result.run_id)]
    assert any("force: true" in message for message in messages)


def test_a_backfill_restates_every_done_key(rig: Rig) -> None:
    """A backfill counts only events of its own runs."""
    rig.run(**_RANGE)
    result = rig.run(**_RANGE, tags={"dagster/backfill": "bf"})
    assert result.success
    assert rig.materializations(result.run_id) == dict.fromkeys(_CELLS, True)


def test_force_by_config_and_by_tag_runs_the_selected_cells_once_per_root(rig: Rig) -> None:
    """The launchpad and a backfill can both ask for it."""
    rig.run(**_RANGE)
    forced = rig.run(first="umbrella", config={"force": True})
    cells = dict.fromkeys(["umbrella:extract", "umbrella:transform", "umbrella:load"], False)
    assert rig.materializations(forced.run_id) == cells
    tagged = rig.run(first="umbrella", tags={"tenant_pipelines/force": "true"})
    assert rig.materializations(tagged.run_id) == cells


def test_a_selected_step_whose_upstream_is_missing_fails_with_a_reason(rig: Rig) -> None:
    """A selection made in the UI stays exact: nothing runs."""
    result = rig.run(**_RANGE, steps=["load"])
    assert not result.success
    failure = next(event for event in result.all_events if event.is_step_failure)
    assert "upstream_missing" in str(failure.step_failure_data.user_failure_data)
    assert rig.materializations(result.run_id) == {}


@pytest.mark.slow
def test_a_tenant_failing_in_a_second_cycle_of_the_fleet_job_is_red(rig: Rig) -> None:
    """A run without planned keys would leave it green from the older cycle."""
    assert rig.run_fleet().success
    assert rig.shown() == _ALL_GREEN
    rig.fault.touch()
    second = rig.run_fleet(new_cycle="2")
    assert not second.success
    assert rig.shown() == _UMBRELLA_RED
    assert set(rig.shown("shard_1").values()) == {"green"}
    rig.fault.unlink()
    third = rig.run_fleet()
    assert third.success
    assert rig.shown() == _ALL_GREEN
    assert rig.materializations(third.run_id) == {
        "umbrella:transform": False,
        "umbrella:load": False,
    }


def test_a_failing_run_without_keys_shows_the_failed_and_blocked_cells_red(rig: Rig) -> None:
    """In a first cycle there is nothing green to hide behind."""
    rig.fault.touch()
    assert not rig.run().success
    assert rig.shown() == _UMBRELLA_RED


def test_a_tenant_that_left_the_fleet_file_is_red_alone(rig: Rig) -> None:
    """A backfill that targets it goes on for the others, and ends failed for what was asked."""
    text = rig.fleet.path.read_text().replace("initech, umbrella, hooli", "initech, hooli")
    rig.fleet.path.write_text(text)
    smaller = Rig(load_fleet(rig.fleet.path), rig.instance, rig.fault)
    for run in (smaller.run(**_RANGE), smaller.run(**_RANGE)):
        assert not run.success
        failure = next(event for event in run.all_events if event.is_step_failure)
        said = str(failure.step_failure_data.user_failure_data)
        assert "no longer in" in said
        assert "umbrella; nothing ran for them" in said
        assert rig.shown() == {
            cell: "red" if cell.startswith("umbrella") else "green" for cell in _CELLS
        }
    alone = smaller.run(first="umbrella")
    failure = next(event for event in alone.all_events if event.is_step_failure)
    assert "there is no tenant 'umbrella'" in str(failure.step_failure_data.user_failure_data)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"tags": {"tenant_pipelines/froce": "true"}}, "did you mean 'tenant_pipelines/force'"),
        ({"tags": {"tenant_pipelines/force": "yes"}}, "wanted 'true' or 'false'"),
        ({"config": {"tenants": ["umbrela"]}}, "did you mean 'umbrella'"),
        ({"config": {"steps": ["transfrom"]}}, "did you mean 'transform'"),
    ],
)
def test_a_typing_error_in_the_launchpad_runs_nothing(
    rig: Rig, asked: dict[str, Any], said: str
) -> None:
    """The message has the nearest name that exists."""
    result = rig.run(**asked)
    assert not result.success
    failure = next(event for event in result.all_events if event.is_step_failure)
    assert said in str(failure.step_failure_data.user_failure_data).lower().replace("\\", "")
    assert not rig.fleet.journal_path("shard_2").exists()


@pytest.mark.slow
def test_a_typing_error_in_one_shards_config_runs_no_shard_of_the_fleet(rig: Rig) -> None:
    """Half a fleet in a new cycle because of one letter would be the worst of all."""
    config = {"story__shard_2__fleet": {"config": {"tenants": ["umbrela"]}}}
    result = rig.run_fleet(_ops=config, new_cycle="2")
    assert not result.success
    for shard in rig.fleet.shards:
        assert not rig.fleet.journal_path(shard).exists()


def test_shard_runs_are_never_retried_by_dagster(rig: Rig) -> None:
    """One authority retries; runs launched on assets carry no job tags, so the op adds its own."""
    rig.fault.touch()
    result = rig.run(**_RANGE)
    run = rig.instance.get_run_by_id(result.run_id)
    assert run is not None
    assert run.status is DagsterRunStatus.FAILURE
    assert run.tags["dagster/max_retries"] == "0"
    assert run.tags["tenant_pipelines/shard"] == "story/shard_2"
