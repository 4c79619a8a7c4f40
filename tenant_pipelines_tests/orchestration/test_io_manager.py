"""The IO manager: every cell of a run goes through it, and users' assets in and out."""

from typing import Any

import pytest
from dagster import AssetIn, AssetKey, Definitions, asset

from tenant_pipelines.errors import InvalidRequest, OutputMissing
from tenant_pipelines.journal.entries import Entry
from tenant_pipelines.orchestration import names
from tenant_pipelines.orchestration.assets import shard_assets
from tenant_pipelines.orchestration.build import build_definitions
from tenant_pipelines.orchestration.io_manager import TenantIOManager
from tenant_pipelines.orchestration.resources import RunJournalResource
from tenant_pipelines.storage.output import StoredOutput
from tenant_pipelines_tests.engine.fleets import run_shard
from tenant_pipelines_tests.orchestration.conftest import Rig


class _Recording(TenantIOManager):
    """Notes each call and does the real thing."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.calls: list[tuple[str, str, str]] = []

    def store(self, attempt: Any, value: Any) -> Any:
        self.calls.append(("store", attempt.tenant, attempt.step))
        return super().store(attempt, value)

    def load(self, attempt: Any, stored: Any) -> Any:
        self.calls.append(("load", attempt.tenant, attempt.step))
        return super().load(attempt, stored)


def test_every_cell_of_a_dagster_run_moves_through_the_resource(rig: Rig) -> None:
    """Swapping the resource moves all cells with it: Dagster does not just list it."""
    recording = _Recording(rig.fleet)
    job = Definitions(
        assets=[shard_assets(rig.fleet, "shard_3")],
        jobs=build_definitions(rig.fleet).jobs,
        resources={
            names.cells_resource("story"): recording,
            names.journal_resource("story"): RunJournalResource(rig.fleet),
        },
    )
    asset_job = job.resolve_implicit_global_asset_job_def()
    assert asset_job.execute_in_process(instance=rig.instance, partition_key="wonka").success
    assert recording.calls == [
        ("store", "wonka", "extract"),
        ("load", "wonka", "extract"),
        ("store", "wonka", "transform"),
        ("load", "wonka", "transform"),
        ("store", "wonka", "load"),
    ]


def _read(rig: Rig, *, metadata: dict[str, Any] | None = None, **run: Any) -> Any:
    """Return what a downstream asset of the user's gets as its input."""
    source = AssetIn(
        key=AssetKey(["story", "shard_2", "transform"]),
        input_manager_key=names.cells_resource("story"),
        metadata=metadata,
    )
    got: list[Any] = []
    partitions = names.partitions_of("story", "shard_2") if run else None

    @asset(ins={"cells": source}, partitions_def=partitions, name="league")
    def league(cells: Any) -> None:
        got.append(cells)

    definitions = Definitions.merge(build_definitions(rig.fleet), Definitions(assets=[league]))
    job = definitions.resolve_implicit_global_asset_job_def()
    job.execute_in_process(instance=rig.instance, asset_selection=[AssetKey("league")], **run)
    return got[0]


def test_a_downstream_asset_gets_one_tenant_for_one_key_and_all_without_a_partition(
    rig: Rig,
) -> None:
    """Always a dict for several."""
    run_shard(rig.fleet, "shard_2")
    values = {
        tenant: {"tenant": tenant, "cycle": "1"} for tenant in ("initech", "umbrella", "hooli")
    }
    assert _read(rig) == values
    assert _read(rig, partition_key="hooli") == values["hooli"]


def test_a_tenant_without_an_output_is_a_named_error_or_skipped_on_request(rig: Rig) -> None:
    """Nothing is left out silently."""
    rig.fault.touch()
    run_shard(rig.fleet, "shard_2")
    with pytest.raises(OutputMissing, match="umbrella"):
        _read(rig)
    assert sorted(_read(rig, metadata={"tenant_pipelines/missing": "skip"})) == ["hooli", "initech"]


def _write(rig: Rig, value: Any, *, shard: str = "shard_2", **run: Any) -> bool:
    @asset(
        partitions_def=names.partitions_of("story", shard),
        io_manager_key=names.cells_resource("story"),
        name="scores",
    )
    def scores() -> Any:
        return value

    definitions = Definitions.merge(build_definitions(rig.fleet), Definitions(assets=[scores]))
    job = definitions.resolve_implicit_global_asset_job_def()
    result = job.execute_in_process(
        instance=rig.instance, asset_selection=[AssetKey("scores")], **run
    )
    return result.success


def _exists(rig: Rig, entry: Entry) -> bool:
    output = StoredOutput.from_json(entry.payload["output"])
    return output.path is not None and TenantIOManager(rig.fleet).exists(output)


def test_a_users_own_partitioned_asset_is_stored_and_journaled(rig: Rig) -> None:
    """The same persistence: an artifact that an entry publishes, a new generation each time."""
    run_shard(rig.fleet, "shard_2")
    big = {"score": "x" * 10_000}
    assert _write(rig, big, partition_key="hooli")
    assert _write(rig, big, partition_key="hooli")
    with RunJournalResource(rig.fleet).open("shard_2") as journal:
        found = [entry for entry in journal.completions_of("hooli") if "scores" in entry.step]
    assert [entry.generation for entry in found] == [1, 2]
    assert _exists(rig, found[-1])
    # and a run leaves it alone
    assert run_shard(rig.fleet, "shard_2", force=True).report.is_complete
    assert _exists(rig, found[-1])


def test_an_asset_that_is_not_on_a_shard_is_refused(rig: Rig) -> None:
    """The error says which partition set to use."""
    with pytest.raises(InvalidRequest, match="partition set"):
        _write_unpartitioned(rig)


def _write_unpartitioned(rig: Rig) -> None:
    @asset(io_manager_key=names.cells_resource("story"), name="loose")
    def loose() -> int:
        return 1

    definitions = Definitions.merge(build_definitions(rig.fleet), Definitions(assets=[loose]))
    job = definitions.resolve_implicit_global_asset_job_def()
    job.execute_in_process(instance=rig.instance, asset_selection=[AssetKey("loose")])
