"""``sync`` and ``doctor``: make Dagster know the fleet; find what a crash left, and mend it."""

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer

from tenant_pipelines.cli.common import (
    ALL_DONE,
    NOT_DONE,
    FleetOption,
    JsonOption,
    fleet_of,
    print_json,
)


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that ``doctor`` found: what, what to do, and whether it was mended."""

    what: str
    advice: str
    is_fixed: bool = False


def sync(fleet: FleetOption = None, as_json: JsonOption = False) -> None:
    """Make Dagster know every tenant as a partition key and every shard's pool limit.

    Example: tenant-pipelines sync --fleet flights
    """
    from tenant_pipelines.orchestration.instance import find_home, open_instance
    from tenant_pipelines.orchestration.register import register_shard

    loaded = fleet_of(fleet)
    home = find_home(loaded, environ=os.environ, cwd=Path.cwd())
    instance = open_instance(home)
    shards = []
    for name in loaded.shards:
        done = register_shard(instance, loaded, name)
        shards.append({"shard": name, **asdict(done)})
        if not as_json:
            limit = "limit set" if done.is_limit_set else "limit right"
            typer.echo(f"{name}: {done.keys_added} keys added, pool {limit}")
    if as_json:
        document = {"fleet": loaded.name, "dagster_home": str(home.path), "shards": shards}
        print_json(document)
    else:
        typer.echo(f"DAGSTER_HOME: {home.path} ({home.origin})")


def doctor(
    fleet: FleetOption = None,
    fix: Annotated[bool, typer.Option("--fix", help="Mend what can be mended.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Look for dead runs, slots they hold, and an unset DAGSTER_HOME; exit 1 when any is left.

    Example: tenant-pipelines doctor --fleet flights --fix
    """
    from tenant_pipelines.orchestration.health import find_unhealthy_runs
    from tenant_pipelines.orchestration.instance import end_dead_runs, find_home, open_instance

    loaded = fleet_of(fleet)
    home = find_home(loaded, environ=os.environ, cwd=Path.cwd())
    findings = []
    if not os.environ.get("DAGSTER_HOME"):
        findings.append(
            Finding(
                f"DAGSTER_HOME is not set; our commands use {home.path} ({home.origin})",
                f"export DAGSTER_HOME={home.path}, or dagster dev and dagster job execute keep "
                f"their runs elsewhere",
            )
        )
    instance = open_instance(home)
    unhealthy = find_unhealthy_runs(instance, loaded)
    left = unhealthy
    if fix:
        end_dead_runs(instance, loaded)
        left = find_unhealthy_runs(instance, loaded)
    advice = f"tenant-pipelines doctor --fix --fleet {fleet or loaded.path}"
    findings += [Finding(what, advice, is_fixed=what not in left) for what in unhealthy]
    if as_json:
        print_json({"fleet": loaded.name, "findings": [asdict(found) for found in findings]})
    else:
        for found in findings:
            typer.echo(f"{found.what}: {'fixed' if found.is_fixed else found.advice}")
        if not findings:
            typer.echo("nothing found")
    raise typer.Exit(ALL_DONE if all(found.is_fixed for found in findings) else NOT_DONE)
