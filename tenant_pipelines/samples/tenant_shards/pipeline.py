"""Three steps of 2 ms on small data, and a switch that makes one of them fail.

The switch is ``fault.json`` in the state folder: ``{"tenant": "umbrella", "step": "transform",
"kind": "raise"}``, or ``"kill"`` for a real SIGKILL of the process. It stays until its file goes;
with ``"once": true`` it removes the file before it strikes.
"""

import json
import os
import signal
import time
from typing import Any

from tenant_pipelines.fleet.context import StepContext
from tenant_pipelines.fleet.pipeline import Pipeline, step

_WORK_SECONDS = 0.002


@step
def extract(ctx: StepContext) -> dict[str, Any]:
    """Return a few orders of the tenant."""
    _work(ctx)
    return {"tenant": ctx.tenant, "orders": [len(ctx.tenant), 7, 5]}


@step
def transform(ctx: StepContext, extract: dict[str, Any]) -> dict[str, Any]:
    """Sum them up."""
    _work(ctx)
    return {"tenant": extract["tenant"], "total": sum(extract["orders"])}


@step
def load(ctx: StepContext, transform: dict[str, Any]) -> dict[str, Any]:
    """Say what would be loaded."""
    _work(ctx)
    return {"loaded": transform["total"]}


def _work(ctx: StepContext) -> None:
    time.sleep(_WORK_SECONDS)
    switch = ctx.state / "fault.json"
    try:
        fault = json.loads(switch.read_text())
    except FileNotFoundError:
        return
    if (fault["tenant"], fault["step"]) != (ctx.tenant, ctx.step):
        return
    if fault.get("once"):
        switch.unlink()
    if fault["kind"] == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    raise RuntimeError("the vendor's file is broken")


pipeline = Pipeline([extract, transform, load])
