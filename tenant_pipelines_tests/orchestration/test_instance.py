"""The instance: registered partitions and pools, dead runs, and dagster.yaml."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from dagster import DagsterInstance, DagsterRunStatus
from dagster._core.definitions.run_request import InstigatorType
from dagster._core.events import EngineEventData

from tenant_pipelines.engine.run_locks import dead_runs, hold_run_lock
from tenant_pipelines.errors import InvalidRequest
from tenant_pipelines.orchestration import names
from tenant_pipelines.orchestration.health import find_slot_holders
from tenant_pipelines.orchestration.instance import (
    INSTANCE_SETTINGS,
    end_dead_runs,
    find_home,
)
from tenant_pipelines.orchestration.register import Registered, register_shard
from tenant_pipelines_tests.orchestration.conftest import Rig

_ROOT = Path(__file__).parents[2]


def test_the_repositorys_dagster_yaml_says_what_the_code_says() -> None:
    """A key that drifts in one place fails here."""
    assert yaml.safe_load((_ROOT / "dagster.yaml").read_text()) == INSTANCE_SETTINGS


def test_dagster_works_with_what_the_repositorys_dagster_yaml_says(tmp_path: Path) -> None:
    """A key that Dagster renames, or takes and ignores, fails here."""
    shutil.copy(_ROOT / "dagster.yaml", tmp_path)
    with DagsterInstance.from_config(str(tmp_path)) as instance:
        kept = {section: instance.get_settings(section) for section in INSTANCE_SETTINGS}
        # Dagster adds the defaults of what the file leaves out
        assert {
            section: {key: kept[section][key] for key in written}
            for section, written in INSTANCE_SETTINGS.items()
        } == INSTANCE_SETTINGS
        assert not instance.telemetry_enabled
        assert not instance.nux_enabled
        assert instance.run_monitoring_enabled
        assert not instance.run_retries_enabled
        queue = instance.get_concurrency_config().run_queue_config
        assert queue is not None
        assert queue.max_concurrent_runs == 16
        assert queue.tag_concurrency_limits == [
            {"key": names.SHARD_TAG, "value": {"applyLimitPerUniqueValue": True}, "limit": 4}
        ]
        days = {
            kind: {
                status.value.lower(): number
                for status, number in instance.get_tick_retention_settings(kind).items()
            }
            for kind in (InstigatorType.SCHEDULE, InstigatorType.SENSOR)
        }
        # -1: for good
        assert days == {
            InstigatorType.SCHEDULE: {"started": 30, "skipped": 7, "success": 90, "failure": -1},
            InstigatorType.SENSOR: {"started": 7, "skipped": 1, "success": 30, "failure": 30},
        }


def test_registering_is_idempotent_and_sets_the_pools_limit(rig: Rig) -> None:
    """A pool without a limit of its own would be the default's."""
    again = register_shard(rig.instance, rig.fleet, "shard_2")
    assert again == Registered(keys_added=0, pool_limit=4, is_limit_changed=False)
    assert rig.instance.get_dynamic_partitions("story/shard_2") == ["initech", "umbrella", "hooli"]
    pools = {pool.name: pool.limit for pool in rig.instance.event_log_storage.get_pool_limits()}
    assert pools["story/shard_2"] == 4


_HOLDER = """
import os, signal, sys
from pathlib import Path
from tenant_pipelines.engine.run_locks import hold_run_lock
with hold_run_lock(Path(sys.argv[1]), sys.argv[2], "shard_2"):
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_dead_run_is_failed_its_slot_is_freed_and_a_live_one_is_left_alone(rig: Rig) -> None:
    """After kill -9 Dagster itself leaves the run STARTED and its slot taken for good."""
    job = rig.run(first="hooli").job_def
    dead = rig.instance.create_run_for_job(job, status=DagsterRunStatus.STARTED)
    live = rig.instance.create_run_for_job(job, status=DagsterRunStatus.STARTED)
    pool = names.partition_set("story", "shard_2")
    storage = rig.instance.event_log_storage
    for run in (dead, live):
        assert storage.claim_concurrency_slot(pool, run.run_id, "step").is_claimed
    state = rig.fleet.state
    subprocess.run([sys.executable, "-c", _HOLDER, str(state), dead.run_id], check=False)
    with hold_run_lock(state, live.run_id, "shard_1"):
        assert len(find_slot_holders(rig.instance, rig.fleet)) == 1
        assert end_dead_runs(rig.instance, rig.fleet) == [dead.run_id]
        assert find_slot_holders(rig.instance, rig.fleet) == []
        assert end_dead_runs(rig.instance, rig.fleet) == []
    statuses = [rig.instance.get_run_by_id(run.run_id) for run in (dead, live)]
    assert [run.status for run in statuses if run] == [
        DagsterRunStatus.FAILURE,
        DagsterRunStatus.STARTED,
    ]
    assert {slot.run_id for slot in storage.get_concurrency_info(pool).claimed_slots} == {
        live.run_id
    }
    # what it left of the shard stays until the shard's next run has told Dagster the truth
    assert [run.parts for run in dead_runs(state)] == [("shard_2",)]
    assert rig.run().success
    assert dead_runs(state) == []


def test_a_dead_run_that_a_person_had_terminated_is_cancelled(rig: Rig) -> None:
    """It must neither turn keys red nor be resumed: nobody asked for more."""
    job = rig.run(first="hooli").job_def
    dead = rig.instance.create_run_for_job(job, status=DagsterRunStatus.CANCELING)
    state = str(rig.fleet.state)
    subprocess.run([sys.executable, "-c", _HOLDER, state, dead.run_id], check=False)
    assert end_dead_runs(rig.instance, rig.fleet) == [dead.run_id]
    ended = rig.instance.get_run_by_id(dead.run_id)
    assert ended is not None
    assert ended.status is DagsterRunStatus.CANCELED


def test_a_dead_run_launched_on_assets_is_found_and_never_just_forgotten(rig: Rig) -> None:
    """Materialize and backfills run as __ASSET_JOB; the next op ends a dead one before it heals."""
    job = rig.run(first="hooli").job_def
    keys = frozenset({names.asset_key("story", "shard_2", "load")})
    runs = [
        rig.instance.create_run_for_job(job, status=DagsterRunStatus.STARTED, asset_selection=keys)
        for _ in range(2)
    ]
    state = rig.fleet.state
    # one died inside its op; of the other only a lock that never got its name is left
    subprocess.run([sys.executable, "-c", _HOLDER, str(state), runs[0].run_id], check=False)
    folder = state / "runs" / runs[1].run_id
    folder.mkdir(parents=True)
    (folder / ".shard_2.lock.x.tmp").touch()
    rig.instance.report_engine_event(
        "Executing steps using multiprocess executor", runs[1],
        EngineEventData.multiprocess(2**22 + 1),
    )  # fmt: skip
    assert rig.run(first="hooli").success
    ended = [rig.instance.get_run_by_id(run.run_id) for run in runs]
    assert {run.status for run in ended if run} == {DagsterRunStatus.FAILURE}


def test_a_dagster_home_that_is_not_there_is_refused(rig: Rig, tmp_path: Path) -> None:
    """The error names the variable and what to do."""
    for value in ("relative", str(tmp_path / "missing")):
        with pytest.raises(InvalidRequest, match="DAGSTER_HOME"):
            find_home(rig.fleet, environ={"DAGSTER_HOME": value}, cwd=tmp_path)


def test_the_home_is_the_variable_else_the_working_directory_else_the_state(
    rig: Rig, tmp_path: Path
) -> None:
    """And the commands print which."""
    environ = {"DAGSTER_HOME": str(tmp_path)}
    assert find_home(rig.fleet, environ=environ, cwd=_ROOT).path == tmp_path
    assert find_home(rig.fleet, environ={}, cwd=_ROOT).path == _ROOT
    assert find_home(rig.fleet, environ={}, cwd=tmp_path).path == rig.fleet.state / "dagster"


def test_importing_the_package_does_not_import_dagster() -> None:
    """status, plan and why start without it; build_definitions brings it."""
    code = (
        "import sys, tenant_pipelines, tenant_pipelines.cli.main\n"
        "assert 'dagster' not in sys.modules and 'pandas' not in sys.modules\n"
        "tenant_pipelines.build_definitions\n"
        "assert 'dagster' in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ})
