"""A six-tenant fleet with a fault switch, and a real Dagster instance on SQLite."""

import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from dagster import (
    AssetMaterialization,
    DagsterInstance,
    ExecuteInProcessResult,
    ReexecutionOptions,
    build_reconstructable_job,
    execute_job,
)

from tenant_pipelines.fleet.file import load_fleet
from tenant_pipelines.fleet.model import Fleet
from tenant_pipelines.orchestration import names
from tenant_pipelines.orchestration.build import build_definitions
from tenant_pipelines.orchestration.dagster_internals import colours_of
from tenant_pipelines.orchestration.instance import Home, open_instance
from tenant_pipelines.orchestration.register import register_shard

_PIPELINE = """
from pathlib import Path
from tenant_pipelines import Pipeline, step

FAULT = Path(__file__).with_name("fault")

@step
def extract(ctx):
    return {"tenant": ctx.tenant, "cycle": ctx.cycle}

@step
def transform(ctx, extract):
    if ctx.tenant == "umbrella" and FAULT.exists():
        raise RuntimeError("the vendor's file is broken")
    return extract

@step
def load(ctx, transform):
    return None

story = Pipeline([extract, transform, load])
"""
_FLEET = """
name: NAME
pipeline: PIPELINE:story
shards:
  shard_1: {tenants: [acme, globex]}
  shard_2: {tenants: [initech, umbrella, hooli]}
  shard_3: {tenants: [wonka]}
"""


def shown_of(instance: DagsterInstance, fleet: Fleet, shard: str) -> dict[str, str]:
    """Return the colour of every ``tenant:step`` as the UI's partition bars have it."""
    found: dict[str, str] = {}
    for step in fleet.pipeline.names:
        colours = colours_of(
            instance,
            names.asset_key(fleet.name, shard, step),
            names.partitions_of(fleet.name, shard),
        )
        for tenant in fleet.shard(shard).tenants:
            green = tenant in colours.materialized
            red = tenant in colours.failed
            found[f"{tenant}:{step}"] = "red" if red else "green" if green else "none"
    return found


@dataclass(frozen=True)
class Rig:
    """One fleet in one instance."""

    fleet: Fleet
    instance: DagsterInstance
    fault: Path

    def of(self, fleet_file: Path) -> "Rig":
        """Return the rig of another fleet in the same instance."""
        fleet = load_fleet(fleet_file)
        for shard in fleet.shards:
            register_shard(self.instance, fleet, shard)
        return Rig(fleet, self.instance, self.fault)

    def run(
        self, shard: str = "shard_2", *, first: str | None = None, last: str | None = None,
        config: dict[str, Any] | None = None, tags: dict[str, str] | None = None,
        steps: list[str] | None = None,
    ) -> ExecuteInProcessResult:  # fmt: skip
        """Run a shard's job in this process, over a range of keys unless none is given."""
        job = build_definitions(self.fleet).resolve_job_def(names.shard_job(self.fleet.name, shard))
        given = dict(tags or {})
        if first is not None:
            given["dagster/asset_partition_range_start"] = first
            given["dagster/asset_partition_range_end"] = last or first
        op = names.cells_op(self.fleet.name, shard)
        selection = None
        if steps is not None:
            selection = [names.asset_key(self.fleet.name, shard, step) for step in steps]
        return job.execute_in_process(
            instance=self.instance, tags=given, raise_on_error=False, asset_selection=selection,
            run_config={"ops": {op: {"config": config or {}}}},
        )  # fmt: skip

    def tagged_run(
        self, shard: str | None, tags: dict[str, str], *, status: str = "FAILURE"
    ) -> None:
        """Record a run of a shard's or the fleet's job that ended without doing anything."""
        name = names.fleet_job(self.fleet.name)
        if shard is not None:
            name = names.shard_job(self.fleet.name, shard)
        job = build_definitions(self.fleet).resolve_job_def(name)
        run = self.instance.create_run_for_job(job, tags=tags)
        # as it happens: a run that is made ended has a time in whole seconds
        if status == "CANCELED":
            self.instance.report_run_canceled(run)
        else:
            self.instance.report_run_failed(run)

    def run_fleet(self, *, _ops: dict[str, Any] | None = None, **config: Any) -> Any:
        """Run the fleet job, each shard in a process of its own."""
        opening = {"config": config}
        return execute_job(
            build_reconstructable_job(
                "tenant_pipelines.orchestration.launch",
                "rebuild_fleet_job",
                (str(self.fleet.path),),
            ),
            instance=self.instance,
            run_config={"ops": {names.open_op(self.fleet.name): opening, **(_ops or {})}},
        )

    def reexecute(self, run_id: str) -> Any:
        """Re-execute a run of a shard's job from failure, as the UI's button does."""
        return execute_job(
            build_reconstructable_job(
                "tenant_pipelines_tests.orchestration.jobs", "shard_2", (str(self.fleet.path),)
            ),
            instance=self.instance,
            run_config={"execution": {"config": {"in_process": {}}}},
            reexecution_options=ReexecutionOptions.from_failure(run_id, self.instance),
        )

    def shown(self, shard: str = "shard_2") -> dict[str, str]:
        """Return the colour of every ``tenant:step``, see ``shown_of``."""
        return shown_of(self.instance, self.fleet, shard)

    def report(self, tenant: str, *steps: str, shard: str = "shard_2") -> None:
        """Report materializations by hand, as the UI lets people do."""
        for step in steps:
            key = names.asset_key(self.fleet.name, shard, step)
            event = AssetMaterialization(asset_key=key, partition=tenant)
            self.instance.report_runless_asset_event(event)

    def materializations(self, run_id: str) -> dict[str, bool]:
        """Return each materialized ``tenant:step`` of a run, and whether it was restated."""
        found: dict[str, bool] = {}
        for entry in self.instance.all_logs(run_id):
            event = entry.dagster_event
            if event is not None and event.is_step_materialization:
                made = event.step_materialization_data.materialization
                found[f"{made.partition}:{made.asset_key.path[-1]}"] = "reused" in made.metadata
        return found


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    """Return a fresh fleet, registered in a fresh instance."""
    # a module's name is the process's: each test has one of its own
    module = "story_" + tmp_path.name.replace("-", "_")
    (tmp_path / f"{module}.py").write_text(textwrap.dedent(_PIPELINE))
    (tmp_path / "fleet.yaml").write_text(
        _FLEET.replace("NAME", "story").replace("PIPELINE", module)
    )
    monkeypatch.delenv("TENANT_PIPELINES_STATE", raising=False)
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "home"))
    fleet = load_fleet(tmp_path / "fleet.yaml")
    with open_instance(Home(tmp_path / "home", "test")) as instance:
        for shard in fleet.shards:
            register_shard(instance, fleet, shard)
        yield Rig(fleet, instance, tmp_path / "fault")
