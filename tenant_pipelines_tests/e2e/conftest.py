"""Lets the assertions of the shared modules say what they found."""

import pytest

pytest.register_assert_rewrite(
    "tenant_pipelines_tests.crash.rig",
    "tenant_pipelines_tests.crash.side_file",
    "tenant_pipelines_tests.e2e.dev",
)
