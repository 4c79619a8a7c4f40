"""The schedule of a fleet: a run of the whole fleet per tick, in the cycle of its scheduled time.

Which ticks open a cycle is decided where all cycles are, by ``cycle_to_open``: a tick that comes
late, twice, or after a newer one opens none, and its run does what is missing in the newest.
"""

from dagster import (
    DefaultScheduleStatus,
    RunRequest,
    ScheduleDefinition,
    ScheduleEvaluationContext,
)

from tenant_pipelines.engine.cycles import tick_name
from tenant_pipelines.fleet.model import Fleet
from tenant_pipelines.orchestration import names


def fleet_schedule(fleet: Fleet, cron: str) -> ScheduleDefinition:
    """Return the schedule that opens a cycle of the fleet and runs it; on from the start.

    Args:
        fleet: the fleet.
        cron: five fields, read in UTC.
    """

    def tick(context: ScheduleEvaluationContext) -> RunRequest:
        at = context.scheduled_execution_time
        return RunRequest(run_key=tick_name(at), tags={names.TICK_TAG: at.isoformat()})

    return ScheduleDefinition(
        name=names.schedule(fleet.name),
        job_name=names.fleet_job(fleet.name),
        cron_schedule=cron,
        execution_timezone="UTC",
        execution_fn=tick,
        default_status=DefaultScheduleStatus.RUNNING,
        description=f"Opens a new cycle of {fleet.name} and runs every shard in it.",
    )
