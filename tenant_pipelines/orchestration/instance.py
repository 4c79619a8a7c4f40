"""The Dagster instance of our commands: where it is, how it is set up, and ending its dead runs."""

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from dagster import DagsterInstance, DagsterRun, DagsterRunStatus, RunsFilter

from tenant_pipelines.engine.run_locks import dead_runs, process_is_gone, sweep
from tenant_pipelines.errors import InvalidRequest
from tenant_pipelines.fleet.model import Fleet
from tenant_pipelines.orchestration import names
from tenant_pipelines.orchestration.dagster_internals import executor_process, is_local

# dagster.yaml at the top of the repository says the same, with reasons; a test compares them
INSTANCE_SETTINGS: dict[str, Any] = {
    "telemetry": {"enabled": False},
    "nux": {"enabled": False},
    "concurrency": {
        "pools": {"granularity": "op", "default_limit": 4},
        "runs": {
            "max_concurrent_runs": 16,
            "tag_concurrency_limits": [
                {"key": names.SHARD_TAG, "value": {"applyLimitPerUniqueValue": True}, "limit": 4}
            ],
        },
    },
    "run_monitoring": {
        "enabled": True,
        "poll_interval_seconds": 30,
        "free_slots_after_run_end_seconds": 30,
    },
    "run_retries": {"enabled": False},
    "retention": {
        "schedule": {"purge_after_days": {"skipped": 7, "started": 30, "success": 90}},
        "sensor": {"purge_after_days": {"skipped": 1, "started": 7, "success": 30, "failure": 30}},
    },
}

# the fleet job's executor tells its pid within a second of the run's start
_SILENT_SECONDS = 300.0
_UNFINISHED = [DagsterRunStatus.STARTED, DagsterRunStatus.CANCELING]
_DIED = (
    "The process of this run is gone (killed, or the machine lost power). What it completed is in "
    "the journals; run again to do only what is missing."
)


@dataclass(frozen=True, slots=True)
class Home:
    """A DAGSTER_HOME and why it was chosen, for people."""

    path: Path
    origin: str


def find_home(fleet: Fleet, *, environ: Mapping[str, str], cwd: Path) -> Home:
    """Choose the DAGSTER_HOME; nothing is written.

    Raises:
        InvalidRequest: ``$DAGSTER_HOME`` is not an existing folder, absolute.
    """
    asked = environ.get("DAGSTER_HOME")
    if asked:
        path = Path(asked).expanduser()
        if not path.is_absolute() or not path.is_dir():
            raise InvalidRequest(
                place="environment variable DAGSTER_HOME",
                found=repr(asked),
                wanted="the absolute path of an existing folder",
                fix="Create the folder, or unset the variable.",
            )
        return Home(path, "$DAGSTER_HOME")
    if (cwd / "dagster.yaml").is_file():
        return Home(cwd.resolve(), "the working directory, which holds dagster.yaml")
    return Home(fleet.state / "dagster", "the default, since DAGSTER_HOME is not set")


def open_instance(home: Home) -> DagsterInstance:
    """Open the instance, making its folder and dagster.yaml when there is none.

    Raises:
        InvalidRequest: the folder cannot be made, or its dagster.yaml is not valid.
    """
    settings = home.path / "dagster.yaml"
    try:
        home.path.mkdir(parents=True, exist_ok=True)
        with _alone_in(home.path):
            if not settings.exists():
                draft = settings.with_suffix(f".{os.getpid()}.new")
                draft.write_text(yaml.safe_dump(INSTANCE_SETTINGS, sort_keys=False))
                draft.replace(settings)
            os.environ["DAGSTER_HOME"] = str(home.path)
            return DagsterInstance.from_config(str(home.path))
    except Exception as error:
        raise InvalidRequest(
            place=str(settings),
            found=f"an instance that cannot be opened ({error})",
            wanted="a folder that can be written, with a valid dagster.yaml",
            fix="Mend the file, or point DAGSTER_HOME to another folder.",
        ) from error


@contextlib.contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Let one of our processes at a time open an instance.

    Two that create its SQLite files at once leave two heads in ``alembic_version``, and no process
    can open the instance ever after. The lock is on the folder itself, so no file is left behind.
    """
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def end_dead_runs(
    instance: DagsterInstance, fleet: Fleet, *, now: Callable[[], float] = time.time
) -> list[str]:
    """Mark the fleet's dead runs failed and free their slots; live and waiting runs stay.

    One that a person had terminated is marked cancelled. A crash in between is harmless: the next
    call does the rest. The run locks of dead runs stay for ``mend``, which tells Dagster what they
    left undone.

    Returns:
        Ids of the runs that were ended now.
    """
    ended: list[str] = []
    for run in find_dead_runs(instance, fleet, now=now):
        # first: once it is marked, a run without a lock is not found again
        instance.event_log_storage.free_concurrency_slots_for_run(run.run_id)
        if run.status is DagsterRunStatus.CANCELING:
            # a person stopped it, and it was killed before it had
            instance.report_run_canceled(run, message=_DIED)
        elif not run.is_finished:
            instance.report_run_failed(run, _DIED)
        if not run.is_finished:
            ended.append(run.run_id)
    sweep(fleet.state)
    return ended


def find_dead_runs(
    instance: DagsterInstance, fleet: Fleet, *, now: Callable[[], float] = time.time
) -> Iterator[DagsterRun]:
    """Yield the fleet's dead runs that this instance knows; ``now`` in seconds since 1970."""
    locked = {dead.run_id for dead in dead_runs(fleet.state)}
    for run_id in sorted(locked):
        run = instance.get_run_by_id(run_id)
        if run is not None:
            yield run
    jobs = {names.fleet_job(fleet.name)} | {
        names.shard_job(fleet.name, shard) for shard in fleet.shards
    }
    if not is_local(instance):
        return
    known = _run_ids_with_locks(fleet.state)
    for record in instance.get_run_records(RunsFilter(statuses=_UNFINISHED)):
        run = record.dagster_run
        is_ours = run.job_name in jobs or any(
            key.path[0] == fleet.name for key in run.asset_selection or ()
        )
        if run.run_id in known or not is_ours:
            continue
        # it died before its first op could take a run lock: its executor told its pid
        told = executor_process(instance, run.run_id)
        if told is not None:
            is_gone = process_is_gone(pid=told.pid, seen_at=told.seen_at)
        else:
            # killed between its start and that; other jobs may have an executor that never tells
            is_gone = (
                run.job_name in jobs
                and record.start_time is not None
                and now() - record.start_time > _SILENT_SECONDS
            )
        if is_gone:
            yield run


def _run_ids_with_locks(state: Path) -> set[str]:
    try:
        return {lock.parent.name for lock in (state / "runs").glob("*/*.lock")}
    except OSError:
        return set()
