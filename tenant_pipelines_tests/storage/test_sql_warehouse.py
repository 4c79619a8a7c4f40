"""A load takes effect exactly once per generation, wherever the crash was, or not at all."""

import contextlib
import datetime
import json
import sqlite3
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tenant_pipelines.errors import InvalidPipeline, LedgerDisagrees, WarehouseRefused
from tenant_pipelines.storage.ledger import Ledger
from tenant_pipelines.storage.sql_warehouse import sql_load
from tenant_pipelines_tests.storage.cells import context, finish, start

LOAD = sql_load(table="daily", key=["day"])


def frame(**days: float) -> pd.DataFrame:
    return pd.DataFrame({"day": list(days), "n": list(days.values())})


def rows(state: Path, table: str = "daily") -> set[tuple[Any, ...]]:
    with sqlite3.connect(state / "warehouse.db") as connection:
        return set(connection.execute(f"SELECT * FROM {table}"))


def ledger(state: Path) -> Ledger:
    return Ledger(f"sqlite:///{state}/warehouse.db", "fleet")


def dump(state: Path) -> list[str]:
    with sqlite3.connect(state / "warehouse.db") as connection:
        return list(connection.iterdump())


def test_rows_are_merged_by_key_within_a_tenant(tmp_path: Path) -> None:
    """A later cycle overwrites what has the same key and keeps the rest; tenants are apart."""
    assert LOAD(context(tmp_path), transform=frame(mon=1, tue=2)) == {"table": "daily", "rows": 2}
    LOAD(context(tmp_path, tenant="globex"), transform=frame(mon=7))
    LOAD(context(tmp_path, cycle="2"), transform=frame(tue=3, wed=4))
    assert rows(tmp_path) == {
        ("acme", "1", "mon", 1),
        ("acme", "2", "tue", 3),
        ("acme", "2", "wed", 4),
        ("globex", "1", "mon", 7),
    }


def test_a_load_that_took_effect_is_not_applied_again(tmp_path: Path) -> None:
    """The second call answers what the first one did, and writes nothing."""
    first = LOAD(context(tmp_path, to=5), transform=frame(mon=1))
    before = dump(tmp_path)
    assert LOAD(context(tmp_path, to=5), transform=frame(mon=2)) == first
    assert dump(tmp_path) == before
    (row,) = ledger(tmp_path).settled(tenant="acme", cycle="1")
    assert (row.step, row.generation, row.input_digest, row.cursor) == ("load", 1, "d1", 5)
    assert row.output == first


@pytest.mark.parametrize("change", [{"digest": "d2"}, {"generation": 1}], ids=["digest", "older"])
def test_a_ledger_that_knows_better_stops_the_load(tmp_path: Path, change: dict[str, Any]) -> None:
    """Another input in the same generation, or a newer generation: one side is damaged."""
    LOAD(context(tmp_path, generation=2), transform=frame(mon=1))
    before = dump(tmp_path)
    with pytest.raises(LedgerDisagrees, match="'acme'"):
        LOAD(context(tmp_path, **{"generation": 2, **change}), transform=frame(mon=2))
    assert dump(tmp_path) == before


def test_a_new_generation_replaces_the_old_one(tmp_path: Path) -> None:
    """Rows that the new run no longer has are gone; other cycles and tenants stay."""
    LOAD(context(tmp_path, cycle="0"), transform=frame(sun=9))
    LOAD(context(tmp_path, tenant="globex"), transform=frame(mon=7))
    LOAD(context(tmp_path), transform=frame(mon=1, tue=2))
    LOAD(context(tmp_path, generation=2), transform=frame(tue=5))
    assert rows(tmp_path) == {
        ("acme", "0", "sun", 9),
        ("globex", "1", "mon", 7),
        ("acme", "1", "tue", 5),
    }
    LOAD(context(tmp_path, generation=3), transform=pd.DataFrame())
    assert rows(tmp_path) == {("acme", "0", "sun", 9), ("globex", "1", "mon", 7)}
    assert [row.generation for row in ledger(tmp_path).settled(tenant="acme", cycle="1")] == [
        1,
        2,
        3,
    ]


def test_a_load_replaces_every_group_that_it_touches(tmp_path: Path) -> None:
    """A row that the newest state of its day lacks is gone; other days and tenants stay."""
    by_day = sql_load(table="daily", key=["hour", "day"], replaces=["day"])

    def at(**hours: list[int]) -> pd.DataFrame:
        pairs = [(hour, day) for day, times in hours.items() for hour in times]
        return pd.DataFrame(pairs, columns=["hour", "day"])

    by_day(context(tmp_path), transform=at(mon=[1, 2], tue=[1, 2]))
    by_day(context(tmp_path, tenant="globex"), transform=at(tue=[1]))
    by_day(context(tmp_path, cycle="2"), transform=at(tue=[3], wed=[1]))
    assert rows(tmp_path) == {
        *[("acme", "1", 1, "mon"), ("acme", "1", 2, "mon")],
        *[("acme", "2", 3, "tue"), ("acme", "2", 1, "wed"), ("globex", "1", 1, "tue")],
    }
    by_day(context(tmp_path, cycle="2", generation=2), transform=at(tue=[4]))
    by_day(context(tmp_path, cycle="3"), transform=at())
    assert rows(tmp_path) == {
        *[("acme", "1", 1, "mon"), ("acme", "1", 2, "mon")],
        *[("acme", "2", 4, "tue"), ("globex", "1", 1, "tue")],
    }
    with sqlite3.connect(tmp_path / "warehouse.db") as connection:
        query = "EXPLAIN QUERY PLAN DELETE FROM daily WHERE _tenant = 'a' AND day = 'b'"
        ((*_, plan),) = connection.execute(query)
    assert plan == "SEARCH daily USING PRIMARY KEY (_tenant=? AND day=?)"


def test_a_load_may_replace_everything_of_its_tenant(tmp_path: Path) -> None:
    """For a source that is read whole in every cycle: what it no longer has is gone."""
    whole = sql_load(table="daily", key=["day"], replaces=[])
    whole(context(tmp_path), transform=frame(mon=1, tue=2))
    whole(context(tmp_path, tenant="globex"), transform=frame(mon=7))
    whole(context(tmp_path, cycle="2"), transform=frame(tue=3))
    assert rows(tmp_path) == {("acme", "2", "tue", 3), ("globex", "1", "mon", 7)}
    whole(context(tmp_path, cycle="3"), transform=pd.DataFrame())
    assert rows(tmp_path) == {("globex", "1", "mon", 7)}


def test_a_table_that_is_gone_is_not_made_anew(tmp_path: Path) -> None:
    """It would hold only what is new, and nobody would notice what it lacks."""
    LOAD(context(tmp_path, to=1), transform=frame(mon=1))
    with sqlite3.connect(tmp_path / "warehouse.db") as connection:
        connection.execute("DROP TABLE daily")
    before = dump(tmp_path)
    with pytest.raises(WarehouseRefused, match=r"(?s)'daily'.*although its ledger.*--new-cycle"):
        LOAD(context(tmp_path, cycle="2", after=1, to=2), transform=frame(tue=2))
    assert dump(tmp_path) == before
    # a load of nothing needs no table, and another fleet or step never had one
    assert LOAD(context(tmp_path, cycle="2", after=1, to=2), transform=frame())["rows"] == 0
    other = sql_load(table="daily", key=["day"], name="other")
    assert other(context(tmp_path, step="other"), transform=frame(mon=1))["rows"] == 1


def test_another_applications_file_is_left_as_it_is(tmp_path: Path) -> None:
    """Not even its journal mode is changed."""
    file = tmp_path / "warehouse.db"
    with contextlib.closing(sqlite3.connect(file)) as connection:
        connection.execute("PRAGMA application_id = 0x47504B47")
        connection.execute("CREATE TABLE daily (a)")
    before = file.read_bytes()
    with pytest.raises(WarehouseRefused, match=r"(?s)'daily'.*application_id is 0x47504b47"):
        LOAD(context(tmp_path), transform=frame(mon=1))
    assert file.read_bytes() == before


def test_another_applications_ledger_is_named(tmp_path: Path) -> None:
    """A table of the ledger's name with other columns."""
    with contextlib.closing(sqlite3.connect(tmp_path / "warehouse.db")) as connection:
        connection.execute("CREATE TABLE _tenant_pipelines_ledger (fleet, tenant)")
    before = dump(tmp_path)
    with pytest.raises(WarehouseRefused, match="_tenant_pipelines_ledger"):
        LOAD(context(tmp_path), transform=frame(mon=1))
    assert dump(tmp_path) == before


def test_the_cursor_moves_with_the_data_and_never_back_to_nothing(tmp_path: Path) -> None:
    """A window without an end (no rows in the source) keeps the old cursor."""
    LOAD(context(tmp_path, to=41), transform=frame(mon=1))
    assert ledger(tmp_path).cursors("acme", {"load": "daily"}) == [41]
    LOAD(context(tmp_path, cycle="2"), transform=frame())
    assert ledger(tmp_path).cursors("acme", {"load": "daily"}) == [41]


def test_every_type_is_stored_and_nothing_missing_is_invented(tmp_path: Path) -> None:
    """NaN, NaT, NA and None are NULL; times are ISO text, instants in UTC."""
    data = pd.DataFrame(
        {
            "day": pd.Series([1, 2], dtype="int16"),
            "big": np.array([2**63 - 1, -(2**63)]),
            "u": np.array([1, 2], dtype="uint64"),
            "x": [1.5, np.nan],
            "inf": [np.inf, -np.inf],
            "i": pd.Series([7, None], dtype="Int64"),
            "b": pd.Series([True, None], dtype="boolean"),
            "s": ["ü", None],
            "c": pd.Categorical(["k", None]),
            "t": pd.DatetimeIndex(["2024-01-02 03:04:05.000006", "NaT"]),
            "z": pd.DatetimeIndex(["2024-01-02 00:30", "NaT"]).tz_localize("Europe/Berlin"),
            "d": pd.Series([datetime.date(2024, 1, 2), None], dtype=object),
            "y": pd.Series([b"\0", None], dtype=object),
            'odd "name"?': [1, 2],
        }
    )
    LOAD(context(tmp_path), transform=data)
    first, second = sorted(rows(tmp_path))
    moment, instant = "2024-01-02 03:04:05.000006", "2024-01-01 23:30:00.000000"
    assert first[2:] == (
        *(1, 2**63 - 1, 1, 1.5, np.inf, 7, 1, "ü", "k"),
        *(moment, instant, "2024-01-02", b"\0", 1),
    )
    assert second[2:] == (2, -(2**63), 2, None, -np.inf, *[None] * 8, 2)


def test_numbers_that_pandas_retyped_still_fit(tmp_path: Path) -> None:
    """Another tenant's integers with a gap arrive as floats; all-missing columns have no type."""
    LOAD(context(tmp_path), transform=pd.DataFrame({"day": ["a"], "n": [1], "x": [1.5]}))
    gap = pd.DataFrame({"day": ["a", "b"], "n": [1.0, np.nan], "x": [2, 3]})
    LOAD(context(tmp_path, tenant="gap"), transform=gap)
    nothing = pd.DataFrame({"day": ["a"], "n": [None], "x": pd.Series([None], dtype="str")})
    LOAD(context(tmp_path, tenant="nothing"), transform=nothing)
    assert rows(tmp_path) == {
        ("acme", "1", "a", 1, 1.5),
        ("gap", "1", "a", 1, 2.0),
        ("gap", "1", "b", None, 3.0),
        ("nothing", "1", "a", None, None),
    }


def test_integers_that_no_float_holds_do_not_go_into_a_column_of_floats(tmp_path: Path) -> None:
    """2^53 + 1 would become 2^53, and as a key two rows would become one."""
    LOAD(context(tmp_path), transform=pd.DataFrame({"day": ["a"], "n": [1.5]}))
    LOAD(context(tmp_path, cycle="2"), transform=pd.DataFrame({"day": ["b"], "n": [2**53]}))
    for value in (2**53 + 1, -(2**53) - 1):
        with pytest.raises(WarehouseRefused, match="'n' of type FLOAT"):
            LOAD(context(tmp_path, cycle="3"), transform=frame(a=value))
    assert {row[2:] for row in rows(tmp_path)} == {("a", 1.5), ("b", 2**53)}


BAD_DATA = {
    "no frame": ({"a": 1}, "a dict"),
    "key lacks": (pd.DataFrame({"n": [1]}), "no column 'day'"),
    "key in index": (frame(mon=1).set_index("day"), "reset_index"),
    "key None": (pd.DataFrame({"day": ["a", None], "n": [1, 2]}), "1 rows without .* 'day'"),
    "key NaN": (pd.DataFrame({"day": [1.0, np.nan], "n": [1, 2]}), "without .* 'day'"),
    "key twice": (pd.DataFrame({"day": ["a", "a"], "n": [1, 2]}), "'day': 'a'"),
    "own column": (pd.DataFrame({"day": ["a"], "_Tenant": [1]}), "_tenant"),
    "case": (pd.DataFrame({"day": ["a"], "n": [1], "N": [2]}), "differ in more than case"),
    "64 bit": (pd.DataFrame({"day": ["a"], "n": np.array([2**63], "uint64")}), "'n'"),
    "more bits": (pd.DataFrame({"day": ["a"], "n": [2**80]}), "'n'"),
    "nanoseconds": (pd.DataFrame({"day": ["a"], "n": [pd.Timestamp(1)]}), "'n'"),
    "duration": (pd.DataFrame({"day": ["a"], "n": [pd.Timedelta(1)]}), "'n'"),
    "list": (pd.DataFrame({"day": ["a"], "n": [[1]]}), "'n'"),
    "mixed": (pd.DataFrame({"day": ["a", "b"], "n": [1, "x"]}), "'n'"),
    "untyped": (pd.DataFrame({"day": ["a"], "n": [None]}), "'n' without any value or type"),
}


@pytest.mark.parametrize("name", list(BAD_DATA))
def test_data_that_does_not_fit_is_refused(tmp_path: Path, name: str) -> None:
    """Table, tenant and column are named; no table and no ledger row appear."""
    value, says = BAD_DATA[name]
    with pytest.raises(WarehouseRefused, match=f"(?s)'daily'.*'acme'.*{says}"):
        LOAD(context(tmp_path), transform=value)
    file = tmp_path / "warehouse.db"
    assert not file.exists() or dump(tmp_path) == ["BEGIN TRANSACTION;", "COMMIT;"]


KEYED = "PRIMARY KEY (_tenant, day)"
BAD_TABLES = {
    "no _cycle": (f"_tenant TEXT, day TEXT, n BIGINT, {KEYED}", "no column '_cycle'"),
    "column lacks": (
        f"_tenant TEXT, _cycle TEXT, day TEXT, {KEYED}",
        r"ALTER TABLE \"?daily\"? ADD COLUMN \"?n\"? BIGINT",
    ),
    "one more": (
        f"_tenant TEXT, _cycle TEXT, day TEXT, n BIGINT, m TEXT, {KEYED}",
        "the column 'm'",
    ),
    "type": (f"_tenant TEXT, _cycle TEXT, day TEXT, n TEXT, {KEYED}", "'n' of type TEXT"),
    "NOCASE": (
        f"_tenant TEXT COLLATE NOCASE, _cycle TEXT, day TEXT, n BIGINT, {KEYED}",
        "'_tenant' with the collation NOCASE",
    ),
    "RTRIM": (
        f"_tenant TEXT, _cycle TEXT, day TEXT COLLATE RTRIM, n BIGINT, {KEYED}",
        "'day' with the collation RTRIM",
    ),
    "number": (
        f"_tenant INTEGER, _cycle TEXT, day TEXT, n BIGINT, {KEYED}",
        "'_tenant' of type INTEGER",
    ),
    "no key": ("_tenant TEXT, _cycle TEXT, day TEXT, n BIGINT", r"the primary key \[\]"),
    "other key": (
        "_tenant TEXT, _cycle TEXT, day TEXT, n BIGINT, PRIMARY KEY (day)",
        r"primary key \['day'\]",
    ),
    "check": (
        f"_tenant TEXT, _cycle TEXT, day TEXT, n BIGINT CHECK (n > 5), {KEYED}",
        "CHECK",
    ),
}


@pytest.mark.parametrize("name", list(BAD_TABLES))
def test_a_table_that_does_not_fit_is_refused(tmp_path: Path, name: str) -> None:
    """Somebody else's table stays as it is, and so does the ledger."""
    columns, says = BAD_TABLES[name]
    with sqlite3.connect(tmp_path / "warehouse.db") as connection:
        connection.execute(f"CREATE TABLE daily ({columns})")
    before = dump(tmp_path)
    with pytest.raises(WarehouseRefused, match=f"(?s)'daily'.*'acme'.*{says}"):
        LOAD(context(tmp_path), transform=frame(mon=1))
    assert dump(tmp_path) == before


def test_a_fleet_without_a_usable_warehouse_is_told_so(tmp_path: Path) -> None:
    """What to write in the fleet file."""
    for url, says in [
        ("sqlite://", "outlives"),
        ("postgresql+psycopg://u:secret@h/d", "not built yet"),
    ]:
        with pytest.raises(WarehouseRefused, match=says) as caught:
            LOAD(context(tmp_path, warehouse=url), transform=frame(mon=1))
        assert "secret" not in str(caught.value)


@pytest.mark.parametrize("key", ["day", [], ["a", "a"], ["_tenant"]])
def test_a_key_that_is_none_is_refused_when_the_pipeline_is_built(key: Any) -> None:
    """Before any tenant is touched."""
    with pytest.raises(InvalidPipeline, match="key="):
        sql_load(table="t", key=key)
    for table in ("_tenant_pipelines_ledger", "_Tenant_pipelines_x", "sqlite_x", "Excluded", ""):
        with pytest.raises(InvalidPipeline, match="table="):
            sql_load(table=table, key=["a"])
    for replaces in ("day", ["n"]):
        with pytest.raises(InvalidPipeline, match="replaces="):
            sql_load(table="t", key=["day"], replaces=replaces)


def test_a_table_of_nothing_but_its_key(tmp_path: Path) -> None:
    """The merge still says which cycle saw a row last."""
    only = pd.DataFrame({"day": ["a"]})
    LOAD(context(tmp_path), transform=only)
    LOAD(context(tmp_path, cycle="2"), transform=only)
    assert rows(tmp_path) == {("acme", "2", "a")}


def test_a_warehouse_that_was_moved_away_is_not_written_into(tmp_path: Path) -> None:
    """A kept connection would write into the deleted file and lose the load."""
    LOAD(context(tmp_path), transform=frame(mon=1))
    for name in ("warehouse.db", "warehouse.db-wal", "warehouse.db-shm"):
        (tmp_path / name).unlink(missing_ok=True)
    LOAD(context(tmp_path, cycle="2"), transform=frame(mon=2))
    assert rows(tmp_path) == {("acme", "2", "mon", 2)}
    assert list(ledger(tmp_path).settled_in("2")) == ["acme"]


def test_threads_load_at_once(tmp_path: Path) -> None:
    """They take turns, nobody sees a locked database."""
    barrier = threading.Barrier(8, timeout=30)
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            barrier.wait()
            for cycle in range(5):
                where = context(tmp_path, tenant=f"t{number}", cycle=str(cycle))
                LOAD(where, transform=frame(mon=number))
        except BaseException as error:  # noqa: BLE001
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert failures == []
    assert rows(tmp_path) == {(f"t{number}", "4", "mon", number) for number in range(8)}


LOAD_MANY = """
import os, sys, pandas as pd
from pathlib import Path
from tenant_pipelines.storage.sql_warehouse import sql_load
from tenant_pipelines_tests.storage.cells import context
state, first, fork = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "fork"
load = sql_load(table="daily", key=["day"])
frame = pd.DataFrame({"day": range(200), "n": 1})
print("ready", flush=True)
sys.stdin.readline()
for number in range(first, first + 25):
    if fork and number == first + 12:
        child = os.fork()
        if child:
            _, status = os.waitpid(child, 0)
            sys.exit(os.waitstatus_to_exitcode(status))
    load(context(state, tenant=f"t{number}"), transform=frame)
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", ["plain", "fork"])
def test_processes_load_at_once(tmp_path: Path, how: str) -> None:
    """4 processes with 25 tenants each into one new file; also when one forks half-way."""
    import subprocess
    import sys

    processes = [
        subprocess.Popen(
            [sys.executable, "-c", LOAD_MANY, str(tmp_path), str(25 * n), how],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for n in range(4)
    ]
    for process in processes:
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in processes:
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
    assert set(ledger(tmp_path).settled_in("1")) == {f"t{number}" for number in range(100)}
    assert len(rows(tmp_path)) == 100 * 200
    with sqlite3.connect(tmp_path / "warehouse.db") as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)


LOAD_AND_DIE = """
import json, os, signal, sys
import pandas as pd, sqlalchemy as sa
from pathlib import Path
from sqlalchemy import event
from tenant_pipelines.storage.sql_warehouse import sql_load
from tenant_pipelines_tests.storage.cells import context
generation, seen = int(sys.argv[2]), 0

def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)

def listen(point):
    def count(*_):
        global seen
        seen += 1
        if seen == point:
            die()
    if point == "commit":
        event.listen(sa.Engine, "commit", die)
    elif point == "returned":
        # the first connection to come back after the commit
        listen_after = lambda *_: event.listen(sa.pool.Pool, "checkin", die)
        event.listen(sa.Engine, "commit", listen_after)
    else:
        event.listen(sa.Engine, "after_cursor_execute", count)

def load(state, generation):
    frame = pd.DataFrame({"day": ["mon", "tue"][:3 - generation], "n": generation})
    where = context(state, generation=generation, to=generation, digest=f"d{generation}")
    return sql_load(table="daily", key=["day"])(where, transform=frame)

def in_a_process(state, generation, point=None):
    pid = os.fork()
    if pid == 0:
        listen(point)
        output = load(state, generation)
        (state / "output.json").write_text(json.dumps([output, seen]))
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

points = json.loads(sys.argv[3])
for point in points:
    for name in ("died", "again"):
        state = Path(sys.argv[1], f"{point} {name}")
        state.mkdir()
        if generation == 2:
            assert in_a_process(state, 1) == 0
        assert in_a_process(state, generation, point) == (-9 if point else 0), point
        if name == "again":
            assert in_a_process(state, generation) == 0
"""


@pytest.mark.slow
@pytest.mark.parametrize("generation", [1, 2])
def test_sigkill_anywhere_leaves_all_or_nothing(tmp_path: Path, generation: int) -> None:
    """A real kill after each statement, before the commit and after it; then the load again."""
    old = {("acme", "1", "mon", 1), ("acme", "1", "tue", 1)}
    new = {1: old, 2: {("acme", "1", "mon", 2)}}[generation]
    finish(start(LOAD_AND_DIE, tmp_path, generation, "[null]"))
    output, statements = json.loads((tmp_path / "None died" / "output.json").read_text())
    assert statements > 5
    points = [*range(1, statements + 1), "commit", "returned"]
    finish(start(LOAD_AND_DIE, tmp_path, generation, json.dumps(points)))
    for point in points:
        died, again = tmp_path / f"{point} died", tmp_path / f"{point} again"
        settled = [row.generation for row in ledger(died).settled(tenant="acme", cycle="1")]
        took_effect = generation in settled
        assert took_effect == (point == "returned"), point
        if generation == 2 or took_effect:
            assert rows(died) == (new if took_effect else old), point
        assert json.loads((again / "output.json").read_text())[0] == output
        assert rows(again) == new, point
        assert ledger(again).cursors("acme", {"load": "daily"}) == [generation]
