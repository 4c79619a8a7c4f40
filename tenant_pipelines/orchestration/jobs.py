"""The whole fleet as an op job: one op opens the cycle, then one op per shard, each a process."""

from dagster import (
    DependencyDefinition,
    GraphDefinition,
    In,
    JobDefinition,
    Nothing,
    OpDefinition,
    OpExecutionContext,
    multiprocess_executor,
    op,
)

from tenant_pipelines.fleet.model import Fleet
from tenant_pipelines.orchestration import names
from tenant_pipelines.orchestration.checks import log_check
from tenant_pipelines.orchestration.request import OPEN_CONFIG, SHARD_CONFIG
from tenant_pipelines.orchestration.shard_op import run_open_op, run_shard_op

# a forkserver imports them once; a shard's process then starts in some 50 ms instead of 2 s
_PRELOAD = ["tenant_pipelines.orchestration.build", "pandas", "pyarrow.parquet"]


def fleet_op_job(fleet: Fleet) -> JobDefinition:
    """Return the job ``<fleet>_fleet``: no partition needed, no pool."""
    ops: list[OpDefinition] = [_open_op(fleet)]
    ops += [_shard_op(fleet, shard) for shard in fleet.shards]
    opened = DependencyDefinition(names.open_op(fleet.name))
    graph = GraphDefinition(
        name=names.fleet_job(fleet.name),
        node_defs=ops,
        dependencies={
            names.fleet_op(fleet.name, shard): {"opened": opened} for shard in fleet.shards
        },
        description=f"Runs every shard of {fleet.name}, each in a process of its own.",
    )
    return graph.to_job(
        # the default (cpu count) would let two hanging shards stop all others
        executor_def=multiprocess_executor.configured(
            {
                "max_concurrent": min(len(fleet.shards), fleet.processes),
                "start_method": {"forkserver": {"preload_modules": _PRELOAD}},
            }
        ),
        tags={names.MAX_RETRIES_TAG: "0"},
    )


def _open_op(fleet: Fleet) -> OpDefinition:
    @op(name=names.open_op(fleet.name), config_schema=OPEN_CONFIG)
    def opens(context: OpExecutionContext) -> None:
        run_open_op(context, fleet)

    return opens


def _shard_op(fleet: Fleet, shard: str) -> OpDefinition:
    @op(
        name=names.fleet_op(fleet.name, shard),
        ins={"opened": In(Nothing)},
        config_schema=SHARD_CONFIG,
        required_resource_keys={
            names.cells_resource(fleet.name),
            names.journal_resource(fleet.name),
        },
    )
    def runs(context: OpExecutionContext) -> None:
        for check in run_shard_op(context, fleet, shard, opens_cycle=False):
            log_check(context, check)

    return runs
