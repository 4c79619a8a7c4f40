"""``why`` names each reason and says what a person needs to know; ``plan`` has the same reason."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tenant_pipelines import Pipeline, StepContext, step
from tenant_pipelines.cli.main import app
from tenant_pipelines.engine.leases import TenantLeases
from tenant_pipelines.engine.plan import Reason
from tenant_pipelines.fleet.file import load_fleet
from tenant_pipelines.fleet.model import Fleet
from tenant_pipelines.fleet.pipeline import Step
from tenant_pipelines.journal.entries import Draft, EntryKind
from tenant_pipelines.journal.journal import Journal
from tenant_pipelines_tests.engine.fleets import run_shard

_BIG = "x" * 10_000


@step
def extract(ctx: StepContext) -> str:
    return _BIG


def _load(version: str | None = None, *, fails: bool = False) -> Step:
    def load(ctx: StepContext, extract: str) -> int:
        if fails:
            raise ValueError("no such table")
        return len(extract)

    return step(code_version=version)(load)


pipeline = Pipeline([extract, _load("1")])
failing = Pipeline([extract, _load("1", fails=True)])
newer = Pipeline([extract, _load("2")])


def _write(folder: Path, pipeline: str = "pipeline", shards: str = "") -> Fleet:
    (folder / "fleet.yaml").write_text(
        f"name: reasons\npipeline: {__name__}:{pipeline}\n"
        f"shards: {shards or '{a: {tenants: {acme: {}}}, b: {tenants: [other]}}'}\n"
    )
    return load_fleet(folder / "fleet.yaml", environ={"TENANT_PIPELINES_STATE": str(folder)})


def _append(fleet: Fleet, kind: EntryKind, *, generation: int, **payload: Any) -> None:
    draft = Draft(
        kind=kind, cycle="1", run_id="r", tenant="acme", step="load", generation=generation,
        attempt=0 if kind is EntryKind.FORCED else 1, payload=payload,
    )  # fmt: skip
    with Journal(fleet.journal_path("a"), fleet=fleet.name, shard="a") as journal:
        journal.append(draft)


def _never_run(folder: Path) -> None:
    _write(folder)


def _done(folder: Path) -> None:
    run_shard(_write(folder))


def _failed(folder: Path) -> None:
    run_shard(_write(folder, "failing"))


def _interrupted(folder: Path) -> None:
    fleet = _write(folder)
    run_shard(fleet, steps=["extract"])
    _append(fleet, EntryKind.STARTED, generation=1, inputs={}, reason="never_run")


def _code_changed(folder: Path) -> None:
    run_shard(_write(folder))
    _write(folder, "newer")


def _forced(folder: Path) -> None:
    fleet = _write(folder)
    run_shard(fleet)
    _append(fleet, EntryKind.FORCED, generation=2, root="r")


def _setting_missing(folder: Path) -> None:
    _write(folder, shards="{a: {tenants: {acme: {url: '${REASONS_TEST_UNSET}'}}}}")


def _artifact_missing(folder: Path) -> None:
    fleet = _write(folder)
    run_shard(fleet)
    _write(folder, "newer")
    for path in Path(fleet.artifacts).rglob("*.json"):
        path.unlink()


def _moved(folder: Path) -> None:
    run_shard(_write(folder))
    _write(folder, shards="{b: {tenants: [acme]}}")


CASES: dict[str, tuple[Callable[[Path], None], str, Reason, list[str]]] = {
    "never_run": (_never_run, "extract", Reason.NEVER_RUN, ["missing", "would run it"]),
    "done": (_done, "load", Reason.DONE, ["completed in cycle 1", "would skip it"]),
    "failed": (_failed, "load", Reason.FAILED, ["ValueError: no such table", "raise ValueError"]),
    "interrupted": (_interrupted, "load", Reason.INTERRUPTED, ["the process died in it"]),
    "code_changed": (_code_changed, "load", Reason.CODE_CHANGED, ["ran as code version 1"]),
    "forced": (_forced, "load", Reason.FORCED, ["asked for with force"]),
    "artifact_missing": (_artifact_missing, "extract", Reason.ARTIFACT_MISSING, ["file is gone"]),
    "setting": (
        _setting_missing, "load", Reason.TENANT_SETTING_MISSING, ["REASONS_TEST_UNSET", "hold"],
    ),
    "moved": (_moved, "load", Reason.TENANT_MOVED, ["its history is in", "'a'"]),
}  # fmt: skip


def _call(*arguments: str) -> str:
    ended = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    return ended.stdout


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TENANT_PIPELINES_STATE", str(tmp_path))
    monkeypatch.delenv("TENANT_PIPELINES_FLEET", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", list(CASES))
def test_why_names_the_reason_and_plan_has_it(here: Path, name: str) -> None:
    """In words, as JSON, and in the plan."""
    prepare, step_name, reason, says = CASES[name]
    prepare(here)
    shard = "b" if name == "moved" else "a"
    told = _call("why", shard, "acme", step_name)
    assert reason.value in told.splitlines()[0]
    assert [text for text in says if text not in told] == []
    assert json.loads(_call("why", shard, "acme", step_name, "--json"))["reason"] == reason.value
    cells = json.loads(_call("plan", "--shard", shard, "--json"))["cells"]
    (planned,) = [
        cell["reason"] for cell in cells if (cell["tenant"], cell["step"]) == ("acme", step_name)
    ]
    assert planned == reason.value


def test_why_of_a_cell_below_one_that_runs(here: Path) -> None:
    """It is checked: it runs if what it is given changed."""
    fleet = _write(here)
    run_shard(fleet)
    draft = Draft(
        kind=EntryKind.FORCED, cycle="1", run_id="r", tenant="acme", step="extract", generation=2,
        payload={"root": "r"},
    )  # fmt: skip
    with Journal(fleet.journal_path("a"), fleet=fleet.name, shard="a") as journal:
        journal.append(draft)
    told = _call("why", "a", "acme", "load")
    assert "would check it: upstream_changed (it runs if what it is given differs" in told


def test_why_of_a_cell_that_runs_now(here: Path) -> None:
    """Another process holds the tenant's lease: here another object of this one."""
    _interrupted(here)
    fleet = _write(here)
    leases = TenantLeases(fleet.shard_state("a") / "locks")
    assert leases.try_take("acme")
    assert "running in cycle 1; a run would skip it: running" in _call("why", "a", "acme", "load")
    leases.close()


def test_a_plan_of_one_step_says_what_it_lacks(here: Path) -> None:
    """The step above it was not selected and is not done."""
    _write(here)
    document = json.loads(_call("plan", "--shard", "a", "--step", "load", "--json"))
    assert [(cell["action"], cell["reason"]) for cell in document["cells"]] == [
        ("hold", "upstream_missing")
    ]


def test_every_reason_has_its_case() -> None:
    """A new reason needs one."""
    elsewhere = {Reason.UPSTREAM_CHANGED, Reason.RUNNING, Reason.UPSTREAM_MISSING}
    assert {case[2] for case in CASES.values()} | elsewhere == set(Reason)
