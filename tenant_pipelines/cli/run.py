"""``run``: the fleet job through Dagster, only the shards that have something to do."""

import contextlib
import os
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from tenant_pipelines.cli.common import (
    ALL_DONE,
    NOT_DONE,
    FleetOption,
    JsonOption,
    NewCycleOption,
    ShardOption,
    StepOption,
    TenantOption,
    chosen_shards,
    fleet_of,
    plain_console,
    print_json,
    wide_console,
)
from tenant_pipelines.cli.outcome import is_all_done, outcome_of, print_outcomes
from tenant_pipelines.cli.progress import RunProgress
from tenant_pipelines.engine.overview import FleetReader
from tenant_pipelines.engine.plan import Action, Request
from tenant_pipelines.engine.run_locks import dead_runs
from tenant_pipelines.errors import InvalidRequest
from tenant_pipelines.fleet.model import Fleet

# the end of a traceback of Dagster's own says most
_ERROR_CHARACTERS = 1500


def run(
    fleet: FleetOption = None,
    shard: ShardOption = None,
    tenant: TenantOption = None,
    step: StepOption = None,
    force: Annotated[
        bool, typer.Option("--force", help="Run the chosen cells again, then what they change.")
    ] = False,
    new_cycle: NewCycleOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run what is missing; exit 0 when every cell that was asked for is done, else 1.

    Examples:
    tenant-pipelines run --fleet flights;
    tenant-pipelines run --tenant umbrella --step transform --force;
    tenant-pipelines run --new-cycle 2026-12-01
    """
    loaded = fleet_of(fleet)
    for name in step or []:
        loaded.pipeline[name]
    chosen = chosen_shards(loaded, shard, tenant)
    run_id = str(uuid.uuid4())
    request = Request(root=run_id, tenants=tenant, steps=step, force=force)
    reader = FleetReader(loaded, environ=os.environ)
    opens = reader.opens_cycle(new_cycle, root=run_id)
    todo = _todo(reader, chosen, request, opens=opens)
    is_shown = True
    if todo or dead_runs(loaded.state):
        is_shown = _launch(loaded, todo, request, new_cycle=new_cycle)
    reader = FleetReader(loaded, environ=os.environ)
    done_by = run_id if todo else ""
    outcomes = [outcome_of(reader, name, run_id=done_by, request=request) for name in chosen]
    if as_json:
        shards = [outcome.to_json() for outcome in outcomes]
        print_json({"fleet": loaded.name, "run_id": done_by or None, "shards": shards})
    else:
        print_outcomes(outcomes, wide_console())
    is_done = is_all_done(outcomes)
    if is_done and not is_shown:
        typer.echo(
            "Every cell is done, but the run failed before it told Dagster so: run again, and "
            "Dagster shows it too.",
            err=True,
        )
    raise typer.Exit(ALL_DONE if is_done and is_shown else NOT_DONE)


def _todo(
    reader: FleetReader, shards: list[str], request: Request, *, opens: bool
) -> dict[str, int]:
    """Return the shards to launch, with how many cells each is to run at most."""
    todo: dict[str, int] = {}
    for name in shards:
        view = reader.shard(name, request, new_cycle=opens)
        if opens or view.has_work or view.lags:
            todo[name] = sum(cell.action in {Action.RUN, Action.CHECK} for cell in view.cells)
    return todo


def _launch(fleet: Fleet, todo: dict[str, int], request: Request, *, new_cycle: str | None) -> bool:
    """Mend what dead runs left, then run the shards of ``todo``, if any; tell if Dagster shows it.

    What Dagster and the steps print goes to a log file, which is kept when the run failed.
    """
    # only here: Dagster takes a second to import, and a run with nothing to do needs none
    from tenant_pipelines.orchestration.instance import find_home, open_instance
    from tenant_pipelines.orchestration.launch import Launch, launch
    from tenant_pipelines.orchestration.reconcile import mend

    home = find_home(fleet, environ=os.environ, cwd=Path.cwd())
    log = fleet.state / "logs" / f"{request.root}.log"
    with _output_to(log) as console:
        console.print(f"DAGSTER_HOME: {home.path} ({home.origin})")
        instance = open_instance(home)
        mended = mend(instance, fleet)
        for ended in mended.ended:
            console.print(f"run {ended} had died: marked failed, its slots freed")
        for shard in mended.reconciled:
            if shard.green or shard.red:
                console.print(
                    f"{shard.shard}: {shard.green} cells shown done and {shard.red} shown failed, "
                    "which a dead run had not told Dagster"
                )
        if not todo:
            log.unlink()
            return True
        with RunProgress(fleet, todo, run_id=request.root, console=console):
            verdict = launch(
                instance,
                fleet,
                Launch(
                    run_id=request.root,
                    shards=list(todo),
                    tenants=request.tenants,
                    steps=request.steps,
                    force=request.force,
                    new_cycle=new_cycle,
                ),
            )
        if verdict.has_succeeded:
            log.unlink()
            return True
        for error in verdict.errors:
            console.print(error.strip()[-_ERROR_CHARACTERS:])
        console.print(f"what Dagster and the steps printed: {log}")
        return False


@contextlib.contextmanager
def _output_to(path: Path) -> Iterator[Console]:
    """Send this process's and its children's output to a file; yield a console on the real stderr.

    Raises:
        InvalidRequest: the file cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        log = path.open("wb")
    except OSError as error:
        raise InvalidRequest(
            place=str(path.parent),
            found=f"a folder that cannot be written ({error.strerror})",
            wanted="a state folder that this user can write",
            fix="Mend its rights, or set $TENANT_PIPELINES_STATE to another.",
        ) from error
    sys.stdout.flush()
    sys.stderr.flush()
    stdout, stderr = os.dup(1), os.dup(2)
    try:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
        copy = os.fdopen(os.dup(stderr), "w", encoding="utf-8", errors="backslashreplace")
        with copy as terminal:
            yield plain_console(file=terminal)
    finally:
        os.dup2(stdout, 1)
        os.dup2(stderr, 2)
        os.close(stdout)
        os.close(stderr)
        log.close()
