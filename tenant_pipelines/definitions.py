"""The composition root: the fleet of ``$TENANT_PIPELINES_FLEET``, else the packaged samples."""

import os

from tenant_pipelines.fleet.file import find_fleet, load_fleet, sample_fleets
from tenant_pipelines.orchestration.build import build_definitions

_asked = os.environ.get("TENANT_PIPELINES_FLEET")
_paths = [find_fleet(_asked)] if _asked else list(sample_fleets().values())

defs = build_definitions(*(load_fleet(path) for path in _paths))
