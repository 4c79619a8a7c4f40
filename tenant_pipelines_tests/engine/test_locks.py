import errno
import fcntl
import os
import pickle
import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tenant_pipelines.engine.locks import ByteLocks
from tenant_pipelines.errors import LocksUnusable
from tenant_pipelines_tests.engine.lock_children import (
    TIMEOUT_SECONDS,
    Children,
    is_locked,
    tell,
    wait_for_parent,
)


def hold(path: str) -> None:
    locks = ByteLocks(Path(path))
    assert locks.try_lock(5)
    tell("held")
    wait_for_parent()


def hold_and_fork(path: str) -> None:
    locks = ByteLocks(Path(path))
    assert locks.try_lock(5)
    pid = os.fork()
    if pid == 0:
        with pytest.raises(LocksUnusable):
            locks.try_lock(6)
        # threads of the child may open locks of their own
        opener = threading.Thread(target=lambda: ByteLocks(Path(path)).close(), daemon=True)
        opener.start()
        opener.join(TIMEOUT_SECONDS)
        tell("hangs" if opener.is_alive() else os.getpid())
        signal.pause()
    signal.pause()


def hold_and_spawn(path: str) -> None:
    locks = ByteLocks(Path(path))
    assert locks.try_lock(5)
    code = "import os, signal; print(os.getpid(), flush=True); signal.pause()"
    with subprocess.Popen([sys.executable, "-c", code], close_fds=False):
        signal.pause()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "locks" / "some.lock"


def test_one_object_holds_a_byte_at_a_time(path: Path) -> None:
    """Two objects of one process exclude each other like two processes do."""
    ours, theirs = ByteLocks(path), ByteLocks(path)
    assert ours.try_lock(5)
    assert not theirs.try_lock(5)
    assert theirs.try_lock(6)
    ours.unlock(5)
    assert theirs.try_lock(5)
    ours.close()
    theirs.close()


def test_a_byte_is_seen_as_locked_by_others_only(path: Path) -> None:
    """Status asks for others; a range answers for any of its bytes."""
    ours, theirs = ByteLocks(path), ByteLocks(path)
    ours.lock(1 << 62)
    assert not ours.is_locked_elsewhere(1 << 62)
    assert theirs.is_locked_elsewhere(1 << 62)
    assert theirs.is_locked_elsewhere(0, 1 + (1 << 62))
    assert not theirs.is_locked_elsewhere(0, 1 << 62)
    ours.close()
    assert not theirs.is_locked_elsewhere(1 << 62)
    theirs.close()


def test_a_killed_process_keeps_no_lock(path: Path) -> None:
    """The reason for byte locks: nothing is left to clean after kill -9."""
    with Children() as children:
        child = children.start(hold, str(path))
        assert child.hear() == "held"
        locks = ByteLocks(path)
        assert not locks.try_lock(5)
        child.kill()
        assert locks.try_lock(5)
        locks.close()


def test_waiting_ends_when_the_holder_is_killed(path: Path) -> None:
    """A blocked waiter is woken by the kernel, not by a release that never comes."""
    with Children() as children:
        child = children.start(hold, str(path))
        assert child.hear() == "held"
        locks = ByteLocks(path)
        waiter = threading.Thread(target=locks.lock, args=(5,), daemon=True)
        waiter.start()
        child.kill()
        waiter.join(TIMEOUT_SECONDS)
        assert not waiter.is_alive()
        assert is_locked(path, 5)
        locks.close()


@pytest.mark.parametrize("holder", [hold_and_fork, hold_and_spawn])
def test_no_child_keeps_a_lock_of_its_parent(path: Path, holder: object) -> None:
    """A forked or spawned child that outlives its parent would hold the lock for ever."""
    assert callable(holder)
    with Children() as children:
        child = children.start(holder, str(path))
        orphan = int(child.hear())
        try:
            locks = ByteLocks(path)
            assert not locks.try_lock(5)
            child.kill()
            assert locks.try_lock(5)
            os.kill(orphan, 0)
            locks.close()
        finally:
            os.kill(orphan, signal.SIGKILL)


def test_a_query_creates_nothing(tmp_path: Path) -> None:
    """Status must work on a state folder that does not exist or may not be written."""
    path = tmp_path / "absent" / "some.lock"
    query = ByteLocks(path, query_only=True)
    assert not query.is_locked_elsewhere(5)
    assert list(tmp_path.iterdir()) == []
    locks = ByteLocks(path)
    assert locks.try_lock(5)
    assert query.is_locked_elsewhere(5)
    for asker in (query, ByteLocks(path, query_only=True)):
        with pytest.raises(LocksUnusable):
            asker.try_lock(6)
        asker.close()
    locks.close()


def test_the_file_is_private_and_stays(path: Path) -> None:
    """Unlinking a lock file lets a second holder in; other users have no business with it."""
    ByteLocks(path).close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_only_the_very_file_is_recognised(path: Path) -> None:
    """What is removed under a lock must be the file that the lock is on."""
    locks = ByteLocks(path)
    assert locks.is_file(path)
    path.rename(path.with_suffix(".old"))
    assert not locks.is_file(path)
    path.touch()
    assert not locks.is_file(path)
    locks.close()


def test_a_missing_file_is_made_only_when_wanted(path: Path) -> None:
    """Cleaning up must not make what it came to remove."""
    with pytest.raises(FileNotFoundError):
        ByteLocks(path, create=False)
    assert not path.parent.exists()


def test_a_closed_object_refuses(path: Path) -> None:
    """A late release must not reach whatever file took over the descriptor's number."""
    locks = ByteLocks(path)
    locks.close()
    locks.close()
    for use in (locks.try_lock, locks.lock, locks.unlock, locks.is_locked_elsewhere):
        with pytest.raises(LocksUnusable, match="closed"):
            use(5)


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    """The error says which file and what to do, and survives pickling."""
    (tmp_path / "file").touch()
    path = tmp_path / "file" / "some.lock"
    with pytest.raises(LocksUnusable) as caught:
        ByteLocks(path)
    assert str(path) in str(caught.value)
    assert "$TENANT_PIPELINES_STATE" in str(caught.value)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_a_kernel_that_refuses_locks_is_reported(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full lock table is not a lock that somebody else holds."""

    def refuse(*args: object) -> bytes:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "fcntl", refuse)
    with pytest.raises(LocksUnusable, match="No locks available"):
        ByteLocks(path)


def test_a_file_system_that_grants_every_lock_is_refused(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some mounts say yes to everybody: two processes would then work on one tenant."""

    def grant(file: object, command: int, request: bytes) -> bytes:
        return fcntl.F_UNLCK.to_bytes(2, sys.byteorder) + request[2:]

    monkeypatch.setattr(fcntl, "fcntl", grant)
    with pytest.raises(LocksUnusable, match="twice"):
        ByteLocks(path)
