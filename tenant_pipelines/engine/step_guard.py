"""What a step may not do to the process it shares, and how its failure is described.

A step that calls ``os.chdir`` gets an exception and the directory stays: all tenants of the process
share it. The audit event of ``chdir`` is raised in the calling thread before the call
(https://docs.python.org/3/library/os.html#os.chdir), so no other tenant notices.
"""

import contextlib
import functools
import os
import sys
import sysconfig
import threading
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tenant_pipelines.errors import StepChangedDirectory, TenantPipelinesError
from tenant_pipelines.fleet.settings import redact

_MESSAGE_CHARACTERS = 2_000
_FRAMES = 12
_NOT_OWN = (f"{Path(__file__).parents[1]}/", f"{sysconfig.get_path('stdlib')}/")
_local = threading.local()


def _refuse_chdir(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "os.chdir" and getattr(_local, "runs_step", False):
        raise StepChangedDirectory(directory=str(arguments[0]))


@functools.cache
def _install() -> None:
    sys.addaudithook(_refuse_chdir)


@contextlib.contextmanager
def guarded() -> Iterator[None]:
    """Run a step's function in this thread under the rules above."""
    _install()
    _local.runs_step = True
    owner = os.getpid()
    try:
        yield
    except SystemExit as ended:
        if os.getpid() != owner:
            os._exit(ended.code if isinstance(ended.code, int) else 1)
        raise
    finally:
        _local.runs_step = False
        if os.getpid() != owner:
            # a child that the step forked: it must never go on as the engine
            os._exit(70)


def describe_failure(error: BaseException, secrets: Sequence[str]) -> dict[str, str]:
    """Return ``{"type", "message", "traceback", "place"}`` of any exception, no secrets.

    ``place`` is the line of the user's own code, such as ``pipelines.py:14``; empty when none is.

    Args:
        error: what a step raised; its ``str`` may itself raise.
        secrets: texts that must not appear.
    """
    try:
        name = _qualified(type(error))
    except BaseException:  # noqa: BLE001  (so can its class)
        name = "an exception"
    try:
        message = str(error)
    except BaseException:  # noqa: BLE001  (a step's exception can do anything)
        message = "(the exception cannot be printed)"
    frames = traceback.StackSummary.from_list(traceback.extract_tb(error.__traceback__)[-_FRAMES:])
    if isinstance(error, TenantPipelinesError):
        frames = traceback.StackSummary()
    return {
        "place": _place(frames),
        "type": _clean(name, secrets),
        "message": _clean(message, secrets)[:_MESSAGE_CHARACTERS],
        "traceback": _clean("".join(traceback.format_list(frames)), secrets),
    }


def _place(frames: traceback.StackSummary) -> str:
    own = [
        frame
        for frame in frames
        if "site-packages" not in frame.filename and not frame.filename.startswith(_NOT_OWN)
    ]
    return f"{Path(own[-1].filename).name}:{own[-1].lineno}" if own else ""


def _qualified(kind: type[BaseException]) -> str:
    module, name = str(kind.__module__), str(kind.__qualname__)
    # our own errors say all in their message
    is_bare = module == "builtins" or module.partition(".")[0] == "tenant_pipelines"
    return name if is_bare else f"{module}.{name}"


def _clean(text: str, secrets: Sequence[str]) -> str:
    return redact(text, secrets).encode("utf-8", "backslashreplace").decode("utf-8")
