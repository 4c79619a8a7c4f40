"""Durable trivial cells, one after another and 32 at a time, beside raw append and fsync."""

import cProfile
import dataclasses
import os
import pstats
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from tenant_pipelines_tests.benchmarks.report import (
    Contestant,
    Measurement,
    Result,
    Spread,
    Target,
    compare,
)
from tenant_pipelines_tests.benchmarks.trivial import STEPS, Ran, begin, run_shard, trivial_fleet

_LINE = b"x" * 199 + b"\n"
_THREADS = 32


def append_fsync_seconds(folder: Path, *, lines: int) -> float:
    """Return seconds per line appended to a new file, each made durable before the next."""
    path = folder / "floor"
    with path.open("ab", buffering=0) as file:
        began = time.perf_counter()
        for _ in range(lines):
            file.write(_LINE)
            os.fsync(file.fileno())
        seconds = time.perf_counter() - began
    path.unlink()
    return seconds / lines


def run_cells(folder: Path, *, tenants: int, max_concurrent: int) -> tuple[float, float]:
    """Run a fleet for the first time, the making of its journal not counted.

    Returns:
        Seconds per cell, and processor seconds of the whole process per cell.
    """
    with tempfile.TemporaryDirectory(dir=folder) as name:
        fleet = trivial_fleet(Path(name), tenants=tenants, max_concurrent=max_concurrent)
        ran = Ran()
        cycle = begin(fleet)
        busy_before = time.process_time()
        seconds = run_shard(fleet, "shard_0", cycle, ran)
        busy = time.process_time() - busy_before
        cells = tenants * len(STEPS)
        ran.check(ran=cells)
        return seconds / cells, busy / cells


def measure(folder: Path, *, scale: float, rounds: int) -> dict[str, Measurement]:
    """Measure cells one by one, and many at once."""
    few, many = max(2, round(300 * scale)), max(2, round(2_000 * scale))
    run_cells(folder, tenants=few, max_concurrent=1)  # warm: imports, first-use caches
    busy_ms: dict[int, list[float]] = {1: [], _THREADS: []}

    def cell_ms(tenants: int, max_concurrent: int) -> float:
        seconds, busy = run_cells(folder, tenants=tenants, max_concurrent=max_concurrent)
        busy_ms[max_concurrent].append(busy * 1e3)
        return seconds * 1e3

    one = compare(
        "durable trivial cells, one thread",
        unit="ms per cell",
        floor=Contestant(
            title="append + fsync of 200 B",
            once=lambda: append_fsync_seconds(folder, lines=few * len(STEPS)) * 1e3,
        ),
        subjects={
            "engine": Contestant(
                title=f"engine, {few * len(STEPS):,} cells, max_concurrent 1",
                once=lambda: cell_ms(few, 1),
                target=Target(at_most=0.5, ratio_at_most=3),
            )
        },
        rounds=rounds,
    )
    at_once = compare(
        f"durable trivial cells, {_THREADS} threads in one shard",
        unit="per second",
        floor=Contestant(
            title="append + fsync of 200 B",
            once=lambda: 1 / append_fsync_seconds(folder, lines=many),
        ),
        subjects={
            "engine": Contestant(
                title=f"engine, {many * len(STEPS):,} cells, max_concurrent {_THREADS}",
                once=lambda: 1e3 / cell_ms(many, _THREADS),
                target=Target(at_least=7_000, ratio_at_least=1),
            )
        },
        rounds=rounds,
    )
    per_second = Spread([1e3 / ms for ms in one.floor.spread.rounds])
    floor = {
        "append_fsync_per_second": Result(
            title="append + fsync of 200 B, per second", spread=per_second
        )
    }
    return {
        "one_thread": dataclasses.replace(one, derived=floor | _busy(busy_ms[1])),
        "many_threads": dataclasses.replace(at_once, derived=_busy(busy_ms[_THREADS])),
    }


def _busy(ms: list[float]) -> dict[str, Result]:
    return {"cpu_ms_per_cell": Result(title="engine, processor ms per cell", spread=Spread(ms))}


def profile(folder: Path, *, scale: float, rows: int = 45) -> None:
    """Print where one thread spends its time to stderr: the worker alone, by own time."""
    profiler = cProfile.Profile()

    def in_new_thread(*_: Any) -> None:
        profiler.enable()  # takes this hook's place in the thread

    threading.setprofile(in_new_thread)
    try:
        run_cells(folder, tenants=max(2, round(300 * scale)), max_concurrent=1)
    finally:
        threading.setprofile(None)
    pstats.Stats(profiler, stream=sys.stderr).sort_stats("tottime").print_stats(rows)
