"""Days and instants become the text that the database sorts and reads, or are refused."""

from datetime import UTC, date, datetime
from typing import Any

import pyarrow as pa
import pytest

from tenant_pipelines.storage.sql_types import rows_of, storable


def texts(values: list[Any], type_: Any) -> list[Any]:
    column: Any = pa.chunked_array([pa.array(values, type_)])
    return [text for rows in rows_of([storable(column)], constants=()) for (text,) in rows]


@pytest.mark.parametrize("unit", ["s", "ms", "us"])
@pytest.mark.parametrize("zone", [None, "Europe/Berlin"])
def test_an_instant_becomes_its_time_in_utc(unit: str, zone: str | None) -> None:
    """Always with six digits, from the first year to the last: text sorts as time does."""
    instants = [datetime(1, 1, 1), datetime(1969, 12, 31, 23, 59, 59), datetime(9999, 12, 31, 23)]
    aware = [instant.replace(tzinfo=UTC) if zone else instant for instant in instants]
    assert texts([*aware, None], pa.timestamp(unit, zone)) == [
        "0001-01-01 00:00:00.000000",
        "1969-12-31 23:59:59.000000",
        "9999-12-31 23:00:00.000000",
        None,
    ]


def test_a_day_becomes_its_date() -> None:
    """From the first day that Python can read back to the last."""
    days = [date.min, date(1970, 1, 1), None, date.max]
    assert texts(days, pa.date32()) == ["0001-01-01", "1970-01-01", None, "9999-12-31"]


@pytest.mark.parametrize("beyond", [-1, 1])
@pytest.mark.parametrize("type_", [pa.date32(), pa.timestamp("us"), pa.timestamp("us", "UTC")])
def test_a_year_of_more_digits_is_refused(type_: Any, beyond: int) -> None:
    """Its text would sort before the year 1000, and far away stand for another year."""
    day = date.max if beyond > 0 else date.min
    last = pa.scalar(day if type_ == pa.date32() else datetime(day.year, day.month, day.day), type_)
    steps = 1 if type_ == pa.date32() else 86_400_000_000
    count: Any = pa.array([last.value + beyond * steps], "int32" if steps == 1 else "int64")
    with pytest.raises(pa.ArrowInvalid, match="a year before 1 or after 9999"):
        storable(pa.chunked_array([count.cast(type_)]))


def test_a_fraction_of_a_microsecond_is_refused() -> None:
    """SQL would lose it."""
    with pytest.raises(pa.ArrowInvalid):
        texts([1], pa.timestamp("ns"))
