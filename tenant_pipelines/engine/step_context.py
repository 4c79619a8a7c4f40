"""What a step is told, made of what the engine knows."""

import logging
from collections.abc import Mapping

from tenant_pipelines.fleet.cell import Attempt
from tenant_pipelines.fleet.context import Settings, StepContext, Window
from tenant_pipelines.fleet.model import Fleet

_log = logging.getLogger("tenant_pipelines.step")


def context_of(
    fleet: Fleet,
    attempt: Attempt,
    settings: Settings,
    *,
    window: Window,
    inputs: Mapping[str, str],
    run_id: str,
) -> StepContext:
    """Return the first argument of the step that ``attempt`` names; see StepContext."""
    facts = {"shard": attempt.shard, "tenant": attempt.tenant, "step": attempt.step}
    return StepContext(
        fleet=fleet.name,
        shard=attempt.shard,
        tenant=attempt.tenant,
        settings=settings,
        cycle=attempt.cycle,
        step=attempt.step,
        generation=attempt.generation,
        attempt=attempt.attempt,
        window=window,
        log=logging.LoggerAdapter(_log, {**facts, "attempt": attempt.attempt, "run_id": run_id}),
        state=fleet.state,
        warehouse=fleet.warehouse,
        inputs=inputs,
    )
