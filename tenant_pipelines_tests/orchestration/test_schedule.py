"""The schedule of a fleet file: what a tick asks for, however often and late it comes."""

from dataclasses import replace
from datetime import UTC, datetime

from dagster import DefaultScheduleStatus, RunRequest, build_schedule_context

from tenant_pipelines.orchestration.build import build_definitions
from tenant_pipelines_tests.orchestration.conftest import Rig


def test_a_fleet_without_a_schedule_has_none(rig: Rig) -> None:
    """Nobody's fleet starts by itself unless the file says so."""
    assert not build_definitions(rig.fleet).schedules


def test_a_tick_asks_for_one_run_of_the_whole_fleet_named_by_its_time(rig: Rig) -> None:
    """A tick that Dagster evaluates twice has the run key of the first time."""
    definitions = build_definitions(replace(rig.fleet, schedule="0 3 * * *"))
    schedule = definitions.resolve_schedule_def("story__schedule")
    assert (schedule.job_name, schedule.cron_schedule) == ("story_fleet", "0 3 * * *")
    assert schedule.default_status is DefaultScheduleStatus.RUNNING
    context = build_schedule_context(
        instance=rig.instance, scheduled_execution_time=datetime(2026, 3, 1, 3, tzinfo=UTC)
    )
    (request,) = schedule.evaluate_tick(context).run_requests or []
    assert isinstance(request, RunRequest)
    assert request.run_key == "2026-03-01T03:00:00Z"
    assert request.tags["tenant_pipelines/tick"] == "2026-03-01T03:00:00+00:00"
