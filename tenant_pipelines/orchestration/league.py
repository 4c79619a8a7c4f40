"""The flights sample's league table as an asset below all shards, in a run of its own.

It reads every shard's newest transform through the fleet's ``TenantIOManager``, as an asset of a
user's would. It is on no shard's partition set, so a backfill of everything gives it a run of its
own after the shards'; in a shard's run it would be skipped, as a shard's op yields no outputs. No
job but its own selects it.
"""

import base64
import importlib.util
from typing import Any

from dagster import (
    AssetExecutionContext,
    AssetIn,
    AssetKey,
    AssetsDefinition,
    Definitions,
    Failure,
    MaterializeResult,
    MetadataValue,
    asset,
    define_asset_job,
)

from tenant_pipelines.fleet.file import sample_fleets
from tenant_pipelines.fleet.model import Fleet
from tenant_pipelines.orchestration import names
from tenant_pipelines.orchestration.io_manager import MISSING_METADATA
from tenant_pipelines.samples.flights.league import (
    airline_names,
    chart_png,
    league_table,
    markdown_table,
)

_NEVER_RAN = "Left out, as no transform of theirs is complete yet"
_NO_FLIGHTS = "Left out, as their newest transform has no flights"


def league_definitions(*fleets: Fleet) -> Definitions:
    """Return the league table's asset and job, if the flights sample is among the fleets.

    Nothing without matplotlib, which the extra 'samples' brings; it is not imported here.
    """
    sample = sample_fleets()["flights"]
    if importlib.util.find_spec("matplotlib") is None:
        return Definitions()
    found = [fleet for fleet in fleets if fleet.path == sample]
    return Definitions(
        assets=[league_asset(fleet) for fleet in found],
        jobs=[
            define_asset_job(
                f"{fleet.name}_league",
                selection=[league_key(fleet)],
                description="Draws the league table of what the shards' transforms returned.",
            )
            for fleet in found
        ],
    )


def league_key(fleet: Fleet) -> AssetKey:
    """Return the asset's key; it has two parts, a shard's assets have three."""
    return AssetKey([fleet.name, "league"])


def league_asset(fleet: Fleet) -> AssetsDefinition:
    """Return the asset: chart and table in its metadata, and numbers that Dagster plots."""

    @asset(
        key=league_key(fleet),
        group_name=fleet.name,
        ins={
            shard: AssetIn(
                key=names.asset_key(fleet.name, shard, "transform"),
                input_manager_key=names.cells_resource(fleet.name),
                metadata={MISSING_METADATA: "skip"},
            )
            for shard in fleet.shards
        },
        description="Which airline arrives on time, of those whose transform is complete.",
    )
    def league(context: AssetExecutionContext, **shards: Any) -> MaterializeResult[Any]:
        outputs = {code: frame for of_shard in shards.values() for code, frame in of_shard.items()}
        tenants = [code for shard in fleet.shards.values() for code in shard.tenants]
        left_out = {
            _NEVER_RAN: [code for code in tenants if code not in outputs],
            _NO_FLIGHTS: [code for code in outputs if not len(outputs[code])],
        }
        for reason, codes in left_out.items():
            if codes:
                context.log.warning("%s: %s.", reason, ", ".join(codes))
        rows = league_table(outputs, airline_names())
        if not rows:
            raise Failure(
                description="No airline has flights to compare. Run the job "
                f"{names.fleet_job(fleet.name)} first, then this one.",
                allow_retries=False,
            )
        chart = f"![Share of arrivals on time, by airline]({_data_url(chart_png(rows))})"
        return MaterializeResult(
            metadata={
                "chart": MetadataValue.md(chart),
                "table": MetadataValue.md(markdown_table(rows, left_out)),
                "airlines": len(rows),
                "airlines_left_out": sum(map(len, left_out.values())),
                "flights": sum(row.flights for row in rows),
                "cancelled": sum(row.cancelled for row in rows),
            }
        )

    return league


def _data_url(png: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(png).decode()
