"""Real processes for the lock tests: started, listened to with a timeout, killed for real."""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from tenant_pipelines.engine.locks import ByteLocks

TIMEOUT_SECONDS = 30.0

_RUN = (
    "import sys, json; from importlib import import_module; "
    "getattr(import_module(sys.argv[1]), sys.argv[2])(*json.loads(sys.argv[3]))"
)


class Child:
    """One process that runs a function of a test module."""

    def __init__(self, function: Callable[..., None], *args: Any) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", _RUN, function.__module__, function.__name__, json.dumps(args)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        self._heard = b""

    @property
    def pid(self) -> int:
        return self.process.pid

    def hear(self) -> str:
        """Return the next line that the process printed."""
        assert self.process.stdout is not None
        until = time.monotonic() + TIMEOUT_SECONDS
        while b"\n" not in self._heard:
            ready, _, _ = select.select([self.process.stdout], [], [], until - time.monotonic())
            assert ready, "the process said nothing"
            more = os.read(self.process.stdout.fileno(), 65536)
            assert more, "the process ended without a word"
            self._heard += more
        line, _, self._heard = self._heard.partition(b"\n")
        return line.decode()

    def say(self) -> None:
        """Send one line."""
        assert self.process.stdin is not None
        self.process.stdin.write(b"go\n")
        self.process.stdin.flush()

    def kill(self) -> None:
        """Kill the process and wait until the kernel has taken back what it had."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(TIMEOUT_SECONDS)

    def end(self) -> int:
        """Close its input, and return the exit code."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.process.wait(TIMEOUT_SECONDS)

    def clean(self) -> None:
        """Leave nothing of the process behind, nor of its own children."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.kill()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()


class Children:
    """Processes that end with the block that started them."""

    def __init__(self) -> None:
        self._all: list[Child] = []

    def start(self, function: Callable[..., None], *args: Any) -> Child:
        """Start a process that calls a module's function with arguments that JSON can carry."""
        child = Child(function, *args)
        self._all.append(child)
        return child

    def __enter__(self) -> "Children":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for child in self._all:
            child.clean()


def is_locked(path: Path, offset: int = 0) -> bool:
    """Tell whether anybody holds a byte of a file."""
    query = ByteLocks(path, query_only=True)
    try:
        return query.is_locked_elsewhere(offset)
    finally:
        query.close()


def tell(word: object) -> None:
    """Print a line for the parent, at once."""
    print(word, flush=True)


def wait_for_parent() -> None:
    """Wait for a line, or for the parent's end."""
    sys.stdin.readline()


def until(is_so: Callable[[], bool]) -> None:
    """Wait for what another thread or process does and does not announce."""
    give_up_at = time.monotonic() + TIMEOUT_SECONDS
    while not is_so():
        assert time.monotonic() < give_up_at, "it did not happen"
        time.sleep(0.001)
