"""``reconcile``: make Dagster show what the journals say, without running anything."""

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import typer

from tenant_pipelines.cli.common import (
    ALL_DONE,
    NOT_DONE,
    FleetOption,
    JsonOption,
    ShardOption,
    chosen_shards,
    fleet_of,
    print_json,
)
from tenant_pipelines.errors import JournalUnusable


def reconcile(
    fleet: FleetOption = None, shard: ShardOption = None, as_json: JsonOption = False
) -> None:
    """Make Dagster show every cell as the journals have it; exit 1 when a journal is unusable.

    Ends dead runs and frees their slots first. Runs no step and changes no journal.

    Example: tenant-pipelines reconcile --fleet flights --shard shard_2
    """
    from tenant_pipelines.orchestration.checks import report_checks
    from tenant_pipelines.orchestration.instance import find_home, open_instance
    from tenant_pipelines.orchestration.reconcile import mend, reconcile_shard
    from tenant_pipelines.orchestration.register import register_shard
    from tenant_pipelines.orchestration.run_targets import is_at_work, unfinished_runs

    loaded = fleet_of(fleet)
    chosen = chosen_shards(loaded, shard, None)
    home = find_home(loaded, environ=os.environ, cwd=Path.cwd())
    instance = open_instance(home)
    # a dead run in another shard stays to be told there
    mended = mend(instance, loaded, shards=chosen)
    for run_id in mended.ended if not as_json else ():
        typer.echo(f"run {run_id} had died: marked failed, its slots freed")
    shards: list[dict[str, Any]] = []
    for name in chosen:
        found: dict[str, Any] = {"green": 0, "red": 0, "error": None}
        for done in mended.reconciled:
            if done.shard == name:
                found |= {"green": done.green, "red": done.red}
        try:
            register_shard(instance, loaded, name)
            rest = reconcile_shard(instance, loaded, name)
            if not is_at_work(instance, loaded, name, unfinished_runs(instance)):
                report_checks(instance, loaded, name, now=datetime.now(UTC))
            found["green"] += rest.green
            found["red"] += rest.red
            said = f"{found['green']} cells shown done now, {found['red']} shown failed now"
        except JournalUnusable as error:
            found["error"] = said = str(error)
        shards.append({"shard": name, **found})
        if not as_json:
            typer.echo(f"{name}: {said}")
    if as_json:
        print_json(
            {
                "fleet": loaded.name,
                "dagster_home": str(home.path),
                "ended_runs": list(mended.ended),
                "shards": shards,
            }
        )
    else:
        typer.echo(f"DAGSTER_HOME: {home.path} ({home.origin})")
    raise typer.Exit(NOT_DONE if any(one["error"] for one in shards) else ALL_DONE)
