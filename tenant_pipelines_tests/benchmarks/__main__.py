"""The benchmarks' command line: ``python -m tenant_pipelines_tests.benchmarks --help``.

stdout is one JSON document with ``--json``, else tables for people; progress goes to stderr.
Numbers are for people to compare and are asserted nowhere.
"""

import json
import os
import platform
import sqlite3
import tempfile
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from tenant_pipelines_tests.benchmarks import (
    cells,
    definitions,
    events,
    flights,
    limits,
    load,
    memory,
    plan,
    reconcile,
    rerun,
    startup,
    sync,
    tenant_memory,
)
from tenant_pipelines_tests.benchmarks.report import Measurement, table

app = typer.Typer(
    help="Measure this package on this machine, each number beside its floor in the same run.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")]
ScaleOption = Annotated[
    float, typer.Option(min=0.001, max=100, help="Times the size of every measurement.")
]
RoundsOption = Annotated[int, typer.Option(min=1, help="Turns of each floor and subject.")]
FolderOption = Annotated[
    Path | None,
    typer.Option(
        exists=True,
        file_okay=False,
        writable=True,
        help="On the disk to measure (in memory, fsync is free); default: for temporary files.",
    ),
]


class Part(StrEnum):
    """A group of measurements of ``engine``."""

    CELLS = "cells"
    RERUN = "rerun"
    FLIGHTS = "flights"
    STARTUP = "startup"
    MEMORY = "memory"


class DataPart(StrEnum):
    """A group of measurements of ``data``."""

    PLAN = "plan"
    LOAD = "load"
    MEMORY = "memory"


class DagsterPart(StrEnum):
    """A group of measurements of ``dagster``."""

    DEFINITIONS = "definitions"
    SYNC = "sync"
    EVENTS = "events"
    RECONCILE = "reconcile"


@app.command()
def engine(
    as_json: JsonOption = False,
    scale: ScaleOption = 1.0,
    rounds: RoundsOption = 5,
    only: Annotated[
        list[Part] | None, typer.Option(help="Measure this part only; can be repeated.")
    ] = None,
    profile: Annotated[
        bool, typer.Option("--profile", help="Profile the one-thread cells to stderr first.")
    ] = False,
    folder: FolderOption = None,
) -> None:
    """Measure the engine: durable cells, reruns, the flights fleet, start-up, memory.

    Example:
    python -m tenant_pipelines_tests.benchmarks engine --only cells --only rerun --profile
    """
    measured: dict[str, Measurement] = {}
    with tempfile.TemporaryDirectory(prefix="tenant-pipelines-", dir=folder) as name:
        base = Path(name)
        if profile:
            cells.profile(base, scale=scale)
        parts: dict[Part, Callable[[], dict[str, Measurement]]] = {
            Part.CELLS: lambda: cells.measure(base, scale=scale, rounds=rounds),
            Part.RERUN: lambda: rerun.measure(base, scale=scale, rounds=rounds),
            Part.FLIGHTS: lambda: flights.measure(base, scale=scale, rounds=rounds),
            Part.STARTUP: lambda: startup.measure(base, rounds=rounds),
            Part.MEMORY: lambda: memory.measure(base, scale=scale, rounds=rounds),
        }
        for part, measure in parts.items():
            if not only or part in only:
                measured |= measure()
    _print(measured, as_json=as_json, scale=scale, rounds=rounds)


@app.command()
def data(
    as_json: JsonOption = False,
    scale: ScaleOption = 1.0,
    rounds: RoundsOption = 5,
    only: Annotated[
        list[DataPart] | None, typer.Option(help="Measure this part only; can be repeated.")
    ] = None,
    folder: FolderOption = None,
) -> None:
    """Measure what grows with the data: a long history, a large load, a large tenant's memory.

    Example:
    python -m tenant_pipelines_tests.benchmarks data --only load --rounds 3
    """
    measured: dict[str, Measurement] = {}
    with tempfile.TemporaryDirectory(prefix="tenant-pipelines-", dir=folder) as name:
        parts = {
            DataPart.PLAN: plan.measure,
            DataPart.LOAD: load.measure,
            DataPart.MEMORY: tenant_memory.measure,
        }
        for part, measure in parts.items():
            if not only or part in only:
                measured |= measure(Path(name), scale=scale, rounds=rounds)
    _print(measured, as_json=as_json, scale=scale, rounds=rounds)


@app.command("dagster")
def dagster_(
    as_json: JsonOption = False,
    scale: ScaleOption = 1.0,
    rounds: RoundsOption = 3,
    only: Annotated[
        list[DagsterPart] | None, typer.Option(help="Measure this part only; can be repeated.")
    ] = None,
    folder: FolderOption = None,
) -> None:
    """Measure what Dagster costs: 1,000 shards' definitions, sync, its events, reconcile.

    Example:
    python -m tenant_pipelines_tests.benchmarks dagster --only definitions --rounds 1
    """
    measured: dict[str, Measurement] = {}
    with tempfile.TemporaryDirectory(prefix="tenant-pipelines-", dir=folder) as name:
        parts = {
            DagsterPart.DEFINITIONS: definitions.measure,
            DagsterPart.SYNC: sync.measure,
            DagsterPart.EVENTS: events.measure,
            DagsterPart.RECONCILE: reconcile.measure,
        }
        for part, measure in parts.items():
            if not only or part in only:
                measured |= measure(Path(name), scale=scale, rounds=rounds)
    _print(measured, as_json=as_json, scale=scale, rounds=rounds)


def _print(measured: dict[str, Measurement], *, as_json: bool, scale: float, rounds: int) -> None:
    if as_json:
        document = {
            "scale": scale,
            "rounds": rounds,
            "machine": _machine(),
            "measurements": {key: found.to_json() for key, found in measured.items()},
        }
        typer.echo(json.dumps(document, indent=2, ensure_ascii=False))
    else:
        machine = ", ".join(f"{key} {value}" for key, value in _machine().items())
        typer.echo(f"{machine}; {rounds} rounds, scale {scale:g}\n\n{table(measured)}")


def _machine() -> dict[str, str | int | float]:
    return {
        "cpus": os.cpu_count() or 0,
        "load_average": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
    }


@app.command("limits")
def limits_(as_json: JsonOption = False) -> None:
    """Measure leases and slots: µs per take, and how much of the slots three processes use.

    Example:
    python -m tenant_pipelines_tests.benchmarks limits --json
    """
    report = limits.measure()
    typer.echo(json.dumps(report, indent=2) if as_json else limits.table(report))


if __name__ == "__main__":
    app(prog_name="python -m tenant_pipelines_tests.benchmarks")
