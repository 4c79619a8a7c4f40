"""Everything of Dagster that is not public: one place, pinned to 1.13, covered by a test each.

``get_and_update_asset_status_cache_value`` is what the UI's partition bars are made of;
``AssetMaterializationPlannedData`` is how Dagster itself records that a run intends to make a key;
``execute_run`` is ``execute_job`` with a run id that is known before it starts.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from dagster import (
    AssetCheckEvaluation,
    AssetCheckKey,
    AssetKey,
    DagsterEvent,
    DagsterEventType,
    DagsterInstance,
    DynamicPartitionsDefinition,
    EventLogRecord,
)
from dagster._core.definitions.asset_checks.asset_check_evaluation import (
    AssetCheckEvaluationTargetMaterializationData,
)
from dagster._core.definitions.reconstruct import ReconstructableJob
from dagster._core.events import (
    AssetMaterializationPlannedData,
    EngineEventData,
    JobFailureData,
)
from dagster._core.execution.api import execute_run
from dagster._core.execution.backfill import (
    BULK_ACTION_TERMINAL_STATUSES,
    BulkActionsFilter,
    BulkActionStatus,
)
from dagster._core.execution.plan.objects import StepFailureData
from dagster._core.storage.event_log import SqliteEventLogStorage
from dagster._core.storage.partition_status_cache import get_and_update_asset_status_cache_value
from dagster_shared.record import copy

# metadata of a failure that the journals tell cell by cell
IN_JOURNAL = "tenant_pipelines/in_journal"


@dataclass(frozen=True, slots=True)
class KeyColours:
    """What Dagster shows of one asset: the keys it counts as materialized and as failed."""

    materialized: frozenset[str]
    failed: frozenset[str]


def colours_of(
    instance: DagsterInstance, asset_key: AssetKey, partitions: DynamicPartitionsDefinition
) -> KeyColours:
    """Return the keys of an asset that Dagster shows as materialized and as failed.

    Inside a run its planned keys read as in progress everywhere else; here a key that failed
    before stays failed until something materializes it.
    """
    value = get_and_update_asset_status_cache_value(instance, asset_key, partitions)
    if value is None:
        return KeyColours(frozenset(), frozenset())
    return KeyColours(
        frozenset(
            value.deserialize_materialized_partition_subsets(partitions).get_partition_keys()
        ),
        frozenset(value.deserialize_failed_partition_subsets(partitions).get_partition_keys()),
    )


def log_planned(
    instance: DagsterInstance,
    *,
    run_id: str,
    job_name: str,
    step_key: str,
    keys: Iterable[tuple[AssetKey, str]],
) -> None:
    """Record that a run meant to make some keys, so that its failure shows them failed.

    Args:
        instance: the Dagster instance.
        run_id: the run.
        job_name: its job.
        step_key: the step that logs.
        keys: asset and partition key of each.
    """
    for asset_key, partition in keys:
        event = DagsterEvent.build_asset_materialization_planned_event(
            job_name,
            step_key,
            AssetMaterializationPlannedData(asset_key, partition=partition),
        )
        instance.report_dagster_event(event, run_id=run_id)


def is_local(instance: DagsterInstance) -> bool:
    """Tell whether the instance's runs are of this host: its events lie in local SQLite files.

    An executor's event names a pid and no host, so nothing follows from it elsewhere.
    """
    return isinstance(instance.event_log_storage, SqliteEventLogStorage)


def newest_check(
    instance: DagsterInstance, asset_key: AssetKey, name: str
) -> AssetCheckEvaluation | None:
    """Return what Dagster shows of an asset check.

    None when its newest run never evaluated it, and when the asset was materialized since: the UI
    shows no result then (AssetCheckExecutionRecord.targets_latest_materialization).
    """
    key = AssetCheckKey(asset_key, name)
    record = instance.event_log_storage.get_latest_asset_check_execution_by_key([key]).get(key)
    event = record.event.dagster_event if record is not None and record.event is not None else None
    data = event.event_specific_data if event is not None else None
    if record is None or not isinstance(data, AssetCheckEvaluation):
        return None
    made = _newest_materialization(instance, asset_key)
    if made is None or made.run_id == record.run_id:
        return data
    target = data.target_materialization_data
    if target is None:
        return data if made.timestamp < record.create_timestamp else None
    return data if target.storage_id == made.storage_id else None


def report_check(instance: DagsterInstance, evaluation: AssetCheckEvaluation) -> None:
    """Report the result of an asset check outside of any run, for the newest materialization.

    Without that, Dagster compares times, of which one is in whole seconds, and may not show it.
    """
    made = _newest_materialization(instance, evaluation.asset_key)
    if made is not None:
        evaluation = copy(
            evaluation,
            target_materialization_data=AssetCheckEvaluationTargetMaterializationData(
                storage_id=made.storage_id, run_id=made.run_id, timestamp=made.timestamp
            ),
        )
    instance.report_runless_asset_event(evaluation)


def _newest_materialization(
    instance: DagsterInstance, asset_key: AssetKey
) -> EventLogRecord | None:
    return next(iter(instance.fetch_materializations(asset_key, limit=1).records), None)


def assets_in_backfills(instance: DagsterInstance) -> frozenset[AssetKey]:
    """Return the assets that backfills target which have not ended."""
    ended = {BulkActionStatus.COMPLETED, *BULK_ACTION_TERMINAL_STATUSES}
    going_on = [status for status in BulkActionStatus if status not in ended]
    backfills = instance.get_backfills(filters=BulkActionsFilter(statuses=going_on))
    return frozenset(key for backfill in backfills for key in backfill.asset_selection or ())


@dataclass(frozen=True, slots=True)
class ExecutorProcess:
    """The process that a run's executor said it is, and when it said so (seconds since 1970)."""

    pid: int
    seen_at: float


def executor_process(instance: DagsterInstance, run_id: str) -> ExecutorProcess | None:
    """Return the process of a run's executor, None when it never said; ask only of a local one."""
    for entry in instance.all_logs(run_id, of_type=DagsterEventType.ENGINE_EVENT):
        event = entry.dagster_event
        data = event.event_specific_data if event is not None else None
        pid = data.metadata.get("pid") if isinstance(data, EngineEventData) else None
        if pid is not None and str(pid.value).isdigit():
            return ExecutorProcess(int(str(pid.value)), entry.timestamp)
    return None


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a run ended for Dagster.

    Attributes:
        has_succeeded: whether the run succeeded.
        errors: what went wrong besides what our own ops said; one text each, a traceback maybe.
    """

    has_succeeded: bool
    errors: tuple[str, ...]


def execute_with_id(
    job: ReconstructableJob,
    instance: DagsterInstance,
    *,
    run_id: str,
    run_config: dict[str, object],
    ops: list[str],
) -> Verdict:
    """Execute a job in this process as ``dagster job execute`` does, under a run id chosen before.

    Args:
        job: the job.
        instance: the instance.
        run_id: id of the run.
        run_config: config of the run.
        ops: names of the ops to run.

    Returns:
        How it ended.
    """
    subset = job.get_subset(op_selection=ops)
    run = instance.create_run_for_job(
        job_def=subset.get_definition(),
        run_id=run_id,
        run_config=run_config,
        op_selection=ops,
        resolved_op_selection=frozenset(ops),
        job_code_origin=subset.get_python_origin(),
    )
    result = execute_run(subset, run, instance, raise_on_error=False)
    errors = []
    for event in result.all_events:
        data = event.event_specific_data
        if isinstance(data, JobFailureData):
            # a failed step is told by its own event
            told = data.first_step_failure_event is not None
        elif isinstance(data, StepFailureData):
            ours = data.user_failure_data
            told = ours is not None and IN_JOURNAL in ours.metadata
            if ours is not None and not told and ours.description:
                errors.append(ours.description)
                continue
        else:
            continue
        if data.error and not told:
            errors.append(data.error.to_string())
    return Verdict(result.success, tuple(errors))
