"""``verify``: the warehouse against a recomputation of everything from the source."""

import contextlib
import math
import os
import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any

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
from tenant_pipelines.cli.explain import in_words
from tenant_pipelines.engine.recompute import Recomputed, Verdict, recompute


def verify(
    fleet: FleetOption = None,
    shard: ShardOption = None,
    tenant: TenantOption = None,
    as_json: JsonOption = False,
) -> None:
    """Recompute every tenant from its source up to its cursor and compare with the warehouse.

    Writes nothing; the steps above each load run again, in this process, and what they print goes
    to stderr. Exit 1 when a tenant differs, was never loaded or cannot be recomputed.

    Example: tenant-pipelines verify --fleet flights --tenant UA
    """
    loaded = fleet_of(fleet)
    found: list[Recomputed] = []
    for name in chosen_shards(loaded, shard, tenant):
        before = len(found)
        for one in _quietly(recompute(loaded, name, tenants=tenant, environ=os.environ)):
            found.append(one)
            if not as_json and one.verdict is not Verdict.EQUAL:
                typer.echo(_told(one))
        if not as_json:
            of_shard = found[before:]
            rows = sum(one.difference.rows for one in of_shard if one.difference)
            counts = Counter(one.verdict for one in of_shard)
            told = ", ".join(f"{counts[kind]} {kind.value}" for kind in Verdict if counts[kind])
            typer.echo(f"{name}: {rows} rows recomputed; loads: {told}")
    if not as_json and any(one.verdict is Verdict.DIFFERS for one in found):
        typer.echo(
            "A run does not mend rows that differ: let the tenant begin again (docs/data.md)."
        )
    if as_json:
        print_json({"fleet": loaded.name, "loads": [_json(one) for one in found]})
    is_good = all(one.verdict is Verdict.EQUAL for one in found)
    raise typer.Exit(ALL_DONE if is_good else NOT_DONE)


def _quietly(found: Iterator[Recomputed]) -> Iterator[Recomputed]:
    """Yield on, and keep what steps print out of this command's own output."""
    while True:
        with contextlib.redirect_stdout(sys.stderr):
            one = next(found, None)
        if one is None:
            return
        yield one


def _told(one: Recomputed) -> str:
    head = f"{one.shard} {one.tenant} {one.step}: "
    if one.verdict is Verdict.NOT_LOADED:
        return f"{head}the warehouse's ledger knows no load of it, and {one.table!r} has no row"
    if one.difference is None:
        return head + in_words(one.error)
    told = (
        f"{head}table {one.table!r} lacks {one.difference.lacking} of the {one.difference.rows} "
        f"rows up to cursor {one.cursor!r} and has {one.difference.unexpected} that it should not"
    )
    return "\n  ".join([told, *map(str, one.difference.examples)])


def _json(one: Recomputed) -> dict[str, Any]:
    document: dict[str, Any] = {
        "shard": one.shard,
        "tenant": one.tenant,
        "step": one.step,
        "table": one.table,
        "verdict": one.verdict.value,
        "cursor": one.cursor,
    }
    if one.difference is not None:
        document |= {
            "rows": one.difference.rows,
            "lacking": one.difference.lacking,
            "unexpected": one.difference.unexpected,
            "examples": [_printable(example) for example in one.difference.examples],
        }
    return {**document, "error": dict(one.error)} if one.error else document


def _printable(example: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value.hex()
        if isinstance(value, bytes)
        else str(value)
        if isinstance(value, float) and not math.isfinite(value)
        else value
        for name, value in example.items()
    }
