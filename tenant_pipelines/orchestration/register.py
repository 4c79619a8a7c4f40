"""Makes the instance know a fleet: tenants as partition keys, pools with their limits.

Guarantees: idempotent; may run in several processes at once; a crash in between leaves fewer keys,
which the next call adds. Leaves to others: keys of tenants that are no longer in the fleet.
"""

import functools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

from dagster import DagsterInstance
from sqlalchemy.exc import IntegrityError

from tenant_pipelines.fleet.model import Fleet
from tenant_pipelines.orchestration import names

# one call is one SQL "IN (…)"; SQLite refuses 32,766 variables (dagster-io/dagster#16260)
_CHUNK = 500
# another process that adds the same keys wins once for each chunk at most
_TRIES = 100


@dataclass(frozen=True, slots=True)
class Registered:
    """What registering a shard changed.

    Attributes:
        keys_added: tenants that were no partition keys yet.
        pool_limit: the limit of the shard's pool now, which is fleet.yaml's ``runs_at_once``.
        is_limit_changed: whether the pool had no limit, or another one, before.
    """

    keys_added: int
    pool_limit: int
    is_limit_changed: bool


def register_shard(instance: DagsterInstance, fleet: Fleet, shard: str) -> Registered:
    """Add the shard's missing partition keys and set its pool's limit."""
    (registered,) = register_shards(instance, fleet, [shard])
    return registered[1]


def register_shards(
    instance: DagsterInstance, fleet: Fleet, shards: Iterable[str]
) -> Iterator[tuple[str, Registered]]:
    """Add the missing partition keys of some shards and set their pools' limits.

    Yields:
        Each shard's name and what changed, as soon as it is done.
    """
    remaining = iter(shards)
    while chunk := list(islice(remaining, _CHUNK)):
        pools = instance.event_log_storage.get_concurrency_infos(
            [names.partition_set(fleet.name, shard) for shard in chunk]
        )
        for shard in chunk:
            name = names.partition_set(fleet.name, shard)
            added = _add_keys(instance, name, list(fleet.shard(shard).tenants))
            limit = fleet.shard(shard).limits.runs_at_once
            # one that comes from the default would follow the default
            is_right = pools[name].limit == limit and not pools[name].using_default_limit
            if not is_right:
                _despite_others(
                    functools.partial(instance.event_log_storage.set_concurrency_slots, name, limit)
                )
            yield shard, Registered(added, pool_limit=limit, is_limit_changed=not is_right)


def _add_keys(instance: DagsterInstance, name: str, wanted: list[str]) -> int:
    """Add what is missing; return how many keys were missing at first."""

    def missing() -> list[str]:
        known = set(instance.get_dynamic_partitions(name))
        return [key for key in wanted if key not in known]

    def add() -> None:
        todo = missing()
        for start in range(0, len(todo), _CHUNK):
            instance.add_dynamic_partitions(name, todo[start : start + _CHUNK])

    count = len(missing())
    if count:
        _despite_others(add)
    return count


def _despite_others(change: Callable[[], None]) -> None:
    """Make a change, again when another process made a part of it at the same moment.

    Dagster looks first and inserts then; the slower of two processes gets an IntegrityError.
    """
    for tries_left in reversed(range(_TRIES)):
        try:
            change()
            break
        except IntegrityError:
            if not tries_left:
                raise
