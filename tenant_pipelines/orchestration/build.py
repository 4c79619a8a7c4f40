"""Fleets to Dagster definitions: assets, jobs, schedules, sensors and resources."""

from dagster import Definitions

from tenant_pipelines.errors import InvalidRequest
from tenant_pipelines.fleet.model import Fleet
from tenant_pipelines.orchestration import names
from tenant_pipelines.orchestration.assets import shard_asset_job, shard_assets
from tenant_pipelines.orchestration.caretaker import caretaker_sensor
from tenant_pipelines.orchestration.io_manager import TenantIOManager
from tenant_pipelines.orchestration.jobs import fleet_op_job
from tenant_pipelines.orchestration.resources import RunJournalResource
from tenant_pipelines.orchestration.resume import resume_sensor
from tenant_pipelines.orchestration.schedule import fleet_schedule


def build_definitions(*fleets: Fleet) -> Definitions:
    """Return everything Dagster needs of the fleets; merge it with your own definitions.

    Args:
        fleets: what ``load_fleet`` returned, each with a name of its own.

    Raises:
        InvalidRequest: two fleets of one name.
    """
    given = [fleet.name for fleet in fleets]
    if len(set(given)) < len(given):
        raise InvalidRequest(
            place="build_definitions",
            found=f"the fleets {', '.join(given)}",
            wanted="each name once",
            fix="Change 'name:' in one of the fleet files.",
        )
    resources: dict[str, object] = {}
    for fleet in fleets:
        resources[names.cells_resource(fleet.name)] = TenantIOManager(fleet)
        resources[names.journal_resource(fleet.name)] = RunJournalResource(fleet)
    assets = {
        (fleet.name, shard): shard_assets(fleet, shard)
        for fleet in fleets
        for shard in fleet.shards
    }
    # each resolved among its own assets: among those of all shards, it would look through all
    shard_jobs = {
        fleet.name: [
            Definitions(
                assets=[assets[fleet.name, shard]],
                jobs=[shard_asset_job(fleet, shard)],
                resources=resources,
            ).resolve_job_def(names.shard_job(fleet.name, shard))
            for shard in fleet.shards
        ]
        for fleet in fleets
    }
    return Definitions(
        assets=list(assets.values()),
        jobs=[
            *(fleet_op_job(fleet) for fleet in fleets),
            *(job for jobs in shard_jobs.values() for job in jobs),
        ],
        sensors=[
            sensor(fleet, jobs=shard_jobs[fleet.name])
            for fleet in fleets
            for sensor in (caretaker_sensor, resume_sensor)
        ],
        schedules=[fleet_schedule(fleet, fleet.schedule) for fleet in fleets if fleet.schedule],
        resources=resources,
    )
