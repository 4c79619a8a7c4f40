"""What our shards, steps and tenants are called in Dagster."""

from dagster import AssetKey, DynamicPartitionsDefinition

SHARD_TAG = "tenant_pipelines/shard"
FORCE_TAG = "tenant_pipelines/force"
NEW_CYCLE_TAG = "tenant_pipelines/new_cycle"
TICK_TAG = "tenant_pipelines/tick"
RESUME_TAG = "tenant_pipelines/resume"
TAG_PREFIX = "tenant_pipelines/"
TAGS = frozenset({SHARD_TAG, FORCE_TAG, NEW_CYCLE_TAG, TICK_TAG, RESUME_TAG})
COMPLETE_CHECK = "complete"
ROWS_CHECK = "rows_accounted"
PARTITION_TAG = "dagster/partition"
RANGE_START_TAG = "dagster/asset_partition_range_start"
RANGE_END_TAG = "dagster/asset_partition_range_end"
RUN_KEY_TAG = "dagster/run_key"
BACKFILL_TAG = "dagster/backfill"
MAX_RETRIES_TAG = "dagster/max_retries"
CODE_VERSION_TAG = "dagster/code_version"
DATA_VERSION_TAG = "dagster/data_version"


def partition_set(fleet: str, shard: str) -> str:
    """Return the name of the shard's partition set, which is also that of its pool."""
    return f"{fleet}/{shard}"


def partitions_of(fleet: str, shard: str) -> DynamicPartitionsDefinition:
    """Return the shard's partition set; its keys are the tenants."""
    return DynamicPartitionsDefinition(name=partition_set(fleet, shard))


def asset_key(fleet: str, shard: str, step: str) -> AssetKey:
    """Return the key of the asset that stands for (shard, step)."""
    return AssetKey([fleet, shard, step])


def cells_op(fleet: str, shard: str) -> str:
    """Return the name of the op behind the shard's assets."""
    return f"{fleet}__{shard}__cells"


def fleet_op(fleet: str, shard: str) -> str:
    """Return the name of the shard's op in the fleet job."""
    return f"{fleet}__{shard}__fleet"


def open_op(fleet: str) -> str:
    """Return the name of the op that opens the cycle."""
    return f"{fleet}__open"


def fleet_job(fleet: str) -> str:
    """Return the name of the job that runs every shard."""
    return f"{fleet}_fleet"


def shard_job(fleet: str, shard: str) -> str:
    """Return the name of the job that runs one shard."""
    return f"{fleet}__{shard}"


def schedule(fleet: str) -> str:
    """Return the name of the schedule that opens cycles."""
    return f"{fleet}__schedule"


def caretaker(fleet: str) -> str:
    """Return the name of the sensor that keeps Dagster's view true."""
    return f"{fleet}__caretaker"


def resume(fleet: str) -> str:
    """Return the name of the sensor that asks again for unfinished shards."""
    return f"{fleet}__resume"


def cells_resource(fleet: str) -> str:
    """Return the resource key of the fleet's TenantIOManager."""
    return f"{fleet}__cells"


def journal_resource(fleet: str) -> str:
    """Return the resource key of the fleet's RunJournalResource."""
    return f"{fleet}__journal"
