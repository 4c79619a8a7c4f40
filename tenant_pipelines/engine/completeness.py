"""Who is late in a shard, and whether every extracted row is accounted for. Pure."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from tenant_pipelines.engine.overview import CellView, State
from tenant_pipelines.engine.plan import Reason
from tenant_pipelines.fleet.pipeline import Pipeline

STALE = "stale"


class LateCell(NamedTuple):
    """A cell that is not done in the newest cycle, or whose tenant's last completion is too old.

    Attributes:
        tenant: name of the tenant.
        step: name of the step.
        reason: why, as ``why`` says it, or ``stale``.
        last_done_at: instant of the cell's newest completion in any cycle, "" when there is none.
    """

    tenant: str
    step: str
    reason: str
    last_done_at: str


def is_stale(cell: CellView, oldest: str | None) -> bool:
    """Tell whether a cell's completion in the newest cycle is missing or older than an instant.

    Args:
        cell: the cell.
        oldest: the instant, None for no limit.
    """
    return oldest is not None and (cell.state is not State.COMPLETED or cell.cell.at < oldest)


def late_cells(
    cells: Iterable[CellView],
    *,
    last_done: Callable[[str], Mapping[str, str]],
    oldest: str | None = None,
) -> list[LateCell]:
    """Return the cells that are late, in the order given.

    Args:
        cells: every cell of a shard.
        last_done: returns the instants of a tenant's newest completions, by step.
        oldest: the instant before which a completion is too old, None for no limit.
    """
    found: list[LateCell] = []
    for cell in cells:
        is_done = cell.reason is Reason.DONE
        if is_done and not is_stale(cell, oldest):
            continue
        at = cell.cell.at if is_done else last_done(cell.tenant).get(cell.step, "")
        reason = STALE if is_done else cell.reason.value
        found.append(LateCell(cell.tenant, cell.step, reason, at))
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Accounted:
    """The rows that a tenant's first steps returned, and those that a later one accounted for."""

    tenant: str
    extracted: int
    accounted: int


def accounted_rows(pipeline: Pipeline, cells: Iterable[CellView]) -> list[Accounted]:
    """Return the counts of the tenants that are done and whose steps called ``ctx.account``.

    Args:
        pipeline: the steps.
        cells: every cell of a shard.
    """
    first = {step.name for step in pipeline.steps if not step.upstream}
    extracted: dict[str, int] = {}
    accounted: dict[str, int] = {}
    undone: set[str] = set()
    for cell in cells:
        if cell.reason is not Reason.DONE:
            undone.add(cell.tenant)
            continue
        output = cell.cell.output or {}
        if cell.step in first:
            extracted[cell.tenant] = extracted.get(cell.tenant, 0) + (output.get("rows") or 0)
        if output.get("accounted") is not None:
            # in running order: the last step that accounts decides
            accounted[cell.tenant] = output["accounted"]
    return [
        Accounted(tenant=tenant, extracted=extracted.get(tenant, 0), accounted=rows)
        for tenant, rows in accounted.items()
        if tenant not in undone
    ]
