"""The extract reads exactly the tenant's window, in one order and with the declared types."""

import sqlite3
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from tenant_pipelines.errors import InvalidPipeline, WarehouseRefused
from tenant_pipelines.storage.sql_source import sql_extract
from tenant_pipelines_tests.storage.cells import context

URL = "sqlite:///{state}/source.db"
EVENTS = """
CREATE TABLE events (id INTEGER PRIMARY KEY, who TEXT, n INTEGER, m BIGINT NOT NULL, x FLOAT,
                     ok BOOLEAN, at DATETIME, "day" DATE, raw BLOB);
INSERT INTO events VALUES
  (3, 'acme', NULL, 1, 1.5, 1, '2024-01-02 03:04:05.000006', '2024-01-02', x'00'),
  (1, 'acme', 7, 2, NULL, NULL, NULL, NULL, NULL),
  (2, 'globex', 8, 3, 2.0, 0, NULL, NULL, NULL),
  (4, 'a'' OR 1=1 --', 9, 4, 2.0, 0, NULL, NULL, NULL);
CREATE TABLE plain (who TEXT, n INTEGER, at DATETIME);
INSERT INTO plain VALUES ('acme', 2, NULL), ('acme', 1, NULL), ('acme', NULL, NULL);
"""


@pytest.fixture
def state(tmp_path: Path) -> Path:
    with sqlite3.connect(tmp_path / "source.db") as connection:
        connection.executescript(EVENTS)
    return tmp_path


def extract(**options: Any) -> Any:
    return sql_extract(**{"source": URL, "table": "events", "tenant_column": "who", **options})


def test_a_tenant_gets_its_rows_in_the_key_s_order(state: Path) -> None:
    """Dtypes follow the declaration: integers stay integers beside a NULL."""
    data = extract()(context(state))
    assert data["id"].tolist() == [1, 3]
    assert {name: str(dtype) for name, dtype in data.dtypes.items()} == {
        "id": "int64",
        "who": str(pd.Series([], dtype="str").dtype),
        "n": "Int64",
        "m": "int64",
        "x": "float64",
        "ok": "boolean",
        "at": "datetime64[us]",
        "day": "object",
        "raw": "object",
    }
    assert data["n"].to_list() == [7, pd.NA]
    assert data["at"].to_list() == [pd.NaT, pd.Timestamp("2024-01-02 03:04:05.000006")]


def test_a_tenant_without_rows_has_the_same_columns_and_types(state: Path) -> None:
    """The warehouse's table must not depend on which tenant came first."""
    nobody = extract()(context(state, tenant="nobody"))
    assert len(nobody) == 0
    assert nobody.dtypes.equals(extract()(context(state)).dtypes)


def test_a_tenant_s_name_is_data(state: Path) -> None:
    """Names are free text and reach the database as a bound parameter only."""
    assert extract()(context(state, tenant="a' OR 1=1 --"))["id"].tolist() == [4]


def test_the_window_is_half_open_and_pinned(state: Path) -> None:
    """After the old cursor, up to the pinned end; later rows belong to the next cycle."""
    step = extract(cursor_column="id")
    assert step.window is not None
    assert step.window(context(state)) == 3
    assert step.window(context(state, tenant="nobody")) is None
    with sqlite3.connect(state / "source.db") as connection:
        connection.execute("INSERT INTO events (id, who, m) VALUES (9, 'acme', 0)")
    for after, to, ids in [(None, 3, [1, 3]), (1, 3, [3]), (3, 9, [9]), (3, 3, []), (3, None, [])]:
        data = step(context(state, after=after, to=to))
        assert data["id"].tolist() == ids
    assert extract().window is None


DAYS = """
CREATE TABLE visits (seq INTEGER PRIMARY KEY, who TEXT, "day" TEXT, part INTEGER, n INTEGER);
INSERT INTO visits VALUES
  (1, 'acme', 'mon', NULL, 1), (2, 'acme', 'mon', 2, 2), (3, 'acme', 'tue', 1, 3),
  (4, 'globex', 'mon', NULL, 4), (5, 'acme', 'mon', NULL, 5), (6, 'globex', 'tue', 1, 6),
  (7, 'acme', 'wed', 1, 7), (8, 'acme', 'mon', NULL, 8);
"""


def test_a_group_that_the_window_touches_is_read_whole(tmp_path: Path) -> None:
    """Up to the end of the window, the tenant's own rows only; no value is a value like others."""
    with sqlite3.connect(tmp_path / "source.db") as connection:
        connection.executescript(DAYS)
    step = extract(table="visits", cursor_column="seq", whole=["day", "part"])
    for after, to, read in [
        (None, 7, [1, 2, 3, 5, 7]), (3, 7, [1, 5, 7]), (3, 6, [1, 5]), (5, 7, [7]),
        (6, 8, [1, 5, 7, 8]), (8, 8, []), (8, 3, []), (8, None, []),
    ]:  # fmt: skip
        assert step(context(tmp_path, after=after, to=to))["seq"].tolist() == read, (after, to)
    by_day = extract(table="visits", cursor_column="seq", whole=["day"], columns=["n"])
    assert by_day(context(tmp_path, after=4, to=6))["n"].tolist() == [1, 2, 5]


@pytest.mark.parametrize(
    "options", [{"whole": ["day"]}, {"whole": "day", "cursor_column": "seq"}], ids=str
)
def test_groups_make_sense_with_a_cursor_only(options: dict[str, Any]) -> None:
    """Said when the pipeline is built."""
    with pytest.raises(InvalidPipeline, match="whole="):
        extract(table="visits", **options)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("UPDATE plain SET n = NULL WHERE n = 2", "rows without a value in cursor column 'n'"),
        ("UPDATE plain SET n = 'x' WHERE n = 2 OR n IS NULL", "a str in cursor column 'n'"),
        ("UPDATE plain SET n = 1e999 WHERE n = 2 OR n IS NULL", "a float in cursor column 'n'"),
    ],
)
def test_a_row_that_a_cursor_would_miss_is_refused(state: Path, change: str, says: str) -> None:
    """A row without a place in the order would never be read."""
    with sqlite3.connect(state / "source.db") as connection:
        connection.execute(change)
    step = extract(table="plain", cursor_column="n")
    with pytest.raises(WarehouseRefused, match=f"'plain'.*'acme'.*{says}"):
        step.window(context(state))


def test_a_tenant_s_name_is_compared_exactly(tmp_path: Path) -> None:
    """A column that ignores case would give one tenant's rows to another."""
    with sqlite3.connect(tmp_path / "source.db") as connection:
        connection.execute("CREATE TABLE n (who TEXT COLLATE NOCASE, id INTEGER PRIMARY KEY)")
        connection.execute("INSERT INTO n VALUES ('acme', 1), ('Acme', 2)")
    step = extract(table="n", cursor_column="id")
    assert step(context(tmp_path, to=2))["id"].tolist() == [1]
    assert step.window(context(tmp_path)) == 1
    assert step.window(context(tmp_path, tenant="ACME")) is None
    with sqlite3.connect(tmp_path / "source.db") as connection:
        connection.execute("CREATE TABLE m (who INTEGER, id INTEGER PRIMARY KEY)")
        connection.execute("INSERT INTO m VALUES (7, 1), ('seven', 2)")
    found = {
        tenant: len(extract(table="m", columns=["id"])(context(tmp_path, tenant=tenant)))
        for tenant in ("7", "007", "7.0", " 7", "seven")
    }
    assert found == {"7": 1, "007": 0, "7.0": 0, " 7": 0, "seven": 1}


def test_chosen_columns_in_the_chosen_order(state: Path) -> None:
    """Without a key the rows are ordered by what is read."""
    data = extract(table="plain", columns=["n", "who"])(context(state))
    assert list(data.columns) == ["n", "who"]
    assert data["n"].to_list() == [pd.NA, 1, 2]


def test_a_source_may_be_a_setting(state: Path) -> None:
    """Each tenant can have a database of its own."""
    step = extract(source=lambda ctx: str(ctx.settings["url"]))
    where = context(state, settings={"url": f"sqlite:///{state}/source.db"})
    assert len(step(where)) == 2


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"table": "event"}, "'event'.*no such table.*events.*'events'"),
        ({"tenant_column": "whom"}, "no column 'whom'.*'who'"),
        ({"columns": ["id", "nn"]}, "no column 'nn'"),
        ({"cursor_column": "idd"}, "no column 'idd'"),
        ({"cursor_column": "at"}, "'at' of type DATETIME.*insertion sequence"),
        ({"source": "sqlite:///{state}/none.db"}, "no file"),
        ({"source": "sqlite://"}, "outlives"),
        ({"source": "secret"}, "not a SQLAlchemy URL"),
        ({"source": "no_such://u:secret@h/d"}, "no_such"),
    ],
)
def test_a_source_that_does_not_fit_is_named(
    state: Path, options: dict[str, Any], says: str
) -> None:
    """Table, column or file; nothing is created and no password shown."""
    step = extract(**options)
    with pytest.raises(WarehouseRefused, match=f"(?s){says}") as caught:
        step(context(state, to=9))
    assert "secret" not in str(caught.value)
    assert {entry.name for entry in state.iterdir()} == {"source.db"}


def test_a_value_of_another_type_names_its_column(state: Path) -> None:
    """SQLite stores anything anywhere."""
    with sqlite3.connect(state / "source.db") as connection:
        connection.execute("UPDATE events SET n = 'many' WHERE id = 1")
    with pytest.raises(WarehouseRefused, match="column 'n' that is no INTEGER"):
        extract()(context(state))
    with sqlite3.connect(state / "source.db") as connection:
        connection.execute("UPDATE events SET n = 1, at = 'noon' WHERE id = 1")
    with pytest.raises(WarehouseRefused, match="column 'at' that is no DATETIME"):
        extract()(context(state))


@pytest.mark.parametrize(
    ("declared", "value", "read"),
    [
        ("INTEGER", "19.99", None),
        ("INTEGER", "9223372036854775807", 2**63 - 1),
        ("INTEGER", "'7'", 7),  # SQLite's affinity makes it a number before
        ("INTEGER", "'seven'", None),
        ("NUMERIC(20,0)", "9007199254740993", Decimal(9007199254740993)),
        ("DECIMAL(20,15)", "0.123456789012345", Decimal("0.123456789012345")),
        ("DECIMAL(10,2)", "1.005", Decimal("1.005")),
        ("NUMERIC", "'many'", None),
        ("REAL", "1e300", 1e300),
        ("REAL", "'x'", None),
        ("BOOLEAN", "1", True),
        ("BOOLEAN", "2", None),
        ("BOOLEAN", "'false'", None),
        ("TEXT", "x'ff'", None),
        ("TEXT", "'ü'", "ü"),
        ("BLOB", "'text'", None),
        ("DATE", "'2024-01-02'", date(2024, 1, 2)),
        ("DATE", "1704153600", None),
        ("DATETIME", "'2024-01-02 03:04:05.000006'", pd.Timestamp("2024-01-02 03:04:05.000006")),
        ("DATETIME", "'2024-01-02T03:04'", pd.Timestamp("2024-01-02 03:04")),
        ("DATETIME", "'2024-01-02 00:00:00+02:00'", None),
        ("DATETIME", "'2024-01-02 00:00:00.0000001'", None),
        ("DATETIME", "1704153600", None),
    ],
)
def test_a_value_is_read_as_it_is_stored_or_refused(
    tmp_path: Path, declared: str, value: str, read: Any
) -> None:
    """Nothing is rounded, cut or taken for true; the column is named."""
    with sqlite3.connect(tmp_path / "source.db") as connection:
        connection.execute(f"CREATE TABLE v (who TEXT, value {declared})")
        connection.execute(f"INSERT INTO v VALUES ('acme', {value})")
    step = extract(table="v", columns=["value"])
    if read is None:
        with pytest.raises(WarehouseRefused, match=f"column 'value' that is no {declared[:4]}"):
            step(context(tmp_path))
    else:
        (found,) = step(context(tmp_path))["value"].tolist()
        assert (found, type(found) is bool) == (read, type(read) is bool)


def test_decimals_of_many_rows_are_read_as_they_are(tmp_path: Path) -> None:
    """Of other digits in every batch, with gaps, and in a tenant without any."""
    with sqlite3.connect(tmp_path / "source.db") as connection:
        connection.execute("CREATE TABLE v (id INTEGER PRIMARY KEY, who TEXT, value NUMERIC)")
        values = [None if n % 7 == 0 else n / 10 if n < 6_000 else n * 1000 for n in range(12_000)]
        connection.executemany("INSERT INTO v VALUES (?, 'acme', ?)", enumerate(values))
    step = extract(table="v", columns=["value"])
    read = step(context(tmp_path))["value"]
    assert read.tolist() == [None if v is None else Decimal(repr(v)) for v in values]
    assert step(context(tmp_path, tenant="nobody"))["value"].dtype == read.dtype == object
