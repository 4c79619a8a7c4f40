"""Shards whose steps hang, beside shards that work."""

from pathlib import Path

import pytest

from tenant_pipelines_tests.crash.rig import GATED_STEPS, Rig, rig_of, wait_until
from tenant_pipelines_tests.crash.side_file import executions

pytestmark = pytest.mark.slow

_SHARDS = {"a": ["a1", "a2"], "b": ["b1", "b2"], "c": ["c1", "c2"], "d": ["d1", "d2"]}


def test_two_hanging_shards_delay_nobody_else(tmp_path: Path) -> None:
    """A source that never answers must not stop other customers.

    Dagster's own default, as many processes as processors, lets two hanging shards stop the rest
    on a machine with two of them.
    """
    with rig_of(tmp_path, module=GATED_STEPS, shards=_SHARDS) as rig:
        rig.open_gate("c", "d")
        run = rig.start("run", "--json")
        wait_until(
            lambda: (
                _statuses(rig)
                == dict.fromkeys("ab", "incomplete") | dict.fromkeys("cd", "completed")
            ),
            "c and d complete while a and b hang",
        )
        assert not run.has_ended()
        states = {
            (tenant["tenant"], cell["step"]): cell["state"]
            for shard in rig.call("status", "--json", "--shard", "a").document["shards"]
            for tenant in shard["tenants"]
            for cell in tenant["steps"]
        }
        assert states == {
            (tenant, step): state
            for tenant in _SHARDS["a"]
            for step, state in (("extract", "running"), ("load", "missing"))
        }

        rig.open_gate("a", "b")
        ended = run.finish()
        assert ended.code == 0, ended.err
        assert {shard["status"] for shard in ended.document["shards"]} == {"completed"}
        assert len(executions(tmp_path)) == 16
        assert set(executions(tmp_path).values()) == {1}
        rig.check_nothing_held()


def _statuses(rig: Rig) -> dict[str, str]:
    shards = rig.call("status", "--json").document["shards"]
    return {shard["shard"]: shard["status"] for shard in shards}
