"""Where a tenant's window of a new cycle begins, so that no row is lost between two cycles. Pure.

A load commits its cursor with its rows. When an upstream cell of the older cycle was to run again
after that (forced, other code, a lost artifact) and its new output was never loaded, the cursor has
moved and the warehouse still holds what the old output gave: the next window then begins where that
cycle's began, and the load replaces what that cycle had loaded.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from tenant_pipelines.fleet.context import Cursor, Window, oldest_cursor
from tenant_pipelines.fleet.pipeline import Pipeline
from tenant_pipelines.journal.fold import Outcome, TenantState
from tenant_pipelines.storage.ledger import LedgerRow


def open_window(
    pipeline: Pipeline,
    *,
    committed: Iterable[Cursor | None],
    before: str | None,
    previous: TenantState,
    settled: Iterable[LedgerRow],
) -> Window:
    """Return a new cycle's window, its end still open (None).

    Args:
        pipeline: the steps.
        committed: the cursor that each load committed last.
        before: name of the tenant's cycle before, None when there is none.
        previous: the tenant in that cycle.
        settled: its ledger rows of that cycle.
    """
    cursor = oldest_cursor(committed)
    if before is None or previous.window is None or not owes_a_load(pipeline, previous, settled):
        return Window(after=cursor, to=None)
    older = window_from(previous.window)
    after = oldest_cursor([cursor, older.after])
    return Window(after=after, to=None, redoes=(*older.redoes, before))


def close_window(window: Window, to: Cursor | None) -> Window:
    """Return the window up to ``to``.

    It begins at nothing, and so reads everything, when its beginning is not before its end: the
    sequence was restarted, or another cursor column is used now. Reading too much loses nothing.
    """
    after = window.after
    if to is not None and after is not None and oldest_cursor([after, to]) != after:
        after = None
    return Window(after=after, to=to, redoes=window.redoes)


def window_to(window: Window) -> dict[str, Any]:
    """Return what a ``started`` entry records of a window."""
    recorded: dict[str, Any] = {"after": window.after, "to": window.to}
    return {**recorded, "redoes": list(window.redoes)} if window.redoes else recorded


def window_from(recorded: Mapping[str, Any] | None) -> Window:
    """Return the window that ``window_to`` recorded; an empty one when none was."""
    if recorded is None:
        return Window(after=None, to=None)
    redoes = tuple(recorded.get("redoes", ()))
    return Window(after=recorded["after"], to=recorded["to"], redoes=redoes)


def owes_a_load(pipeline: Pipeline, state: TenantState, settled: Iterable[LedgerRow]) -> bool:
    """Tell whether a load of a cycle did not take what its upstream cells were last asked for.

    Args:
        pipeline: the steps.
        state: the tenant in that cycle.
        settled: its ledger rows of that cycle; a load counts that took effect and is not journaled.
    """
    took_effect = {(row.step, row.generation): row.input_digest for row in settled}
    for load in pipeline.loads:
        above = pipeline.upstream_of(load.name)
        for step in (entry for entry in pipeline.steps if entry.name in above or entry is load):
            cell = state.cell(step.name)
            inputs: Mapping[str, str] = cell.inputs
            if cell.outcome is not Outcome.COMPLETED:
                digest = took_effect.get((step.name, cell.generation))
                if digest is None:
                    return True
                inputs = {load.upstream[0]: digest}
            if any(inputs.get(name) != state.cell(name).digest for name in step.upstream):
                return True
    return False
