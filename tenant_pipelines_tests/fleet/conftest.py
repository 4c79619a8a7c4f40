"""Fixtures of the fleet tests."""

from tenant_pipelines_tests.fleet.fleet_files import folder

__all__ = ["folder"]
