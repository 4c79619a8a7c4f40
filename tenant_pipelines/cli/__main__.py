"""``python -m tenant_pipelines.cli``."""

from tenant_pipelines.cli.main import main

main()
