"""Carries out a drawn history of the flights sample: cycles, feeds, faults, and SIGKILL at a point.

Run as a process: it reads one JSON command a line and answers each with one line. Every run of the
shard is a forked child, which a kill ends for real; the process itself computes nothing.
"""

import json
import os
import shutil
import signal
import sys
import traceback
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from functools import wraps
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from tenant_pipelines.engine.cycles import known_cycles
from tenant_pipelines.engine.overview import FleetReader
from tenant_pipelines.engine.plan import Action, Request
from tenant_pipelines.engine.prune import old_cycles, prune_shard
from tenant_pipelines.engine.recompute import recompute
from tenant_pipelines.engine.verify import verify_shard
from tenant_pipelines.engine.work import CellCompleted
from tenant_pipelines.fleet.context import StepContext
from tenant_pipelines.fleet.model import Fleet
from tenant_pipelines.fleet.pipeline import Pipeline, step
from tenant_pipelines.journal.journal import Journal
from tenant_pipelines.samples.flights import pipeline as flights
from tenant_pipelines.samples.flights.feed import feed
from tenant_pipelines.samples.flights.source import source_path, write_source
from tenant_pipelines.storage.artifacts import ArtifactStore
from tenant_pipelines_tests.engine.fleets import make_fleet, run_shard

TENANTS = ("AA", "UA", "none")


def base_source(path: Path) -> None:
    """Write a source of two carriers, three days and few flights."""
    import pandas as pd

    rows = [
        {
            "year": 2013, "month": 1, "day": day, "dep_time": 600 + number, "sched_dep_time": 600,
            "dep_delay": number, "arr_time": 800, "sched_arr_time": 790, "arr_delay": number * 7,
            "flight": number, "air_time": 100, "distance": 500, "hour": 6, "minute": 0,
            "carrier": carrier, "tailnum": "N1", "origin": origin, "dest": dest, "time_hour": "x",
        }
        for day in (1, 2, 3)
        for number, (carrier, origin, dest) in enumerate(
            [("AA", "JFK", "LAX"), ("UA", "EWR", "ORD"), ("AA", "LGA", "ORD"), ("AA", "JFK", "LAX")]
        )
    ]  # fmt: skip
    write_source(path, pd.DataFrame(rows))


def fleet_of(folder: Path, *, version: str, faulty: list[str]) -> Fleet:
    """Return the fleet with a version of transform that fails for some tenants."""

    @step(code_version=version)
    def transform(ctx: StepContext, extract: Any) -> Any:
        if ctx.tenant in faulty:
            raise OSError("not now")
        return flights.transform(ctx, extract)

    pipeline = Pipeline([flights.extract, transform, flights.load])
    warehouse = f"sqlite:///{folder}/warehouse.db"
    fleet = make_fleet(folder, pipeline.steps, {"a": TENANTS}, warehouse=warehouse)
    return replace(fleet, pipeline=pipeline)


def die_at(point: int) -> None:
    """Kill this process when it crosses the ``point``-th boundary of something durable."""
    crossed = 0

    def cross(*_: Any) -> None:
        nonlocal crossed
        crossed += 1
        if crossed == point:
            os.kill(os.getpid(), signal.SIGKILL)

    def around(function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def crossing(*arguments: Any, **named: Any) -> Any:
            cross()
            result = function(*arguments, **named)
            cross()
            return result

        return crossing

    Journal.append = around(Journal.append)  # type: ignore[method-assign]
    ArtifactStore.store = around(ArtifactStore.store)  # type: ignore[method-assign]
    sa.event.listen(sa.Engine, "begin", cross)
    sa.event.listen(sa.Engine, "commit", cross)
    sa.event.listen(sa.pool.Pool, "checkin", cross)


def planned(
    fleet: Fleet, *, new_cycle: str | None, **request: Any
) -> dict[tuple[str, str], Action]:
    """Return what a run would do with each cell."""
    reader = FleetReader(fleet, environ={})
    opens = reader.opens_cycle(new_cycle, root=request["root"])
    view = reader.shard("a", Request(**request), new_cycle=opens)
    return {(cell.tenant, cell.step): cell.action for cell in view.cells}


def run(folder: Path, command: dict[str, Any]) -> list[str] | None:
    """Run the shard in a child; return how it differed from its plan, None if it was killed."""
    fleet = fleet_of(folder, version=command["version"], faulty=command["faulty"])
    asked = command.get("asked", {})
    plan = planned(fleet, new_cycle=command["cycle"], root=command["root"], **asked)
    answer = folder / "ran.json"
    answer.unlink(missing_ok=True)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            if command["dies_at"] is not None:
                die_at(command["dies_at"])
            ran = run_shard(fleet, new_cycle=command["cycle"], root=command["root"], **asked)
            failures = [(cell.tenant, cell.step) for cell in ran.report.failed]
            settled = [
                event.attempt.tenant
                for event in ran.events
                if isinstance(event, CellCompleted) and event.is_settled
            ]
            answer.write_text(json.dumps([ran.cells, failures, settled]))
            status = 0
        except BaseException:  # noqa: BLE001  (told by the exit code)
            traceback.print_exc()
        finally:
            os._exit(status)
    ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if ended == -signal.SIGKILL:
        return None
    if ended != 0:
        return [f"the run ended with {ended}"]
    ran_cells, failures, settled = json.loads(answer.read_text())
    completed, failed = ({tuple(cell) for cell in cells} for cells in (ran_cells, failures))
    may = {cell for cell, action in plan.items() if action in {Action.RUN, Action.CHECK}}
    must = {cell for cell, action in plan.items() if action is Action.RUN}
    # a load that had taken effect needs no input, which a plan cannot know without the warehouse
    excused = {tenant for tenant, _ in failed} | set(settled)
    problems = [f"{cell} ran and was not planned" for cell in (completed | failed) - may]
    problems += [
        f"{cell} was planned and did not run"
        for cell in must - completed - failed
        if cell[0] not in excused
    ]
    return sorted(problems)


def carry_out(folder: Path, command: dict[str, Any]) -> list[str] | None:
    """Carry out one command; return what is wrong, None for a run that was killed."""
    fleet = fleet_of(folder, version="1", faulty=[])
    match command["do"]:
        case "begin":
            shutil.rmtree(folder, ignore_errors=True)
            fleet.state.mkdir(parents=True)
            base_source(source_path(fleet.state))
        case "feed":
            feed(source_path(fleet.state), **command["amounts"])
        case "run":
            return run(folder, command)
        case "lose artifacts":
            shutil.rmtree(fleet.artifacts, ignore_errors=True)
        case "prune":
            known, _ = known_cycles(fleet)
            old = old_cycles(known, keep=1, older_than=None, now=datetime.now(UTC))
            prune_shard(fleet, "a", old, artifacts_only=False, dry_run=False)
        case "check":
            return check(fleet, may_lack_artifacts=command["may_lack_artifacts"])
    return []


def check(fleet: Fleet, *, may_lack_artifacts: bool) -> list[str]:
    """Return every difference from a recomputation, and between journal, artifacts and ledger."""
    problems = [
        f"{one.tenant}: {one.verdict.value} {one.difference} {one.error.get('message')}"
        for one in recompute(fleet, "a", tenants=None, environ={})
        if one.verdict != "equal"
    ]
    return problems + [
        problem
        for problem in verify_shard(fleet, "a").problems
        if not (may_lack_artifacts and "is gone" in problem)
    ]


def main() -> None:
    """Answer commands until the input ends."""
    folder = Path(sys.argv[1])
    for line in sys.stdin:
        try:
            answer: list[str] | None = carry_out(folder, json.loads(line))
        except Exception:  # noqa: BLE001  (told to the test)
            answer = [traceback.format_exc()]
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
