"""SIGTERM to the first process of a run, as a service manager sends it."""

import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tenant_pipelines_tests.crash.rig import rig_of, wait_until
from tenant_pipelines_tests.crash.side_file import attempts, executions, note_deaths

pytestmark = pytest.mark.slow

# a sleep cannot be interrupted from another thread: the process has to leave the step behind
_SLEEPING_STEPS = """
@step
def extract(ctx: StepContext) -> dict:
    with noted(HERE, ctx):
        if not (HERE / "awake").exists():
            time.sleep(60)
        return {"tenant": ctx.tenant}

@step
def load(ctx: StepContext, extract: dict) -> None:
    with noted(HERE, ctx):
        pass

pipeline = Pipeline([extract, load])
"""
_SHARDS = {"a": ["a1", "a2"], "b": ["b1", "b2", "b3"]}


@pytest.mark.parametrize("how", ["run", "job"])
def test_a_terminated_run_leaves_no_process_and_nothing_locked_and_resumes(
    tmp_path: Path, how: str, record_property: Callable[[str, object], None]
) -> None:
    """A deployment stops the machine with SIGTERM, and kills what is left a little later."""
    with rig_of(tmp_path, module=_SLEEPING_STEPS, shards=_SHARDS) as rig:
        run = rig.start_as(how)
        wait_until(lambda: len(attempts(tmp_path)) == 4, "both shards asleep")
        sent_at = time.monotonic()
        run.process.send_signal(signal.SIGTERM)
        # STOP_SECONDS for the workers, and some for Dagster
        wait_until(lambda: run.has_ended() and not run.members(), "the end of the tree", seconds=20)
        record_property("seconds_to_end", round(time.monotonic() - sent_at, 2))
        assert run.finish().code != 0
        note_deaths(tmp_path)
        rig.check_nothing_held()
        assert not executions(tmp_path)

        (tmp_path / "awake").touch()
        again = rig.call("run", "--json")
        assert again.code == 0, again.err
        assert {shard["shard"]: shard["ran"] for shard in again.document["shards"]} == {
            "a": 4,
            "b": 6,
        }
        assert len(executions(tmp_path)) == 10
        assert set(executions(tmp_path).values()) == {1}
        rig.check_nothing_held()
        first, second = rig.run_statuses()
        assert first in {"CANCELED", "FAILURE"}
        assert second == "SUCCESS"
        assert rig.call("doctor", "--json").document["findings"] == []
