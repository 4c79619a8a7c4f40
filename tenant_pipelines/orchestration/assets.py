"""A shard in Dagster: its assets, the one op behind them, and its asset job."""

from collections.abc import Iterator
from typing import Any

from dagster import (
    AssetExecutionContext,
    AssetsDefinition,
    AssetSpec,
    BackfillPolicy,
    define_asset_job,
    multi_asset,
)

from tenant_pipelines.fleet.model import Fleet
from tenant_pipelines.orchestration import names
from tenant_pipelines.orchestration.checks import (
    check_specs,
    log_check,
    report_hidden,
    result_of,
)
from tenant_pipelines.orchestration.request import SHARD_CONFIG
from tenant_pipelines.orchestration.shard_op import checks_alone, run_shard_op


def shard_assets(fleet: Fleet, shard: str) -> AssetsDefinition:
    """Return the assets of one shard, one per step, behind ONE op that yields only its checks.

    A run per tenant costs seconds of overhead, and an op per step would let one bad tenant block
    the others; inside one op each tenant's chain runs on its own.
    """
    partitions = names.partitions_of(fleet.name, shard)
    specs = [
        AssetSpec(
            names.asset_key(fleet.name, shard, step.name),
            deps=[names.asset_key(fleet.name, shard, upstream) for upstream in step.upstream],
            skippable=True,
            group_name=f"{fleet.name}__{shard}",
            code_version=step.code_version,
            partitions_def=partitions,
            description=f"Step {step.name} of every tenant of shard {shard}.",
        )
        for step in fleet.pipeline.steps
    ]

    @multi_asset(
        name=names.cells_op(fleet.name, shard),
        specs=specs,
        check_specs=check_specs(fleet, shard),
        can_subset=True,
        pool=names.partition_set(fleet.name, shard),
        backfill_policy=BackfillPolicy.single_run(),
        required_resource_keys={
            names.cells_resource(fleet.name),
            names.journal_resource(fleet.name),
        },
        config_schema=SHARD_CONFIG,
    )
    def cells(context: AssetExecutionContext) -> Iterator[Any]:
        picked = {key.path[-1] for key in context.selected_asset_keys}
        steps = [name for name in fleet.pipeline.names if name in picked]
        has_keys = context.has_partition_key or context.has_partition_key_range
        checks = (
            run_shard_op(
                context.op_execution_context,
                fleet,
                shard,
                keys=list(context.partition_keys) if has_keys else None,
                selected=None if len(steps) == len(fleet.pipeline.names) else steps,
                opens_cycle=True,
            )
            if steps
            # the checks alone were asked for, from the asset's page
            else checks_alone(fleet, shard)
        )
        for check in checks:
            if check.asset_check_key in context.selected_asset_check_keys:
                yield result_of(check)
            else:
                log_check(context.op_execution_context, check)
            report_hidden(context.instance, check)

    return cells


def shard_asset_job(fleet: Fleet, shard: str) -> Any:
    """Return the job of one shard: every tenant without a partition, else those asked for."""
    return define_asset_job(
        names.shard_job(fleet.name, shard),
        selection=[names.asset_key(fleet.name, shard, step) for step in fleet.pipeline.names],
        tags={
            names.SHARD_TAG: names.partition_set(fleet.name, shard),
            names.MAX_RETRIES_TAG: "0",
        },
    )
