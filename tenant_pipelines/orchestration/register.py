"""Makes the instance know a fleet: tenants as partition keys, pools with their limits."""

from dataclasses import dataclass

from dagster import DagsterInstance

from tenant_pipelines.fleet.model import Fleet
from tenant_pipelines.orchestration import names

# one call is one SQL "IN (…)"; SQLite refuses 32,766 variables (dagster-io/dagster#16260)
_CHUNK = 500


@dataclass(frozen=True, slots=True)
class Registered:
    """What ``register_shard`` changed: keys added, and whether the pool's limit was set."""

    keys_added: int
    is_limit_set: bool


def register_shard(instance: DagsterInstance, fleet: Fleet, shard: str) -> Registered:
    """Add the shard's missing partition keys and set its pool's limit; idempotent."""
    name = names.partition_set(fleet.name, shard)
    known = set(instance.get_dynamic_partitions(name))
    missing = [tenant for tenant in fleet.shard(shard).tenants if tenant not in known]
    for start in range(0, len(missing), _CHUNK):
        instance.add_dynamic_partitions(name, missing[start : start + _CHUNK])
    limit = fleet.shard(shard).limits.runs_at_once
    storage = instance.event_log_storage
    pools = {pool.name: pool for pool in storage.get_pool_limits()}
    pool = pools.get(name)
    is_wrong = pool is None or pool.limit != limit or pool.from_default
    if is_wrong:
        storage.set_concurrency_slots(name, limit)
    return Registered(keys_added=len(missing), is_limit_set=is_wrong)
