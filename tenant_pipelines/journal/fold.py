"""The pure fold of a tenant's entries to the states of its cells."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from tenant_pipelines.journal.entries import Draft, Entry, EntryKind


class Outcome(StrEnum):
    """How the newest generation of a cell stands, by the journal alone.

    A ``STARTED`` cell is running when its tenant's lease is held, interrupted otherwise.
    """

    MISSING = "missing"
    STARTED = "started"
    COMPLETED = "completed"
    FAILED = "failed"


@dataclass(slots=True)
class CellState:
    """The newest generation of one cell.

    Attributes:
        generation: its number; 0 when the cell never started.
        outcome: how it stands.
        attempts: executions of this generation so far.
        is_forced: whether a person asked for this generation.
        code_version: of the newest execution.
        inputs: digest of each upstream output that the newest execution was given.
        output: what the completion recorded, as ``StoredOutput.to_json`` wrote it.
        error: ``{"type", "message", "traceback"}`` of the failure.
        seconds: how long the newest ended execution took.
        run_id: of the newest entry.
        at: instant of the newest entry.
        forced_by: root runs whose force this cell has obeyed in this cycle.
    """

    generation: int = 0
    outcome: Outcome = Outcome.MISSING
    attempts: int = 0
    is_forced: bool = False
    code_version: str = ""
    inputs: Mapping[str, str] = field(default_factory=dict)
    output: Mapping[str, Any] | None = None
    error: Mapping[str, str] | None = None
    seconds: float = 0.0
    run_id: str = ""
    at: str = ""
    forced_by: tuple[str, ...] = ()

    @property
    def digest(self) -> str | None:
        """Digest of the output, None unless completed."""
        return None if self.output is None else str(self.output["digest"])


_MISSING = CellState()  # read only: a cell that has an entry is in ``cells``


@dataclass(slots=True)
class TenantState:
    """One tenant in one cycle.

    Attributes:
        cells: by step; a step without entries is absent.
        window: ``{"after", "to"}``, with ``"redoes"`` if it has some, as the first extract pinned
            it; None before.
        last_seq: seq of the newest entry folded.
    """

    cells: dict[str, CellState] = field(default_factory=dict)
    window: Mapping[str, Any] | None = None
    last_seq: int = 0

    def cell(self, step: str) -> CellState:
        """Return the state of a step's cell, a missing one when it has no entry."""
        return self.cells.get(step) or _MISSING

    def apply(self, new_entries: Iterable[Entry]) -> "TenantState":
        """Fold further entries, in order, into this state; return it."""
        for entry in new_entries:
            self.last_seq = entry.seq
            self.apply_one(entry, at=entry.at)
        return self

    def apply_one(self, entry: Entry | Draft, *, at: str = "") -> None:
        """Fold one entry, or a draft that is about to be written, into this state."""
        if entry.item:
            return
        cell = self.cells.get(entry.step)
        if cell is None or entry.generation > cell.generation:
            cell = CellState(generation=entry.generation, forced_by=cell.forced_by if cell else ())
            self.cells[entry.step] = cell
        elif entry.generation < cell.generation:
            return  # an older generation that ended late; the newer one decides
        payload = entry.payload
        cell.run_id, cell.at = entry.run_id, at
        match entry.kind:
            case EntryKind.STARTED:
                cell.outcome = Outcome.STARTED
                cell.attempts = max(cell.attempts, entry.attempt)
                cell.code_version = entry.code_version
                cell.inputs = payload["inputs"]
                self.window = self.window or payload.get("window")
            case EntryKind.COMPLETED:
                cell.outcome = Outcome.COMPLETED
                cell.attempts = max(cell.attempts, entry.attempt)
                cell.code_version = entry.code_version
                cell.inputs = payload["inputs"]
                cell.output = payload["output"]
                cell.seconds = payload["seconds"]
                cell.error = None
            case EntryKind.FAILED:
                cell.outcome = Outcome.FAILED
                cell.error = payload["error"]
                cell.seconds = payload["seconds"]
            case EntryKind.FORCED:
                cell.is_forced = True
                cell.forced_by = (*cell.forced_by, payload["root"])
            case EntryKind.CYCLE_OPENED:
                pass


def fold_tenant(entries: Iterable[Entry]) -> TenantState:
    """Fold one tenant's entries of one cycle, in order, to its state."""
    return TenantState().apply(entries)


@dataclass(frozen=True, slots=True, order=True)
class Cycle:
    """One pass of the pipeline over the fleet; cycles order by instant, then by name.

    Attributes:
        instant: UTC, ISO 8601; scheduled time for a tick, else opening time.
        name: unique in the fleet.
        root: the root run or backfill that asked for it.
    """

    instant: str
    name: str
    root: str = ""


def cycles_of(entries: Iterable[Entry]) -> list[Cycle]:
    """Return the cycles that ``cycle_opened`` entries open, oldest first."""
    found = []
    for entry in entries:
        payload = entry.payload
        found.append(Cycle(instant=payload["instant"], name=entry.cycle, root=payload["root"]))
    return sorted(found)
