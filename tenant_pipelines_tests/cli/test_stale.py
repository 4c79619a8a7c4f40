"""``status --stale-after``: which tenants' data is too old, for a person and for an alert."""

import json
import sys
import uuid
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tenant_pipelines import Pipeline, StepContext, step
from tenant_pipelines.cli.main import main
from tenant_pipelines.engine.cycles import open_cycle
from tenant_pipelines.engine.plan import Request
from tenant_pipelines.engine.runner import ShardRun
from tenant_pipelines.fleet.file import load_fleet
from tenant_pipelines.fleet.model import Fleet
from tenant_pipelines.journal.journal import Journal
from tenant_pipelines.storage.artifacts import ArtifactStore
from tenant_pipelines_tests.cli.command import tenant_pipelines
from tenant_pipelines_tests.engine.fleets import run_shard


@step
def extract(ctx: StepContext) -> str:
    return ctx.tenant


@step
def load(ctx: StepContext, extract: str) -> None:
    if ctx.tenant == "broken":
        raise ValueError("no such table")


pipeline = Pipeline([extract, load])

_FLEET = f"""
name: aging
pipeline: {__name__}:pipeline
shards:
  a: {{tenants: [acme, globex]}}
  b: {{tenants: [hooli, broken]}}
"""


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    path = tmp_path / "fleet.yaml"
    path.write_text(_FLEET)
    return load_fleet(path, environ={"TENANT_PIPELINES_STATE": str(tmp_path)})


def _run_ago(fleet: Fleet, shard: str, tenants: Sequence[str], *, hours: float) -> None:
    """Run some tenants as if it had been hours ago: the journal's clock is late."""
    now = datetime.now(UTC) - timedelta(hours=hours)
    run_id = uuid.uuid4().hex
    cycle = open_cycle(fleet, asked=None, root=run_id, run_id=run_id, now=lambda: now)
    path = fleet.journal_path(shard)
    with Journal(path, fleet=fleet.name, shard=shard, now=lambda: now) as journal:
        run = ShardRun(
            fleet=fleet, shard=shard, journal=journal, store=ArtifactStore(fleet.artifacts),
            cycle=cycle, run_id=run_id, request=Request(root=run_id, tenants=tenants), environ={},
        )  # fmt: skip
        list(run.events())


_Command = Callable[..., tuple[int, str]]


@pytest.fixture
def status(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> _Command:
    """Run ``tenant-pipelines status`` in this process; return its exit code and its output."""
    monkeypatch.setenv("TENANT_PIPELINES_STATE", str(fleet.path.parent))

    def run(*arguments: str) -> tuple[int, str]:
        command = ["tenant-pipelines", "status", *arguments, "--fleet", str(fleet.path)]
        monkeypatch.setattr(sys, "argv", command)
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        assert isinstance(ended.value.code, int)
        return ended.value.code, capsys.readouterr().out

    return run


def _stale(document: str) -> dict[str, bool]:
    """Return what a JSON document says of each tenant."""
    shards = json.loads(document)["shards"]
    return {tenant["tenant"]: tenant["stale"] for shard in shards for tenant in shard["tenants"]}


@pytest.mark.parametrize(
    ("age", "stale"),
    [
        ("1s", {"acme", "globex"}),
        ("90m", {"acme", "globex"}),
        ("3h", {"acme"}),
        ("1d", {"acme"}),
        ("3d", set()),
        ("99999999999d", set()),
    ],
)
def test_a_tenant_is_stale_when_its_last_completion_is_older(
    fleet: Fleet, status: _Command, age: str, stale: set[str]
) -> None:
    """Each unit counts as what it is called, and an age beyond the calendar lists nobody."""
    _run_ago(fleet, "a", ["acme"], hours=48)
    _run_ago(fleet, "a", ["globex"], hours=2)
    code, said = status("--json", "--stale-after", age, "--shard", "a")
    assert _stale(said) == {"acme": "acme" in stale, "globex": "globex" in stale}
    assert code == 0


def test_stale_tenants_are_listed_for_people_also_when_all_is_done(
    fleet: Fleet, status: _Command
) -> None:
    """Done does not mean fresh: the exit code stays that of a done fleet."""
    _run_ago(fleet, "a", ["acme", "globex"], hours=1)
    old = tenant_pipelines(
        "status", "--stale-after", "1s", "--shard", "a", "--fleet", fleet.path,
        state=fleet.path.parent,
    )  # fmt: skip
    assert old.stdout.splitlines()[-2:] == ["a acme: stale", "a globex: stale"]
    assert old.returncode == 0
    code, said = status("--stale-after", "2h", "--shard", "a")
    assert "stale" not in said
    assert code == 0


def test_a_tenant_that_never_completed_is_stale_at_any_age(fleet: Fleet, status: _Command) -> None:
    """The tenant that fails every night, a minute ago as well, is the one the alert is for."""
    run_shard(fleet, "b")
    code, said = status("--json", "--stale-after", "7d")
    assert _stale(said) == {"acme": True, "globex": True, "hooli": False, "broken": True}
    assert code == 1


def test_without_an_age_nothing_is_said_of_staleness(fleet: Fleet, status: _Command) -> None:
    """Nobody gave a limit, so no tenant is beyond it."""
    _run_ago(fleet, "a", ["acme", "globex"], hours=1000)
    assert "stale" not in status()[1]
    shards = json.loads(status("--json")[1])["shards"]
    tenants = [tenant for shard in shards for tenant in shard["tenants"]]
    assert [sorted(tenant) for tenant in tenants] == [["steps", "tenant"]] * 4
