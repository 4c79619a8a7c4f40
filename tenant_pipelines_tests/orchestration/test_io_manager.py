"""The IO manager: every cell of a run goes through it, and users' own assets in and out.

Each test is a real run on a real instance, on the tags that the UI gives a run: one key, a range,
or none.
"""

import json
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from dagster import (
    AllPartitionMapping,
    AssetExecutionContext,
    AssetIn,
    AssetKey,
    AssetOut,
    AssetRecordsFilter,
    AssetsDefinition,
    AssetSpec,
    DagsterInstance,
    Definitions,
    DynamicPartitionsDefinition,
    ExecuteInProcessResult,
    StaticPartitionsDefinition,
    asset,
    define_asset_job,
    multi_asset,
)

from tenant_pipelines.engine.leases import TenantLeases
from tenant_pipelines.errors import InvalidRequest, OutputMissing, UnsupportedOutput
from tenant_pipelines.fleet.file import load_fleet
from tenant_pipelines.fleet.model import Fleet
from tenant_pipelines.journal.entries import Entry, EntryKind
from tenant_pipelines.journal.journal import Journal
from tenant_pipelines.orchestration import names
from tenant_pipelines.orchestration.assets import shard_assets
from tenant_pipelines.orchestration.build import build_definitions
from tenant_pipelines.orchestration.instance import Home, open_instance
from tenant_pipelines.orchestration.io_manager import TenantIOManager
from tenant_pipelines.orchestration.register import register_shard
from tenant_pipelines.orchestration.resources import RunJournalResource
from tenant_pipelines.storage.output import StoredOutput
from tenant_pipelines_tests.engine.fleets import run_shard
from tenant_pipelines_tests.orchestration.conftest import Rig
from tenant_pipelines_tests.test_odd_names import ODD_NAMES

SKIP = {"tenant_pipelines/missing": "skip"}
SHARD_2 = ["initech", "umbrella", "hooli"]
_JOB = "mine"


def _keys(first: str | None = None, last: str | None = None) -> dict[str, str]:
    """Return the tags of a run on no key, on one, or on a range (of one: both ends the same)."""
    if first is None:
        return {}
    if last is None:
        return {"dagster/partition": first}
    return {
        "dagster/asset_partition_range_start": first,
        "dagster/asset_partition_range_end": last,
    }


def _defs(
    fleet: Fleet, *assets: AssetsDefinition, select: Sequence[AssetKey] | None = None
) -> Definitions:
    """Return a user's definitions beside the fleet's, with a job over the user's assets."""
    job = define_asset_job(_JOB, selection=select or [key for one in assets for key in one.keys])
    return Definitions.merge(build_definitions(fleet), Definitions(assets=assets, jobs=[job]))


def _run(
    instance: DagsterInstance,
    definitions: Definitions,
    tags: dict[str, str],
    *,
    raises: bool = True,
) -> ExecuteInProcessResult:
    job = definitions.resolve_job_def(_JOB)
    return job.execute_in_process(instance=instance, tags=tags, raise_on_error=raises)


def _reader(
    got: list[Any], of: AssetKey, *, fleet: str = "story", on: Any = None, mapping: Any = None,
    metadata: dict[str, Any] | None = None,
) -> AssetsDefinition:  # fmt: skip
    """Return a downstream asset of the user's that notes what it gets."""
    source = AssetIn(
        key=of,
        input_manager_key=names.cells_resource(fleet),
        metadata=metadata,
        partition_mapping=mapping,
    )

    @asset(ins={"cells": source}, partitions_def=on, name="reader")
    def reader(cells: Any) -> None:
        got.append(cells)

    return reader


def _read(
    rig: Rig, tags: dict[str, str], *, shard: str = "shard_2", of: AssetKey | None = None,
    writer: AssetsDefinition | None = None, **how: Any,
) -> Any:  # fmt: skip
    """Return what a downstream asset gets, partitioned like the shard when the run has keys."""
    got: list[Any] = []
    how.setdefault("on", names.partitions_of("story", shard) if tags else None)
    reader = _reader(got, of or names.asset_key("story", shard, "transform"), **how)
    assets = [reader] if writer is None else [writer, reader]
    _run(rig.instance, _defs(rig.fleet, *assets, select=[reader.key]), tags)
    return got[0]


def _writer(
    value: Any = None, *, shard: str = "shard_2", fleet: str = "story",
    key: Sequence[str] = ("scores",), on: Any = ...,
) -> AssetsDefinition:  # fmt: skip
    """Return a user's own asset; a callable value is called with the context."""

    manager = names.cells_resource(fleet)

    # an @asset names its op by its key, which then can have no slash
    @multi_asset(
        name="scores",
        outs={"scores": AssetOut(key=AssetKey(key), io_manager_key=manager)},
        partitions_def=names.partitions_of(fleet, shard) if on is ... else on,
    )
    def scores(context: AssetExecutionContext) -> Any:
        return value(context) if callable(value) else value

    return scores


def _write(rig: Rig, tags: dict[str, str], value: Any, *, raises: bool = True, **how: Any) -> Any:
    return _run(rig.instance, _defs(rig.fleet, _writer(value, **how)), tags, raises=raises)


def _named(context: AssetExecutionContext) -> dict[str, Any]:
    """Return a value for each key of a range."""
    return {key: {"of": key} for key in context.partition_keys}


def _entries(rig: Rig, shard: str = "shard_2") -> list[Entry]:
    """Return what the journal has of users' own assets."""
    with RunJournalResource(rig.fleet).open(shard) as journal:
        return [entry for entry in journal.all_entries() if entry.step.startswith("asset:")]


def _told(entries: list[Entry]) -> list[tuple[str, str, int, int]]:
    return [(e.kind.value, e.tenant, e.generation, e.attempt) for e in entries]


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


# in: what a downstream asset of the user's gets of a shard


def test_one_key_gives_the_value_and_every_other_run_a_dict(rig: Rig) -> None:
    """A range of one as well: code written for a range must not meet another type there."""
    run_shard(rig.fleet, "shard_2")
    values = {tenant: {"tenant": tenant, "cycle": "1"} for tenant in SHARD_2}
    assert _read(rig, _keys("hooli")) == values["hooli"]
    assert _read(rig, _keys("initech", "umbrella")) == {
        name: values[name] for name in ("initech", "umbrella")
    }
    assert _read(rig, _keys("hooli", "hooli")) == {"hooli": values["hooli"]}
    everything = _read(rig, _keys())
    assert everything == values
    assert list(everything) == SHARD_2  # Dagster's own order is that of a set
    assert list(_read(rig, _keys("initech", "hooli"))) == SHARD_2


def test_a_shard_of_one_tenant_still_gives_a_dict(rig: Rig) -> None:
    """Whoever reads all of it, without a partition or by a mapping, or the type depends on size."""
    run_shard(rig.fleet, "shard_3")
    wonka = {"wonka": {"tenant": "wonka", "cycle": "1"}}
    assert _read(rig, _keys(), shard="shard_3") == wonka
    regions = StaticPartitionsDefinition(["eu", "us"])
    mapped = _read(rig, _keys("eu"), shard="shard_3", on=regions, mapping=AllPartitionMapping())
    assert mapped == wonka
    # an unpartitioned asset in a job that runs on a key of another one
    assert _read(rig, _keys("wonka"), shard="shard_3", on=None) == wonka


def test_all_keys_are_the_fleet_files_also_where_dagster_knows_none(
    rig: Rig, tmp_path: Path
) -> None:
    """A new instance, or a tenant that is not registered yet, would leave some out silently."""
    run_shard(rig.fleet, "shard_2")
    got: list[Any] = []
    reader = _reader(got, names.asset_key("story", "shard_2", "transform"))
    with open_instance(Home(tmp_path / "new_home", "test")) as instance:
        _run(instance, _defs(rig.fleet, reader), _keys())
    assert list(got[0]) == SHARD_2


@pytest.mark.parametrize(
    "tags", [_keys("umbrella"), _keys("initech", "hooli"), _keys("umbrella", "umbrella"), _keys()]
)
def test_a_tenant_without_an_output_is_a_named_error(rig: Rig, tags: dict[str, str]) -> None:
    """For one key, a range, a range of one and all: nothing is left out silently."""
    rig.fault.touch()
    run_shard(rig.fleet, "shard_2")
    with pytest.raises(OutputMissing, match=r"'shard_2', tenant 'umbrella'.*'transform'"):
        _read(rig, tags)


def test_a_tenant_without_an_output_is_skipped_on_request(rig: Rig) -> None:
    """None for a single key, which has nothing else to be; left out of a dict."""
    rig.fault.touch()
    run_shard(rig.fleet, "shard_2")
    assert _read(rig, _keys("umbrella"), metadata=SKIP) is None
    assert list(_read(rig, _keys("initech", "hooli"), metadata=SKIP)) == ["initech", "hooli"]
    assert _read(rig, _keys("umbrella", "umbrella"), metadata=SKIP) == {}
    assert list(_read(rig, _keys(), metadata=SKIP)) == ["initech", "hooli"]


def test_reading_a_shard_that_never_ran_makes_no_journal(rig: Rig) -> None:
    """A look is not a write; the error is that of any missing output."""
    with pytest.raises(OutputMissing, match="'acme'"):
        _read(rig, _keys(), shard="shard_1")
    assert _read(rig, _keys(), shard="shard_1", metadata=SKIP) == {}
    assert not rig.fleet.journal_path("shard_1").exists()


def test_a_tenant_that_left_the_fleet_file_is_read_by_its_key_and_not_with_all(rig: Rig) -> None:
    """Its data stays, and so does its key for a while; a silent None would read as no data."""
    run_shard(rig.fleet, "shard_2")
    shard = rig.fleet.shard("shard_2")
    left = {name: tenant for name, tenant in shard.tenants.items() if name != "umbrella"}
    shards = {**rig.fleet.shards, "shard_2": replace(shard, tenants=left)}
    without = replace(rig, fleet=replace(rig.fleet, shards=shards))
    assert _read(without, _keys("umbrella")) == {"tenant": "umbrella", "cycle": "1"}
    assert set(_read(without, _keys("initech", "hooli"))) == set(SHARD_2)
    assert list(_read(without, _keys())) == ["initech", "hooli"]
    rig.instance.add_dynamic_partitions("story/shard_2", ["stranger"])
    with pytest.raises(OutputMissing, match="stranger"):
        _read(without, _keys("stranger"))


def test_a_reader_sees_the_newest_completed_output_while_a_later_one_fails(rig: Rig) -> None:
    """The old value or the new one, of whatever cycle."""
    run_shard(rig.fleet, "shard_2")
    rig.fault.touch()
    run_shard(rig.fleet, "shard_2", new_cycle="second")
    assert {name: value["cycle"] for name, value in _read(rig, _keys()).items()} == {
        "initech": "second", "umbrella": "1", "hooli": "second",
    }  # fmt: skip


def test_an_input_that_the_fleet_does_not_store_is_refused(rig: Rig) -> None:
    """A step that does not exist, or an asset of somebody else's."""
    for key in (["story", "shard_2", "trasform"], ["story", "shard_9", "load"], ["elsewhere"]):
        reader = _reader([], AssetKey(key))
        definitions = Definitions.merge(
            _defs(rig.fleet, reader), Definitions(assets=[AssetSpec(AssetKey(key))])
        )
        with pytest.raises(InvalidRequest, match="does not store"):
            _run(rig.instance, definitions, _keys())


# out: a user's own asset on a shard's partition set


def test_one_key_stores_the_value_and_a_range_one_value_per_key(rig: Rig) -> None:
    """A dict is a value like any other for one key; a range of one wants a dict of one."""
    assert _write(rig, _keys("hooli"), {"a": 1}).success
    assert _read(rig, _keys("hooli"), of=AssetKey("scores"), writer=_writer()) == {"a": 1}
    assert _write(rig, _keys("hooli", "hooli"), {"hooli": {"a": 2}}).success
    assert _read(rig, _keys("hooli"), of=AssetKey("scores"), writer=_writer()) == {"a": 2}
    assert _write(rig, _keys("initech", "hooli"), _named).success
    stored = {name: {"of": name} for name in SHARD_2}
    for tags, wanted in [
        (_keys("umbrella"), stored["umbrella"]),
        (_keys("umbrella", "hooli"), {name: stored[name] for name in ("umbrella", "hooli")}),
        (_keys("umbrella", "umbrella"), {"umbrella": stored["umbrella"]}),
        (_keys(), stored),
    ]:
        assert _read(rig, tags, of=AssetKey("scores"), writer=_writer()) == wanted


def test_a_range_reads_and_writes_in_one_run(rig: Rig) -> None:
    """From the shard's cells to the user's own asset, key by key, and on to the next one."""
    run_shard(rig.fleet, "shard_2")
    partitions = names.partitions_of("story", "shard_2")
    manager = names.cells_resource("story")
    cells = AssetIn(key=names.asset_key("story", "shard_2", "transform"), input_manager_key=manager)

    @asset(ins={"cells": cells}, partitions_def=partitions, io_manager_key=manager)
    def lengths(cells: dict[str, Any]) -> dict[str, Any]:
        return {name: len(value["tenant"]) for name, value in cells.items()}

    @asset(ins={"lengths": AssetIn(input_manager_key=manager)}, partitions_def=partitions,
           io_manager_key=manager)  # fmt: skip
    def doubled(lengths: dict[str, int]) -> dict[str, int]:
        return {name: 2 * length for name, length in lengths.items()}

    definitions = _defs(rig.fleet, lengths, doubled)
    assert _run(rig.instance, definitions, _keys("initech", "hooli")).success
    got: list[Any] = []
    reader = _reader(got, AssetKey("doubled"))
    _run(rig.instance, _defs(rig.fleet, lengths, doubled, reader, select=[reader.key]), _keys())
    assert got == [{"initech": 14, "umbrella": 16, "hooli": 10}]
    loaded = definitions.load_asset_value("doubled", partition_key="hooli", instance=rig.instance)
    assert loaded == 10


def test_data_frames_come_back_as_they_were(rig: Rig) -> None:
    """As a cell's: Parquet with a digest, numbers for Dagster to plot on each key's own event."""
    frames = {
        name: pd.DataFrame({"score": range(size), "who": name})
        for size, name in enumerate(SHARD_2, start=3)
    }
    run = _write(rig, _keys("initech", "hooli"), frames)
    assert run.success
    got = _read(rig, _keys(), of=AssetKey("scores"), writer=_writer())
    for name, frame in frames.items():
        pd.testing.assert_frame_equal(got[name], frame)
    outputs = {e.tenant: e.payload["output"] for e in _entries(rig) if e.kind == "completed"}
    records = rig.instance.fetch_materializations(AssetRecordsFilter(AssetKey("scores")), limit=10)
    events = [record.asset_materialization for record in records.records]
    shown = {
        event.partition: {name: value.value for name, value in event.metadata.items()}
        for event in events
        if event is not None
    }
    assert len(events) == 3
    assert shown == {
        name: {
            "cycle": "1", "generation": 1, "rows": size,
            "bytes": outputs[name]["bytes"], "digest": outputs[name]["digest"],
        }
        for size, name in enumerate(SHARD_2, start=3)
    }  # fmt: skip


def test_each_write_is_a_generation_whose_artifact_a_run_leaves_alone(rig: Rig) -> None:
    """The shard's own runs collect artifacts that no entry names; these are named."""
    run_shard(rig.fleet, "shard_2")
    big = {"score": "x" * 10_000}
    assert _write(rig, _keys("hooli"), big).success
    assert _write(rig, _keys("hooli"), big).success
    assert _told(_entries(rig)) == [
        ("started", "hooli", 1, 1),
        ("completed", "hooli", 1, 1),
        ("started", "hooli", 2, 1),
        ("completed", "hooli", 2, 1),
    ]
    output = StoredOutput.from_json(_entries(rig)[-1].payload["output"])
    assert output.path is not None
    assert run_shard(rig.fleet, "shard_2", force=True).report.is_complete
    assert TenantIOManager(rig.fleet).exists(output)


def test_a_write_before_the_first_run_opens_the_first_cycle(rig: Rig) -> None:
    """An entry of a cycle that nobody opened would be in none that prune or status knows."""
    assert _write(rig, _keys("hooli"), 1).success
    with RunJournalResource(rig.fleet).open("shard_2") as journal:
        assert [entry.cycle for entry in journal.cycle_entries()] == ["1"]
    assert {entry.cycle for entry in _entries(rig)} == {"1"}
    assert run_shard(rig.fleet, "shard_2").report.ran == 9


def test_keys_that_look_alike_are_two_assets(rig: Rig) -> None:
    """A slash in a part of a key, and a key in the place of a step's."""
    keys = (["a/b"], ["a", "b"], ["story", "shard_2", "own"])
    for at, key in enumerate(keys):
        assert _write(rig, _keys("hooli"), at, key=key).success
    for at, key in enumerate(keys):
        writer = _writer(key=key)
        assert _read(rig, _keys("hooli"), of=AssetKey(key), writer=writer) == at


@pytest.mark.parametrize(
    ("tags", "value", "found"),
    [
        (_keys("initech", "hooli"), {"initech": 1}, "without 'hooli', 'umbrella'"),
        (_keys("initech", "umbrella"), {"initech": 1, "umbrella": 2, "hooli": 3}, "with 'hooli'"),
        (_keys("initech", "umbrella"), [1, 2], "a list, for a range of 2"),
        (_keys("hooli", "hooli"), "bare", "a str, for a range of 1"),
    ],
)
def test_a_value_that_does_not_fit_the_keys_is_refused_before_anything_is_written(
    rig: Rig, tags: dict[str, str], value: Any, found: str
) -> None:
    """The error says which keys, and what to return."""
    with pytest.raises(InvalidRequest, match=found):
        _write(rig, tags, value)
    assert not rig.fleet.journal_path("shard_2").exists()


def test_an_asset_that_is_not_on_a_shard_or_runs_on_no_key_is_refused(rig: Rig) -> None:
    """The error says which partition set to use, or to launch it on keys."""
    with pytest.raises(InvalidRequest, match="wanted a shard's partition set, 'story/SHARD'"):
        _write(rig, _keys(), 1, on=None)
    rig.instance.add_dynamic_partitions("other", ["a"])
    with pytest.raises(InvalidRequest, match="no partition set of a shard, but 'other'"):
        _write(rig, _keys("a"), 1, on=DynamicPartitionsDefinition(name="other"))
    with pytest.raises(InvalidRequest, match="a run without a partition key"):
        _write(rig, _keys(), 1)


def test_one_tenant_that_cannot_be_stored_fails_alone(rig: Rig) -> None:
    """The others are stored and green; its next write is the same generation's next attempt."""
    bad = {**{name: {"of": name} for name in SHARD_2}, "umbrella": object()}
    run = _write(rig, _keys("initech", "hooli"), bad, raises=False)
    assert not run.success
    assert _told(_entries(rig)) == [
        ("started", "initech", 1, 1), ("completed", "initech", 1, 1),
        ("started", "umbrella", 1, 1), ("failed", "umbrella", 1, 1),
        ("started", "hooli", 1, 1), ("completed", "hooli", 1, 1),
    ]  # fmt: skip
    partitions = names.partitions_of("story", "shard_2")
    assert _shown(rig, partitions) == {
        "initech": "MATERIALIZED", "umbrella": "FAILED", "hooli": "MATERIALIZED",
    }  # fmt: skip
    with pytest.raises(UnsupportedOutput, match="umbrella"):
        _write(rig, _keys("umbrella"), object())
    assert _write(rig, _keys("umbrella"), {"of": "umbrella"}).success
    assert _told(_entries(rig))[6:] == [
        ("started", "umbrella", 1, 2), ("failed", "umbrella", 1, 2),
        ("started", "umbrella", 1, 3), ("completed", "umbrella", 1, 3),
    ]  # fmt: skip
    assert set(_shown(rig, partitions).values()) == {"MATERIALIZED"}


def _shown(rig: Rig, partitions: DynamicPartitionsDefinition) -> dict[str, str]:
    statuses = rig.instance.get_status_by_partition(AssetKey("scores"), SHARD_2, partitions)
    return {name: status.name for name, status in (statuses or {}).items() if status}


def test_a_write_waits_for_whoever_works_on_the_tenant(rig: Rig) -> None:
    """Two writers of one tenant would collect each other's artifacts."""
    run_shard(rig.fleet, "shard_2")
    is_computed = threading.Event()

    def compute(context: AssetExecutionContext) -> int:
        is_computed.set()
        return 1

    with closing(TenantLeases(rig.fleet.shard_state("shard_2") / "locks")) as leases:
        assert leases.try_take("hooli")
        thread = threading.Thread(target=_write, args=(rig, _keys("hooli"), compute), daemon=True)
        thread.start()
        assert is_computed.wait(60)
        thread.join(0.3)
        assert thread.is_alive()
        assert _entries(rig) == []
        leases.give_back("hooli")
        thread.join(60)
    assert _told(_entries(rig)) == [("started", "hooli", 1, 1), ("completed", "hooli", 1, 1)]


_KILLED = """
import os, signal, sys
from dagster import Definitions, asset, define_asset_job
from tenant_pipelines.fleet.file import load_fleet
from tenant_pipelines.orchestration import names
from tenant_pipelines.orchestration.instance import Home, open_instance
from tenant_pipelines.orchestration.io_manager import TenantIOManager
from pathlib import Path

class Dying(TenantIOManager):
    def store(self, attempt, value):
        super().store(attempt, value)
        os.kill(os.getpid(), signal.SIGKILL)

@asset(partitions_def=names.partitions_of("story", "shard_2"), io_manager_key="dying")
def scores():
    return {"score": "y" * 10_000}

fleet = load_fleet(sys.argv[1])
definitions = Definitions(
    assets=[scores], jobs=[define_asset_job("mine", ["scores"])], resources={"dying": Dying(fleet)}
)
with open_instance(Home(Path(sys.argv[2]), "test")) as instance:
    definitions.resolve_job_def("mine").execute_in_process(
        instance=instance, tags={"dagster/partition": "hooli"}
    )
"""


@pytest.mark.slow
def test_a_kill_between_artifact_and_journal_leaves_the_old_value(rig: Rig, tmp_path: Path) -> None:
    """A reader sees it, the next write replaces it, and the file that nobody names goes."""
    old, new = {"score": "x" * 10_000}, {"score": "z" * 10_000}
    assert _write(rig, _keys("hooli"), old).success
    killed = subprocess.run(
        [sys.executable, "-c", _KILLED, str(rig.fleet.path), str(tmp_path / "home")],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert killed.returncode == -9, killed.stderr[-2000:]
    files = Path(rig.fleet.artifacts)
    assert len(list(files.rglob("*.json"))) == 2
    assert _read(rig, _keys("hooli"), of=AssetKey("scores"), writer=_writer()) == old
    assert _write(rig, _keys("hooli"), new).success
    assert _read(rig, _keys("hooli"), of=AssetKey("scores"), writer=_writer()) == new
    assert _told(_entries(rig))[2:] == [
        ("started", "hooli", 2, 1),
        ("started", "hooli", 2, 2),
        ("completed", "hooli", 2, 2),
    ]
    named = {e.payload["output"]["path"] for e in _entries(rig) if e.kind is EntryKind.COMPLETED}
    assert {str(path.relative_to(files)) for path in files.rglob("*.json")} == named


@pytest.fixture
def odd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Fleet, DagsterInstance]]:
    """Return a fleet whose one shard holds every odd name, registered in a fresh instance."""
    module = "odd_io_" + tmp_path.name.replace("-", "_")
    (tmp_path / f"{module}.py").write_text(
        "from tenant_pipelines import Pipeline, step\n\n\n"
        "@step\ndef extract(ctx):\n    return ctx.tenant\n\n\nodd = Pipeline([extract])\n"
    )
    quoted = "".join(f"      - {json.dumps(name, ensure_ascii=False)}\n" for name in ODD_NAMES)
    (tmp_path / "fleet.yaml").write_text(
        f"name: odd\npipeline: {module}:odd\nshards:\n  s:\n    tenants:\n{quoted}"
    )
    monkeypatch.delenv("TENANT_PIPELINES_STATE", raising=False)
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(sys, "path", list(sys.path))
    fleet = load_fleet(tmp_path / "fleet.yaml")
    with open_instance(Home(tmp_path / "home", "test")) as instance:
        register_shard(instance, fleet, "s")
        yield fleet, instance


@pytest.mark.slow
def test_odd_names_keep_their_own_values_in_and_out(odd: tuple[Fleet, DagsterInstance]) -> None:
    """No name is another's path, pattern or composition; large values, so that each has a file."""
    fleet, instance = odd

    def large(context: AssetExecutionContext) -> Any:
        values = {key: {"of": key, "padding": "x" * 9000} for key in context.partition_keys}
        return values if context.has_partition_key_range else values[context.partition_key]

    writer = _writer(large, fleet="odd", shard="s")
    definitions = _defs(fleet, writer)
    assert _run(instance, definitions, _keys(ODD_NAMES[0], ODD_NAMES[-1])).success
    for name in ("..", "--force", "caf\u00e9"):
        assert _run(instance, definitions, _keys(name)).success
    partitions = names.partitions_of("odd", "s")
    got: list[Any] = []
    for tags, on in [
        (_keys(), None),
        (_keys(ODD_NAMES[0], ODD_NAMES[-1]), partitions),
        (_keys(".."), partitions),
        (_keys("cafe\u0301", "Acme"), partitions),
    ]:
        reader = _reader(got, AssetKey("scores"), fleet="odd", on=on)
        _run(instance, _defs(fleet, writer, reader, select=[reader.key]), tags)
    everything, whole_range, one, few = got
    assert {name: value["of"] for name, value in everything.items()} == dict(
        zip(ODD_NAMES, ODD_NAMES, strict=True)
    )
    assert whole_range == everything
    assert one == everything[".."]
    assert list(few) == ["cafe\u0301", "Acme"]
    with Journal(fleet.journal_path("s"), fleet="odd", shard="s") as journal:
        paths = [
            entry.payload["output"]["path"]
            for entry in journal.all_entries()
            if entry.kind is EntryKind.COMPLETED
        ]
    assert len(set(paths)) == len(paths) == len(ODD_NAMES) + 3
