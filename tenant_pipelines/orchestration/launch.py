"""Runs a fleet through its Dagster job from this process, as ``tenant-pipelines run`` does."""

from collections.abc import Collection
from dataclasses import dataclass

from dagster import DagsterInstance, JobDefinition, build_reconstructable_job

from tenant_pipelines.engine.run_locks import hold_run_lock
from tenant_pipelines.fleet.file import load_fleet
from tenant_pipelines.fleet.model import Fleet
from tenant_pipelines.orchestration import names
from tenant_pipelines.orchestration.build import build_definitions
from tenant_pipelines.orchestration.dagster_internals import Verdict, execute_with_id
from tenant_pipelines.orchestration.register import register_shards


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """What to run.

    Attributes:
        run_id: id of the run.
        shards: names of the shards.
        tenants: names, None for all.
        steps: names, None for all.
        force: run the asked-for cells again.
        new_cycle: None for none, else the new cycle's name, ``""`` for one of the run's.
    """

    run_id: str
    shards: Collection[str]
    tenants: Collection[str] | None = None
    steps: Collection[str] | None = None
    force: bool = False
    new_cycle: str | None = None


def rebuild_fleet_job(path: str) -> JobDefinition:
    """Return the fleet job of a fleet file; a shard's process calls it to find its op."""
    fleet = load_fleet(path)
    return build_definitions(fleet).resolve_job_def(names.fleet_job(fleet.name))


def launch(instance: DagsterInstance, fleet: Fleet, asked: Launch) -> Verdict:
    """Run the fleet job to its end."""
    job = build_reconstructable_job(
        "tenant_pipelines.orchestration.launch", "rebuild_fleet_job", (str(fleet.path),)
    )
    for _ in register_shards(instance, fleet, asked.shards):
        pass
    opening = {"new_cycle": asked.new_cycle}
    ops: dict[str, object] = {names.open_op(fleet.name): {"config": opening}}
    for shard in asked.shards:
        tenants = asked.tenants
        if tenants is not None:
            tenants = [name for name in fleet.shard(shard).tenants if name in tenants]
        config = {
            "tenants": tenants,
            "steps": None if asked.steps is None else list(asked.steps),
            "force": asked.force,
            **opening,
        }
        ops[names.fleet_op(fleet.name, shard)] = {"config": config}
    with hold_run_lock(fleet.state, asked.run_id, "_run"):
        return execute_with_id(
            job,
            instance,
            run_id=asked.run_id,
            # the progress is ours; Dagster's own log is in the UI
            run_config={"ops": ops, "loggers": {"console": {"config": {"log_level": "CRITICAL"}}}},
            ops=list(ops),
        )
