"""The extract reads exactly the tenant's window, in one order and with the declared types."""

import sqlite3
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from tenant_pipelines.errors import WarehouseRefused
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
    with pytest.raises(WarehouseRefused, match="noon"):
        extract()(context(state))
