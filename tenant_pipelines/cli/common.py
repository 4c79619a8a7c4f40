"""What every command shares: its fleet, its options, its output and its exit codes."""

import json
import os
import sys
from datetime import timedelta
from pathlib import Path
from typing import IO, Annotated, Any

import typer
from rich.console import Console

from tenant_pipelines.errors import InvalidRequest
from tenant_pipelines.fleet.ages import AGE_WANTED, parse_age
from tenant_pipelines.fleet.file import find_fleet, load_fleet, sample_fleets
from tenant_pipelines.fleet.model import Fleet

ALL_DONE = 0
NOT_DONE = 1
USAGE = 2

FleetOption = Annotated[
    str | None,
    typer.Option(
        "--fleet",
        help="Fleet file or packaged sample. Default: $TENANT_PIPELINES_FLEET, else ./fleet.yaml.",
        metavar="FILE|SAMPLE",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document to stdout.")]
ShardOption = Annotated[
    list[str] | None, typer.Option("--shard", help="Only this shard; repeatable.")
]
TenantOption = Annotated[
    list[str] | None, typer.Option("--tenant", help="Only this tenant; repeatable.")
]
StepOption = Annotated[list[str] | None, typer.Option("--step", help="Only this step; repeatable.")]

NewCycleOption = Annotated[
    str | None,
    typer.Option(
        "--new-cycle",
        help="Open a new cycle first, so that everything runs again; without a NAME it is named "
        "after the run.",
        metavar="[NAME]",
    ),
]


def fleet_of(option: str | None) -> Fleet:
    """Load the fleet that a command is about.

    Raises:
        InvalidRequest: none was named and there is no default.
        InvalidFleetFile: it cannot be used.
    """
    named = option or os.environ.get("TENANT_PIPELINES_FLEET")
    if named is None:
        if not Path("fleet.yaml").exists():
            raise InvalidRequest(
                place="--fleet",
                found="no fleet named, and no fleet.yaml in the working directory",
                wanted=f"a fleet file or one of the samples {', '.join(sample_fleets())}",
                fix="Add --fleet FILE.",
            )
        named = "fleet.yaml"
    return load_fleet(find_fleet(named))


def chosen_shards(fleet: Fleet, shards: list[str] | None, tenants: list[str] | None) -> list[str]:
    """Return the shards that a selection touches, in the fleet file's order.

    Raises:
        UnknownName: a shard or tenant that does not exist.
        InvalidRequest: a tenant outside the chosen shards.
    """
    chosen = list(fleet.shards) if not shards else [fleet.shard(name).name for name in shards]
    if tenants:
        homes = {tenant: fleet.shard_of(tenant).name for tenant in tenants}
        for tenant, home in homes.items():
            if home not in chosen:
                raise InvalidRequest(
                    place="--tenant",
                    found=f"tenant {tenant!r}, which is in shard {home!r}",
                    wanted=f"a tenant of {', '.join(chosen)}",
                    fix=f"Add --shard {home} or leave --shard out.",
                )
        chosen = [name for name in fleet.shards if name in homes.values()]
    return [name for name in fleet.shards if name in chosen]


def plain_console(*, file: IO[str] | None = None, width: int | None = None) -> Console:
    """Return a console that prints names as they are: ``[a]`` is no markup, ``:key:`` no emoji."""
    return Console(
        file=file, width=width, soft_wrap=True, markup=False, emoji=False, highlight=False
    )


def age_of(written: str, option: str) -> timedelta:
    """Return an age such as ``24h`` or ``30d``.

    Args:
        written: what the user gave.
        option: the option's name, for the error.

    Raises:
        InvalidRequest: it is none.
    """
    age = parse_age(written)
    if age is None:
        raise InvalidRequest(
            place=option, found=repr(written), wanted=AGE_WANTED, fix="Write it like that."
        )
    return age


def wide_console() -> Console:
    """Return a console on stdout that never cuts a table short where nobody looks at its width."""
    console = plain_console()
    return console if console.is_terminal else plain_console(width=1000)


def print_json(document: dict[str, Any]) -> None:
    """Print a JSON document to stdout."""
    sys.stdout.write(json.dumps(document, ensure_ascii=False, indent=2) + "\n")
