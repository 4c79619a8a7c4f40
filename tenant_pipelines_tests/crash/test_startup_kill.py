"""A kill in the moment between a run's start and its executor's first word."""

import time
from pathlib import Path

import pytest

from tenant_pipelines.orchestration.dagster_internals import executor_process
from tenant_pipelines.orchestration.instance import end_dead_runs
from tenant_pipelines_tests.crash.rig import rig_of, wait_until

pytestmark = pytest.mark.slow

# the executor's first word comes after this, and the test kills first
_STEPS = """
@step
def extract(ctx: StepContext) -> None:
    pass

pipeline = Pipeline([extract])

if (HERE / "mute").exists():
    from dagster import DagsterEvent
    engine_event = DagsterEvent.engine_event

    def waits(context, message, *rest, **facts):
        if "Executing steps using multiprocess executor" in message:
            wait_for(HERE / "never")
        return engine_event(context, message, *rest, **facts)

    DagsterEvent.engine_event = staticmethod(waits)
"""


def test_a_run_killed_before_it_told_its_pid_is_ended_once_no_run_is_silent_so_long(
    tmp_path: Path,
) -> None:
    """It has neither a lock nor a pid by which to know it dead, and would show STARTED for ever."""
    with rig_of(tmp_path, module=_STEPS, shards={"a": ["a1"]}) as rig:
        (tmp_path / "mute").touch()
        # an instance that two processes create at once, neither by our commands, stays broken
        assert rig.run_statuses() == []
        run = rig.start_job()
        wait_until(lambda: rig.run_statuses() == ["STARTED"], "the run's start")
        run.kill()
        (tmp_path / "mute").unlink()
        with rig.instance() as instance:
            (run_id,) = (found.run_id for found in instance.get_runs())
            assert executor_process(instance, run_id) is None
            assert end_dead_runs(instance, rig.fleet) == []
            assert end_dead_runs(instance, rig.fleet, now=lambda: time.time() + 600) == [run_id]
        assert rig.run_statuses() == ["FAILURE"]
