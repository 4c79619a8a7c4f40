"""``journal show | verify | export``: what happened, and whether what was kept is still there."""

import json
import os
import sqlite3
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from tenant_pipelines import Pipeline, StepContext, step
from tenant_pipelines.cli.main import main
from tenant_pipelines.fleet.file import load_fleet
from tenant_pipelines.fleet.model import Fleet
from tenant_pipelines_tests.cli.command import tenant_pipelines
from tenant_pipelines_tests.engine.fleets import run_shard


@step
def extract(ctx: StepContext) -> pd.DataFrame:
    if ctx.tenant == "broken":
        raise ValueError("two\nlines and a \u2028 separator")
    return pd.DataFrame({"number": range(5000), "tenant": ctx.tenant})


@step
def transform(ctx: StepContext, extract: pd.DataFrame) -> list[str]:
    return [f"{ctx.tenant} {number}" for number in extract["number"]]


@step
def load(ctx: StepContext, transform: list[str]) -> None:
    return None


pipeline = Pipeline([extract, transform, load])

_FLEET = f"""
name: kept
pipeline: {__name__}:pipeline
shards:
  a: {{tenants: [acme, broken]}}
  b: {{tenants: ["Ünïcode ☃"]}}
"""


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    """A fleet whose two shards ran once: 1 + 6 + 2 entries in a, 1 + 6 in b."""
    path = tmp_path / "fleet.yaml"
    path.write_text(_FLEET)
    fleet = load_fleet(path, environ={"TENANT_PIPELINES_STATE": str(tmp_path)})
    run_shard(fleet, "a", root="run_a")
    run_shard(fleet, "b", root="run_b")
    return fleet


@dataclass(frozen=True, slots=True)
class _Ended:
    """What a command printed and how it ended."""

    returncode: int
    stdout: str
    stderr: str

    @property
    def document(self) -> Any:
        return json.loads(self.stdout)


_Command = Callable[..., _Ended]


@pytest.fixture
def journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> _Command:
    """Run ``tenant-pipelines journal`` in this process, which has imported pandas already."""
    monkeypatch.setenv("TENANT_PIPELINES_STATE", str(tmp_path))

    def run(*arguments: str) -> _Ended:
        command = [
            "tenant-pipelines",
            "journal",
            *arguments,
            "--fleet",
            str(tmp_path / "fleet.yaml"),
        ]
        monkeypatch.setattr(sys, "argv", command)
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        assert isinstance(ended.value.code, int)
        return _Ended(ended.value.code, *capsys.readouterr())

    return run


def _entries(journal: _Command, *options: str) -> list[dict[str, Any]]:
    ended = journal("show", "--json", *options)
    assert (ended.returncode, ended.stderr) == (0, "")
    shown = ended.document
    assert shown["fleet"] == "kept"
    entries: list[dict[str, Any]] = shown["entries"]
    return entries


def _artifact(fleet: Fleet, suffix: str) -> Path:
    """Return acme's artifact of one kind."""
    (path,) = Path(fleet.artifacts).glob(f"acme-*/**/*.{suffix}")
    return path


def _flip(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 0x20
    path.write_bytes(content)


def _damage_a(fleet: Fleet) -> Path:
    path = fleet.journal_path("a")
    path.write_bytes(b"not a journal\n" * 100)
    return path


def test_show_prints_every_field_of_each_entry_oldest_first(
    fleet: Fleet, journal: _Command
) -> None:
    """The fields are a contract for whoever looks into an incident with jq."""
    entries = _entries(journal, "--shard", "b")
    assert [entry["seq"] for entry in entries] == list(range(1, 8))
    assert [(entry["kind"], entry["step"]) for entry in entries] == [
        ("cycle_opened", ""),
        *((kind, name) for name in pipeline.names for kind in ("started", "completed")),
    ]
    started = entries[1]
    assert started.pop("at").endswith("Z")
    assert started.pop("host") != ""
    assert sorted(started.pop("payload")) == ["inputs", "reason", "window"]
    assert started == {
        "shard": "b", "seq": 2, "kind": "started", "cycle": "1", "tenant": "Ünïcode ☃",
        "step": "extract", "generation": 1, "attempt": 1, "item": "", "run_id": "run_b",
        "pid": os.getpid(), "code_version": "",
    }  # fmt: skip


def test_show_tenant_prints_that_tenants_entries_of_its_shard(
    fleet: Fleet, journal: _Command
) -> None:
    """The neighbours' entries, and those of the whole shard, are in the way."""
    entries = _entries(journal, "--tenant", "broken")
    assert [(e["shard"], e["tenant"], e["kind"]) for e in entries] == [
        ("a", "broken", "started"),
        ("a", "broken", "failed"),
    ]
    assert entries[1]["payload"]["error"]["type"] == "ValueError"


def test_show_last_prints_the_newest_of_what_was_chosen(fleet: Fleet, journal: _Command) -> None:
    """The limit counts after the choice of the tenant, else a quiet tenant would show nothing."""
    assert [entry["seq"] for entry in _entries(journal, "--shard", "b", "--last", "2")] == [6, 7]
    assert [
        (e["tenant"], e["kind"]) for e in _entries(journal, "--tenant", "broken", "--last", "1")
    ] == [("broken", "failed")]
    last = _entries(journal, "--tenant", "acme", "--last", "3")
    assert [(e["tenant"], e["step"], e["kind"]) for e in last] == [
        ("acme", "transform", "completed"),
        ("acme", "load", "started"),
        ("acme", "load", "completed"),
    ]


def test_show_prints_a_line_an_entry_for_people(fleet: Fleet, journal: _Command) -> None:
    """Time, place, what, which attempt, and who: enough to go on with."""
    ended = journal("show", "--tenant", "acme", "--last", "1")
    (line,) = ended.stdout.splitlines()
    newest = _entries(journal, "--tenant", "acme", "--last", "1")[0]
    assert line == (
        f"{newest['at']} a {newest['seq']} completed cycle=1 acme load g1 a1 run=run_a "
        f"pid={os.getpid()}"
    )


def test_export_is_one_json_object_a_line_of_every_entry(fleet: Fleet, journal: _Command) -> None:
    """Line breaks in a message must not break a line, and nothing else is on stdout."""
    ended = tenant_pipelines(
        "journal", "export", "--fleet", fleet.path, state=fleet.path.parent, PYTHONUTF8="1"
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.endswith("\n")
    exported = [json.loads(line) for line in ended.stdout[:-1].split("\n")]
    assert exported == _entries(journal)
    assert [entry["shard"] for entry in exported] == ["a"] * 9 + ["b"] * 7
    (failed,) = [entry for entry in exported if entry["kind"] == "failed"]
    assert failed["payload"]["error"]["message"] == "two\nlines and a \u2028 separator"
    only = journal("export", "--shard", "b")
    assert [json.loads(line) for line in only.stdout[:-1].split("\n")] == exported[9:]


def test_verify_finds_nothing_wrong_with_what_a_run_wrote(fleet: Fleet, journal: _Command) -> None:
    """Also after a failure; and it says how much it has looked at."""
    ended = journal("verify")
    assert ended.returncode == 0
    assert ended.stdout.splitlines() == [
        "a: 9 entries, 2 artifacts: ok",
        "b: 7 entries, 2 artifacts: ok",
    ]
    told = journal("verify", "--json").document
    assert told == {
        "fleet": "kept",
        "shards": [
            {"shard": "a", "entries": 9, "artifacts": 2, "problems": []},
            {"shard": "b", "entries": 7, "artifacts": 2, "problems": []},
        ],
    }


@pytest.mark.parametrize("suffix", ["json", "parquet"])
def test_verify_finds_a_flipped_byte_in_an_artifact(
    fleet: Fleet, journal: _Command, suffix: str
) -> None:
    """A disk can lie; a cell that depends on the file must not be the first to notice."""
    path = _artifact(fleet, suffix)
    _flip(path, path.stat().st_size // 3)  # among the rows; the footer is at the end
    ended = journal("verify", "--json")
    assert ended.returncode == 1
    a, b = ended.document["shards"]
    (problem,) = a["problems"]
    assert problem.startswith("entry ")
    assert str(path) in problem
    assert (a["entries"], a["artifacts"]) == (9, 2)
    assert b["problems"] == []


@pytest.mark.parametrize("suffix", ["json", "parquet"])
def test_verify_finds_a_deleted_artifact(fleet: Fleet, journal: _Command, suffix: str) -> None:
    """Somebody tidied up: people learn which file, and the exit code tells a script."""
    path = _artifact(fleet, suffix)
    path.unlink()
    ended = journal("verify")
    assert ended.returncode == 1
    first, problem, last = ended.stdout.splitlines()
    assert first == "a: 9 entries, 1 artifacts: 1 problems"
    assert str(path) in problem
    assert last == "b: 7 entries, 2 artifacts: ok"


def test_verify_finds_a_changed_entry_in_an_sqlite_file_that_is_sound(
    fleet: Fleet, journal: _Command
) -> None:
    """SQLite's own check sees pages; what an entry says is the checksum's to guard."""
    connection = sqlite3.connect(fleet.journal_path("a"))
    names = connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall()
    for (name,) in names:
        connection.execute(f'DROP TRIGGER "{name}"')
    connection.execute("UPDATE entries SET run_id = 'other' WHERE seq = 4")
    connection.commit()
    connection.close()
    ended = journal("verify", "--json", "--shard", "a")
    assert ended.returncode == 1
    (shard,) = ended.document["shards"]
    (problem,) = shard["problems"]
    assert "entry 4 does not match its checksum" in problem


def test_verify_writes_nothing(fleet: Fleet, journal: _Command) -> None:
    """What is damaged is evidence."""

    def everything() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in fleet.state.rglob("*") if path.is_file()}

    _flip(_artifact(fleet, "json"), 10)
    _damage_a(fleet)
    before = everything()
    assert journal("verify").returncode == 1
    assert everything() == before


@pytest.mark.parametrize("command", ["show", "export"])
def test_one_damaged_journal_does_not_hide_the_others(
    fleet: Fleet, journal: _Command, command: str
) -> None:
    """The trouble goes to stderr and the exit code; stdout stays what a script can read."""
    path = _damage_a(fleet)
    before = path.read_bytes()
    ended = journal(command, *(["--json"] if command == "show" else []))
    assert ended.returncode == 1
    assert ended.stderr.startswith(f"a: {path}: the journal is damaged")
    assert "Traceback" not in ended.stderr
    if command == "show":
        entries = ended.document["entries"]
    else:
        entries = [json.loads(line) for line in ended.stdout[:-1].split("\n")]
    assert [(entry["shard"], entry["seq"]) for entry in entries] == [
        ("b", number) for number in range(1, 8)
    ]
    assert path.read_bytes() == before


def test_verify_of_one_damaged_journal_reports_the_others_too(
    fleet: Fleet, journal: _Command
) -> None:
    """The damage is one of its findings, with the way out."""
    path = _damage_a(fleet)
    ended = journal("verify", "--json")
    assert (ended.returncode, ended.stderr) == (1, "")
    a, b = ended.document["shards"]
    (problem,) = a.pop("problems")
    assert problem.startswith(f"{path}: the journal is damaged")
    assert "Restore the file" in problem
    assert a == {"shard": "a", "entries": 0, "artifacts": 0}
    assert b == {"shard": "b", "entries": 7, "artifacts": 2, "problems": []}


def test_a_fleet_that_never_ran_has_an_empty_sound_history(
    tmp_path: Path, journal: _Command
) -> None:
    """Looking into nothing is no error and makes no journal."""
    path = tmp_path / "fleet.yaml"
    path.write_text(_FLEET)
    fleet = load_fleet(path, environ={"TENANT_PIPELINES_STATE": str(tmp_path)})
    assert _entries(journal) == []
    exported = journal("export")
    assert (exported.returncode, exported.stdout, exported.stderr) == (0, "", "")
    verified = journal("verify")
    assert verified.stdout.splitlines() == [
        "a: 0 entries, 0 artifacts: ok",
        "b: 0 entries, 0 artifacts: ok",
    ]
    assert not fleet.state.exists()
