"""The commands as a user meets them: output, exit codes, errors without tracebacks."""

import json
from pathlib import Path

import pytest

from tenant_pipelines_tests.cli.command import document, tenant_pipelines

_PIPELINE = """
from tenant_pipelines import Pipeline, step

@step
def extract(ctx):
    return {"tenant": ctx.tenant}

@step
def load(ctx, extract):
    return None

small = Pipeline([extract, load])
"""
_FLEET = """
name: small
pipeline: small_pipeline:small
shards:
  shard_1: {tenants: [acme, globex]}
  shard_2:
    tenants:
      hooli: {token: "${HOOLI_TOKEN}"}
"""


@pytest.fixture
def fleet(tmp_path: Path) -> Path:
    (tmp_path / "small_pipeline.py").write_text(_PIPELINE)
    path = tmp_path / "fleet.yaml"
    path.write_text(_FLEET)
    return path


def test_plan_status_and_why_work_before_the_first_run(fleet: Path, tmp_path: Path) -> None:
    """And need no secrets: an unset setting is reported as such."""
    planned = tenant_pipelines("plan", "--json", "--fleet", fleet, state=tmp_path)
    assert planned.returncode == 0
    assert document(planned)["fleet"] == "small"
    cells = {
        (c["tenant"], c["step"]): (c["action"], c["reason"]) for c in document(planned)["cells"]
    }
    assert cells == {
        ("acme", "extract"): ("run", "never_run"),
        ("acme", "load"): ("run", "never_run"),
        ("globex", "extract"): ("run", "never_run"),
        ("globex", "load"): ("run", "never_run"),
        ("hooli", "extract"): ("hold", "tenant_setting_missing"),
        ("hooli", "load"): ("hold", "tenant_setting_missing"),
    }
    status = tenant_pipelines("status", "--json", "--fleet", fleet, state=tmp_path)
    assert status.returncode == 1
    shards = {shard["shard"]: shard["status"] for shard in document(status)["shards"]}
    assert shards == {"shard_1": "not_started", "shard_2": "incomplete"}
    why = tenant_pipelines("why", "shard_1", "acme", "load", "--fleet", fleet, state=tmp_path)
    assert why.stdout.strip() == "shard_1 acme load: missing; a run would run it: never_run"


@pytest.mark.slow
def test_a_run_tells_in_json_what_it_did_and_secrets_appear_nowhere(
    fleet: Path, tmp_path: Path
) -> None:
    """The fields are a contract; the secret is in no output and no file."""
    first = tenant_pipelines("run", "--json", "--fleet", fleet, state=tmp_path)
    assert first.returncode == 1
    shards = {shard["shard"]: shard for shard in document(first)["shards"]}
    assert shards["shard_1"].pop("seconds") >= 0
    assert shards["shard_1"] == {
        "shard": "shard_1", "cycle": "1", "status": "completed", "ran": 4, "skipped": 0,
        "failed": [],
    }  # fmt: skip
    assert shards["shard_2"]["status"] == "incomplete"
    assert "HOOLI_TOKEN" in shards["shard_2"]["failed"][0]["error"]
    assert "fleet.yaml:8" in shards["shard_2"]["failed"][0]["error"]
    secret = "s3cr3t-t0ken"
    second = tenant_pipelines("run", "--json", "--fleet", fleet, state=tmp_path, HOOLI_TOKEN=secret)
    assert second.returncode == 0
    counts = {s["shard"]: (s["ran"], s["skipped"]) for s in document(second)["shards"]}
    assert counts == {"shard_1": (0, 4), "shard_2": (2, 0)}
    assert secret not in second.stdout + second.stderr
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert not [path for path in files if secret.encode() in path.read_bytes()]
    status = tenant_pipelines(
        "status", "--json", "--fleet", fleet, state=tmp_path, HOOLI_TOKEN=secret
    )
    assert status.returncode == 0
    cell = document(status)["shards"][0]["tenants"][0]["steps"][0]
    assert (cell["step"], cell["state"], cell["attempts"]) == ("extract", "completed", 1)
    assert cell["run_id"] == document(first)["run_id"]
    exported = tenant_pipelines("journal", "export", "--fleet", fleet, state=tmp_path)
    kinds = [json.loads(line)["kind"] for line in exported.stdout.splitlines()]
    assert kinds.count("completed") == 6
    verified = tenant_pipelines("journal", "verify", "--fleet", fleet, state=tmp_path)
    assert verified.returncode == 0
    named = tenant_pipelines(
        "run", "--json", "--new-cycle", "two", "--shard", "shard_1", "--fleet", fleet,
        state=tmp_path,
    )  # fmt: skip
    (shard,) = document(named)["shards"]
    assert (shard["cycle"], shard["ran"]) == ("two", 4)
    lagging = tenant_pipelines(
        "status", "--json", "--fleet", fleet, state=tmp_path, HOOLI_TOKEN=secret
    )
    assert [shard["status"] for shard in document(lagging)["shards"]] == [
        "completed",
        "not_started",
    ]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["run", "--shard", "shard_11"], "did you mean 'shard_1'"),
        (["run", "--tenant", "acmee"], "did you mean 'acme'"),
        (["run", "--step", "lod"], "did you mean 'load'"),
        (["run", "--tenant", "acme", "--shard", "shard_2"], "which is in shard 'shard_1'"),
        (["why", "shard_1", "acme", "nothing"], "no step 'nothing'"),
        (["status", "--stale-after", "soon"], "such as 24h"),
        (["journal", "show", "--shard", "x"], "no shard 'x'"),
    ],
)
def test_a_users_mistake_gets_one_message_exit_2_and_writes_nothing(
    fleet: Path, tmp_path: Path, arguments: list[str], said: str
) -> None:
    """No traceback: what was found, what was wanted, what to do."""
    before = sorted(tmp_path.rglob("*"))
    ended = tenant_pipelines(*arguments, "--fleet", fleet, state=tmp_path)
    assert ended.returncode == 2
    assert said in ended.stderr
    assert "Traceback" not in ended.stderr
    assert ended.stdout == ""
    written = {path for path in tmp_path.rglob("*") if "__pycache__" not in path.parts}
    assert written - set(before) <= {tmp_path / "dagster_home"}


@pytest.mark.slow
def test_a_new_cycle_with_an_old_or_impossible_name_is_refused_before_anything_runs(
    fleet: Path, tmp_path: Path
) -> None:
    """Exit 2 and one message; no Dagster run, no cycle."""
    where: list[str | Path] = ["--fleet", fleet, "--shard", "shard_1"]
    for name in ("one", "two"):
        ended = tenant_pipelines("run", "--new-cycle", name, *where, state=tmp_path)
        assert ended.returncode == 0, ended.stderr
    for command in ("run", "plan"):
        for name, said in (("one", "which an older cycle has"), ("a\nb", "a control character")):
            ended = tenant_pipelines(command, "--new-cycle", name, *where, state=tmp_path)
            assert ended.returncode == 2
            assert said in ended.stderr
            assert "Traceback" not in ended.stderr


def test_a_broken_fleet_file_is_refused_with_its_line(tmp_path: Path) -> None:
    """Before anything is written."""
    (tmp_path / "fleet.yaml").write_text("name: a__b\npipeline: x:y\nshards: {}\n")
    ended = tenant_pipelines("run", state=tmp_path)
    assert ended.returncode == 2
    assert "fleet.yaml:1" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dagster_home", "fleet.yaml"]


def test_a_tenant_moved_by_editing_the_file_is_held_by_plan_too(
    fleet: Path, tmp_path: Path
) -> None:
    """The plan says what the run would refuse."""
    tenant_pipelines("run", "--fleet", fleet, "--shard", "shard_1", state=tmp_path)
    fleet.write_text(
        _FLEET.replace("[acme, globex]", "[globex]").replace("hooli:", "acme: {}\n      hooli:")
    )
    planned = tenant_pipelines("plan", "--json", "--fleet", fleet, state=tmp_path)
    acme = [cell for cell in document(planned)["cells"] if cell["tenant"] == "acme"]
    assert {(cell["action"], cell["reason"]) for cell in acme} == {("hold", "tenant_moved")}
    assert "moving its history to 'shard_2'" in acme[0]["detail"]


def test_every_command_explains_itself_with_an_example(tmp_path: Path) -> None:
    """--help is where a newcomer looks."""
    commands = [
        ["run"], ["plan"], ["why"], ["status"], ["sync"], ["doctor"], ["journal", "show"],
        ["journal", "verify"], ["journal", "export"], ["demo", "tenant-shards"],
        ["demo", "flights"], ["verify"], ["prune"],
    ]  # fmt: skip
    for command in commands:
        ended = tenant_pipelines(*command, "--help", state=tmp_path)
        assert ended.returncode == 0, command
        assert "Example" in ended.stdout, command


@pytest.mark.slow
def test_the_demo_tells_the_story_with_the_counts_of_the_readme(tmp_path: Path) -> None:
    """A real exception, then a real SIGKILL: shards 1 and 3 never notice."""
    ended = tenant_pipelines("demo", "tenant-shards", "--json", state=tmp_path)
    assert ended.returncode == 0
    stories = document(ended)["stories"]
    told = {
        kind: [
            {s["shard"]: (s["status"], s["ran"], s["skipped"]) for s in run["shards"]}
            for run in runs
        ]
        for kind, runs in stories.items()
    }
    whole = {"shard_1": ("completed", 6, 0), "shard_3": ("completed", 3, 0)}
    again = {"shard_1": ("completed", 0, 6), "shard_3": ("completed", 0, 3)}
    assert told == {
        "raise": [
            {**whole, "shard_2": ("partial_failure", 7, 0)},
            {**again, "shard_2": ("completed", 2, 7)},
        ],
        "kill": [
            {**whole, "shard_2": ("partial_failure", 4, 0)},
            {**again, "shard_2": ("completed", 5, 4)},
        ],
    }


@pytest.mark.slow
def test_three_cycles_of_flights_equal_a_computation_from_scratch(tmp_path: Path) -> None:
    """New days, late flights, corrections and a SIGKILL; only days that changed are read again."""
    ended = tenant_pipelines("demo", "flights", "--json", state=tmp_path)
    assert ended.returncode == 0, ended.stderr
    first, second, third = document(ended)["cycles"]
    assert (first["ran"], first["rows_read"], first["rows_verified"]) == (48, 27_004, 8_293)
    assert 5 <= second["done_before_kill"] < 48
    assert second["skipped"] >= second["done_before_kill"]
    assert second["ran"] + second["skipped"] == third["ran"] == 48
    assert second["rows_read"] < 20_000
    assert third["rows_read"] < 20_000
    assert second["fed"] == {"new_flights": 2425, "late_flights": 12, "corrections": 12}
    assert [cycle["wrong"] for cycle in (first, second, third)] == [0, 0, 0]
