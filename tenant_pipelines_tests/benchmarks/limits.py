"""What leases and slots cost, and how much of the slots three processes use.

``python -m tenant_pipelines_tests.benchmarks limits``
"""

import json
import multiprocessing
import sys
import tempfile
import threading
import time
import timeit
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tenant_pipelines.engine.leases import TenantLeases
from tenant_pipelines.engine.slots import Slots

PROCESSES = 3
THREADS = 4
CELL_SECONDS = 0.005
SECONDS = 2.0


def lease_us(folder: Path, *, held: int) -> float:
    """Return µs per uncontended take and give back beside ``held`` leases of the same process."""
    leases = TenantLeases(folder)
    for number in range(held):
        leases.try_take(f"held-{number}")

    def once() -> None:
        leases.try_take("acme")
        leases.give_back("acme")

    best_us = _best_us(once)
    leases.close()
    return best_us


def slot_us(folder: Path) -> float:
    """Return µs per uncontended take and give back."""
    slots = Slots(folder, 4)

    def once() -> None:
        slot = slots.take(lambda: False)
        assert slot is not None
        slots.give_back(slot)

    best_us = _best_us(once)
    slots.close()
    return best_us


def _best_us(once: Callable[[], None], *, rounds: int = 2_000, repeats: int = 7) -> float:
    """Return µs per call in the quietest of several repeats."""
    return round(min(timeit.repeat(once, number=rounds, repeat=repeats)) / rounds * 1e6, 2)


def _work(folder: Path, max_concurrent: int, begins_at: float, results: Connection) -> None:
    slots = Slots(folder, max_concurrent)
    ends_at = begins_at + SECONDS
    busy_seconds: list[float] = []

    def cells() -> None:
        time.sleep(max(0.0, begins_at - time.monotonic()))
        while time.monotonic() < ends_at:
            slot = slots.take(lambda: time.monotonic() >= ends_at)
            if slot is None:
                return
            began = time.monotonic()
            time.sleep(CELL_SECONDS)
            busy_seconds.append(min(time.monotonic(), ends_at) - began)
            slots.give_back(slot)

    threads = [threading.Thread(target=cells) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    results.send((len(busy_seconds), sum(busy_seconds), time.process_time()))


def utilisation(folder: Path, max_concurrent: int) -> dict[str, float | list[int]]:
    """Return the share of slot time in use, cells per process and CPU while work always waits."""
    spawn = multiprocessing.get_context("spawn")
    begins_at = time.monotonic() + 1.5
    pipes = []
    for _ in range(PROCESSES):
        here, there = spawn.Pipe(duplex=False)
        spawn.Process(
            target=_work, args=(folder, max_concurrent, begins_at, there), daemon=True
        ).start()
        pipes.append(here)
    results = [here.recv() for here in pipes]
    return {
        "max_concurrent": max_concurrent,
        "used_percent": round(sum(r[1] for r in results) / SECONDS / max_concurrent * 100, 1),
        "cells_by_process": [r[0] for r in results],
        "cpu_seconds": round(sum(r[2] for r in results), 2),
    }


def measure() -> dict[str, Any]:
    """Measure leases and slots; say on stderr what is being measured."""
    with tempfile.TemporaryDirectory(prefix="tenant-pipelines-") as name:
        folder = Path(name)
        sys.stderr.write("limits: leases\n")
        leases = {n: lease_us(folder / "leases", held=n) for n in (0, 1_000, 10_000)}
        sys.stderr.write("limits: slots\n")
        slots = slot_us(folder / "slots")
        sys.stderr.write(f"limits: slots of {PROCESSES} processes\n")
        return {
            "lease_us": leases,
            "slot_us": slots,
            "slots": [utilisation(folder / f"slots-{n}", n) for n in (1, 2, 3, 8)],
            "processes": PROCESSES,
            "threads": THREADS,
            "cell_ms": CELL_SECONDS * 1000,
        }


def table(report: dict[str, Any]) -> str:
    """Return what ``measure`` returned as text for people."""
    lines = [
        f"lease, beside {held:>6,} held ones   {us:>6.2f} µs"
        for held, us in report["lease_us"].items()
    ]
    lines.append(f"slot                         {report['slot_us']:>6.2f} µs")
    lines.append(
        f"{report['processes']} processes of {report['threads']} threads, cells of "
        f"{report['cell_ms']:g} ms:"
    )
    lines += [
        f"  max_concurrent {use['max_concurrent']}: {use['used_percent']:>5.1f} % in use, cells by "
        f"process {use['cells_by_process']}, {use['cpu_seconds']:.2f} s of CPU"
        for use in report["slots"]
    ]
    return "\n".join(lines)


def main() -> None:
    """Measure and print JSON."""
    print(json.dumps(measure(), indent=2))


if __name__ == "__main__":
    main()
