"""What the steps of a crash test leave behind, outside of everything that is tested.

Each step appends ``begin|end pid shard tenant step monotonic_ns`` to one file, with O_APPEND, and
holds a flock of its cell from before the first line to after the last. The kernel drops that flock
the moment the process is gone, so a step that finds it taken has met another live attempt of its
cell: it appends ``clash`` instead. The package under test takes part in none of this.
"""

import contextlib
import fcntl
import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tenant_pipelines import StepContext

# names the moment at which a command of a test has to die
DIES_AT = "CRASH_TEST_DIES_AT"

_NAME = "side.log"
_LONGEST_WAIT_SECONDS = 300.0


@contextlib.contextmanager
def noted(folder: Path, ctx: StepContext) -> Iterator[None]:
    """Note the begin and the end of a step; tenants' names hold no white space."""
    cells = folder / "cells"
    cells.mkdir(exist_ok=True)
    cell = os.open(cells / f"{ctx.tenant}.{ctx.step}", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(cell, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _append(folder, "clash", ctx)
            raise
        _append(folder, "begin", ctx)
        try:
            yield
        finally:
            _append(folder, "end", ctx)
    finally:
        os.close(cell)


def wait_for(path: Path) -> None:
    """Wait in a step until a file appears."""
    until = time.monotonic() + _LONGEST_WAIT_SECONDS
    while not path.exists():
        if time.monotonic() > until:
            raise TimeoutError(path.name)
        time.sleep(0.02)


def dies_at(moment: str) -> bool:
    """Tell whether this process was started to die at a moment; the test's own never is."""
    return os.environ.get(DIES_AT) == moment


def die_at(moment: str) -> None:
    """Kill the whole command, with all its processes at once, if this is its moment."""
    if dies_at(moment):
        os.killpg(os.getpgid(0), signal.SIGKILL)


def note_deaths(folder: Path) -> None:
    """Append ``dead pid`` for each process that is gone and left a step without its end."""
    for pid in {attempt.pid for attempt in attempts(folder) if attempt.ended_at_ns is None}:
        if not is_alive(pid):
            _write(folder, f"dead {pid} {time.monotonic_ns()}\n")


@dataclass(slots=True)
class Attempt:
    """One execution of a step; ``ended_at_ns`` is None while it runs, or when nobody knows."""

    pid: int
    shard: str
    tenant: str
    step: str
    began_at_ns: int
    ended_at_ns: int | None = None
    is_whole: bool = False


def attempts(folder: Path) -> list[Attempt]:
    """Return every attempt in the order in which they began.

    Raises:
        AssertionError: two attempts of one cell were alive at once.
    """
    found: list[Attempt] = []
    live: dict[tuple[str, str], Attempt] = {}
    path = folder / _NAME
    for line in path.read_text().splitlines() if path.exists() else []:
        word, number, *rest = line.split()
        pid = int(number)
        if word == "dead":
            for attempt in [attempt for attempt in live.values() if attempt.pid == pid]:
                attempt.ended_at_ns = int(rest[0])
                del live[attempt.tenant, attempt.step]
            continue
        shard, tenant, step, at_ns = rest
        assert word != "clash", f"{tenant}:{step} began in {pid} while another attempt was alive"
        if word == "begin":
            # the flock says that the one before is gone, whether or not its death was noted
            before = live.pop((tenant, step), None)
            assert before is None or before.pid != pid, f"{tenant}:{step} began twice in {pid}"
            if before is not None:
                before.ended_at_ns = int(at_ns)
            live[tenant, step] = Attempt(pid, shard, tenant, step, int(at_ns))
            found.append(live[tenant, step])
        else:
            ended = live.pop((tenant, step))
            assert ended.pid == pid, f"{tenant}:{step} ended in {pid}, but ran in {ended.pid}"
            ended.ended_at_ns, ended.is_whole = int(at_ns), True
    return found


def executions(folder: Path) -> Counter[tuple[str, str]]:
    """Return how often each (tenant, step) was executed to its end."""
    return Counter((one.tenant, one.step) for one in attempts(folder) if one.is_whole)


def peak(folder: Path, shard: str) -> int:
    """Return how many cells of a shard were alive at once at most, over all processes."""
    changes: list[tuple[int, int]] = []
    for one in attempts(folder):
        if one.shard == shard:
            changes.append((one.began_at_ns, 1))
            if one.ended_at_ns is not None:
                changes.append((one.ended_at_ns, -1))
    # at the same instant the end comes first
    most = alive = 0
    for _, change in sorted(changes):
        alive += change
        most = max(most, alive)
    return most


def is_alive(pid: int) -> bool:
    """Tell whether any thread of a process is left, which may still hold its files."""
    process = Path(f"/proc/{pid}")
    try:
        # proc_pid_stat(5): the state follows the name in parentheses
        state = (process / "stat").read_text().rpartition(") ")[2][0]
        # the first thread of a killed process is a zombie while others are still on their way out
        return state not in "ZX" or len(list((process / "task").iterdir())) > 1
    except (FileNotFoundError, ProcessLookupError):
        return False


def _append(folder: Path, word: str, ctx: StepContext) -> None:
    cell = f"{ctx.shard} {ctx.tenant} {ctx.step}"
    _write(folder, f"{word} {os.getpid()} {cell} {time.monotonic_ns()}\n")


def _write(folder: Path, line: str) -> None:
    file = os.open(folder / _NAME, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(file, line.encode())
    finally:
        os.close(file)
