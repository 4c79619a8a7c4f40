"""What a run did, shard by shard, computed from the journals alone: the table and the JSON."""

from collections.abc import Collection
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
    table = Table("shard", "cycle", "status", "ran", "skipped", "failed", "seconds", box=None)
    for outcome in outcomes:
        view = outcome.view
        table.add_row(
            view.shard,
            view.cycle or "-",
            view.status.value,
            str(outcome.ran),
            str(outcome.skipped),
            str(len(outcome.not_done)),
            f"{outcome.seconds:.2f}",
        )
    console.print(table)
    lines = [
        f"{outcome.view.shard}: {cell['tenant']}:{cell['step']}: {cell['error']}"
        for outcome in outcomes
        for cell in outcome.not_done
    ]
    lines += [
        f"{outcome.view.shard}: {outcome.view.damage}"
        for outcome in outcomes
        if outcome.view.damage is not None
    ]
    for line in lines[:_MOST_LINES]:
        console.print(line, markup=False, highlight=False)
    if len(lines) > _MOST_LINES:
        console.print(f"… and {len(lines) - _MOST_LINES} more; status --json has all", markup=False)
    console.print(
        f"total: {sum(outcome.ran for outcome in outcomes)} ran, "
        f"{sum(outcome.skipped for outcome in outcomes)} skipped",
        markup=False,
    )
