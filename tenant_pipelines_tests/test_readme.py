"""README's commands and files are executed, so that they stay true."""

import contextlib
import os
import re
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from tenant_pipelines.cli.main import app
from tenant_pipelines.engine.recompute import Verdict, recompute
from tenant_pipelines.fleet.file import load_fleet
from tenant_pipelines_tests.cli.command import SECONDS, environ_of
from tenant_pipelines_tests.engine.fleets import run_shard

_ROOT = Path(__file__).parents[1]
_README = (_ROOT / "README.md").read_text(encoding="utf-8")


def _block(kind: str, name: str, page: str = _README) -> str:
    found = re.search(rf"<!-- {kind}: {re.escape(name)} -->\s*```\w+\n(.+?)\n```", page, re.DOTALL)
    assert found is not None, f"the page has no {kind} {name}"
    return found[1]


def _command(name: str) -> str:
    """Return a command as it reads after the set-up that this test's environment already has."""
    return _block("command", name).split(" && ")[-1].replace(".venv/bin/", f"{_bin()}/")


def _bin() -> str:
    return str(Path(sys.executable).parent)


def test_what_runs_leave_behind_is_ignored_by_git() -> None:
    """A run in the clone, a killed one too, leaves ``git status`` clean."""
    if not (_ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    left = [
        ".tmp_dagster_home_x1/storage/a", ".tenant_pipelines/flights/flights.db", "history/runs.db",
        "schedules/schedules.db", "storage/a/b", "logs/a", ".logs_queue/a", ".venv/bin/python",
    ]  # fmt: skip
    for path in left:
        ignored = subprocess.run(["git", "check-ignore", "-q", path], cwd=_ROOT, check=False)
        assert ignored.returncode == 0, path


@pytest.mark.slow
def test_the_commands_of_the_readme_work_in_their_order(tmp_path: Path) -> None:
    """The main job, the job by Dagster's own command line, one partition."""
    environ = environ_of(tmp_path)
    counts = []
    for name in ("run", "run", "execute", "partition"):
        ended = subprocess.run(
            _command(name), shell=True, env=environ, cwd=_ROOT, capture_output=True, text=True,
            timeout=SECONDS, check=False,
        )  # fmt: skip
        assert ended.returncode == 0, f"{name}: {ended.stdout[-2000:]} {ended.stderr[-3000:]}"
        counts += re.findall(r"^total: .*$", ended.stdout, re.MULTILINE)
    assert counts == ["total: 48 ran, 0 skipped", "total: 0 ran, 48 skipped"]


def test_the_example_fleet_loads_and_its_pipeline_runs(tmp_path: Path) -> None:
    """Twenty lines of a user's own, copied from the page."""
    (tmp_path / "pipelines.py").write_text(_block("file", "pipelines.py"))
    (tmp_path / "fleet.yaml").write_text(_block("file", "fleet.yaml"))
    fleet = load_fleet(tmp_path / "fleet.yaml", environ={})
    assert fleet.pipeline.names == ("extract", "transform", "load")
    assert list(fleet.shards) == ["shard_1", "shard_2"]
    code = (
        "import sqlite3, sys\n"
        "c = sqlite3.connect('acme.db')\n"
        "c.execute('create table orders (customer text, day text, amount real)')\n"
        "c.executemany('insert into orders values (?,?,?)',"
        " [('acme','2026-01-01',1.5),('acme','2026-01-01',2.0),('other','2026-01-01',9.0)])\n"
        "c.commit()\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True)
    ended = subprocess.run(
        [sys.executable, "-m", "tenant_pipelines", "run", "--tenant", "acme"], cwd=tmp_path,
        env=environ_of(tmp_path), capture_output=True, text=True, timeout=SECONDS, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    assert "3 ran" in ended.stdout


def test_the_incremental_example_of_the_docs_runs(tmp_path: Path) -> None:
    """A late and a corrected order change their day; verify agrees."""
    page = (_ROOT / "docs" / "data.md").read_text(encoding="utf-8")
    (tmp_path / "incremental.py").write_text(_block("file", "incremental.py", page))
    (tmp_path / "fleet.yaml").write_text(
        "name: shop\npipeline: incremental:orders\nwarehouse: sqlite:///{state}/w.db\n"
        "shards: {a: {tenants: [acme, other]}}\n"
    )
    environ = {"TENANT_PIPELINES_STATE": str(tmp_path)}
    fleet = load_fleet(tmp_path / "fleet.yaml", environ=environ)
    fleet.state.mkdir()

    def order(*rows: str) -> None:
        with contextlib.closing(sqlite3.connect(fleet.state / "orders.db")) as connection:
            connection.executescript(
                "CREATE TABLE IF NOT EXISTS orders (seq INTEGER PRIMARY KEY, order_id INTEGER, "
                "customer TEXT, day TEXT, product TEXT, amount REAL);"
                + "".join(f"INSERT INTO orders VALUES (NULL, {row});" for row in rows)
            )

    order("1, 'acme', 'mon', 'tea', 1", "2, 'acme', 'mon', 'tea', 3", "3, 'other', 'mon', 'tea', 9")
    assert run_shard(fleet).report.ran == 6
    order("4, 'acme', 'mon', 'tea', 4", "2, 'acme', 'mon', 'pie', 5", "5, 'acme', 'tue', 'tea', 2")
    assert run_shard(fleet, new_cycle="2").report.ran == 6
    with contextlib.closing(sqlite3.connect(fleet.state / "w.db")) as connection:
        rows = connection.execute(
            "SELECT day, product, orders, median FROM daily WHERE _tenant = 'acme'"
        )
        assert sorted(rows) == [
            ("mon", "pie", 1, 5.0),
            ("mon", "tea", 2, 2.5),
            ("tue", "tea", 1, 2.0),
        ]
    found = recompute(fleet, "a", tenants=None, environ={})
    assert [one.verdict for one in found] == [Verdict.EQUAL, Verdict.EQUAL]


def test_every_command_is_in_the_readme() -> None:
    """A command that nobody can find does not exist."""
    commands = {
        command.callback.__name__ for command in app.registered_commands if command.callback
    }
    assert commands == {
        "run", "plan", "why", "status", "verify", "sync", "reconcile", "doctor", "prune"
    }  # fmt: skip
    for name in (
        *commands,
        "journal show",
        "journal verify",
        "journal export",
        "demo tenant-shards",
        "demo flights",
    ):
        assert re.search(rf"`{name}\b", _README), name


def test_every_test_that_the_guarantees_name_exists() -> None:
    """A guarantee without its test is a claim."""
    named = re.findall(r"`(\w+/test_\w+\.py)`", _README)
    assert named
    missing = [name for name in named if not (_ROOT / "tenant_pipelines_tests" / name).exists()]
    assert missing == []


def test_nothing_is_left_in_the_working_directory_by_a_user_without_settings(
    tmp_path: Path,
) -> None:
    """State never depends on the working directory."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name != "DAGSTER_HOME" and not name.startswith("TENANT_PIPELINES")
    }
    data = tmp_path / "data"
    work = tmp_path / "work"
    work.mkdir()
    ended = subprocess.run(
        [sys.executable, "-m", "tenant_pipelines", "run", "--fleet", "tenant_shards"],
        cwd=work, env={**kept, "XDG_DATA_HOME": str(data)}, capture_output=True, text=True,
        timeout=SECONDS, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    assert list(work.iterdir()) == []
    assert (data / "tenant-pipelines" / "tenant_shards" / "dagster").is_dir()
