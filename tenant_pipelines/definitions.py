"""The composition root: the fleet of ``$TENANT_PIPELINES_FLEET``, else the packaged samples."""

import os

from dagster import Definitions

from tenant_pipelines.fleet.file import find_fleet, load_fleet, sample_fleets
from tenant_pipelines.orchestration.build import build_definitions
from tenant_pipelines.orchestration.league import league_definitions

_asked = os.environ.get("TENANT_PIPELINES_FLEET")
_paths = [find_fleet(_asked)] if _asked else list(sample_fleets().values())
_fleets = [load_fleet(path) for path in _paths]

defs = Definitions.merge(build_definitions(*_fleets), league_definitions(*_fleets))
