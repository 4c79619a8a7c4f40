"""What a run did, shard by shard, computed from the journals alone: the table and the JSON."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from rich.console import Console
from rich.table import Table

from tenant_pipelines.cli.explain import explain
from tenant_pipelines.engine.overview import FleetReader, ShardStatus, ShardView, State
from tenant_pipelines.engine.plan import Reason, Request
from tenant_pipelines.journal.entries import Entry, EntryKind

_MOST_LINES = 20
_COUNTS = ("ran", "skipped", "failed", "held", "missing")


@dataclass(slots=True, kw_only=True)
class ShardOutcome:
    """What one run did in one shard.

    Attributes:
        view: how the shard stands now.
        ran: cells that this run completed.
        skipped: asked-for cells that were done already.
        seconds: from the run's first entry to its last.
    """

    view: ShardView
    ran: int = 0
    skipped: int = 0
    seconds: float = 0.0
    not_done: list[dict[str, str]] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Return the mapping that ``run --json`` prints for a shard."""
        document: dict[str, Any] = {
            "shard": self.view.shard,
            "cycle": self.view.cycle,
            "status": self.view.status.value,
            "ran": self.ran,
            "skipped": self.skipped,
            "failed": self.not_done,
            "seconds": round(self.seconds, 3),
        }
        return document | ({"error": str(self.view.damage)} if self.view.damage else {})


def outcome_of(reader: FleetReader, shard: str, *, run_id: str, request: Request) -> ShardOutcome:
    """Read what a run did in a shard; ``run_id`` empty for a run that had nothing to do."""
    instants: list[str] = []
    completed: set[tuple[str, str]] = set()

    def notice(entry: Entry) -> None:
        if run_id and entry.run_id == run_id:
            instants.append(entry.at)
            if entry.kind is EntryKind.COMPLETED:
                completed.add((entry.tenant, entry.step))

    view = reader.shard(shard, request, notice=notice)
    outcome = ShardOutcome(view=view, ran=len(completed))
    if instants:
        first, last = (datetime.fromisoformat(at) for at in (min(instants), max(instants)))
        outcome.seconds = (last - first).total_seconds()
    for cell in view.cells:
        if cell.reason is Reason.DONE:
            outcome.skipped += (cell.tenant, cell.step) not in completed
        elif cell.state in {State.FAILED, State.INTERRUPTED, State.HELD}:
            outcome.not_done.append(
                {
                    "tenant": cell.tenant,
                    "step": cell.step,
                    "error": explain(cell) or cell.reason.value,
                }
            )
    return outcome


def is_all_done(outcomes: Collection[ShardOutcome]) -> bool:
    """Tell whether every asked-for cell is done."""
    return all(outcome.view.status is ShardStatus.COMPLETED for outcome in outcomes)


def print_outcomes(outcomes: Collection[ShardOutcome], console: Console) -> None:
    """Print the table of a run, then what is not done and why."""
    table = Table("shard", "cycle", "status", *_COUNTS, "seconds", box=None)
    for outcome in outcomes:
        view = outcome.view
        table.add_row(
            view.shard,
            view.cycle or "-",
            view.status.value,
            str(outcome.ran),
            str(outcome.skipped),
            *(str(count) for count in _not_done_counts(view)),
            f"{outcome.seconds:.2f}",
        )
    console.print(table)
    lines = list(_lines(outcomes))
    lines += [
        f"{outcome.view.shard}: {outcome.view.damage}"
        for outcome in outcomes
        if outcome.view.damage is not None
    ]
    for line in lines[:_MOST_LINES]:
        console.print(line)
    if len(lines) > _MOST_LINES:
        console.print(f"… and {len(lines) - _MOST_LINES} more; status --json has all")
    left = sum(sum(_not_done_counts(outcome.view)) for outcome in outcomes)
    console.print(
        f"total: {sum(outcome.ran for outcome in outcomes)} ran, "
        f"{sum(outcome.skipped for outcome in outcomes)} skipped"
        + (f", {left} not done" if left else ""),
    )


def _not_done_counts(view: ShardView) -> tuple[int, int, int]:
    """Return how many cells failed (or were interrupted), are held, and were not reached."""
    left = [cell.state for cell in view.cells if cell.reason is not Reason.DONE]
    failed = sum(state in {State.FAILED, State.INTERRUPTED} for state in left)
    held = left.count(State.HELD)
    return failed, held, len(left) - failed - held


def _lines(outcomes: Collection[ShardOutcome]) -> Iterator[str]:
    """Yield why each cell is not done; a reason that all of a tenant's cells share, once."""
    told: set[tuple[str, str]] = set()
    for outcome in outcomes:
        for cell in outcome.not_done:
            if (cell["tenant"], cell["error"]) not in told:
                told.add((cell["tenant"], cell["error"]))
                yield f"{outcome.view.shard}: {cell['tenant']}:{cell['step']}: {cell['error']}"
