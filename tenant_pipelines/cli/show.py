"""``plan``, ``why`` and ``status``: what would run and why, and how the newest cycle stands."""

import os
import shlex
from datetime import UTC, datetime
from typing import Annotated, Any

import typer
from rich.table import Table

from tenant_pipelines.cli.common import (
    ALL_DONE,
    NOT_DONE,
    FleetOption,
    JsonOption,
    NewCycleOption,
    ShardOption,
    StepOption,
    TenantOption,
    age_of,
    chosen_shards,
    fleet_of,
    print_json,
    wide_console,
)
from tenant_pipelines.cli.explain import explain
from tenant_pipelines.engine.completeness import is_stale
from tenant_pipelines.engine.overview import CellView, FleetReader, ShardStatus, ShardView, State
from tenant_pipelines.engine.plan import Action, Reason, Request
from tenant_pipelines.errors import InvalidRequest
from tenant_pipelines.journal.entries import instant

_MOST_ROWS = 200


def plan(
    fleet: FleetOption = None,
    shard: ShardOption = None,
    tenant: TenantOption = None,
    step: StepOption = None,
    force: Annotated[bool, typer.Option("--force", help="As run --force would.")] = False,
    new_cycle: NewCycleOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what a run would do, cell by cell, and why, without running it.

    Example: tenant-pipelines plan --fleet flights --shard shard_1
    """
    loaded = fleet_of(fleet)
    for name in step or []:
        loaded.pipeline[name]
    request = Request(root="", tenants=tenant, steps=step, force=force)
    reader = FleetReader(loaded, environ=os.environ)
    opens = reader.opens_cycle(new_cycle, root="")
    views = [
        reader.shard(name, request, new_cycle=opens)
        for name in chosen_shards(loaded, shard, tenant)
    ]
    damaged = [view for view in views if view.damage is not None]
    if as_json:
        document: dict[str, Any] = {
            "fleet": loaded.name,
            "cells": [_planned_json(view.shard, cell) for view in views for cell in view.cells],
            "estimated_cost": None,
        }
        if damaged:
            document["damaged"] = {view.shard: str(view.damage) for view in damaged}
        print_json(document)
    else:
        _print_plan(views)
    raise typer.Exit(NOT_DONE if damaged else ALL_DONE)


def _planned_json(shard: str, cell: CellView) -> dict[str, Any]:
    document = {
        "shard": shard,
        "tenant": cell.tenant,
        "step": cell.step,
        "action": cell.action.value,
        "reason": cell.reason.value,
    }
    return {**document, "detail": cell.detail} if cell.detail else document


def _print_plan(views: list[ShardView]) -> None:
    console = wide_console()
    table = Table("shard", "tenant", "step", "action", "reason", box=None)
    shown = 0
    counts: dict[tuple[Action, Reason], int] = {}
    for view in views:
        for cell in view.cells:
            key = (cell.action, cell.reason)
            counts[key] = counts.get(key, 0) + 1
            if cell.reason is not Reason.DONE and shown < _MOST_ROWS:
                shown += 1
                table.add_row(
                    view.shard, cell.tenant, cell.step, cell.action.value, cell.reason.value
                )
    if shown:
        console.print(table)
    told: set[str] = set()
    for view in views:
        if view.damage is not None:
            console.print(f"{view.shard}: damaged: {view.damage}")
        for cell in view.cells:
            if cell.detail and cell.detail not in told:
                told.add(cell.detail)
                console.print(f"{cell.tenant}: {cell.detail}")
    if counts.keys() == {(Action.SKIP, Reason.DONE)}:
        console.print("nothing to run")
    for (action, reason), count in sorted(counts.items()):
        console.print(f"{count} to {action.value}: {reason.value}")


def why(
    shard: str,
    tenant: str,
    step: str,
    fleet: FleetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Say in one line what a run would do with one cell, and why.

    Example: tenant-pipelines why shard_2 umbrella transform --fleet tenant_shards

    A tenant whose name begins with - comes after --, and the options before it:
    tenant-pipelines why --json -- shard_2 -x transform
    """
    loaded = fleet_of(fleet)
    loaded.pipeline[step]
    home = loaded.shard_of(tenant).name
    if loaded.shard(shard).name != home:
        right = shlex.join([*(["--"] if tenant.startswith("-") else []), home, tenant, step])
        raise InvalidRequest(
            place="why",
            found=f"tenant {tenant!r}, which is in shard {home!r}",
            wanted=f"a tenant of {shard}",
            fix=f"Run: tenant-pipelines why {right}",
        )
    reader = FleetReader(loaded, environ=os.environ)
    view = reader.shard(shard, Request(root="", tenants=[tenant]))
    if view.damage is not None:
        raise view.damage
    cell = next(cell for cell in view.cells if cell.step == step)
    if as_json:
        print_json({"fleet": loaded.name, **_planned_json(shard, cell), **_cell_json(cell)})
        return
    newest = f" in cycle {view.cycle}" if view.cycle else ""
    because = explain(cell)
    typer.echo(
        f"{shard} {tenant} {step}: {cell.state.value}{newest}; a run would "
        f"{cell.action.value} it: {cell.reason.value}" + (f" ({because})" if because else "")
    )
    if cell.cell.error and cell.cell.error["traceback"]:
        typer.echo(cell.cell.error["traceback"].rstrip())


def status(
    fleet: FleetOption = None,
    shard: ShardOption = None,
    stale_after: Annotated[
        str | None,
        typer.Option(
            help="Also list tenants with a step that is not done or was done longer ago, such as "
            "24h, 90m, 2d. Default: stale_after of the fleet file.",
            metavar="AGE",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show how every shard and tenant stands in the newest cycle; exit 1 when not all is done.

    Example: tenant-pipelines status --fleet flights --stale-after 24h
    """
    oldest = _oldest(stale_after)
    loaded = fleet_of(fleet)
    if oldest is None and loaded.stale_after is not None:
        oldest = instant(datetime.now(UTC) - loaded.stale_after)
    reader = FleetReader(loaded, environ=os.environ)
    request = Request(root="")
    views = [reader.shard(name, request) for name in chosen_shards(loaded, shard, None)]
    if as_json:
        print_json({"fleet": loaded.name, "shards": [_shard_json(v, oldest) for v in views]})
    else:
        _print_status(views, oldest)
    is_done = all(view.status is ShardStatus.COMPLETED for view in views)
    raise typer.Exit(ALL_DONE if is_done else NOT_DONE)


def _oldest(age: str | None) -> str | None:
    return None if age is None else instant(datetime.now(UTC) - age_of(age, "--stale-after"))


def _by_tenant(view: ShardView) -> dict[str, list[CellView]]:
    tenants: dict[str, list[CellView]] = {}
    for cell in view.cells:
        tenants.setdefault(cell.tenant, []).append(cell)
    return tenants


def _has_not_failed(of_tenant: tuple[str, list[CellView]]) -> bool:
    return not any(cell.state in {State.FAILED, State.INTERRUPTED} for cell in of_tenant[1])


def _is_stale(cells: list[CellView], oldest: str | None) -> bool:
    return any(is_stale(cell, oldest) for cell in cells)


def _shard_json(view: ShardView, oldest: str | None) -> dict[str, Any]:
    document: dict[str, Any] = {
        "shard": view.shard,
        "cycle": view.cycle,
        "status": view.status.value,
        "tenants": [
            {"tenant": tenant, "steps": [_cell_json(cell) for cell in cells]}
            | ({"stale": _is_stale(cells, oldest)} if oldest else {})
            for tenant, cells in _by_tenant(view).items()
        ],
    }
    return document | ({"error": str(view.damage)} if view.damage else {})


def _cell_json(cell: CellView) -> dict[str, Any]:
    document = {
        "step": cell.step,
        "state": cell.state.value,
        "reason": cell.reason.value,
        "attempts": cell.cell.attempts,
        "run_id": cell.cell.run_id or None,
        "at": cell.cell.at or None,
    }
    return document | ({"error": dict(cell.cell.error)} if cell.cell.error else {})


def _print_status(views: list[ShardView], oldest: str | None) -> None:
    console = wide_console()
    table = Table("shard", "cycle", "status", *(state.value for state in State), box=None)
    for view in views:
        states = [cell.state for cell in view.cells]
        counts = (str(states.count(state)) for state in State)
        table.add_row(view.shard, view.cycle or "-", view.status.value, *counts)
    console.print(table)
    shown = 0
    for view in views:
        if view.damage is not None:
            console.print(f"{view.shard}: {view.damage}")
        # what failed must not be pushed out by what never ran
        for tenant, cells in sorted(_by_tenant(view).items(), key=_has_not_failed):
            for cell in cells:
                is_news = view.status is not ShardStatus.NOT_STARTED and shown < _MOST_ROWS
                if cell.reason is Reason.DONE or not is_news:
                    continue
                shown += 1
                because = explain(cell)
                reason = f", {cell.reason.value}" * (cell.reason.value != cell.state.value)
                console.print(
                    f"{view.shard} {tenant} {cell.step}: {cell.state.value}{reason}"
                    + (f": {because}" if because else ""),
                )
            if _is_stale(cells, oldest):
                console.print(f"{view.shard} {tenant}: stale")
