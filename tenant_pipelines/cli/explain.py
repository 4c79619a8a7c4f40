"""Why a cell is not done, in words for a person."""

from collections.abc import Mapping

from tenant_pipelines.engine.overview import CellView, State
from tenant_pipelines.engine.plan import Reason


def explain(cell: CellView) -> str:
    """Return what a person needs beyond the reason's name; empty when that says it all."""
    if cell.detail:
        return cell.detail
    if cell.reason is Reason.UPSTREAM_MISSING:
        return "a step that it needs is not done; run that one first, or leave --step out"
    error = cell.cell.error
    if error and cell.state is State.FAILED:
        return in_words(error)
    if cell.state is State.INTERRUPTED:
        return "the process died in it"
    return ""


def in_words(error: Mapping[str, str]) -> str:
    """Return an error as ``type: message (file:line)``."""
    place = error.get("place")
    return f"{error['type']}: {error['message']}" + (f" ({place})" if place else "")
