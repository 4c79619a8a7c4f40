"""A plan over tenants with a long history, of which it reads the newest cycle only."""

import os
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from tenant_pipelines.engine.overview import FleetReader
from tenant_pipelines.engine.plan import Reason, Request
from tenant_pipelines.fleet.file import load_fleet
from tenant_pipelines.fleet.model import Fleet
from tenant_pipelines.fleet.places import STATE_VARIABLE
from tenant_pipelines.journal.entries import Draft, EntryKind, canonical_json, instant
from tenant_pipelines.journal.fold import Cycle
from tenant_pipelines.journal.journal import Journal
from tenant_pipelines.storage.digest import bytes_digest
from tenant_pipelines.storage.output import StoredOutput
from tenant_pipelines_tests.benchmarks.report import Contestant, Measurement, Target, compare
from tenant_pipelines_tests.benchmarks.trivial import STEPS

_SHARDS = 10
_CYCLES = 30
_RUN_ID = "7f7a1e0c5d3b4a6f9e8d7c6b5a493827"
_NEWEST = "SELECT * FROM entries WHERE cycle = ? AND tenant != '' ORDER BY tenant, seq"


def measure(folder: Path, *, scale: float, rounds: int) -> dict[str, Measurement]:
    """Measure the plan of 10,000 tenants in 10 shards, 30 cycles of 3 steps behind each."""
    tenants = max(_SHARDS, round(10_000 * scale))
    cells = tenants * len(STEPS)
    with tempfile.TemporaryDirectory(dir=folder) as name:
        fleet = _fleet(Path(name), tenants)
        sys.stderr.write(f"writing {2 * _CYCLES * cells:,} journal entries … ")
        sys.stderr.flush()
        for shard in fleet.shards:
            _write_history(fleet, shard)

        def read() -> None:
            rows = 0
            for shard in fleet.shards:
                with closing(sqlite3.connect(fleet.journal_path(shard))) as connection:
                    rows += len(connection.execute(_NEWEST, (_cycle(_CYCLES).name,)).fetchall())
            if rows != 2 * cells:
                raise RuntimeError(f"{rows} entries in the newest cycle, wanted two per cell")

        def plan() -> None:
            reader = FleetReader(fleet, environ={})
            views = [reader.shard(shard, Request(root="")) for shard in fleet.shards]
            planned = [cell for view in views for cell in view.cells]
            if len(planned) != cells or any(cell.reason is not Reason.DONE for cell in planned):
                raise RuntimeError("the plan is not that every cell is done")

        def command() -> None:
            environ = {**os.environ, STATE_VARIABLE: str(fleet.state.parent)}
            done = subprocess.run(
                [sys.executable, "-m", "tenant_pipelines", "plan", "--json", "--fleet", fleet.path],
                env=environ,
                capture_output=True,
                check=True,
            )
            if done.stdout.count(b'"done"') != cells:
                raise RuntimeError("the command's plan is not that every cell is done")

        return {
            "plan": compare(
                f"plan of {tenants:,} done tenants in {_SHARDS} shards, {_CYCLES} cycles each",
                unit="s",
                floor=Contestant(
                    title=f"sqlite3 alone: fetch the newest {2 * cells:,} rows",
                    once=lambda: _seconds(read),
                ),
                subjects={
                    "reader": Contestant(
                        title="FleetReader: every cell with its state and reason",
                        once=lambda: _seconds(plan),
                        target=Target(at_most=1),
                    ),
                    "command": Contestant(
                        title="tenant-pipelines plan --json, a whole process",
                        once=lambda: _seconds(command),
                    ),
                },
                rounds=rounds,
            )
        }


def _seconds(once: Callable[[], object]) -> float:
    began = time.perf_counter()
    once()
    return time.perf_counter() - began


def _fleet(folder: Path, tenants: int) -> Fleet:
    """Return a fleet whose file the command can read as well."""
    path = folder / "fleet.yaml"
    shards = "".join(
        f"  shard_{shard}:\n    tenants: ["
        + ", ".join(f"tenant-{number}" for number in range(shard, tenants, _SHARDS))
        + "]\n"
        for shard in range(_SHARDS)
    )
    path.write_text(
        "name: planned\npipeline: planned_pipeline:pipeline\nshards:\n" + shards, encoding="utf-8"
    )
    (folder / "planned_pipeline.py").write_text(
        "from tenant_pipelines import Pipeline\n"
        "from tenant_pipelines_tests.benchmarks.trivial import STEPS\n\n"
        "pipeline = Pipeline(STEPS)\n",
        encoding="utf-8",
    )
    return load_fleet(path, environ={STATE_VARIABLE: str(folder / "state")})


def _cycle(number: int) -> Cycle:
    at = datetime(2026, 1, 1, 3, tzinfo=UTC) + timedelta(days=number - 1)
    return Cycle(instant=instant(at), name=at.date().isoformat())


def _write_history(fleet: Fleet, shard: str) -> None:
    """Journal what runs of every cycle would have, a transaction per cycle."""
    with Journal(fleet.journal_path(shard), fleet=fleet.name, shard=shard) as journal:
        for number in range(1, _CYCLES + 1):
            cycle = _cycle(number)
            journal.open_cycle(cycle, run_id=_RUN_ID)
            of_one = list(_payloads(cycle))
            journal.append(
                *(
                    Draft(
                        kind=kind,
                        cycle=cycle.name,
                        run_id=_RUN_ID,
                        tenant=tenant,
                        step=step,
                        generation=1,
                        attempt=1,
                        payload=payload,
                    )
                    for tenant in fleet.shard(shard).tenants
                    for kind, step, payload in of_one
                )
            )


def _payloads(cycle: Cycle) -> Iterator[tuple[EntryKind, str, dict[str, Any]]]:
    """Yield what a tenant's entries of a cycle say, as the engine writes it."""
    inputs: dict[str, str] = {}
    for number, step in enumerate(STEPS, start=1):
        value = {"rows": number}
        text = canonical_json(value).encode()
        output = StoredOutput(
            kind="json", digest=bytes_digest(text), size_bytes=len(text), value=value
        )
        started: dict[str, Any] = {"inputs": inputs, "reason": "never_run"}
        if not inputs:
            started["window"] = {"after": None, "to": cycle.instant}
        yield EntryKind.STARTED, step.name, started
        completed = {"inputs": inputs, "output": output.to_json(), "seconds": 0.000213}
        yield EntryKind.COMPLETED, step.name, completed
        inputs = {step.name: output.digest}
