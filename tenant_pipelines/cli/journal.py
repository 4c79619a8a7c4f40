"""``journal show | verify | export``: what the journals say, and whether they can be believed."""

import json
import sys
from collections import deque
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from tenant_pipelines.cli.common import (
    ALL_DONE,
    NOT_DONE,
    FleetOption,
    JsonOption,
    ShardOption,
    TenantOption,
    chosen_shards,
    fleet_of,
    print_json,
)
from tenant_pipelines.engine.verify import verify_shard
from tenant_pipelines.errors import JournalUnusable
from tenant_pipelines.fleet.model import Fleet
from tenant_pipelines.journal.entries import Entry
from tenant_pipelines.journal.journal import Journal

journal_app = typer.Typer(help="Entries, integrity and export of the journals.")


@journal_app.command()
def show(
    fleet: FleetOption = None,
    shard: ShardOption = None,
    tenant: TenantOption = None,
    last: Annotated[int, typer.Option(min=1, help="How many of the newest entries.")] = 50,
    as_json: JsonOption = False,
) -> None:
    """Print the newest entries, oldest first.

    Example: tenant-pipelines journal show --fleet flights --tenant UA --last 10
    """
    loaded = fleet_of(fleet)
    documents: list[dict[str, Any]] = []
    damaged = False
    for name in chosen_shards(loaded, shard, tenant):
        found: deque[dict[str, Any]] = deque(maxlen=last)
        try:
            found.extend(
                {"shard": name, **entry.to_json()}
                for entry in _entries(loaded, name)
                if not tenant or entry.tenant in tenant
            )
        except JournalUnusable as error:
            damaged = True
            typer.echo(f"{name}: {error}", err=True)
        documents += found
    if as_json:
        print_json({"fleet": loaded.name, "entries": documents})
        documents = []
    for document in documents:
        cell = " ".join(str(document[name]) for name in ("tenant", "step") if document[name])
        typer.echo(
            f"{document['at']} {document['shard']} {document['seq']} {document['kind']} "
            f"cycle={document['cycle']} {cell} g{document['generation']} a{document['attempt']} "
            f"run={document['run_id'][:8]} pid={document['pid']}"
        )
    raise typer.Exit(NOT_DONE if damaged else ALL_DONE)


@journal_app.command()
def verify(
    fleet: FleetOption = None, shard: ShardOption = None, as_json: JsonOption = False
) -> None:
    """Check every entry and every artifact that the journals name; exit 1 when something is wrong.

    Example: tenant-pipelines journal verify --fleet flights
    """
    loaded = fleet_of(fleet)
    reports = [verify_shard(loaded, name) for name in chosen_shards(loaded, shard, None)]
    if as_json:
        print_json({"fleet": loaded.name, "shards": [report.to_json() for report in reports]})
    else:
        for report in reports:
            verdict = "ok" if report.is_sound else f"{len(report.problems)} problems"
            typer.echo(
                f"{report.shard}: {report.entries} entries, {report.artifacts} artifacts: {verdict}"
            )
            for problem in report.problems:
                typer.echo(f"  {problem}")
    is_sound = all(report.is_sound for report in reports)
    raise typer.Exit(ALL_DONE if is_sound else NOT_DONE)


@journal_app.command()
def export(fleet: FleetOption = None, shard: ShardOption = None) -> None:
    """Write every entry to stdout, one JSON object a line.

    Example: tenant-pipelines journal export --fleet flights > entries.jsonl
    """
    loaded = fleet_of(fleet)
    damaged = False
    for name in chosen_shards(loaded, shard, None):
        try:
            for entry in _entries(loaded, name):
                line = json.dumps({"shard": name, **entry.to_json()}, ensure_ascii=False)
                sys.stdout.write(line + "\n")
        except JournalUnusable as error:
            damaged = True
            typer.echo(f"{name}: {error}", err=True)
    raise typer.Exit(NOT_DONE if damaged else ALL_DONE)


def _entries(fleet: Fleet, shard: str) -> Iterator[Entry]:
    journal = Journal.existing(fleet.journal_path(shard), fleet=fleet.name, shard=shard)
    if journal is not None:
        with journal:
            yield from journal.all_entries()
