"""What a shard process needs per tenant: peak resident memory over the same process with 10.

Each number is of a fresh process that runs one shard and then reads ``VmHWM`` of its own
/proc/self/status (``ru_maxrss`` would inherit the parent's, see getrusage(2)).
"""

import dataclasses
import functools
import multiprocessing
import re
import tempfile
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from pathlib import Path

from tenant_pipelines_tests.benchmarks.report import (
    Contestant,
    Measurement,
    Result,
    Spread,
    Target,
    compare,
)
from tenant_pipelines_tests.benchmarks.trivial import STEPS, run_fleet, trivial_fleet

_FEW = 10
_BYTES_PER_TENANT = Target(at_most=1_024)


def _run(folder: Path, tenants: int, is_rerun: bool, result: Connection) -> None:
    cells = tenants * len(STEPS)
    done = run_fleet(trivial_fleet(folder, tenants=tenants))
    done.check(ran=0 if is_rerun else cells, skipped=cells if is_rerun else 0)
    result.send(status_mib("VmHWM"))


def status_mib(name: str) -> float:
    """Return a size in MiB that /proc/self/status tells of this process; see proc(5)."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    found = re.search(rf"^{name}:\s+(\d+) kB$", status, re.MULTILINE)
    return int(found[1]) / 1024 if found else 0.0


def peak_mib(folder: Path, *, tenants: int, is_rerun: bool) -> float:
    """Return the peak resident MiB of a new process that runs a shard of trivial cells."""
    spawn = multiprocessing.get_context("spawn")
    here, there = spawn.Pipe(duplex=False)
    process = spawn.Process(target=_run, args=(folder, tenants, is_rerun, there))
    process.start()
    there.close()
    mib: float = here.recv()
    process.join()
    return mib


def measure(folder: Path, *, scale: float, rounds: int) -> dict[str, Measurement]:
    """Measure the first run and the rerun of 1,000 and of 10,000 tenants."""
    sizes = {
        "few": _FEW,
        "1k": max(2 * _FEW, round(1_000 * scale)),
        "10k": max(4 * _FEW, round(10_000 * scale)),
    }
    with tempfile.TemporaryDirectory(dir=folder) as name:
        base = Path(name)
        states: dict[str, tempfile.TemporaryDirectory[str]] = {}

        def first_run(size: str) -> float:
            if size in states:
                states[size].cleanup()
            states[size] = tempfile.TemporaryDirectory(dir=base)
            return peak_mib(Path(states[size].name), tenants=sizes[size], is_rerun=False)

        def rerun(size: str) -> float:
            return peak_mib(Path(states[size].name), tenants=sizes[size], is_rerun=True)

        return {
            "memory_first_run": _compared("first run", first_run, sizes, rounds=rounds),
            "memory_rerun": _compared("rerun", rerun, sizes, rounds=rounds),
        }


def _compared(
    title: str, once: Callable[[str], float], sizes: Mapping[str, int], *, rounds: int
) -> Measurement:
    measured = compare(
        f"peak memory of a shard process, {title}",
        unit="MiB",
        floor=Contestant(title=f"{_FEW} tenants", once=functools.partial(once, "few")),
        subjects={
            size: Contestant(title=f"{sizes[size]:,} tenants", once=functools.partial(once, size))
            for size in ("1k", "10k")
        },
        rounds=rounds,
    )
    return _with_bytes_per_tenant(measured, sizes)


def _with_bytes_per_tenant(peak: Measurement, sizes: Mapping[str, int]) -> Measurement:
    """Add bytes per tenant, and per further tenant once caches and connections are warm."""
    mib = {"few": peak.floor.spread.rounds} | {
        size: subject.spread.rounds for size, subject in peak.subjects.items()
    }

    def between(small: str, large: str) -> Result:
        grown = [after - before for before, after in zip(mib[small], mib[large], strict=True)]
        tenants = sizes[large] - sizes[small]
        return Result(
            title=f"bytes per tenant, from {sizes[small]:,} to {sizes[large]:,}",
            spread=Spread([mib_grown * 2**20 / tenants for mib_grown in grown]),
            target=_BYTES_PER_TENANT,
        )

    return dataclasses.replace(
        peak,
        derived={
            "bytes_per_tenant_1k": between("few", "1k"),
            "bytes_per_tenant_10k": between("few", "10k"),
            "bytes_per_further_tenant": between("1k", "10k"),
        },
    )
