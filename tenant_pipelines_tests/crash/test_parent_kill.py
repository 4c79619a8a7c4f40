"""Kills of one process of a run: its first one, whose shards live on, and one shard's."""

import os
import signal
from pathlib import Path

import pytest

from tenant_pipelines_tests.crash.rig import GATED_STEPS, Rig, rig_of, wait_until
from tenant_pipelines_tests.crash.side_file import attempts, executions, note_deaths, peak

pytestmark = pytest.mark.slow

_SHARDS = {"a": ["a1", "a2", "a3", "a4", "a5"], "b": ["b1", "b2", "b3"]}
_CELLS = {
    (tenant, step): 1
    for tenants in _SHARDS.values()
    for tenant in tenants
    for step in ("extract", "load")
}


def test_orphans_of_a_killed_parent_and_the_next_run_share_each_shard_without_overlap(
    tmp_path: Path,
) -> None:
    """Who kills a run often leaves its children; a limit and a lease that forget them are none."""
    with rig_of(
        tmp_path, module=GATED_STEPS, shards=_SHARDS, defaults={"max_concurrent": 2}
    ) as rig:
        first = rig.start("run", "--json")
        wait_until(
            lambda: all(len(rig.live_attempts(shard)) == 2 for shard in _SHARDS),
            "both shards of the first run at their limit",
        )
        orphans = {one.pid for one in attempts(tmp_path)}
        first.kill_first_process_only()
        second = rig.start("run", "--json")
        wait_until(
            lambda: all(len(_locks_of(rig, shard)) == 2 for shard in _SHARDS),
            "the second run in both shards, beside the orphans",
        )
        assert orphans <= set(first.members()), "the orphans died with their parent"

        rig.open_gate(*_SHARDS)
        ended = second.finish()
        assert ended.code == 0, ended.err
        wait_until(lambda: not first.members(), "the end of the orphans")

        assert executions(tmp_path) == _CELLS
        assert {shard: peak(tmp_path, shard) for shard in _SHARDS} == {"a": 2, "b": 2}
        assert [entry[:2] for entry in rig.completed()] == sorted(_CELLS)
        rig.check_nothing_held()
        _check_the_dead_run_is_mended(rig)


def _locks_of(rig: Rig, shard: str) -> list[Path]:
    return list((rig.fleet.state / "runs").glob(f"*/{shard}.lock"))


def _check_the_dead_run_is_mended(rig: Rig) -> None:
    assert rig.run_statuses() == ["STARTED", "SUCCESS"]
    found = rig.call("doctor", "--json")
    assert found.code == 1
    assert len(found.document["findings"]) == 1
    # all is done, so that this run starts nothing: what the locks tell of the dead is enough
    again = rig.call("run", "--json")
    assert (again.code, again.document["run_id"]) == (0, None)
    assert rig.run_statuses() == ["FAILURE", "SUCCESS"]
    assert list((rig.fleet.state / "runs").glob("*")) == []
    assert rig.call("doctor", "--json").document["findings"] == []


def test_a_killed_shard_process_costs_its_own_shard_only(tmp_path: Path) -> None:
    """A shard is the unit of isolation: the out-of-memory killer takes one, not the fleet."""
    with rig_of(tmp_path, module=GATED_STEPS, shards=_SHARDS) as rig:
        rig.open_gate("b")
        first = rig.start("run", "--json")
        wait_until(lambda: bool(rig.live_attempts("a")), "a cell of shard a")
        os.kill(rig.live_attempts("a")[0].pid, signal.SIGKILL)
        ended = first.finish()
        assert ended.code == 1
        note_deaths(tmp_path)
        found = {shard["shard"]: shard for shard in ended.document["shards"]}
        assert found["a"]["status"] == "partial_failure"
        assert {cell["error"] for cell in found["a"]["failed"]} == {"the process died in it"}
        assert (found["b"]["status"], found["b"]["ran"]) == ("completed", 6)

        rig.open_gate("a")
        again = rig.call("run", "--json")
        assert again.code == 0, again.err
        assert {
            shard["shard"]: (shard["ran"], shard["skipped"]) for shard in again.document["shards"]
        } == {"a": (10, 0), "b": (0, 6)}
        assert executions(tmp_path) == _CELLS
        rig.check_nothing_held()
        assert rig.run_statuses() == ["FAILURE", "SUCCESS"]
