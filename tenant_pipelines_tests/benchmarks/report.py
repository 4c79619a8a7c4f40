"""What a benchmark measured: each subject beside its floor, with the noise shown, not hidden.

Floor and subjects take turns within one run, in reversed order every other round, so that what the
machine does to one it does to all. Nothing is dropped: median, least and most of every round.
"""

import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What a subject is meant to reach; None where nothing is asked.

    Attributes:
        at_most: in the measurement's unit.
        at_least: in the measurement's unit.
        ratio_at_most: times the floor's median.
        ratio_at_least: times the floor's median.
    """

    at_most: float | None = None
    at_least: float | None = None
    ratio_at_most: float | None = None
    ratio_at_least: float | None = None

    def is_met(self, median: float, ratio: float) -> bool | None:
        """Tell whether the medians reach the target; None when there is none."""
        checks = [
            self.at_most is None or median <= self.at_most,
            self.at_least is None or median >= self.at_least,
            self.ratio_at_most is None or ratio <= self.ratio_at_most,
            self.ratio_at_least is None or ratio >= self.ratio_at_least,
        ]
        return all(checks) if self != Target() else None

    def __str__(self) -> str:
        parts = [
            ("≤", self.at_most, ""),
            ("≥", self.at_least, ""),
            ("≤", self.ratio_at_most, " x floor"),
            ("≥", self.ratio_at_least, " x floor"),
        ]
        return ", ".join(f"{sign} {value:,g}{unit}" for sign, value, unit in parts if value)


@dataclass(frozen=True, slots=True)
class Spread:
    """One number per round."""

    rounds: Sequence[float]

    @property
    def median(self) -> float:
        """The median of the rounds."""
        return statistics.median(self.rounds)

    def to_json(self) -> dict[str, Any]:
        """Return median, min, max and the rounds in the order they were measured."""
        return {
            "median": _rounded(self.median),
            "min": _rounded(min(self.rounds)),
            "max": _rounded(max(self.rounds)),
            "rounds": [_rounded(number) for number in self.rounds],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Contestant:
    """A floor or a subject.

    Attributes:
        title: what it does, for people.
        once: runs it once and returns a number in the measurement's unit.
        target: what it is meant to reach.
    """

    title: str
    once: Callable[[], float]
    target: Target = Target()


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """A contestant's numbers."""

    title: str
    spread: Spread
    target: Target = Target()


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """Subjects beside their floor.

    Attributes:
        title: what is measured, for people.
        unit: of all numbers except ``derived``.
        floor: the least it can cost.
        subjects: by key.
        derived: further numbers computed from the rounds, by key; the key names the unit.
    """

    title: str
    unit: str
    floor: Result
    subjects: Mapping[str, Result]
    derived: Mapping[str, Result] = field(default_factory=dict)

    def ratio(self, key: str) -> float:
        """Return a subject's median over the floor's."""
        return self.subjects[key].spread.median / self.floor.spread.median

    def to_json(self) -> dict[str, Any]:
        """Return the measurement as one mapping."""
        return {
            "title": self.title,
            "unit": self.unit,
            "floor": {"title": self.floor.title, **self.floor.spread.to_json()},
            "subjects": {
                key: {
                    "title": subject.title,
                    **subject.spread.to_json(),
                    "ratio": _rounded(self.ratio(key)),
                    "target": str(subject.target),
                    "is_met": subject.target.is_met(subject.spread.median, self.ratio(key)),
                }
                for key, subject in self.subjects.items()
            },
            "derived": {
                key: {
                    "title": result.title,
                    **result.spread.to_json(),
                    "target": str(result.target),
                    "is_met": result.target.is_met(result.spread.median, 1.0),
                }
                for key, result in self.derived.items()
            },
        }


def compare(
    title: str,
    *,
    unit: str,
    floor: Contestant,
    subjects: Mapping[str, Contestant],
    rounds: int,
) -> Measurement:
    """Let floor and subjects take turns; say on stderr what is measured and for how long."""
    sys.stderr.write(f"{title}: {rounds} rounds … ")
    sys.stderr.flush()
    began = time.perf_counter()
    contestants = [floor, *subjects.values()]
    numbers: list[list[float]] = [[] for _ in contestants]
    for turn in range(rounds):
        order = list(range(len(contestants)))
        for index in reversed(order) if turn % 2 else order:
            numbers[index].append(contestants[index].once())
    sys.stderr.write(f"{time.perf_counter() - began:.0f} s\n")
    results = [
        Result(title=contestant.title, spread=Spread(rounds_of), target=contestant.target)
        for contestant, rounds_of in zip(contestants, numbers, strict=True)
    ]
    return Measurement(
        title=title,
        unit=unit,
        floor=results[0],
        subjects=dict(zip(subjects, results[1:], strict=True)),
    )


def table(measurements: Mapping[str, Measurement]) -> str:
    """Return the measurements as text for people."""
    lines: list[str] = []
    for measurement in measurements.values():
        lines += ["", f"{measurement.title}, {measurement.unit}"]
        lines.append(_HEADER.format("", "median", "min", "max", "ratio", "target"))
        lines.append(_line("floor: " + measurement.floor.title, measurement.floor, None))
        lines += [
            _line(subject.title, subject, measurement.ratio(key))
            for key, subject in measurement.subjects.items()
        ]
        lines += [_line(result.title, result, None) for result in measurement.derived.values()]
    return "\n".join(lines[1:])


_HEADER = "  {:<62} {:>10} {:>10} {:>10} {:>7}  {}"


def _line(title: str, result: Result, ratio: float | None) -> str:
    spread = result.spread
    is_met = result.target.is_met(spread.median, 1.0 if ratio is None else ratio)
    verdict = {None: "", True: ": met", False: ": MISSED"}[is_met]
    return _HEADER.format(
        title,
        *(_shown(number) for number in (spread.median, min(spread.rounds), max(spread.rounds))),
        "" if ratio is None else f"{ratio:.2f} x",
        f"{result.target}{verdict}",
    ).rstrip()


def _shown(number: float) -> str:
    return f"{number:,.0f}" if abs(number) >= 100 else f"{number:.3g}"


def _rounded(number: float) -> float:
    return float(f"{number:.5g}")
