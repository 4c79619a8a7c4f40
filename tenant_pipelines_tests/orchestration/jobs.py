"""Jobs that another process, or a re-execution, can find by name."""

from dagster import JobDefinition

from tenant_pipelines.fleet.file import load_fleet
from tenant_pipelines.orchestration import names
from tenant_pipelines.orchestration.build import build_definitions


def shard_2(path: str) -> JobDefinition:
    """Return the asset job of shard_2 of a fleet file."""
    fleet = load_fleet(path)
    return build_definitions(fleet).resolve_job_def(names.shard_job(fleet.name, "shard_2"))
