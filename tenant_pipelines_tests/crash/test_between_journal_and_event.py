"""A run that dies when the journal has its cells and Dagster has not heard of them."""

from pathlib import Path

import pytest

from tenant_pipelines.orchestration import names
from tenant_pipelines.orchestration.dagster_internals import colours_of
from tenant_pipelines_tests.crash.rig import Rig, rig_of, wait_until
from tenant_pipelines_tests.crash.side_file import executions, note_deaths

pytestmark = pytest.mark.slow

# while the file "dies" is there, shard a dies after its last entry and before its first event
_STEPS = """
import json
import os
import signal

@step
def extract(ctx: StepContext) -> dict:
    with noted(HERE, ctx):
        if ctx.shard == "b":
            wait_for(HERE / "go.b")
        return {"tenant": ctx.tenant}

@step
def load(ctx: StepContext, extract: dict) -> None:
    with noted(HERE, ctx):
        pass

pipeline = Pipeline([extract, load])

def dies(fleet, event):
    from tenant_pipelines.journal.journal import Journal
    path = HERE / "state" / fleet / "shards" / event.attempt.shard / "journal.db"
    with Journal(path, fleet=fleet, shard=event.attempt.shard) as journal:
        while sum(entry.kind == "completed" for entry in journal.all_entries()) < 6:
            time.sleep(0.02)
    if (HERE / "dies").read_text() == "the run":
        os.killpg(os.getpgid(0), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)

if (HERE / "dies").exists():
    from tenant_pipelines.orchestration import shard_op
    materialization = shard_op.materialization
    shard_op.materialization = (
        lambda fleet, event: (dies if event.attempt.shard == "a" else materialization)(fleet, event)
    )
"""
_SHARDS = {"a": ["a1", "a2", "a3"], "b": ["b1"]}


@pytest.mark.parametrize("what", ["the run", "the process of the shard"])
def test_the_next_run_shows_dagster_what_a_dead_one_had_no_time_to_tell(
    tmp_path: Path, what: str
) -> None:
    """Done in the journal and missing in the UI is what makes people run things by hand.

    The journal of the shard is complete, so the next run has nothing to do in it but to say so.
    """
    with rig_of(tmp_path, module=_STEPS, shards=_SHARDS) as rig:
        (tmp_path / "dies").write_text(what)
        run = rig.start("run", "--json")
        if what == "the run":
            wait_until(lambda: not run.members(), "the end of the run")
        else:
            wait_until(lambda: len(executions(tmp_path)) == 6, "shard a")
            rig.open_gate("b")
            run.finish()
        note_deaths(tmp_path)
        (tmp_path / "dies").unlink()
        assert len([entry for entry in rig.completed() if entry[0].startswith("a")]) == 6
        assert _shown(rig, "a") == {"extract": set(), "load": set()}

        rig.open_gate("b")
        again = rig.call("run", "--json")
        assert again.code == 0, again.err
        assert {shard["shard"]: shard["ran"] for shard in again.document["shards"]}["a"] == 0
        assert len(executions(tmp_path)) == 8
        assert set(executions(tmp_path).values()) == {1}
        for shard, tenants in _SHARDS.items():
            assert _shown(rig, shard) == {"extract": set(tenants), "load": set(tenants)}
        # no run is needed only to say so: the command itself does
        runs = {"the run": ["FAILURE", "SUCCESS"], "the process of the shard": ["FAILURE"]}
        assert rig.run_statuses() == runs[what]


def _shown(rig: Rig, shard: str) -> dict[str, set[str]]:
    """Return the keys that Dagster shows as materialized, none of which it may show as failed."""
    shown: dict[str, set[str]] = {}
    partitions = names.partitions_of(rig.name, shard)
    with rig.instance() as instance:
        for step in ("extract", "load"):
            key = names.asset_key(rig.name, shard, step)
            colours = colours_of(instance, key, partitions)
            assert colours.failed == frozenset()
            shown[step] = set(colours.materialized)
            assert shown[step] == instance.get_materialized_partitions(key)
    return shown
