"""Tenants whose names look like paths, options, SQL, markup, patterns or each other.

Every accepted name works everywhere, and no two of them ever share anything.
"""

import itertools
import json
import sqlite3
import sys
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest

from tenant_pipelines import StepContext, sql_extract, sql_load, step
from tenant_pipelines.engine.leases import TenantLeases
from tenant_pipelines.engine.work import CellCompleted
from tenant_pipelines.fleet.names import tenant_name_problem
from tenant_pipelines.journal.entries import EntryKind
from tenant_pipelines.journal.journal import Journal
from tenant_pipelines_tests.cli.command import document, tenant_pipelines
from tenant_pipelines_tests.engine.fleets import make_fleet, run_shard
from tenant_pipelines_tests.fleet.fleet_files import FleetFolder

ODD_NAMES = [
    "a/b", "a%2Fb", "a\\b", "..", ".", ".hidden", "~", "CON",
    "ü-ß-日本", "😀", "שלום עולם", "\u202eabc", "a\u200bb", "ab",
    "caf\u00e9", "cafe\u0301", "Acme", "ACME", "acme", "I", "\u0131", "\u0130",
    "a b", " a", "a ", "a", "a\u00a0", "a,b", "a|b", "a:b", "a=b", "a;b", "a#b", "a?b=1&c=2",
    "-x", "--force", "--", "--tenant", "--new-cycle", "-h", "+", "@a", "!a", "&a",
    "'; DROP TABLE orders; --", '"quoted"', "'", "`id`", "$(id)", "%", "_", "a%b", "a_b",
    "*", "?", "[a]", "[bold]", "[/]", ":cat:", "{state}", "{0}", "${HOME}", "$HOME", "%s%d%(x)s",
    "__x__", "<b>", "&amp;", "null", "true", "7", "007", "7.0", "1e3", "1000",
    "n" * 200, "日" * 85,
]  # fmt: skip
# the same table of names as rows: what the source holds for each
ROWS = [(2 * at + half, name, at) for at, name in enumerate(ODD_NAMES) for half in (0, 1)]


def fill_source(path: Path) -> None:
    """Write two orders of every tenant into a table that does not tell ``acme`` from ``ACME``."""
    with sqlite3.connect(path) as connection:
        connection.execute(
            "CREATE TABLE orders "
            "(id INTEGER PRIMARY KEY, customer TEXT NOT NULL COLLATE NOCASE, amount INTEGER)"
        )
        connection.executemany("INSERT INTO orders VALUES (?, ?, ?)", ROWS)
    connection.close()


def loaded(warehouse: Path) -> list[tuple[int, str, int]]:
    """Return the warehouse's rows; a row that came to a second tenant is there twice."""
    connection = sqlite3.connect(warehouse)
    rows = connection.execute(
        "SELECT id, _tenant, amount FROM loaded ORDER BY id, _tenant"
    ).fetchall()
    connection.close()
    return rows


def test_the_table_of_names_is_what_it_seems() -> None:
    """Every name differs, also where an editor might have normalised it."""
    assert len(set(ODD_NAMES)) == len(ODD_NAMES)
    assert max(len(name.encode()) for name in ODD_NAMES) == 255
    assert [name for name in ODD_NAMES if tenant_name_problem(name)] == []


def test_each_tenant_has_its_own_rows_artifacts_lease_and_entries(tmp_path: Path) -> None:
    """From a source that ignores case to the warehouse, in one shard."""
    fill_source(tmp_path / "source.db")

    @step
    def transform(ctx: StepContext, extract: pd.DataFrame) -> pd.DataFrame:
        ctx.log.info("transformed")
        return extract

    extract = sql_extract(
        source=f"sqlite:///{tmp_path}/source.db", table="orders", tenant_column="customer"
    )
    fleet = make_fleet(
        tmp_path, [extract, transform, sql_load(table="loaded", key=["id"])], {"a": ODD_NAMES},
        warehouse=f"sqlite:///{tmp_path}/warehouse.db",
    )  # fmt: skip
    ran = run_shard(fleet)
    steps = ["extract", "load", "transform"]
    assert ran.cells == sorted(itertools.product(ODD_NAMES, steps))
    assert loaded(tmp_path / "warehouse.db") == ROWS

    outputs = [event for event in ran.events if isinstance(event, CellCompleted)]
    paths = [event.output.path for event in outputs if event.output.path is not None]
    assert len({path.casefold() for path in paths}) == len(paths) == 2 * len(ODD_NAMES)
    root = Path(fleet.artifacts)
    assert sorted(str(p.relative_to(root)) for p in root.rglob("*") if p.is_file()) == sorted(paths)
    folders = {event.attempt.tenant: (event.output.path or "").split("/")[0] for event in outputs
               if event.attempt.step == "extract"}  # fmt: skip
    assert len(set(folders.values())) == len(ODD_NAMES)

    with Journal(fleet.journal_path("a"), fleet="fleet", shard="a") as journal:
        assert journal.tenants() == set(ODD_NAMES)
        for name in ODD_NAMES:
            ended = [entry.step for entry in journal.completions_of(name)]
            assert ended == ["extract", "transform", "load"]
            assert {entry.tenant for entry in journal.completions_of(name)} == {name}

    again = run_shard(fleet, tenants=["acme", "[a]", "-x"], force=True, steps=["extract"])
    assert again.cells == [(name, "extract") for name in ("-x", "[a]", "acme")]
    assert loaded(tmp_path / "warehouse.db") == ROWS


def test_every_tenant_has_a_lease_of_its_own(tmp_path: Path) -> None:
    """All are held at once, by one object, and seen from another."""
    ours, theirs = TenantLeases(tmp_path), TenantLeases(tmp_path)
    assert [name for name in ODD_NAMES if not ours.try_take(name)] == []
    assert [name for name in ODD_NAMES if theirs.try_take(name)] == []
    ours.give_back("acme")
    assert [name for name in ODD_NAMES if not theirs.is_leased(name)] == ["acme"]
    ours.close()
    theirs.close()


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[FleetFolder]:
    """A fleet folder that leaves ``sys.path`` as it was."""
    paths = list(sys.path)
    yield FleetFolder(tmp_path)
    sys.path[:] = paths


@pytest.mark.parametrize("is_mapping", [False, True], ids=["list", "mapping"])
@pytest.mark.parametrize(
    ("written", "said"),
    [
        ('"a...b"', "reserves for ranges"),
        ('""', "an empty name"),
        (r'"a\tb"', "control character"),
        (r'"a\nb"', "control character"),
        (r'"\0"', "control character"),
        (r'"\x1b[31m"', "control character"),
        (r'"a\x85b"', "control character"),
        (r'"a\u2028b"', "U+2028"),
        (r'"a\u2029b"', "U+2028"),
        (r'"\ud800"', "invalid Unicode"),
        ("n" * 256, "256 bytes of UTF-8, more than 255"),
        ("日" * 86, "258 bytes of UTF-8, more than 255"),
    ],
)
def test_a_name_that_cannot_be_is_refused_with_its_line(
    folder: FleetFolder, written: str, said: str, is_mapping: bool
) -> None:
    """Before anything is written."""
    entry = f"      {written}: {{}}\n" if is_mapping else f"      - {written}\n"
    first = "      acme: {}\n" if is_mapping else "      - acme\n"
    text = f"{folder.head()}  a:\n    tenants:\n{first}{entry}"
    assert said in folder.refused(text, line=7)


FAILING = ["[a]", "[/]", ":cat:", "%s%d%(x)s", "-x", "{0}"]
_PIPELINE = """
from pathlib import Path
from tenant_pipelines import Pipeline, sql_extract, sql_load, step

FAILING = FAILING_NAMES
SOURCE = Path(__file__).with_name("source.db")
extract = sql_extract(source=f"sqlite:///{SOURCE}", table="orders", tenant_column="customer")

@step
def key(ctx, extract):
    if ctx.tenant in FAILING:
        raise ValueError(f"no such [red]key[/red] of {ctx.tenant}")
    return extract

odd = Pipeline([extract, key, sql_load(table="loaded", key=["id"], upstream="key")])
"""


def _write_fleet(folder: Path) -> Path:
    """Write a fleet of two shards: a list of names, and a mapping of names to settings."""
    (folder / "odd_pipeline.py").write_text(_PIPELINE.replace("FAILING_NAMES", repr(FAILING)))
    quoted = [json.dumps(name, ensure_ascii=False) for name in ODD_NAMES]
    listed = "".join(f"      - {name}\n" for name in quoted[::2])
    mapped = "".join(f"      {name}: {{}}\n" for name in quoted[1::2])
    path = folder / "fleet.yaml"
    path.write_text(
        "name: odd\npipeline: odd_pipeline:odd\nwarehouse: sqlite:///{state}/warehouse.db\n"
        f"shards:\n  s1:\n    tenants:\n{listed}  s2:\n    tenants:\n{mapped}"
    )
    return path


@pytest.mark.slow
def test_the_commands_take_and_print_every_name(tmp_path: Path) -> None:
    """As options and arguments, in tables and in JSON, from the first plan to the journal."""
    fill_source(tmp_path / "source.db")
    file = _write_fleet(tmp_path)
    shard_of = {name: f"s{at % 2 + 1}" for at, name in enumerate(ODD_NAMES)}

    def call(*arguments: str, encoding: str = "utf-8") -> str:
        ended = tenant_pipelines(*arguments, state=tmp_path, PYTHONIOENCODING=encoding)
        assert "Traceback" not in ended.stderr, ended.stderr
        assert ended.returncode in {0, 1}, ended.stderr
        return ended.stdout

    named = [f"--tenant={name}" for name in ODD_NAMES]
    fleet = ["--fleet", str(file)]
    planned = document(tenant_pipelines("plan", *fleet, *named, "--json", state=tmp_path))["cells"]
    cells = {(cell["shard"], cell["tenant"], cell["step"]) for cell in planned}
    steps = ["extract", "key", "load"]
    assert cells == {(s, t, step) for (t, s), step in itertools.product(shard_of.items(), steps)}

    # the second one cannot carry most of them
    for encoding in ("utf-8", "ascii"):
        table = call("plan", *fleet, "--step=extract", encoding=encoding)
        rows = [line[len(" s1     ") :] for line in table.split("\n")]
        assert [n for n in ODD_NAMES if not any(row.startswith(f"{n} ") for row in rows)] == []

    run = tenant_pipelines("run", *fleet, state=tmp_path)
    assert run.returncode == 1, run.stderr
    assert f"total: {3 * len(ODD_NAMES) - 2 * len(FAILING)} ran, 0 skipped" in run.stdout
    whole = [row for row in ROWS if row[1] not in FAILING]
    assert loaded(tmp_path / "odd" / "warehouse.db") == whole
    status = call("status", *fleet)
    for name in FAILING:
        shard, error = shard_of[name], f"ValueError: no such [red]key[/red] of {name}"
        assert f"{shard}: {name}:key: {error}" in run.stdout
        assert f"{shard}: {name}:key failed: {error}" in run.stderr
        assert f"{shard} {name} key: failed: {error}" in status

    shown = json.loads(call("status", *fleet, "--json"))["shards"]
    assert {t["tenant"]: s["shard"] for s in shown for t in s["tenants"]} == shard_of

    exported = [json.loads(line) for line in call("journal", "export", *fleet).splitlines()]
    ended = [(e["shard"], e["tenant"]) for e in exported
             if (e["kind"], e["step"]) == (EntryKind.COMPLETED.value, "load")]  # fmt: skip
    assert sorted(ended) == sorted((s, t) for t, s in shard_of.items() if t not in FAILING)
    for option in (["--tenant", "--force"], ["--tenant=-x"], ["--tenant", "acme"]):
        name = option[-1].removeprefix("--tenant=")
        entries = json.loads(call("journal", "show", *fleet, *option, "--json"))["entries"]
        assert {entry["tenant"] for entry in entries} == {name}
    assert " [a] key " in call("journal", "show", *fleet, "--tenant=[a]")


@pytest.mark.parametrize("name", ["-x", "--new-cycle", "-h", " a"])
def test_why_takes_a_name_that_looks_like_an_option(tmp_path: Path, name: str) -> None:
    """After ``--``, as its help says; the advice for a wrong shard can be pasted."""
    file = _write_fleet(tmp_path)
    right, wrong = ("s1", "s2")[:: -1 if ODD_NAMES.index(name) % 2 else 1]
    said = tenant_pipelines("why", "--fleet", file, "--", right, name, "key", state=tmp_path)
    assert said.stdout == f"{right} {name} key: missing; a run would run it: never_run\n"
    if name == "-x":
        refused = tenant_pipelines("why", "--fleet", file, "--", wrong, name, "key", state=tmp_path)
        assert refused.returncode == 2
        assert f"Run: tenant-pipelines why -- {right} -x key" in refused.stderr
