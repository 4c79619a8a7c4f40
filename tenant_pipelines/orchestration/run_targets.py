"""What the runs and backfills of an instance are about: which shards, which tenants."""

from collections.abc import Collection, Sequence

from dagster import DagsterInstance, DagsterRun, DagsterRunStatus, RunsFilter

from tenant_pipelines.engine.run_locks import live_parts
from tenant_pipelines.fleet.model import Fleet
from tenant_pipelines.orchestration import names

UNFINISHED = [
    DagsterRunStatus.QUEUED,
    DagsterRunStatus.NOT_STARTED,
    DagsterRunStatus.STARTING,
    DagsterRunStatus.STARTED,
    DagsterRunStatus.CANCELING,
]


def unfinished_runs(instance: DagsterInstance) -> list[DagsterRun]:
    """Return every run of the instance that has not ended."""
    return list(instance.get_runs(RunsFilter(statuses=UNFINISHED)))


def shards_at_work(fleet: Fleet, unfinished: Collection[DagsterRun]) -> frozenset[str]:
    """Return the shards in which a run of the instance is at work on this fleet's state now."""
    run_ids = {run.run_id for run in unfinished}
    return frozenset(part for run_id, part in live_parts(fleet.state) if run_id in run_ids)


def shards_of(run: DagsterRun, fleet: Fleet) -> frozenset[str]:
    """Return the shards that a run works on; empty for a run that is not of the fleet."""
    if run.job_name == names.fleet_job(fleet.name):
        ops = run.resolved_op_selection
        return frozenset(
            shard
            for shard in fleet.shards
            if ops is None or names.fleet_op(fleet.name, shard) in ops
        )
    for shard in fleet.shards:
        if run.job_name == names.shard_job(fleet.name, shard):
            return frozenset([shard])
    return frozenset(
        key.path[1]
        for key in run.asset_selection or ()
        if len(key.path) == 3 and key.path[0] == fleet.name and key.path[1] in fleet.shards
    )


def targets_tenant(run: DagsterRun, tenant: str, keys: Sequence[str]) -> bool:
    """Tell whether a run of a shard targets a tenant.

    Args:
        run: a run of the tenant's shard.
        tenant: the tenant.
        keys: the shard's partition keys, in their order.

    Returns:
        True also for a run without keys: it began with the fleet file as it was.
    """
    one = run.tags.get(names.PARTITION_TAG)
    if one is not None:
        return one == tenant
    first, last = (run.tags.get(tag) for tag in (names.RANGE_START_TAG, names.RANGE_END_TAG))
    if first in keys and last in keys and tenant in keys:
        return keys.index(first) <= keys.index(tenant) <= keys.index(last)
    return True


def is_at_work(
    instance: DagsterInstance, fleet: Fleet, shard: str, unfinished: Collection[DagsterRun]
) -> bool:
    """Tell whether a run is at work on a shard or will be, without anybody's doing.

    A run of the whole fleet that has ended its part in this shard does not count, or a hanging
    shard would keep the others waiting.

    Args:
        instance: the Dagster instance.
        fleet: the fleet.
        shard: name of the shard.
        unfinished: what ``unfinished_runs`` returned.
    """
    for run in unfinished:
        if shard not in shards_of(run, fleet):
            continue
        if run.job_name == names.fleet_job(fleet.name):
            op = names.fleet_op(fleet.name, shard)
            steps = instance.get_run_step_stats(run.run_id, [op])
            if any(step.end_time is not None for step in steps):
                continue
        return True
    return False
