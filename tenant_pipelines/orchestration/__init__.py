"""The only part that imports Dagster."""
