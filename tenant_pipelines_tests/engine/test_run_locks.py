import json
import multiprocessing
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tenant_pipelines.engine.locks import ByteLocks
from tenant_pipelines.engine.run_locks import (
    DeadRun,
    dead_runs,
    forget,
    hold_run_lock,
    process_is_gone,
    sweep,
)
from tenant_pipelines.errors import LocksUnusable
from tenant_pipelines_tests.engine.lock_children import (
    TIMEOUT_SECONDS,
    Child,
    Children,
    is_locked,
    tell,
    until,
    wait_for_parent,
)


def hold(state: str, run_id: str, part: str) -> None:
    with hold_run_lock(Path(state), run_id, part):
        tell(os.getpid())
        wait_for_parent()


def hold_until_killed(state: str, run_id: str, part: str) -> None:
    with hold_run_lock(Path(state), run_id, part):
        tell(os.getpid())
        signal.pause()


def run_one_shard(state: str, run_id: str) -> None:
    """Be a run's process, with a shard in a process of its own as Dagster's executor has it."""
    shard = multiprocessing.get_context("spawn").Process(
        target=hold_until_killed, args=(state, run_id, "shard_1")
    )
    shard.start()
    shard.join()
    tell("the shard's process is gone")
    signal.pause()


def fork_and_unwind(state: str) -> None:
    with hold_run_lock(Path(state), "run-1", "shard_1"):
        pid = os.fork()
        if pid == 0:
            return
        tell(os.waitpid(pid, 0)[1])
        signal.pause()


def process_facts(pid: int) -> dict[str, Any]:
    """Return what a lock file says of a process, read independently of the code under test."""
    stat = Path(f"/proc/{pid}/stat").read_text()
    return {
        "host": os.uname().nodename,
        "boot_id": Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
        "pid": pid,
        "started_at_ticks": int(stat.rpartition(")")[2].split()[19]),
    }


def leave(state: Path, content: bytes | dict[str, Any], part: str = "shard_1") -> Path:
    """Leave a lock file behind that nobody holds."""
    path = state / "runs" / "run-1" / f"{part}.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return path


def kill_without_reaping(child: Child) -> None:
    child.process.send_signal(signal.SIGKILL)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)


DEAD = [DeadRun("run-1", ("shard_1",))]


def test_a_part_that_runs_names_the_process_of_its_run(tmp_path: Path) -> None:
    """Whoever finds the file later must recognise the process, not just its pid."""
    with hold_run_lock(tmp_path, "run-1", "shard_1"):
        files = list((tmp_path / "runs").rglob("*.*"))
        assert [file.name for file in files] == ["shard_1.lock"]
        assert json.loads(files[0].read_bytes()) == process_facts(os.getpid())
        assert is_locked(files[0])
        assert dead_runs(tmp_path) == []


@pytest.mark.parametrize("error", [KeyError, KeyboardInterrupt])
def test_a_part_that_was_interrupted_leaves_its_file_unlocked(
    tmp_path: Path, error: type[BaseException]
) -> None:
    """What it did not tell Dagster is told by the shard's next run, which looks for the file."""
    with pytest.raises(error), hold_run_lock(tmp_path, "run-1", "shard_1"):
        raise error
    with hold_run_lock(tmp_path, "run-1", "shard_1"):
        assert dead_runs(tmp_path) == []
    assert list((tmp_path / "runs").iterdir()) == []


def test_a_part_that_ended_leaves_nothing(tmp_path: Path) -> None:
    """A part that told Dagster everything needs no trace."""
    with hold_run_lock(tmp_path, "run-1", "shard_1"), hold_run_lock(tmp_path, "run-1", "shard_2"):
        pass
    assert list((tmp_path / "runs").iterdir()) == []


def test_a_killed_run_is_dead_at_once(tmp_path: Path) -> None:
    """Dagster leaves it STARTED for ever; we know better."""
    with Children() as children:
        one = children.start(hold, str(tmp_path), "run-1", "shard_1")
        two = children.start(hold, str(tmp_path), "run-2", "shard_1")
        assert [one.hear(), two.hear()] == [str(one.pid), str(two.pid)]
        assert dead_runs(tmp_path) == []
        one.kill()
        assert dead_runs(tmp_path) == DEAD
        assert two.end() == 0
        assert dead_runs(tmp_path) == DEAD


def test_a_zombie_is_dead(tmp_path: Path) -> None:
    """A container without an init keeps killed processes as zombies for ever."""
    with Children() as children:
        child = children.start(hold, str(tmp_path), "run-1", "shard_1")
        child.hear()
        kill_without_reaping(child)
        assert Path(f"/proc/{child.pid}/stat").exists()
        assert dead_runs(tmp_path) == DEAD


def test_a_run_between_two_shards_is_alive(tmp_path: Path) -> None:
    """No lock is held, yet the run's process goes on and starts the next shard."""
    with Children() as children:
        run = children.start(run_one_shard, str(tmp_path), "run-1")
        shard_pid = int(run.hear())
        facts = json.loads((tmp_path / "runs" / "run-1" / "shard_1.lock").read_bytes())
        assert facts == process_facts(run.pid)
        os.kill(shard_pid, signal.SIGKILL)
        assert run.hear() == "the shard's process is gone"
        assert dead_runs(tmp_path) == []
        run.kill()
        assert dead_runs(tmp_path) == DEAD


def test_an_orphaned_shard_keeps_its_run_alive(tmp_path: Path) -> None:
    """What a killed run left running still writes: nothing may be repaired under it."""
    with Children() as children:
        run = children.start(run_one_shard, str(tmp_path), "run-1")
        shard_pid = int(run.hear())
        try:
            run.kill()
            assert dead_runs(tmp_path) == []
            assert not forget(tmp_path, "run-1", "shard_1")
        finally:
            os.kill(shard_pid, signal.SIGKILL)
        until(lambda: dead_runs(tmp_path) == DEAD)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, []),
        ({"started_at_ticks": 1}, DEAD),
        ({"started_at_ticks": 0}, DEAD),
        ({"boot_id": "another"}, DEAD),
        ({"host": "another"}, []),
        ({"host": "another", "boot_id": "another", "pid": 2**31 - 1}, []),
        ({"pid": 2**31 - 1}, DEAD),
        ({"more": "of a newer package"}, []),
    ],
)
def test_a_process_is_known_by_host_boot_and_start(
    tmp_path: Path, change: dict[str, Any], expected: list[DeadRun]
) -> None:
    """Pids come again; another host's processes cannot be seen from here."""
    path = leave(tmp_path, process_facts(os.getpid()) | change)
    assert dead_runs(tmp_path) == expected
    assert path.exists()


DAMAGED = [b"", b"{", b"[]", b"\xff\0", b"[" * 100_000, b'{"host": "x"}', b'{"pid": -1}']


@pytest.mark.parametrize("content", DAMAGED)
def test_a_damaged_file_counts_by_its_lock_and_its_neighbours(
    tmp_path: Path, content: bytes
) -> None:
    """Damage must neither hide a dead run for ever nor kill a live one."""
    path = leave(tmp_path, content)
    assert dead_runs(tmp_path) == DEAD
    holder = ByteLocks(path)
    assert holder.try_lock(0)
    assert dead_runs(tmp_path) == []
    holder.close()
    leave(tmp_path, process_facts(os.getpid()), part="shard_2")
    assert dead_runs(tmp_path) == []
    assert forget(tmp_path, "run-1", "shard_1")


def test_one_living_part_keeps_all_parts_of_a_run(tmp_path: Path) -> None:
    """A run is dead as a whole or not at all."""
    with Children() as children:
        one, two = (
            children.start(hold, str(tmp_path), "run-1", part) for part in ("shard_1", "_open")
        )
        one.hear()
        two.hear()
        one.kill()
        assert dead_runs(tmp_path) == []
        two.kill()
        assert dead_runs(tmp_path) == [DeadRun("run-1", ("_open", "shard_1"))]


def test_a_run_that_begins_is_not_dead(tmp_path: Path) -> None:
    """Its folder is empty for an instant, then has a file that is not its lock yet."""
    assert dead_runs(tmp_path / "absent") == []
    assert not (tmp_path / "absent").exists()
    folder = tmp_path / "runs" / "run-1"
    folder.mkdir(parents=True)
    (tmp_path / "runs" / "stray").touch()
    assert dead_runs(tmp_path) == []
    (folder / ".shard_1.lock.0123.tmp").touch()
    assert dead_runs(tmp_path) == []


def test_a_dead_part_is_forgotten_once(tmp_path: Path) -> None:
    """Two repairers may meet; the last part takes the folder with it."""
    gone = process_facts(os.getpid()) | {"started_at_ticks": 1}
    for part in ("shard_1", "shard_2"):
        leave(tmp_path, gone, part)
    assert forget(tmp_path, "run-1", "shard_1")
    assert not forget(tmp_path, "run-1", "shard_1")
    assert dead_runs(tmp_path) == [DeadRun("run-1", ("shard_2",))]
    assert forget(tmp_path, "run-1", "shard_2")
    assert list((tmp_path / "runs").iterdir()) == []
    assert not forget(tmp_path, "run-1", "shard_2")
    assert list((tmp_path / "runs").iterdir()) == []


def test_what_a_crash_left_before_a_lock_had_its_name_is_swept(tmp_path: Path) -> None:
    """No run is found dead by it, so nothing else would ever remove it."""
    sweep(tmp_path)
    with hold_run_lock(tmp_path, "run-1", "shard_1"):
        (tmp_path / "runs" / "run-1" / ".shard_2.lock.0123.tmp").touch()
        (tmp_path / "runs" / "run-2").mkdir()
        (tmp_path / "runs" / "run-2" / ".shard_1.lock.4567.tmp").touch()
        (tmp_path / "runs" / "run-3").mkdir()
        sweep(tmp_path)
        left = [path.relative_to(tmp_path / "runs") for path in (tmp_path / "runs").rglob("*")]
        assert sorted(map(str, left)) == ["run-1", "run-1/shard_1.lock"]
    assert list((tmp_path / "runs").iterdir()) == []


def test_a_part_that_begins_survives_sweeps(tmp_path: Path) -> None:
    """A sweep that comes at any instant of its beginning costs it another try."""
    is_over = threading.Event()

    def sweeps() -> None:
        while not is_over.is_set():
            sweep(tmp_path)

    sweeper = threading.Thread(target=sweeps)
    sweeper.start()
    try:
        for number in range(100):
            with hold_run_lock(tmp_path, f"run-{number}", "shard_1"):
                assert is_locked(tmp_path / "runs" / f"run-{number}" / "shard_1.lock")
    finally:
        is_over.set()
        sweeper.join()


def test_a_part_that_runs_is_not_forgotten(tmp_path: Path) -> None:
    """A wrong id given to forget does no harm."""
    with hold_run_lock(tmp_path, "run-1", "shard_1"):
        assert not forget(tmp_path, "run-1", "shard_1")
        assert (tmp_path / "runs" / "run-1" / "shard_1.lock").exists()


def test_a_successor_under_the_same_name_keeps_its_file(tmp_path: Path) -> None:
    """A part begun again while an orphan of it ends: the orphan removes its own file only."""
    first = hold_run_lock(tmp_path, "run-1", "shard_1")
    with first:
        second = hold_run_lock(tmp_path, "run-1", "shard_1")
        second.__enter__()
    path = tmp_path / "runs" / "run-1" / "shard_1.lock"
    assert is_locked(path)
    second.__exit__(None, None, None)
    assert not path.exists()


def test_parts_begin_while_others_remove_the_folder(tmp_path: Path) -> None:
    """The last part that ends removes the folder under the first file of the next."""
    barrier = threading.Barrier(3)
    rounds: list[str] = []

    def begin_and_end(part: str) -> None:
        barrier.wait(TIMEOUT_SECONDS)
        for _ in range(50):
            with hold_run_lock(tmp_path, "run-1", part):
                assert dead_runs(tmp_path) == []
            rounds.append(part)

    threads = [threading.Thread(target=begin_and_end, args=(f"shard_{n}",)) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT_SECONDS)
    assert len(rounds) == 150


def test_a_forked_child_that_unwinds_leaves_the_lock(tmp_path: Path) -> None:
    """The child runs the parent's exit code on its way out."""
    with Children() as children:
        child = children.start(fork_and_unwind, str(tmp_path))
        assert child.hear() == "0"
        path = tmp_path / "runs" / "run-1" / "shard_1.lock"
        assert is_locked(path)
        child.kill()
        assert dead_runs(tmp_path) == DEAD


def test_a_pid_alone_tells_only_what_is_certain(tmp_path: Path) -> None:
    """Before its first lock a run is known by its pid only, which may have passed to another."""
    with Children() as children:
        child = children.start(hold, str(tmp_path), "run-1", "shard_1")
        child.hear()
        now = time.time()
        assert not process_is_gone(pid=child.pid, seen_at=now)
        assert process_is_gone(pid=child.pid, seen_at=now - 3600)
        kill_without_reaping(child)
        assert process_is_gone(pid=child.pid, seen_at=now)
        child.kill()
        assert process_is_gone(pid=child.pid, seen_at=now)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", ".hidden", "a\0b"])
def test_names_that_leave_the_folder_are_refused(tmp_path: Path, name: str) -> None:
    """Nothing is written for them."""
    for run_id, part in ((name, "shard_1"), ("run-1", name)):
        with pytest.raises(ValueError, match="file name"), hold_run_lock(tmp_path, run_id, part):
            pass
    assert list(tmp_path.iterdir()) == []


def test_a_state_folder_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    """One clear error for whoever starts the run."""
    state = tmp_path / "file"
    state.touch()
    with pytest.raises(LocksUnusable, match="Not a directory"):
        dead_runs(state)
    with pytest.raises(LocksUnusable, match=r"file/runs/run-1/shard_1\.lock"):
        hold_run_lock(state, "run-1", "shard_1").__enter__()
