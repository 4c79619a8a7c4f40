"""Run locks: which runs of this host died, told from those that only wait.

Guarantees: a run that lives is never called dead, and one that was killed is, however it was
killed. Leaves to others: what to do about a dead run, and runs of other hosts, which nobody here
can know dead.
"""

import contextlib
import json
import multiprocessing
import os
import secrets
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from tenant_pipelines.engine.locks import ByteLocks
from tenant_pipelines.errors import LocksUnusable
from tenant_pipelines.storage.files import sync_folder

_SUFFIX = ".lock"
# proc_pid_stat(5): Z is a zombie, X and x are dead
_GONE_STATES = frozenset("ZXx")
_GONE = -1
# pid_t has 31 bits
_PID_LIMIT = 1 << 31
_BEGIN_TRIES = 100
# clocks are stepped; a pid comes again after thousands of others
_CLOCK_STEP_SECONDS = 60


@dataclass(frozen=True, slots=True)
class DeadRun:
    """A run whose process is gone and none of whose parts runs.

    Attributes:
        run_id: Dagster's id of the run.
        parts: the parts that were running when it died, in alphabetical order.
    """

    run_id: str
    parts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _RunProcess:
    """The process of a run, as its lock files name it; a newer package must keep these fields."""

    host: str
    boot_id: str
    pid: int
    started_at_ticks: int

    def is_gone(self) -> bool:
        if self.host != os.uname().nodename:
            return False
        return self.boot_id != _boot_id() or _ticks(self.pid) not in {self.started_at_ticks, None}


@contextlib.contextmanager
def hold_run_lock(state: Path, run_id: str, part: str) -> Iterator[None]:
    """Hold the run lock of one part of a run while the part runs.

    The file is complete, durable and locked before it gets its name. Leaving the block removes it;
    an exception or a crash leaves it behind, unlocked, for ``dead_runs`` to find and ``forget`` to
    remove: what the part did not tell Dagster, the shard's next run does. A crash before it has its
    name leaves a ``.tmp`` file, or nothing in the run's folder: no run is found dead by them, and
    ``sweep`` removes them. It excludes nobody: leases do.

    Args:
        state: the fleet's state folder.
        run_id: Dagster's id of the run.
        part: a shard's name, or what else of a run has a process of its own.

    Yields:
        Nothing.

    Raises:
        ValueError: ``run_id`` or ``part`` cannot be a file name; nothing was written.
        LocksUnusable: the lock cannot be made in the state folder.
    """
    path = _path(state, run_id, part)
    owner = os.getpid()
    try:
        locks = _publish(path)
    except OSError as error:
        raise LocksUnusable(
            path=path,
            found=f"the run lock cannot be written: {error.strerror}",
            fix="Let this user write the state folder, or set $TENANT_PIPELINES_STATE to another",
        ) from error
    try:
        yield
    except BaseException:
        if os.getpid() == owner:
            locks.close()
        raise
    # a forked child that unwinds through here must leave its parent's lock alone
    if os.getpid() == owner:
        _remove(path, locks)
        locks.close()
        _remove_folder(path.parent)


def dead_runs(state: Path) -> list[DeadRun]:
    """Return the runs of this host that died, writing nothing.

    A run is dead when none of its locks is held and its process is gone: not found, a zombie,
    replaced by another process with its pid, or of another boot. A file that another host wrote,
    or that cannot be read for want of rights or because of the disk, counts as alive. Files are
    never half-written, so an unlocked one whose content is not a run lock's was damaged after its
    part had begun: it counts as gone, and the run's other files decide.

    Args:
        state: the fleet's state folder; it need not exist.

    Returns:
        The dead runs in the order of their ids.

    Raises:
        LocksUnusable: the folder cannot be listed, or a file not asked for its lock.
    """
    runs = state / "runs"
    try:
        folders = sorted(runs.iterdir())
    except FileNotFoundError:
        return []
    except OSError as error:
        raise LocksUnusable(
            path=runs,
            found=f"the run locks cannot be listed: {error.strerror}",
            fix="Let this user read the state folder",
        ) from error
    found = [DeadRun(folder.name, _dead_parts(folder)) for folder in folders]
    return [run for run in found if run.parts]


def live_parts(state: Path) -> frozenset[tuple[str, str]]:
    """Return the (run id, part) that are at work or may be, writing nothing.

    A file of another host counts, also of one that is gone for good: ask whether its run has ended.

    Args:
        state: the fleet's state folder; it need not exist.

    Raises:
        LocksUnusable: a file cannot be asked for its lock.
    """
    return frozenset(
        (folder.name, path.stem)
        for folder in _listed(state / "runs")
        for path in _listed(folder)
        if path.suffix == _SUFFIX and not _is_unlocked_and_gone(path)
    )


def forget(state: Path, run_id: str, part: str) -> bool:
    """Remove what a dead run left of one part, and its folder with the last part.

    Args:
        state: the fleet's state folder.
        run_id: the run's id.
        part: one of its parts.

    Returns:
        Whether the part's file was removed; False when it is gone already, or its part runs.

    Raises:
        ValueError: ``run_id`` or ``part`` cannot be a file name.
        LocksUnusable: the file cannot be locked.
    """
    path = _path(state, run_id, part)
    is_removed = _remove_unlocked(path)
    _remove_folder(path.parent)
    return is_removed


def sweep(state: Path) -> None:
    """Remove what crashes left of run locks before those had their names.

    A part that is just beginning and loses its draft or its folder to this makes them again.

    Args:
        state: the fleet's state folder; it need not exist.

    Raises:
        LocksUnusable: a file cannot be locked.
    """
    for folder in _listed(state / "runs"):
        for path in _listed(folder):
            if path.suffix == ".tmp":
                _remove_unlocked(path)
        _remove_folder(folder)


def process_is_gone(*, pid: int, seen_at: float) -> bool:
    """Tell whether a process of this host has ended of which only the pid is known.

    Args:
        pid: its pid.
        seen_at: when it was alive, in seconds since the epoch.

    Returns:
        False when it may live: the pid is in use, and not by a process that is clearly younger.
    """
    ticks = _ticks(pid)
    if ticks is None or ticks == _GONE:
        return ticks == _GONE
    # proc_pid_stat(5): the start is counted from the boot, suspended time included
    booted_at = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    started_at = booted_at + ticks / os.sysconf("SC_CLK_TCK")
    return started_at > seen_at + _CLOCK_STEP_SECONDS


def _path(state: Path, run_id: str, part: str) -> Path:
    for name in (run_id, part):
        if not name or name.startswith(".") or "/" in name or "\0" in name:
            raise ValueError(f"{name!r} cannot be a part of a run lock's file name")
    return state / "runs" / run_id / f"{part}{_SUFFIX}"


def _publish(path: Path) -> ByteLocks:
    """Make the file; another part that ends may remove the run's folder under our feet."""
    for _ in range(_BEGIN_TRIES - 1):
        with contextlib.suppress(FileNotFoundError, FileExistsError):
            return _try_publish(path)
    return _try_publish(path)


def _try_publish(path: Path) -> ByteLocks:
    """Write, lock and only then name the file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.parent / f".{path.name}.{secrets.token_hex(8)}.tmp"
    content = json.dumps(asdict(_this_run())).encode()
    with draft.open("xb") as file:
        locks = ByteLocks(draft, create=False)
        try:
            locks.lock(0)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
            draft.rename(path)
            for folder in path.parents[:3]:
                sync_folder(folder)
        except BaseException:
            draft.unlink(missing_ok=True)
            locks.close()
            raise
    return locks


def _this_run() -> _RunProcess:
    """Name the run's process: Dagster's multiprocess executor makes a step's process its child."""
    parent = multiprocessing.parent_process()
    pid = os.getpid() if parent is None or parent.pid is None else parent.pid
    # a parent that died already, or is hidden, has no start that a process could match
    ticks = max(_ticks(pid) or 0, 0)
    return _RunProcess(
        host=os.uname().nodename, boot_id=_boot_id(), pid=pid, started_at_ticks=ticks
    )


def _dead_parts(folder: Path) -> tuple[str, ...]:
    """Return the parts of a dead run's folder; none when the run lives, ended or only begins."""
    paths = [path for path in _listed(folder) if path.suffix == _SUFFIX]
    if not all(_is_unlocked_and_gone(path) for path in paths):
        return ()
    # a part that ends removes its file before it unlocks it: what is still here did not end
    return tuple(path.stem for path in paths if path.exists())


def _listed(folder: Path) -> list[Path]:
    """Return what is in a folder, in order; nothing when it is gone or none."""
    try:
        return sorted(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []


def _is_unlocked_and_gone(path: Path) -> bool:
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    process = _parse(content)
    if process is not None and not process.is_gone():
        return False
    locks = ByteLocks(path, query_only=True)
    try:
        return not locks.is_locked_elsewhere(0)
    finally:
        locks.close()


def _parse(content: bytes) -> _RunProcess | None:
    """Return what a lock file says, or None when it is damaged."""
    try:
        match json.loads(content):
            case {
                "host": str(host),
                "boot_id": str(boot_id),
                "pid": int(pid),
                "started_at_ticks": int(ticks),
            } if 0 < pid < _PID_LIMIT:
                return _RunProcess(host, boot_id, pid, ticks)
    except (ValueError, RecursionError):
        pass
    return None


def _remove_unlocked(path: Path) -> bool:
    """Remove a file whose part does not run."""
    try:
        locks = ByteLocks(path, create=False)
    except FileNotFoundError:
        return False
    try:
        return locks.try_lock(0) and _remove(path, locks)
    finally:
        locks.close()


def _remove(path: Path, locks: ByteLocks) -> bool:
    """Remove a file while its lock is held, unless its name has passed to another file."""
    if not locks.is_file(path):
        return False
    path.unlink()
    return True


def _remove_folder(folder: Path) -> None:
    """Remove a run's folder unless it is gone or another part of the run is in it."""
    with contextlib.suppress(OSError):
        folder.rmdir()


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def _ticks(pid: int) -> int | None:
    """Return a process's start in clock ticks since the boot, -1 if it is gone, None if hidden."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return None if _exists(pid) else _GONE
    except OSError:
        return None
    # proc_pid_stat(5): the name, in parentheses, may hold anything; state is field 3, start 22
    fields = stat[stat.rindex(b")") + 2 :].decode("ascii").split()
    return _GONE if fields[0] in _GONE_STATES else int(fields[19])


def _exists(pid: int) -> bool:
    """Tell whether a pid is in use: /proc mounted with hidepid hides other users' processes."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
