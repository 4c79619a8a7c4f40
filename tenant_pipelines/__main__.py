"""``python -m tenant_pipelines``."""

from tenant_pipelines.cli.main import main

main()
