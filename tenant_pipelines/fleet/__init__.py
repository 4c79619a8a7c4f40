"""What is to run: steps, pipelines, fleets, and reading fleet.yaml."""
