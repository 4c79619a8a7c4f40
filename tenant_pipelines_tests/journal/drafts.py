"""Drafts of entries for tests."""

from typing import Any

from tenant_pipelines.journal.entries import Draft, EntryKind


def _draft(kind: EntryKind, tenant: str, step: str, attempt: int, payload: dict[str, Any]) -> Draft:
    return Draft(
        kind=kind, cycle="1", run_id="r", tenant=tenant, step=step, generation=1, attempt=attempt,
        payload=payload,
    )  # fmt: skip


def started(tenant: str, step: str, *, attempt: int = 1) -> Draft:
    """Return a ``started`` draft."""
    payload = {"inputs": {}, "reason": "never_run"}
    return _draft(EntryKind.STARTED, tenant, step, attempt, payload)


def completed(tenant: str, step: str, *, digest: str = "d", attempt: int = 1) -> Draft:
    """Return a ``completed`` draft."""
    output: dict[str, Any] = {
        "kind": "json", "digest": digest, "rows": None, "bytes": 2, "path": None, "value": {},
    }  # fmt: skip
    payload = {"inputs": {}, "output": output, "seconds": 0.0}
    return _draft(EntryKind.COMPLETED, tenant, step, attempt, payload)


def failed(tenant: str, step: str, *, attempt: int = 1) -> Draft:
    """Return a ``failed`` draft."""
    error = {"type": "ValueError", "message": "m", "traceback": ""}
    return _draft(EntryKind.FAILED, tenant, step, attempt, {"error": error, "seconds": 0.0})
