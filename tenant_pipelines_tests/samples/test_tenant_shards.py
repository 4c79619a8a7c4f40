"""The story's fleet: three shards, six tenants, and a switch that makes one step fail."""

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from tenant_pipelines.fleet.file import load_fleet
from tenant_pipelines.samples.tenant_shards import pipeline as sample
from tenant_pipelines_tests.storage.cells import context, finish, start


def run(state: Path, tenant: str = "umbrella") -> Any:
    """Run the three steps by hand."""
    output: Any = None
    for step in sample.pipeline.steps:
        where = context(state, tenant=tenant, step=step.name)
        output = step(where, **dict.fromkeys(step.upstream, output))
    return output


def test_the_fleet_is_the_one_of_the_story() -> None:
    """Its numbers are in the README."""
    fleet = load_fleet(Path(sample.__file__).with_name("fleet.yaml"))
    assert {name: list(shard.tenants) for name, shard in fleet.shards.items()} == {
        "shard_1": ["acme", "globex"],
        "shard_2": ["initech", "umbrella", "hooli"],
        "shard_3": ["wonka"],
    }
    assert {shard.limits.max_concurrent for shard in fleet.shards.values()} == {1}
    assert fleet.warehouse is None
    assert fleet.pipeline.names == ("extract", "transform", "load")


def test_without_a_fault_every_tenant_ends(tmp_path: Path) -> None:
    """Small JSON from step to step."""
    assert run(tmp_path) == {"loaded": 20}


def test_the_switch_fails_one_step_of_one_tenant(tmp_path: Path) -> None:
    """The others do not notice; without the file all is well again."""
    fault = {"tenant": "umbrella", "step": "transform", "kind": "raise"}
    (tmp_path / "fault.json").write_text(json.dumps(fault))
    for _ in range(2):
        with pytest.raises(RuntimeError, match="the vendor's file is broken"):
            run(tmp_path)
    assert run(tmp_path, "hooli") == {"loaded": 17}
    (tmp_path / "fault.json").unlink()
    assert run(tmp_path) == {"loaded": 20}


def test_a_fault_that_strikes_once(tmp_path: Path) -> None:
    """A retry of the same run succeeds."""
    fault = {"tenant": "umbrella", "step": "load", "kind": "raise", "once": True}
    (tmp_path / "fault.json").write_text(json.dumps(fault))
    with pytest.raises(RuntimeError):
        run(tmp_path)
    assert run(tmp_path) == {"loaded": 20}


@pytest.mark.slow
def test_the_switch_kills_for_real(tmp_path: Path) -> None:
    """SIGKILL: no cleanup, no exception."""
    fault = {"tenant": "umbrella", "step": "transform", "kind": "kill"}
    (tmp_path / "fault.json").write_text(json.dumps(fault))
    script = """
import sys
from pathlib import Path
from tenant_pipelines_tests.samples.test_tenant_shards import run
run(Path(sys.argv[1]))
"""
    assert finish(start(script, tmp_path), expect=-signal.SIGKILL) == ""
    assert (tmp_path / "fault.json").exists()
