"""Feeds the flights sample's source as its airlines would: new days, late flights, corrections.

Each call of ``feed`` is one transaction: a run that reads meanwhile sees all of it or nothing. What
it adds is made of flights that are there, so it works on any source and any number of times.
"""

import contextlib
import random
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path
from typing import Any

_WEEK = timedelta(days=7)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fed:
    """What one call of ``feed`` added to the source.

    Attributes:
        new_flights: reports of flights on days that the source did not have.
        late_flights: reports of flights on days that it had.
        corrections: further reports of flights that it had.
    """

    new_flights: int
    late_flights: int
    corrections: int


def feed(path: Path, *, days: int = 0, late: int = 0, corrections: int = 0, seed: int = 0) -> Fed:
    """Add reports to a source.

    Args:
        path: its file; holds at least one flight.
        days: new days, each with the flights of the same weekday one week before.
        late: flights on days that are there, reported only now.
        corrections: reports that change a flight's delay, cancel it or change its destination; its
            day never changes.
        seed: of everything that is random.
    """
    chance = random.Random(seed)  # noqa: S311  (sample data)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.row_factory = sqlite3.Row
        connection.execute("BEGIN IMMEDIATE")
        source = _Source(connection, chance)
        fed = Fed(
            new_flights=sum(source.add_day() for _ in range(days)),
            late_flights=sum(source.add_late() for _ in range(late)),
            corrections=sum(source.correct() for _ in range(corrections)),
        )
        connection.execute("COMMIT")
    return fed


class _Source:
    """The source within one transaction."""

    def __init__(self, connection: sqlite3.Connection, chance: random.Random) -> None:
        self._connection = connection
        self._chance = chance

    def add_day(self) -> int:
        newest = self._one("SELECT year, month, day FROM flights ORDER BY 1 DESC, 2 DESC, 3 DESC")
        new = date(*newest) + timedelta(days=1)
        flights = self._flights_on(new - _WEEK) or self._flights_on(date(*newest))
        for flight in flights:
            self._report(
                flight,
                flight_id=self._new_flight(),
                year=new.year,
                month=new.month,
                day=new.day,
                **self._delayed(flight),
            )
        return len(flights)

    def add_late(self) -> int:
        flight = self._any_flight()
        self._report(flight, flight_id=self._new_flight(), **self._delayed(flight))
        return 1

    def correct(self) -> int:
        flight = self._any_flight()
        kind = self._chance.choice(["delay", "cancel", "divert"])
        if kind == "delay":
            changed: dict[str, Any] = self._delayed(flight)
        elif kind == "cancel":
            times = ("dep_time", "dep_delay", "arr_time", "arr_delay", "air_time")
            changed = dict.fromkeys(times)
        else:
            changed = {"dest": self._any_flight()["dest"]}
        self._report(flight, **changed)
        return 1

    def _delayed(self, flight: sqlite3.Row) -> dict[str, int]:
        return {
            name: flight[name] + self._chance.randint(-5, 20)
            for name in ("dep_delay", "arr_delay")
            if flight[name] is not None
        }

    def _flights_on(self, day: date) -> list[sqlite3.Row]:
        return list(
            self._connection.execute(
                "SELECT *, max(seq) FROM flights WHERE year = ? AND month = ? AND day = ? "
                "GROUP BY flight_id",
                (day.year, day.month, day.day),
            )
        )

    def _any_flight(self) -> sqlite3.Row:
        """Return the newest report of some flight."""
        (last,) = self._one("SELECT max(seq) FROM flights")
        (flight_id,) = self._one(
            "SELECT flight_id FROM flights WHERE seq >= ? ORDER BY seq",
            self._chance.randint(1, last),
        )
        newest = "SELECT * FROM flights WHERE flight_id = ? ORDER BY seq DESC"
        flight: sqlite3.Row = self._one(newest, flight_id)
        return flight

    def _new_flight(self) -> int:
        (last,) = self._one("SELECT max(flight_id) FROM flights")
        return int(last) + 1

    def _report(self, flight: sqlite3.Row, **changed: Any) -> None:
        values = {name: flight[name] for name in flight.keys() if name != "max(seq)"}  # noqa: SIM118  (a Row iterates over its values)
        values |= {"seq": None, **changed}
        marks = ", ".join(f":{name}" for name in values)
        self._connection.execute(
            f"INSERT INTO flights ({', '.join(values)}) VALUES ({marks})",  # noqa: S608  (our names)
            values,
        )

    def _one(self, query: str, *parameters: Any) -> Any:
        values: Sequence[Any] = parameters
        return self._connection.execute(query + " LIMIT 1", values).fetchone()
