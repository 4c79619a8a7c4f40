"""Attempts and contexts made by hand, and scripts run as real processes."""

import logging
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tenant_pipelines.fleet.cell import Attempt
from tenant_pipelines.fleet.context import Cursor, Settings, StepContext, Window


def attempt(
    *,
    tenant: str = "acme",
    step: str = "extract",
    cycle: str = "1",
    generation: int = 1,
    number: int = 1,
) -> Attempt:
    """Return the address of one execution."""
    return Attempt(
        shard="shard_1",
        tenant=tenant,
        step=step,
        cycle=cycle,
        generation=generation,
        attempt=number,
    )


def context(
    state: Path,
    *,
    tenant: str = "acme",
    step: str = "load",
    cycle: str = "1",
    generation: int = 1,
    after: Cursor | None = None,
    to: Cursor | None = None,
    warehouse: str | None = None,
    digest: str = "d1",
    settings: Mapping[str, Any] | None = None,
) -> StepContext:
    """Return what the engine would hand to a step."""
    return StepContext(
        fleet="fleet",
        shard="shard_1",
        tenant=tenant,
        settings=Settings(settings or {}),
        cycle=cycle,
        step=step,
        generation=generation,
        attempt=1,
        window=Window(after, to),
        log=logging.LoggerAdapter(logging.getLogger(__name__)),
        state=state,
        warehouse=warehouse or f"sqlite:///{state}/warehouse.db",
        inputs={"transform": digest},
    )


def start(script: str, *arguments: object) -> "subprocess.Popen[str]":
    """Start a Python script as a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-c", script, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: "subprocess.Popen[str]", *, expect: int = 0) -> str:
    """Wait for a process and return what it printed; fails on another exit code."""
    printed, errors = process.communicate(timeout=120)
    assert process.returncode == expect, errors
    return printed
