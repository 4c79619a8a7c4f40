import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tenant_pipelines.engine.slots import Slots
from tenant_pipelines.errors import LocksUnusable
from tenant_pipelines_tests.engine.lock_children import (
    TIMEOUT_SECONDS,
    Children,
    tell,
    until,
    wait_for_parent,
)


def never() -> bool:
    return False


def run_cells(
    folder: str, log: str, max_concurrent: int, threads: int, longest_seconds: float
) -> None:
    """Take slots for cells that write their begin and end, until the parent says stop."""
    slots = Slots(Path(folder), max_concurrent)
    file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    stop = threading.Event()
    is_working = threading.Event()

    def cells(number: int) -> None:
        while (slot := slots.take(stop.is_set)) is not None:
            os.write(file, f"begin {os.getpid()} {number}\n".encode())
            is_working.set()
            time.sleep(random.uniform(0, longest_seconds))
            os.write(file, f"end {os.getpid()} {number}\n".encode())
            slots.give_back(slot)

    workers = [threading.Thread(target=cells, args=(n,), daemon=True) for n in range(threads)]
    for worker in workers:
        worker.start()
    assert is_working.wait(TIMEOUT_SECONDS)
    tell("working")
    wait_for_parent()
    stop.set()
    for worker in workers:
        worker.join(TIMEOUT_SECONDS)
        assert not worker.is_alive()


def hold(folder: str) -> None:
    slots = Slots(Path(folder), 1)
    tell(slots.take(never))
    wait_for_parent()


def wait_in_line(folder: str) -> None:
    slots = Slots(Path(folder), 1)
    asked = 0

    def should_stop() -> bool:
        nonlocal asked
        asked += 1
        # asked before the line, and the second time in it
        if asked == 2:
            tell("waiting")
        return False

    slots.take(should_stop)


def use_after_fork(folder: str) -> None:
    slots = Slots(Path(folder), 1)
    slot = slots.take(never)
    assert slot == 0
    # what another thread may hold at the instant of the fork
    with slots._mutex:
        pid = os.fork()
        if pid == 0:
            uses: list[Callable[[], object]] = [
                lambda: slots.take(never),
                lambda: slots.give_back(0),
            ]
            for use in uses:
                try:
                    use()
                except LocksUnusable:
                    tell("refused")
            os._exit(0)
    os.waitpid(pid, 0)
    slots.give_back(slot)
    tell("still the parent's")


class Waiter:
    """A thread that takes one slot, started once it waits or has it."""

    def __init__(self, slots: Slots, should_stop: Callable[[], bool] = never) -> None:
        self.slots = slots
        self.taken: list[int | None] = []
        self._asked = 0
        self._should_stop = should_stop
        self._thread = threading.Thread(target=self._take, daemon=True)
        is_first_here = not slots._waiters
        before = len(slots._waiters)
        self._thread.start()
        if is_first_here:
            # asked before the line, and the second time in it
            until(lambda: self._asked > 1 or bool(self.taken))
        else:
            until(lambda: len(slots._waiters) > before)

    def _take(self) -> None:
        self.taken.append(self.slots.take(self._count))

    def _count(self) -> bool:
        self._asked += 1
        return self._should_stop()

    def result(self) -> int | None:
        self._thread.join(TIMEOUT_SECONDS)
        assert self.taken, "the waiter still waits"
        return self.taken[0]


def most_at_once(lines: list[str]) -> int:
    """Return the most cells at once; those of a process end when it is about to be killed."""
    running: set[tuple[str, str]] = set()
    killed: set[str] = set()
    most = 0
    for line in lines:
        word, pid, thread = line.split()
        if word == "kill":
            killed.add(pid)
            running = {cell for cell in running if cell[0] != pid}
        elif pid not in killed:
            (running.add if word == "begin" else running.remove)((pid, thread))
            most = max(most, len(running))
    return most


@pytest.mark.slow
def test_the_sum_over_all_processes_is_exact_while_they_are_killed(tmp_path: Path) -> None:
    """Invariant 8: never more than the limit, all of it while work waits, whoever dies when."""
    log = tmp_path / "log"
    kills = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    arguments = (str(tmp_path), str(log), 3, 4, 0.006)
    chance = random.Random(8)
    with Children() as children:
        alive = [children.start(run_cells, *arguments) for _ in range(4)]
        for _ in range(12):
            victim = alive.pop(chance.randrange(4))
            assert victim.hear() == "working"
            os.write(kills, f"kill {victim.pid} -\n".encode())
            victim.kill()
            alive.append(children.start(run_cells, *arguments))
        for child in alive:
            assert child.hear() == "working"
        assert [child.end() for child in alive] == [0, 0, 0, 0]
    os.close(kills)
    lines = log.read_text().splitlines()
    assert most_at_once(lines) == 3
    assert len({line.split()[1] for line in lines if line.startswith("begin")}) == 16
    query = Slots(tmp_path, 3, query_only=True)
    assert query.held() == []
    query.close()


@pytest.mark.slow
def test_processes_that_always_have_work_share_evenly(tmp_path: Path) -> None:
    """A process that releases must not take its own slot again while another one waits."""
    log = tmp_path / "log"
    with Children() as children:
        both = [
            children.start(run_cells, str(tmp_path), str(log), 1, threads, 0.002)
            for threads in (1, 4)
        ]
        for child in both:
            assert child.hear() == "working"
        skipped = len(log.read_text().splitlines())
        until(lambda: len(log.read_text().splitlines()) > skipped + 400)
        lines = log.read_text().splitlines()[skipped : skipped + 400]
        assert [child.end() for child in both] == [0, 0]
    begun = Counter(line.split()[1] for line in lines if line.startswith("begin"))
    assert min(begun[str(child.pid)] for child in both) >= sum(begun.values()) / 4


def test_threads_get_slots_in_the_order_of_their_arrival(tmp_path: Path) -> None:
    """A chain that came first is served first, within one process."""
    slots = Slots(tmp_path, 1)
    assert slots.take(never) == 0
    waiters = [Waiter(slots) for _ in range(5)]
    for number, waiter in enumerate(waiters):
        slots.give_back(0)
        assert waiter.result() == 0
        assert [bool(other.taken) for other in waiters] == [n <= number for n in range(5)]
    slots.close()


def test_processes_get_slots_in_the_order_of_their_arrival(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Objects stand in the line like processes: each has a descriptor of its own."""
    monkeypatch.setattr("tenant_pipelines.engine.slots._PATIENCE_SECONDS", TIMEOUT_SECONDS)
    owners = [Slots(tmp_path, 1) for _ in range(4)]
    assert owners[0].take(never) == 0
    waiters = [Waiter(owner) for owner in owners[1:]]
    for number, waiter in enumerate(waiters):
        owners[number].give_back(0)
        assert waiter.result() == 0
        assert [bool(other.taken) for other in waiters] == [n <= number for n in range(3)]
    for owner in owners:
        owner.close()


def test_nobody_takes_a_slot_past_those_who_wait(tmp_path: Path) -> None:
    """Even a free slot is not for a newcomer while somebody stands in the line."""
    low, high, newcomer = Slots(tmp_path, 1), Slots(tmp_path, 1), Slots(tmp_path, 2)
    assert low.take(never) == 0
    waiter = Waiter(high)
    assert newcomer.try_take() is None
    assert high.try_take() is None
    low.give_back(0)
    assert waiter.result() == 0
    for slots in (low, high, newcomer):
        slots.close()


def test_a_stop_ends_every_wait(tmp_path: Path) -> None:
    """On termination nothing new starts, wherever a chain waits: queue, line or its head."""
    ours, others = Slots(tmp_path, 1), Slots(tmp_path, 1)
    assert ours.take(never) == 0
    stop = threading.Event()
    waiters = [Waiter(slots, stop.is_set) for slots in (ours, ours, ours, others, others)]
    stop.set()
    assert [waiter.result() for waiter in waiters] == [None] * 5
    ours.give_back(0)
    assert others.try_take() == 0
    for slots in (ours, others):
        slots.close()


def test_a_stop_of_one_waiter_leaves_the_others(tmp_path: Path) -> None:
    """A cancelled chain leaves the middle of its process's queue at once."""
    slots = Slots(tmp_path, 1)
    assert slots.take(never) == 0
    stop = threading.Event()
    first, second, third = Waiter(slots), Waiter(slots, stop.is_set), Waiter(slots)
    stop.set()
    assert second.result() is None
    for waiter in (first, third):
        slots.give_back(0)
        assert waiter.result() == 0
    slots.close()


def test_a_wait_that_fails_leaves_the_line(tmp_path: Path) -> None:
    """An exception in one waiter must not keep the others waiting."""
    slots, others = Slots(tmp_path, 1), Slots(tmp_path, 1)
    assert slots.take(never) == 0
    asked: list[int] = []

    def interrupted() -> bool:
        asked.append(1)
        if len(asked) > 3:
            raise InterruptedError
        return False

    with pytest.raises(InterruptedError):
        others.take(interrupted)
    slots.give_back(0)
    assert others.try_take() == 0
    for each in (slots, others):
        each.close()


def test_a_killed_holder_frees_its_slot(tmp_path: Path) -> None:
    """Nobody releases for a dead process; the waiter finds the slot free."""
    with Children() as children:
        child = children.start(hold, str(tmp_path))
        assert child.hear() == "0"
        slots = Slots(tmp_path, 1)
        waiter = Waiter(slots)
        assert not waiter.taken
        child.kill()
        assert waiter.result() == 0
        slots.close()


@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGSTOP])
def test_a_dead_or_stopped_process_does_not_hold_up_the_line(
    tmp_path: Path, sign: signal.Signals
) -> None:
    """A process that is first in the line and never comes for its slot is passed over."""
    with Children() as children:
        slots, others = Slots(tmp_path, 1), Slots(tmp_path, 1)
        assert slots.take(never) == 0
        child = children.start(wait_in_line, str(tmp_path))
        assert child.hear() == "waiting"
        waiter = Waiter(others)
        child.process.send_signal(sign)
        if sign == signal.SIGSTOP:
            os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WNOWAIT)
        slots.give_back(0)
        assert waiter.result() == 0
        slots.close()
        others.close()


def test_each_process_uses_the_slots_below_its_own_limit(tmp_path: Path) -> None:
    """A limit changed while a run goes on holds for whoever knows it."""
    small, large = Slots(tmp_path, 2), Slots(tmp_path, 4)
    assert [large.try_take() for _ in range(5)] == [3, 2, 1, 0, None]
    assert small.try_take() is None
    large.give_back(3)
    assert small.try_take() is None
    large.give_back(1)
    assert small.try_take() == 1
    assert large.held() == [0, 1, 2]
    assert small.held() == [0, 1]
    small.close()
    large.close()


def test_a_lower_limit_in_the_line_does_not_waste_higher_slots(tmp_path: Path) -> None:
    """The first in the line cannot use slot 1; the second, who can, gets it."""
    small, large = Slots(tmp_path, 1), Slots(tmp_path, 2)
    assert [large.take(never), large.take(never)] == [1, 0]
    first = Waiter(small)
    second = Waiter(large)
    large.give_back(1)
    assert second.result() == 1
    assert not first.taken
    large.give_back(0)
    assert first.result() == 0
    small.close()
    large.close()


def test_a_slot_is_given_back_once(tmp_path: Path) -> None:
    """A second release would free the slot that another thread has taken meanwhile."""
    slots = Slots(tmp_path, 2)
    slot = slots.take(never)
    assert slot is not None
    slots.give_back(slot)
    for wrong in (slot, 0, 7):
        with pytest.raises(ValueError, match=str(wrong)):
            slots.give_back(wrong)
    slots.close()


def test_slots_work_without_pipes(tmp_path: Path) -> None:
    """Some mounts have locks and no pipes: waiting is then a poll, and no busy one."""
    (tmp_path / "slots.freed").touch()
    slots, others = Slots(tmp_path, 1), Slots(tmp_path, 1)
    assert slots.take(never) == 0
    waiter = Waiter(others)
    slots.give_back(0)
    assert waiter.result() == 0
    assert (tmp_path / "slots.freed").stat().st_size == 0
    slots.close()
    others.close()


def test_a_query_creates_and_takes_nothing(tmp_path: Path) -> None:
    """Status must work on a state folder that does not exist or may not be written."""
    query = Slots(tmp_path / "absent", 2, query_only=True)
    assert query.held() == []
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(LocksUnusable):
        query.try_take()
    query.close()


def test_a_limit_below_one_is_refused(tmp_path: Path) -> None:
    """Nobody could ever take a slot."""
    with pytest.raises(ValueError, match="at least 1"):
        Slots(tmp_path / "absent", 0)
    assert list(tmp_path.iterdir()) == []


def test_a_forked_child_is_refused_and_does_not_hang(tmp_path: Path) -> None:
    """The child has a copy of a mutex that nobody will ever release."""
    with Children() as children:
        child = children.start(use_after_fork, str(tmp_path))
        assert [child.hear() for _ in range(3)] == ["refused"] * 2 + ["still the parent's"]
