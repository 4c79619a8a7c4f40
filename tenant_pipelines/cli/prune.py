"""``prune``: delete what old cycles left and nothing needs any more."""

from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated, Any

import typer
from sqlalchemy.exc import SQLAlchemyError

from tenant_pipelines.cli.common import (
    ALL_DONE,
    NOT_DONE,
    FleetOption,
    JsonOption,
    ShardOption,
    age_of,
    chosen_shards,
    fleet_of,
    print_json,
)
from tenant_pipelines.engine.cycles import known_cycles
from tenant_pipelines.engine.prune import ShardPruned, old_cycles, prune_shard
from tenant_pipelines.errors import JournalUnusable, WarehouseRefused

_MOST_NAMED = 10


def prune(
    fleet: FleetOption = None,
    shard: ShardOption = None,
    keep_cycles: Annotated[
        int, typer.Option(min=1, help="How many of the newest cycles stay whole.")
    ] = 10,
    older_than: Annotated[
        str | None,
        typer.Option(help="Of the other cycles, only those opened longer ago.", metavar="AGE"),
    ] = None,
    artifacts_only: Annotated[
        bool, typer.Option("--artifacts-only", help="Leave the journals and the ledger whole.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Count and delete nothing.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Delete the entries, artifacts and ledger rows of old cycles, safely beside runs.

    The newest output of every step stays, and what a cursor needs. A tenant that a run works on is
    left alone; exit 1 then, and when a journal cannot be used. A journal's file does not shrink,
    its space is used again.

    Example: tenant-pipelines prune --fleet flights --keep-cycles 30 --older-than 90d
    """
    age = None if older_than is None else age_of(older_than, "--older-than")
    loaded = fleet_of(fleet)
    known, unusable = known_cycles(loaded)
    old = old_cycles(known, keep=keep_cycles, older_than=age, now=datetime.now(UTC))
    documents: list[dict[str, Any]] = []
    for name in chosen_shards(loaded, shard, None):
        try:
            if name in unusable:
                raise unusable[name]
            done = prune_shard(loaded, name, old, artifacts_only=artifacts_only, dry_run=dry_run)
        except (JournalUnusable, WarehouseRefused, SQLAlchemyError, OSError) as error:
            documents.append({"shard": name, "error": str(error)})
            told = f"not pruned to the end: {error}"
        else:
            documents.append(asdict(done))
            told = _told(done, dry_run=dry_run)
        if not as_json:
            typer.echo(f"{name}: {told}")
    if as_json:
        print_json(
            {"fleet": loaded.name, "cycles": sorted(old), "dry_run": dry_run, "shards": documents}
        )
    elif not old:
        typer.echo("no cycle is old enough")
    is_done = not any(document.get("busy") or "error" in document for document in documents)
    raise typer.Exit(ALL_DONE if is_done else NOT_DONE)


def _told(done: ShardPruned, *, dry_run: bool) -> str:
    told = (
        f"{done.entries} entries, {done.artifacts} artifacts ({done.size_bytes / 1e6:.1f} MB), "
        f"{done.ledger_rows} ledger rows {'would go' if dry_run else 'deleted'}"
    )
    if done.busy:
        told += f"; left alone, a run works on them: {', '.join(done.busy[:_MOST_NAMED])}"
        more = len(done.busy) - _MOST_NAMED
        told += f" and {more} more" if more > 0 else ""
    return told
