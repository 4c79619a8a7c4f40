"""What is unhealthy about a fleet in its Dagster instance; looking changes nothing."""

from dagster import DagsterInstance, DagsterRunStatus

from tenant_pipelines.fleet.model import Fleet
from tenant_pipelines.orchestration import names
from tenant_pipelines.orchestration.instance import find_dead_runs

_UNFINISHED = [DagsterRunStatus.STARTED, DagsterRunStatus.CANCELING]


def find_unhealthy_runs(instance: DagsterInstance, fleet: Fleet) -> list[str]:
    """Return one line for each dead run that still shows as running or holds a slot."""
    slots: dict[str, int] = {}
    storage = instance.event_log_storage
    for shard in fleet.shards:
        info = storage.get_concurrency_info(names.partition_set(fleet.name, shard))
        for slot in info.claimed_slots:
            slots[slot.run_id] = slots.get(slot.run_id, 0) + 1
    found = []
    for run in find_dead_runs(instance, fleet):
        held = slots.get(run.run_id, 0)
        if run.status in _UNFINISHED or held:
            found.append(f"run {run.run_id} is dead, shows {run.status.value}, holds {held} slots")
    return found
