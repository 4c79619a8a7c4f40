"""``demo flights``: three cycles over a source that grows and is corrected, one of them killed."""

import os
import signal
import tempfile
import time
from collections.abc import Set
from dataclasses import asdict
from typing import Any

import typer
from rich.table import Table

from tenant_pipelines.cli.common import ALL_DONE, NOT_DONE, JsonOption, print_json, wide_console
from tenant_pipelines.cli.demo_process import run_to_end, start
from tenant_pipelines.engine.overview import FleetReader, State
from tenant_pipelines.engine.plan import Request
from tenant_pipelines.fleet.file import find_fleet, load_fleet
from tenant_pipelines.fleet.model import Fleet
from tenant_pipelines.fleet.places import STATE_VARIABLE
from tenant_pipelines.samples.flights.feed import feed
from tenant_pipelines.samples.flights.source import build_source, source_path

_FLEET = "flights"
_POLL_SECONDS = 0.02
_DONE_BEFORE_KILL = 5
_COMPLETED = frozenset({State.COMPLETED})
# what the airlines report before each cycle after the first
_FEEDS = [
    {"days": 3, "late": 12, "corrections": 12},
    {"days": 1, "late": 5, "corrections": 30},
]


def flights(as_json: JsonOption = False) -> None:
    """Load January in a first cycle, then twice what came since; verify the warehouse each time.

    Before each further cycle the source gets new days, late flights and corrections. The second
    cycle is killed with SIGKILL when some of its cells are done, and run again.

    Example: tenant-pipelines demo flights
    """
    with tempfile.TemporaryDirectory(prefix="tenant-pipelines-demo-") as folder:
        fleet = load_fleet(find_fleet(_FLEET), environ={STATE_VARIABLE: folder})
        build_source(fleet.state, months=1)
        cycles = [_cycle(folder, fleet, "1", fed={})]
        _tell(cycles[-1], quiet=as_json)
        for number, amounts in enumerate(_FEEDS, start=2):
            fed = asdict(feed(source_path(fleet.state), **amounts, seed=number))
            cycles.append(_cycle(folder, fleet, str(number), fed=fed, kills=number == 2))
            _tell(cycles[-1], quiet=as_json)
    is_as_told = cycles[1]["done_before_kill"] is not None and all(
        cycle["not_done"] == 0 and cycle["wrong"] == 0 for cycle in cycles
    )
    if as_json:
        print_json({"cycles": cycles, "as_told": is_as_told})
    else:
        _print(cycles)
        typer.echo(
            "After every cycle the warehouse was what a computation from scratch gives."
            if is_as_told
            else "This is not as it should be: see the columns cells and verified."
        )
    raise typer.Exit(ALL_DONE if is_as_told else NOT_DONE)


def _cycle(
    folder: str, fleet: Fleet, name: str, *, fed: dict[str, int], kills: bool = False
) -> dict[str, Any]:
    """Run one cycle to its end and return what it did."""
    opening = [] if name == "1" else ["--new-cycle", name]
    survived = _run_and_kill(folder, fleet, name, opening) if kills else None
    run = run_to_end(folder, _FLEET, *([] if kills else opening))
    verified = run_to_end(folder, _FLEET, verb="verify")
    read, loaded = _rows(fleet)
    return {
        "cycle": name,
        "fed": fed,
        "done_before_kill": survived,
        "ran": sum(shard["ran"] for shard in run["shards"]),
        "skipped": sum(shard["skipped"] for shard in run["shards"]),
        "not_done": len(_cells(fleet, frozenset(State) - {State.COMPLETED})),
        "rows_read": read,
        "rows_loaded": loaded,
        "rows_verified": sum(load["rows"] for load in verified["loads"]),
        "wrong": sum(load["verdict"] != "equal" for load in verified["loads"]),
    }


def _run_and_kill(folder: str, fleet: Fleet, name: str, opening: list[str]) -> int | None:
    """Kill a run's whole process group once cells are done; return how many were.

    None when the run ended before it could be killed.
    """
    process = start(folder, "run", _FLEET, *opening)
    while process.poll() is None:
        cycle = FleetReader(fleet, environ={}).cycle
        is_open = cycle is not None and cycle.name == name
        if is_open and len(_cells(fleet, _COMPLETED)) >= _DONE_BEFORE_KILL:
            os.killpg(process.pid, signal.SIGKILL)
            break
        time.sleep(_POLL_SECONDS)
    process.communicate()
    done = len(_cells(fleet, _COMPLETED))
    return done if process.returncode == -signal.SIGKILL else None


def _cells(fleet: Fleet, states: Set[State]) -> list[tuple[str, str]]:
    """Return the (tenant, step) of the newest cycle's cells in one of some states."""
    reader = FleetReader(fleet, environ={})
    views = [reader.shard(shard, Request(root="")) for shard in fleet.shards]
    return [
        (cell.tenant, cell.step) for view in views for cell in view.cells if cell.state in states
    ]


def _rows(fleet: Fleet) -> tuple[int, int]:
    """Return how many rows the newest cycle's extracts read and its loads wrote."""
    reader = FleetReader(fleet, environ={})
    outputs: dict[str, list[Any]] = {"extract": [], "load": []}
    for shard in fleet.shards:
        for cell in reader.shard(shard, Request(root="")).cells:
            if cell.step in outputs and cell.cell.output is not None:
                outputs[cell.step].append(cell.cell.output)
    return (
        sum(output["rows"] for output in outputs["extract"]),
        sum(output["value"]["rows"] for output in outputs["load"]),
    )


def _tell(cycle: dict[str, Any], *, quiet: bool) -> None:
    if not quiet:
        killed = cycle["done_before_kill"]
        told = "" if killed is None else f", SIGKILL after {killed} cells, then run again"
        typer.echo(f"cycle {cycle['cycle']} is done{told}")


def _print(cycles: list[dict[str, Any]]) -> None:
    table = Table(
        "cycle", "the source got", "cells", "rows read", "rows loaded", "verified", box=None
    )
    for cycle in cycles:
        fed = ", ".join(f"{count} {what.replace('_', ' ')}" for what, count in cycle["fed"].items())
        killed = cycle["done_before_kill"]
        table.add_row(
            cycle["cycle"],
            fed or "January 2013",
            (f"{killed} before the kill, then " if killed is not None else "")
            + f"{cycle['ran']} ran, {cycle['skipped']} skipped"
            + (f", {cycle['not_done']} not done" if cycle["not_done"] else ""),
            str(cycle["rows_read"]),
            str(cycle["rows_loaded"]),
            f"{cycle['rows_verified']} rows, "
            + (f"{cycle['wrong']} loads wrong" if cycle["wrong"] else "all equal"),
        )
    wide_console().print(table)
