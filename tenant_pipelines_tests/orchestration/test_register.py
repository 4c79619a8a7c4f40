"""Registering: what it adds, and several processes that do it at once."""

import multiprocessing
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pytest

from tenant_pipelines.fleet.pipeline import step
from tenant_pipelines.orchestration import names
from tenant_pipelines.orchestration.instance import Home, open_instance
from tenant_pipelines.orchestration.register import Registered, register_shard, register_shards
from tenant_pipelines_tests.engine.fleets import make_fleet
from tenant_pipelines_tests.orchestration.conftest import Rig


@step
def only(ctx: object) -> None:
    return None


def test_it_says_what_it_changed_and_what_holds_now(rig: Rig) -> None:
    """A limit that was right already must not read as one that could not be set."""
    storage = rig.instance.event_log_storage
    storage.set_concurrency_slots("story/shard_1", 2)
    storage.delete_concurrency_limit("story/shard_2")
    rig.instance.delete_dynamic_partition("story/shard_2", "umbrella")
    assert dict(register_shards(rig.instance, rig.fleet, rig.fleet.shards)) == {
        "shard_1": Registered(keys_added=0, pool_limit=4, is_limit_changed=True),
        "shard_2": Registered(keys_added=1, pool_limit=4, is_limit_changed=True),
        "shard_3": Registered(keys_added=0, pool_limit=4, is_limit_changed=False),
    }
    limits = {pool.name: (pool.limit, pool.from_default) for pool in storage.get_pool_limits()}
    assert limits == {f"story/shard_{number}": (4, False) for number in (1, 2, 3)}


_TENANTS = [f"t{number}" for number in range(4_000)]


def _register(folder: Path, begins: Barrier) -> None:
    fleet = make_fleet(folder, [only], {"big": _TENANTS})
    with open_instance(Home(folder / "home", "test")) as instance:
        begins.wait(timeout=60)
        register_shard(instance, fleet, "big")


@pytest.mark.slow
def test_processes_that_add_the_same_tenants_at_once_all_succeed(tmp_path: Path) -> None:
    """The caretaker and a run both meet a new tenant; Dagster's own call raises in the slower."""
    spawn = multiprocessing.get_context("spawn")
    begins = spawn.Barrier(3)
    with open_instance(Home(tmp_path / "home", "test")):
        pass
    processes = [spawn.Process(target=_register, args=(tmp_path, begins)) for _ in range(3)]
    for process in processes:
        process.start()
    try:
        for process in processes:
            process.join(timeout=120)
        assert [process.exitcode for process in processes] == [0, 0, 0]
    finally:
        for process in processes:
            process.kill()
    with open_instance(Home(tmp_path / "home", "test")) as instance:
        pool = names.partition_set("fleet", "big")
        known = instance.get_dynamic_partitions(pool)
        info = instance.event_log_storage.get_concurrency_info(pool)
        assert (info.limit, info.slot_count) == (4, 4)
    assert sorted(known) == sorted(_TENANTS)
