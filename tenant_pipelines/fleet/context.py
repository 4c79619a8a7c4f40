"""What a step is told: which cell it works on, its tenant's settings, its window."""

import logging
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Cursor = str | int | float


def is_cursor(value: object) -> bool:
    """Tell whether a value can be a cursor: text, an integer or a finite float."""
    if type(value) is str:
        return value == value.encode("utf-8", "ignore").decode()
    return type(value) is int or (type(value) is float and math.isfinite(value))


def oldest_cursor(cursors: Iterable[Cursor | None]) -> Cursor | None:
    """Return the oldest cursor; None when one is None, or text stands beside a number."""
    known = list(cursors)
    if None in known or len({isinstance(cursor, str) for cursor in known}) != 1:
        return None
    return min(known)  # type: ignore[type-var]  # all text or all numbers


@dataclass(frozen=True, slots=True)
class Window:
    """The half-open interval ``(after, to]`` of source rows that a cycle reads for one tenant.

    Attributes:
        after: the oldest of the cursors that the tenant's loads committed last; None, for
            everything, when one of them never did.
        to: the newest cursor value that this cycle reads; None when the source has no row yet.
        redoes: older cycles whose windows it covers because a load of theirs is outdated; a load
            deletes the tenant's rows of these first.
    """

    after: Cursor | None
    to: Cursor | None
    redoes: tuple[str, ...] = ()


class Settings(Mapping[str, Any]):
    """A tenant's resolved settings; printing it shows the names and never the values."""

    __slots__ = ("_values",)

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = dict(values)

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"Settings({', '.join(self._values)})"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepContext:
    """The first argument of every step.

    Attributes:
        fleet: name of the fleet.
        shard: name of the shard.
        tenant: name of the tenant.
        settings: the tenant's own mapping in fleet.yaml, ``${…}`` resolved.
        cycle: name of the cycle.
        step: name of the step.
        generation: which asked-for run of the cell this is, from 1. With ``cycle`` it makes the
            idempotency key of an effect outside the journal.
        attempt: which execution within the generation, from 1.
        cursor: ``window.after``.
        window: the source rows of this cycle; the same in every attempt and generation of it.
            Only a ``sql_load`` moves the cursor; without one, ``after`` is None.
        log: logger whose records carry shard, tenant, step and attempt.
        state: the fleet's state folder, absolute.
        warehouse: SQLAlchemy URL of the fleet's warehouse, None when it has none.
        inputs: content digest of each upstream output, by step name.
    """

    fleet: str
    shard: str
    tenant: str
    settings: Settings
    cycle: str
    step: str
    generation: int
    attempt: int
    window: Window
    log: "logging.LoggerAdapter[logging.Logger]"
    state: Path
    warehouse: str | None
    inputs: Mapping[str, str]
    _accounted: list[int] = field(default_factory=list, repr=False)

    def account(self, *, rows: int) -> None:
        """Say how many of the extracted rows this step has accounted for; calls add up.

        A row is accounted for when it is in what the step returns, summed up or counted there, or
        when the step left it out on purpose. The check ``rows_accounted`` compares the sum with the
        rows that the tenant's first steps returned; count what came out, not what went in.

        Args:
            rows: at least 0.

        Raises:
            ValueError: it is no such number.
        """
        if isinstance(rows, bool) or rows < 0 or int(rows) != rows:
            raise ValueError(f"ctx.account: found rows={rows!r}; wanted a whole number from 0 on")
        self._accounted.append(int(rows))

    @property
    def accounted(self) -> int | None:
        """The rows accounted for so far; None when ``account`` was never called."""
        return sum(self._accounted) if self._accounted else None

    @property
    def cursor(self) -> Cursor | None:
        """Where the window begins: the warehouse has at least the tenant's rows up to it."""
        return self.window.after
