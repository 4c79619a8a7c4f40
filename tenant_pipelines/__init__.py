"""One data pipeline for many tenants, inside Dagster.

Importing this package does not import Dagster; ``build_definitions`` does when it is first used.
"""

from typing import TYPE_CHECKING, Any

from tenant_pipelines.errors import TenantPipelinesError
from tenant_pipelines.fleet.context import Settings, StepContext, Window
from tenant_pipelines.fleet.pipeline import Pipeline, Retries, Step, step

if TYPE_CHECKING:
    from tenant_pipelines.fleet.file import load_fleet as load_fleet
    from tenant_pipelines.orchestration.build import build_definitions as build_definitions
    from tenant_pipelines.storage.sql_source import sql_extract as sql_extract
    from tenant_pipelines.storage.sql_warehouse import sql_load as sql_load

__all__ = [
    "Pipeline",
    "Retries",
    "Settings",
    "Step",
    "StepContext",
    "TenantPipelinesError",
    "Window",
    "build_definitions",
    "load_fleet",
    "sql_extract",
    "sql_load",
    "step",
]

_LAZY = {
    "build_definitions": "tenant_pipelines.orchestration.build",
    "load_fleet": "tenant_pipelines.fleet.file",
    "sql_extract": "tenant_pipelines.storage.sql_source",
    "sql_load": "tenant_pipelines.storage.sql_warehouse",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_LAZY[name]), name)
