"""``sync`` and ``doctor``: make Dagster know the fleet; find what is unhealthy, and mend it."""

import os
import shlex
import sys
import time
from dataclasses import asdict, replace
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

_SILENT_SECONDS = 2.0


def sync(fleet: FleetOption = None, as_json: JsonOption = False) -> None:
    """Make Dagster know every tenant as a partition key and every shard's pool limit.

    Example: tenant-pipelines sync --fleet flights
    """
    from tenant_pipelines.orchestration.instance import find_home, open_instance
    from tenant_pipelines.orchestration.register import register_shards

    loaded = fleet_of(fleet)
    home = find_home(loaded, environ=os.environ, cwd=Path.cwd())
    instance = open_instance(home)
    shards = []
    progress = _Progress("sync", len(loaded.shards))
    for name, done in register_shards(instance, loaded, loaded.shards):
        shards.append({"shard": name, **asdict(done)})
        if as_json:
            progress.tell(len(shards))
        else:
            limit = "set to" if done.is_limit_changed else "already"
            typer.echo(
                f"{name}: {done.keys_added} keys added, pool limit {limit} {done.pool_limit}"
            )
    if as_json:
        document = {"fleet": loaded.name, "dagster_home": str(home.path), "shards": shards}
        print_json(document)
    else:
        typer.echo(f"DAGSTER_HOME: {home.path} ({home.origin})")


def doctor(
    fleet: FleetOption = None,
    fix: Annotated[
        bool,
        typer.Option("--fix", help="Mend what can be mended; dagster.yaml is never edited."),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Look for what keeps Dagster from running this fleet well; exit 1 when a problem is left.

    Damaged journals, dead runs, slots held for nothing, pools without their limit, partition keys
    that differ from the fleet, settings of dagster.yaml, releases of Dagster's libraries that do
    not match. Warnings (a very large shard, an unset DAGSTER_HOME) leave the exit code at 0.
    Changes nothing without --fix.

    Example: tenant-pipelines doctor --fleet flights --fix
    """
    from tenant_pipelines.orchestration import health
    from tenant_pipelines.orchestration.dagster_settings import open_existing, releases
    from tenant_pipelines.orchestration.instance import find_home, open_instance

    loaded = fleet_of(fleet)
    home = find_home(loaded, environ=os.environ, cwd=Path.cwd())
    named = shlex.quote(fleet or str(loaded.path))
    lasting = health.release_findings(releases())
    if not os.environ.get("DAGSTER_HOME"):
        lasting.append(
            health.Finding(
                f"DAGSTER_HOME is not set; our commands use {home.path} ({home.origin})",
                f"export DAGSTER_HOME={shlex.quote(str(home.path))}, or dagster dev and dagster "
                f"job execute keep their runs elsewhere",
                health.Severity.WARNING,
            )
        )
    fix_command = f"tenant-pipelines doctor --fix --fleet {named}"
    progress = _Progress("doctor", len(loaded.shards))
    instance = open_existing(home)
    if instance is None:
        what = f"there is no Dagster instance in {home.path} ({home.origin}) yet"
        mendable = [health.Finding(what, f"tenant-pipelines sync --fleet {named}")]
        mendable += health.size_findings(loaded, dict.fromkeys(loaded.shards, 0))
    else:
        mendable = health.look(
            instance,
            loaded,
            home=home.path,
            fix_command=fix_command,
            at_shard=progress.tell,
        )
    if fix:
        instance = open_instance(home)
        health.fix(instance, loaded, at_shard=progress.tell)
        left = health.look(
            instance, loaded, home=home.path, fix_command=fix_command, at_shard=progress.tell
        )
        mended = [replace(found, is_fixed=True) for found in mendable if found not in left]
        mendable = [*mended, *left]
    findings = [*mendable, *lasting]
    is_well = not any(
        found.severity == health.Severity.PROBLEM and not found.is_fixed for found in findings
    )
    if as_json:
        print_json({"fleet": loaded.name, "findings": [asdict(found) for found in findings]})
    else:
        for found in findings:
            end = "fixed" if found.is_fixed else found.advice
            typer.echo(f"{found.severity}: {found.what}\n  " + end.replace("\n", "\n  "))
        if not findings:
            typer.echo("nothing found")
    raise typer.Exit(ALL_DONE if is_well else NOT_DONE)


class _Progress:
    """Says on stderr every two seconds how many shards are done; nothing when it is quicker."""

    def __init__(self, command: str, shards: int) -> None:
        self._command = command
        self._shards = shards
        self._said_at = time.monotonic()

    def tell(self, done: int) -> None:
        now = time.monotonic()
        if now - self._said_at >= _SILENT_SECONDS:
            self._said_at = now
            sys.stderr.write(f"{self._command}: {done:,} of {self._shards:,} shards\n")
