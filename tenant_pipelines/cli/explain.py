"""Why a cell is not done, in words for a person."""

from collections.abc import Mapping

from tenant_pipelines.engine.overview import CellView, State
from tenant_pipelines.engine.plan import Reason

_TOLD = {
    Reason.UPSTREAM_MISSING: "a step that it needs is not done, or its output is gone; run that "
    "one too, or leave --step out",
    Reason.UPSTREAM_CHANGED: "it runs if what it is given differs from what it was given before",
    Reason.ARTIFACT_MISSING: "a step that has to run needs its output, whose file is gone",
    Reason.FORCED: "it was asked for with force",
}


def explain(cell: CellView) -> str:
    """Return what a person needs beyond the reason's name; empty when that says it all."""
    if cell.detail:
        return cell.detail
    if cell.reason is Reason.CODE_CHANGED:
        return f"it ran as code version {cell.cell.code_version or 'none'}, which is not today's"
    if told := _TOLD.get(cell.reason):
        return told
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
