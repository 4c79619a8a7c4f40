"""Tenants with odd names as Dagster's partition keys: each has its own key, events and colour."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from dagster import (
    AssetIn,
    AssetKey,
    AssetRecordsFilter,
    Definitions,
    DynamicPartitionsDefinition,
    asset,
)

from tenant_pipelines.fleet.file import load_fleet
from tenant_pipelines.orchestration import names
from tenant_pipelines.orchestration.build import build_definitions
from tenant_pipelines.orchestration.instance import Home, open_instance
from tenant_pipelines.orchestration.register import register_shard
from tenant_pipelines_tests.orchestration.conftest import Rig
from tenant_pipelines_tests.test_odd_names import ODD_NAMES

_PIPELINE = """
from pathlib import Path
from tenant_pipelines import Pipeline, step

FAULT = Path(__file__).with_name("fault")

@step
def extract(ctx):
    return {"tenant": ctx.tenant}

@step
def load(ctx, extract):
    if FAULT.exists() and extract["tenant"] in FAULT.read_text().split("\\n"):
        raise RuntimeError(f"[red]{ctx.tenant}[/red] %s {{0}}")
    return extract

odd = Pipeline([extract, load])
"""
_WHOLE: dict[str, Any] = {"first": ODD_NAMES[0], "last": ODD_NAMES[-1]}


@pytest.fixture
def odd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    """Return a fleet of one shard that holds every odd name, registered in a fresh instance."""
    module = "odd_" + tmp_path.name.replace("-", "_")
    (tmp_path / f"{module}.py").write_text(_PIPELINE)
    quoted = "".join(f"      - {json.dumps(name, ensure_ascii=False)}\n" for name in ODD_NAMES)
    (tmp_path / "fleet.yaml").write_text(
        f"name: odd\npipeline: {module}:odd\nshards:\n  s:\n    tenants:\n{quoted}"
    )
    monkeypatch.delenv("TENANT_PIPELINES_STATE", raising=False)
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(sys, "path", list(sys.path))
    fleet = load_fleet(tmp_path / "fleet.yaml")
    with open_instance(Home(tmp_path / "home", "test")) as instance:
        assert register_shard(instance, fleet, "s").keys_added == len(ODD_NAMES)
        yield Rig(fleet, instance, tmp_path / "fault")


def _events(rig: Rig, name: str, step: str = "load") -> list[Any]:
    """Return the materializations that Dagster finds when it asks for one partition key."""
    key = names.asset_key("odd", "s", step)
    records = rig.instance.fetch_materializations(
        AssetRecordsFilter(asset_key=key, asset_partitions=[name]), limit=100
    ).records
    return [record.asset_materialization for record in records]


def test_each_tenant_is_a_key_of_its_own(odd: Rig) -> None:
    """In the fleet file's order; registering again adds none, and known keys are told apart."""
    assert odd.instance.get_dynamic_partitions("odd/s") == ODD_NAMES
    assert register_shard(odd.instance, odd.fleet, "s").keys_added == 0
    partitions = DynamicPartitionsDefinition(name="odd/s")
    assert partitions.get_partition_keys(dynamic_partitions_store=odd.instance) == ODD_NAMES
    assert not odd.instance.has_dynamic_partition("odd/s", "aCME")


@pytest.mark.slow
def test_a_range_over_all_of_them_makes_each_green_with_its_own_data(odd: Rig) -> None:
    """One event per key and asset, each with the data version of its own tenant."""
    assert odd.run("s", **_WHOLE).success
    assert odd.shown("s") == {f"{n}:{s}": "green" for n in ODD_NAMES for s in ("extract", "load")}
    found = {name: _events(odd, name) for name in ODD_NAMES}
    assert {name: [event.partition for event in events] for name, events in found.items()} == {
        name: [name] for name in ODD_NAMES
    }
    versions = {events[0].tags[names.DATA_VERSION_TAG] for events in found.values()}
    assert len(versions) == len(ODD_NAMES)

    few = ODD_NAMES[ODD_NAMES.index("-x") : ODD_NAMES.index("`id`") + 1]
    tags = {"dagster/backfill": "bf"}
    backfill = odd.run("s", first=few[0], last=few[-1], tags=tags)
    assert backfill.success
    made = odd.materializations(backfill.run_id)
    assert made == {f"{n}:{s}": True for n in few for s in ("extract", "load")}

    assert _downstream(odd) == {name: {"tenant": name} for name in ODD_NAMES}
    assert _downstream(odd, partition_key="..") == {"tenant": ".."}


@pytest.mark.slow
def test_one_name_fails_and_what_looks_like_it_stays_green(odd: Rig) -> None:
    """By case, by composition, by encoding, by pattern: only the one that failed is red."""
    failing = ["acme", "caf\u00e9", "a/b", "[a]", "*", "..", "a ", "%s%d%(x)s"]
    odd.fault.write_text("\n".join(failing))
    result = odd.run("s")
    assert not result.success
    shown = odd.shown("s")
    red = [name for name in ODD_NAMES if shown[f"{name}:load"] == "red"]
    assert red == [name for name in ODD_NAMES if name in failing]
    assert set(shown.values()) == {"red", "green"}
    (failure,) = [event for event in result.all_events if event.is_step_failure]
    said = failure.step_failure_data.user_failure_data
    assert said is not None
    assert said.description is not None
    for name in failing:
        assert f"{name}:load failed: RuntimeError: [red]{name}[/red] %s {{0}}" in said.description


@pytest.mark.parametrize("name", ["--force", "caf\u00e9"])
def test_one_key_or_one_name_in_the_config_runs_that_tenant_alone(odd: Rig, name: str) -> None:
    """As ``dagster job execute`` with its tag, and from the launchpad."""
    one = odd.run("s", tags={"dagster/partition": name})
    assert one.success
    assert odd.materializations(one.run_id) == {f"{name}:extract": False, f"{name}:load": False}
    again = odd.run("s", config={"tenants": [name], "force": True, "steps": ["load"]})
    assert again.success
    assert odd.materializations(again.run_id) == {f"{name}:load": False}
    shown = odd.shown("s")
    assert [n for n in ODD_NAMES if shown[f"{n}:load"] == "green"] == [name]


def _downstream(rig: Rig, **run: Any) -> Any:
    """Return what a downstream asset of the user's gets as its input."""
    source = AssetIn(
        key=names.asset_key("odd", "s", "load"), input_manager_key=names.cells_resource("odd")
    )
    got: list[Any] = []

    @asset(ins={"cells": source}, partitions_def=names.partitions_of("odd", "s") if run else None)
    def league(cells: Any) -> None:
        got.append(cells)

    definitions = Definitions.merge(build_definitions(rig.fleet), Definitions(assets=[league]))
    job = definitions.resolve_implicit_global_asset_job_def()
    job.execute_in_process(instance=rig.instance, asset_selection=[AssetKey("league")], **run)
    return got[0]
