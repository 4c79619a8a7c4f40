"""Slots: at most ``max_concurrent`` cells of a shard at once, over all processes of the host.

Guarantees: the sum is exact, a slot is free the moment its process dies, and who waits is served in
the order of arrival: threads within their process, processes in one line. Leaves to others: several
hosts, and what a slot is taken for.
"""

import contextlib
import io
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from tenant_pipelines.engine.locks import ByteLocks, open_private

# bytes below this are slots; a process that waits holds the byte of its instant of arrival above
_LINE = 1 << 62
_LINE_BYTES = 1 << 61

_FIRST_NAP_MS = 2
_NAP_SECONDS = 0.0005
_LONGEST_NAP_SECONDS = 0.02
_STOP_CHECK_SECONDS = 0.2
# a slot free for this long is passed over by whoever is first (stopped, or with a lower limit)
_PATIENCE_SECONDS = 0.1


class Slots:
    """The slots of one shard: a byte lock each, and a line of waiting processes in the same file.

    A process waits with one of its threads in the line, by holding the byte of its instant of
    arrival; it is first when no other object holds an earlier one, and goes to the end of the line
    for its next thread. So processes take turns, and one that dies leaves the line at once.

    A crash leaves ``slots.lock`` and the pipe ``slots.freed`` behind, without locks; nobody has to
    clean them. No number of slots in use is stored anywhere.
    """

    def __init__(self, folder: Path, max_concurrent: int, *, query_only: bool = False) -> None:
        """Open the slots of one shard.

        Args:
            folder: the shard's private lock folder; made unless ``query_only``.
            max_concurrent: how many slots this process uses, at least 1; a process with another
                number shares the lower ones.
            query_only: for status: create nothing, take nothing.

        Raises:
            ValueError: ``max_concurrent`` is below 1.
            LocksUnusable: locks do not work in the folder.
        """
        if max_concurrent < 1:
            raise ValueError(f"max_concurrent must be at least 1, not {max_concurrent}")
        self._locks = ByteLocks(folder / "slots.lock", query_only=query_only)
        self._max_concurrent = max_concurrent
        self._mutex = threading.Lock()
        self._held: set[int] = set()
        self._waiters: deque[threading.Event] = deque()
        self._freed = _Hint(None if query_only else folder / "slots.freed")

    def take(self, should_stop: Callable[[], bool]) -> int | None:
        """Take a slot, waiting for its turn.

        Args:
            should_stop: asked a few times a second, in the waiting thread, and ends the wait.

        Returns:
            The slot to give back, or None when ``should_stop`` said so, be a slot free or not.

        Raises:
            LocksUnusable: the object is closed, for queries only, or of a forked parent.
        """
        if should_stop():
            return None
        slot = self.try_take()
        if slot is not None:
            return slot
        turn = threading.Event()
        try:
            with self._mutex:
                self._waiters.append(turn)
                self._waiters[0].set()
            while not turn.wait(_STOP_CHECK_SECONDS):
                if should_stop():
                    return None
            return self._wait_in_line(should_stop)
        finally:
            with self._mutex:
                with contextlib.suppress(ValueError):
                    self._waiters.remove(turn)
                if self._waiters:
                    self._waiters[0].set()

    def try_take(self) -> int | None:
        """Take a slot if one is free and nobody waits, in this process or another one.

        Returns:
            The slot to give back, or None.

        Raises:
            LocksUnusable: as ``take``.
        """
        self._locks.check_usable()
        with self._mutex:
            if self._waiters or self._locks.is_locked_elsewhere(_LINE, _LINE_BYTES):
                return None
            return self._take_free()

    def give_back(self, slot: int) -> None:
        """Give a slot back, and wake whoever waits first.

        Args:
            slot: one that ``take`` or ``try_take`` returned.

        Raises:
            ValueError: this object does not hold the slot; nothing was given back.
            LocksUnusable: the object is closed, or of a forked parent.
        """
        self._locks.check_usable()
        with self._mutex:
            if slot not in self._held:
                raise ValueError(f"slot {slot} is not held here")
            self._locks.unlock(slot)
            self._held.discard(slot)
            is_awaited = self._waiters or self._locks.is_locked_elsewhere(_LINE, _LINE_BYTES)
        if is_awaited:
            self._freed.give()

    def held(self) -> list[int]:
        """Return the slots below ``max_concurrent`` that anybody has, in ascending order.

        Raises:
            LocksUnusable: the object is closed, of a forked parent, or the file cannot be read.
        """
        return [
            slot
            for slot in range(self._max_concurrent)
            if slot in self._held or self._locks.is_locked_elsewhere(slot)
        ]

    def close(self) -> None:
        """Give back every slot; call it when no thread uses the object any more."""
        self._locks.close()
        self._freed.close()

    def _take_free(self) -> int | None:
        """Lock a free slot, the highest first: who has a lower limit can use only the low ones."""
        for slot in range(self._max_concurrent - 1, -1, -1):
            if slot not in self._held and self._locks.try_lock(slot):
                self._held.add(slot)
                return slot
        return None

    def _wait_in_line(self, should_stop: Callable[[], bool]) -> int | None:
        """Wait as the one thread that stands in the line for this process."""
        # CLOCK_MONOTONIC is one clock for all processes of a boot, clock_gettime(2); were it not,
        # only the order in the line would suffer
        place = _LINE + time.monotonic_ns()
        while not self._locks.try_lock(place):
            place += 1
        try:
            arrived_at = time.monotonic()
            patient_until = arrived_at + _PATIENCE_SECONDS
            while not should_stop():
                now = time.monotonic()
                is_first = not self._locks.is_locked_elsewhere(_LINE, place - _LINE)
                if is_first or now >= patient_until:
                    with self._mutex:
                        slot = self._take_free()
                    if slot is not None:
                        return slot
                    patient_until = now + _PATIENCE_SECONDS
                if is_first:
                    self._freed.wait()
                else:
                    # late by at most a tenth of the wait
                    time.sleep(
                        min(max((now - arrived_at) / 10, _NAP_SECONDS), _LONGEST_NAP_SECONDS)
                    )
            return None
        finally:
            self._locks.unlock(place)


class _Hint:
    """A pipe that ends another process's nap early; a lost hint, or no pipe, costs that nap."""

    def __init__(self, path: Path | None) -> None:
        self._pipe: io.FileIO | None = None
        self._poll = select.poll()
        if path is None:
            return
        # some mounts have no pipes, some copies of a state folder a plain file instead
        with contextlib.suppress(OSError):
            with contextlib.suppress(FileExistsError):
                os.mkfifo(path, 0o600)
            if path.is_fifo():
                # fifo(7): on Linux, opening for both directions does not wait for a peer
                self._pipe = open_private(path, os.O_RDWR | os.O_NONBLOCK)
                self._poll.register(self._pipe, select.POLLIN)

    def wait(self) -> None:
        """Nap until a hint; at most 2 ms, since a process that is killed gives none."""
        if self._pipe is None:
            time.sleep(_FIRST_NAP_MS / 1000)
        elif self._poll.poll(_FIRST_NAP_MS):
            with contextlib.suppress(BlockingIOError):
                os.read(self._pipe.fileno(), select.PIPE_BUF)

    def give(self) -> None:
        """Wake who naps; a pipe that is full does so already."""
        if self._pipe is not None:
            with contextlib.suppress(BlockingIOError):
                os.write(self._pipe.fileno(), b"!")

    def close(self) -> None:
        if self._pipe is not None:
            self._pipe.close()
