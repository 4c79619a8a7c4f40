"""The ledger remembers what took effect, and reading it leaves no trace."""

import sqlite3
from pathlib import Path

import pytest

from tenant_pipelines.errors import WarehouseRefused
from tenant_pipelines.storage.engines import Place, writing
from tenant_pipelines.storage.ledger import TABLE, Ledger, LedgerRow


def row(
    *, tenant: str = "acme", cycle: str = "1", generation: int = 1, cursor: int | None = None
) -> LedgerRow:
    return LedgerRow(
        fleet="fleet",
        tenant=tenant,
        step="load",
        cycle=cycle,
        generation=generation,
        input_digest="d",
        cursor=cursor,
        output={"table": "daily", "rows": 1},
        at="2024-01-01T00:00:00.000+00:00",
    )


def record(url: str, fleet: str, *rows: LedgerRow) -> None:
    ledger = Ledger(url, fleet)
    with writing(url, Place(TABLE, "acme")) as connection:
        for one in rows:
            ledger.settled_by(connection, tenant=one.tenant, step=one.step, cycle=one.cycle)
            ledger.record(connection, one)


def test_reading_creates_neither_file_nor_table(tmp_path: Path) -> None:
    """A plan and a status must be possible before anything ran."""
    file = tmp_path / "none" / "warehouse.db"
    ledger = Ledger(f"sqlite:///{file}", "fleet")
    assert (ledger.settled(tenant="a", cycle="1"), ledger.settled_in("1")) == ([], {})
    assert ledger.cursors("a", {"load": "daily"}) == [None]
    assert not file.parent.exists()
    file.parent.mkdir()
    sqlite3.connect(file).execute("CREATE TABLE other (a)").connection.close()
    before = file.read_bytes()
    assert (ledger.settled_in("1"), ledger.cursors("a", {"load": "daily"})) == ({}, [None])
    assert file.read_bytes() == before


def test_rows_come_back_by_tenant_and_cycle(tmp_path: Path) -> None:
    """Whole rows, oldest first, of this fleet only."""
    url = f"sqlite:///{tmp_path}/warehouse.db"
    rows = [row(), row(generation=2), row(tenant="globex"), row(cycle="2")]
    record(url, "fleet", *rows)
    record(url, "another", row())
    ledger = Ledger(url, "fleet")
    assert ledger.settled(tenant="acme", cycle="1") == rows[:2]
    assert ledger.settled_in("1") == {"acme": rows[:2], "globex": rows[2:3]}
    assert ledger.settled_in("3") == {}


@pytest.mark.parametrize("cursor", [7, 1.5, "2024-01-01"])
def test_the_cursor_is_the_newest_rows(tmp_path: Path, cursor: int | float | str) -> None:
    """Newest means written last, and types survive."""
    url = f"sqlite:///{tmp_path}/warehouse.db"
    record(url, "fleet", row(cycle="9", cursor=1), row(cycle="10", cursor=cursor))  # type: ignore[arg-type]  # any of the three
    assert Ledger(url, "fleet").cursors("acme", {"load": "daily"}) == [cursor]
    assert Ledger(url, "fleet").cursors("globex", {"load": "daily"}) == [None]


def test_the_database_refuses_a_second_row_of_a_generation(tmp_path: Path) -> None:
    """Exactly once is the database's guarantee, not only the code's."""
    url = f"sqlite:///{tmp_path}/warehouse.db"
    with pytest.raises(WarehouseRefused, match="UNIQUE"):
        record(url, "fleet", row(), row())
    assert Ledger(url, "fleet").settled_in("1") == {}


def test_a_file_that_is_no_database_is_named(tmp_path: Path) -> None:
    """Damage is one clear error, and the file stays as it is."""
    file = tmp_path / "warehouse.db"
    file.write_bytes(b"x" * 5000)
    with pytest.raises(WarehouseRefused, match="not a database"):
        Ledger(f"sqlite:///{file}", "fleet").settled_in("1")
    assert file.read_bytes() == b"x" * 5000


@pytest.mark.parametrize(
    "url", ["sqlite://", "sqlite:///:memory:", "no url secret", "mysql2://u:secret@h/d"]
)
def test_an_unusable_address_is_refused_without_its_password(url: str) -> None:
    """An address often holds a password."""
    with pytest.raises(WarehouseRefused) as caught:
        Ledger(url, "fleet").settled_in("1")
    assert "secret" not in str(caught.value)
