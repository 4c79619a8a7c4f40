"""What would run, and why: the one decision that ``plan``, ``why`` and the runner share.

Pure. The runner plans a tenant, runs the first cell that is to run, and plans again with what it
has learned; so a plan and a run cannot disagree.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from tenant_pipelines.fleet.pipeline import Pipeline, Step
from tenant_pipelines.journal.fold import CellState, Outcome, TenantState


class Action(StrEnum):
    """What happens to a cell.

    ``CHECK`` is a done cell below one that runs: it runs only if what it was given changes.
    """

    RUN = "run"
    CHECK = "check"
    SKIP = "skip"
    HOLD = "hold"


class Reason(StrEnum):
    """Why; every cell has exactly one."""

    DONE = "done"
    NEVER_RUN = "never_run"
    FAILED = "failed"
    INTERRUPTED = "interrupted"
    RUNNING = "running"
    CODE_CHANGED = "code_changed"
    UPSTREAM_CHANGED = "upstream_changed"
    ARTIFACT_MISSING = "artifact_missing"
    FORCED = "forced"
    UPSTREAM_MISSING = "upstream_missing"
    TENANT_SETTING_MISSING = "tenant_setting_missing"
    TENANT_MOVED = "tenant_moved"


class PlannedCell(NamedTuple):
    """One asked-for cell, what happens to it, and why."""

    step: str
    action: Action
    reason: Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What a run was asked to do; None means all.

    Attributes:
        tenants: names, or None.
        steps: names, or None. A forced selection reaches downstream of them as well, unless exact.
        force: run the selected cells again, once per ``root``.
        root: id of the root run or backfill; re-executions share it.
        is_exact: the steps were picked in the UI and nothing else may run.
        is_spent: the root run forced cells in an older cycle; it forces none in this one.
    """

    root: str
    tenants: Collection[str] | None = None
    steps: Collection[str] | None = None
    force: bool = False
    is_exact: bool = False
    is_spent: bool = False

    def asked_tenants(self, tenants: Iterable[str]) -> list[str]:
        """Return those of a shard's tenants whose cells are asked for, in their order."""
        return [name for name in tenants if self.tenants is None or name in self.tenants]

    def asked_steps(self, pipeline: Pipeline) -> frozenset[str]:
        """Return the steps whose cells are asked for."""
        if self.steps is None:
            return pipeline.every_name
        if self.force and not self.is_exact:
            return frozenset(self.steps) | pipeline.downstream_of(self.steps)
        return frozenset(self.steps)

    def forces(self, step: str, cell: CellState) -> bool:
        """Tell whether this request still has to open a new generation of the cell."""
        return (
            self.force
            and not self.is_spent
            and (self.steps is None or step in self.steps)
            and self.root not in cell.forced_by
        )


def reason_to_run(step: Step, cell: CellState, tenant: TenantState) -> Reason:
    """Return why the cell runs given its upstream digests, or ``DONE``.

    Args:
        step: its step.
        cell: the newest generation.
        tenant: knows the newest completed digest of each upstream step.
    """
    outcome = cell.outcome
    if outcome is Outcome.MISSING:
        return Reason.FORCED if cell.is_forced else Reason.NEVER_RUN
    if outcome is Outcome.STARTED:
        return Reason.INTERRUPTED
    if outcome is Outcome.FAILED:
        return Reason.FAILED
    if step.code_version is not None and step.code_version != cell.code_version:
        return Reason.CODE_CHANGED
    if len(cell.inputs) != len(step.upstream):
        return Reason.UPSTREAM_CHANGED
    for name in step.upstream:
        if cell.inputs.get(name, "") != tenant.cell(name).digest:
            return Reason.UPSTREAM_CHANGED
    return Reason.DONE


def plan_tenant(
    pipeline: Pipeline,
    tenant: TenantState,
    request: Request,
    *,
    has_artifact: Callable[[CellState], bool],
    hold: Reason | None = None,
    is_leased: bool = False,
) -> list[PlannedCell]:
    """Decide each asked-for cell of one tenant, in running order.

    Args:
        pipeline: the steps.
        tenant: the cells' states.
        request: what was asked for.
        has_artifact: whether a completed cell's output can be loaded.
        hold: why no cell of this tenant may run, when that is so.
        is_leased: another process works on the tenant: its started cell is running.

    Returns:
        One entry per asked-for cell.
    """
    asked = request.asked_steps(pipeline)
    planned: dict[str, PlannedCell] = {}
    done = frozenset[str]() if len(asked) == len(pipeline.steps) else done_steps(pipeline, tenant)
    for step in pipeline.steps:
        if step.name in asked:
            planned[step.name] = _plan_cell(step, tenant, request, planned, done)
    if any(cell.action is Action.RUN for cell in planned.values()):
        _make_missing_inputs_first(pipeline, tenant, planned, has_artifact)
    cells = list(planned.values())
    if is_leased:
        cells = [_shown_running(cell, tenant) for cell in cells]
    if hold is not None:
        cells = [_held(cell, hold) for cell in cells]
    return cells


def _plan_cell(
    step: Step,
    tenant: TenantState,
    request: Request,
    planned: Mapping[str, PlannedCell],
    done: frozenset[str],
) -> PlannedCell:
    cell = tenant.cell(step.name)
    runs_above = False
    for upstream in step.upstream:
        above = planned.get(upstream)
        if above is None:
            if upstream not in done:
                return PlannedCell(step.name, Action.HOLD, Reason.UPSTREAM_MISSING)
        elif above.action is Action.HOLD:
            return PlannedCell(step.name, Action.HOLD, Reason.UPSTREAM_MISSING)
        else:
            runs_above = runs_above or above.action is not Action.SKIP
    if request.force and request.forces(step.name, cell):
        return PlannedCell(step.name, Action.RUN, Reason.FORCED)
    reason = reason_to_run(step, cell, tenant)
    is_done_so_far = reason is Reason.DONE
    if runs_above and (is_done_so_far or reason is Reason.UPSTREAM_CHANGED):
        return PlannedCell(step.name, Action.CHECK, Reason.UPSTREAM_CHANGED)
    return PlannedCell(step.name, Action.SKIP if is_done_so_far else Action.RUN, reason)


def done_steps(pipeline: Pipeline, tenant: TenantState) -> frozenset[str]:
    """Return the steps whose cell is done: by this code, from the newest outputs of done cells."""
    done: set[str] = set()
    for step in pipeline.steps:
        is_done = reason_to_run(step, tenant.cell(step.name), tenant) is Reason.DONE
        if is_done and done.issuperset(step.upstream):
            done.add(step.name)
    return frozenset(done)


def _make_missing_inputs_first(
    pipeline: Pipeline,
    tenant: TenantState,
    planned: dict[str, PlannedCell],
    has_artifact: Callable[[CellState], bool],
) -> None:
    has_changed = False
    for step in reversed(pipeline.steps):
        cell = planned.get(step.name)
        if cell is None or cell.action is not Action.RUN:
            continue
        for upstream in step.upstream:
            above = planned.get(upstream)
            if above is not None and above.action is not Action.SKIP:
                continue
            if has_artifact(tenant.cell(upstream)):
                continue
            has_changed = True
            if above is None:
                planned[step.name] = PlannedCell(step.name, Action.HOLD, Reason.UPSTREAM_MISSING)
            else:
                planned[upstream] = PlannedCell(upstream, Action.RUN, Reason.ARTIFACT_MISSING)
    if has_changed:
        _check_below(pipeline, planned)


def _check_below(pipeline: Pipeline, planned: dict[str, PlannedCell]) -> None:
    for step in pipeline.steps:
        cell = planned.get(step.name)
        if cell is None:
            continue
        above = [planned[name].action for name in step.upstream if name in planned]
        if Action.HOLD in above and cell.action is not Action.HOLD:
            planned[step.name] = PlannedCell(step.name, Action.HOLD, Reason.UPSTREAM_MISSING)
        elif cell.action is Action.SKIP and set(above) & {Action.RUN, Action.CHECK}:
            planned[step.name] = PlannedCell(step.name, Action.CHECK, Reason.UPSTREAM_CHANGED)


def _shown_running(cell: PlannedCell, tenant: TenantState) -> PlannedCell:
    if tenant.cell(cell.step).outcome is Outcome.STARTED:
        return PlannedCell(cell.step, Action.SKIP, Reason.RUNNING)
    return cell


def _held(cell: PlannedCell, hold: Reason) -> PlannedCell:
    return cell if cell.action is Action.SKIP else PlannedCell(cell.step, Action.HOLD, hold)
