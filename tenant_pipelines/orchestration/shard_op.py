"""What a shard's op does: run the engine on one shard, and project each cell to Dagster.

The journal is the authority and the events are its projection: an event is logged right after the
journal has the entry, from the op's own thread, while the tenants go on.
"""

import os
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime

from dagster import AssetCheckEvaluation, DagsterRunStatus, Failure, OpExecutionContext

from tenant_pipelines.engine.cycles import newest_cycle, open_cycle
from tenant_pipelines.engine.plan import Request, done_steps
from tenant_pipelines.engine.run_locks import hold_run_lock
from tenant_pipelines.engine.runner import ShardRun
from tenant_pipelines.engine.work import CellCompleted, ShardReport
from tenant_pipelines.errors import InvalidRequest, TenantPipelinesError
from tenant_pipelines.fleet.model import Fleet
from tenant_pipelines.journal.fold import Cycle, cycles_of, fold_tenant
from tenant_pipelines.journal.journal import Journal
from tenant_pipelines.orchestration import names
from tenant_pipelines.orchestration.checks import evaluate_checks
from tenant_pipelines.orchestration.dagster_internals import (
    IN_JOURNAL,
    colours_of,
    log_planned,
)
from tenant_pipelines.orchestration.io_manager import TenantIOManager
from tenant_pipelines.orchestration.reconcile import mend
from tenant_pipelines.orchestration.register import register_shard
from tenant_pipelines.orchestration.request import (
    asked_cycle,
    asked_tick,
    keys_of_nobody,
    op_config,
    root_of,
    shard_request,
)
from tenant_pipelines.orchestration.resources import RunJournalResource
from tenant_pipelines.orchestration.run_targets import shards_of
from tenant_pipelines.orchestration.view import (
    cells_to_restate,
    keys_not_done,
    materialization,
    restatement,
    summary,
)

# from asset failure, Dagster looks at whole assets and finds none without a key that was made
_HOW_TO_GO_ON = (
    "\nMend the cause, then re-execute this run from failure, or all its steps: only what is "
    'missing runs. "From asset failure" does nothing here.'
)


@dataclass(slots=True, kw_only=True)
class _ShardOp:
    """One execution of a shard's op; ``planned`` are the (tenants, steps) that Dagster planned."""

    context: OpExecutionContext
    fleet: Fleet
    shard: str
    request: Request
    planned: tuple[Collection[str], Collection[str]] | None
    journal: Journal
    cycle: Cycle
    store: TenantIOManager
    logged: set[tuple[str, str]] = field(default_factory=set)

    def run(self) -> ShardReport:
        """Run the shard, log an event per completed cell, then make Dagster show the truth."""
        run = ShardRun(
            fleet=self.fleet,
            shard=self.shard,
            journal=self.journal,
            store=self.store,
            cycle=self.cycle,
            run_id=self.context.run_id,
            request=self.request,
            environ=os.environ,
        )
        try:
            for event in run.events():
                if isinstance(event, CellCompleted):
                    self.context.log_event(materialization(self.fleet.name, event))
                    self.logged.add((event.attempt.tenant, event.attempt.step))
        except TenantPipelinesError:
            if self.planned is None:
                self._plan_red(self._not_done())
            raise
        if is_cancelled(self.context):
            return run.report
        if not run.report.is_complete and self.planned is None:
            self._plan_red(keys_not_done(run.report))
        self._restate(run.report)
        return run.report

    def _not_done(self) -> list[tuple[str, str]]:
        """Return (tenant, step) of the asked-for cells that are not done, by the journal."""
        done = {
            (tenant, step)
            for tenant, entries in self.journal.by_tenant(self.cycle.name)
            for step in done_steps(self.fleet.pipeline, fold_tenant(entries))
        }
        steps = self.request.asked_steps(self.fleet.pipeline)
        return [(t, s) for t in self._asked_tenants() for s in steps if (t, s) not in done]

    def _asked_tenants(self) -> list[str]:
        return self.request.asked_tenants(self.fleet.shard(self.shard).tenants)

    def _plan_red(self, cells: list[tuple[str, str]]) -> None:
        log_planned(
            self.context.instance,
            run_id=self.context.run_id,
            job_name=self.context.job_name,
            step_key=self.context.get_step_execution_context().step.key,
            keys=[
                (names.asset_key(self.fleet.name, self.shard, step), tenant)
                for tenant, step in cells
            ],
        )

    def _restate(self, report: ShardReport) -> None:
        is_backfill = names.BACKFILL_TAG in self.context.run.tags
        fails = not report.is_complete or bool(
            self.planned and keys_of_nobody(self.fleet, self.shard, self.planned[0])
        )
        every_key = self.planned is not None and (is_backfill or fails)
        tenants, steps = self.planned or (
            self._asked_tenants(),
            self.request.asked_steps(self.fleet.pipeline),
        )
        colours = None
        if not every_key:
            partitions = names.partitions_of(self.fleet.name, self.shard)
            colours = {
                step: colours_of(
                    self.context.instance,
                    names.asset_key(self.fleet.name, self.shard, step),
                    partitions,
                )
                for step in steps
            }
        for tenant, step, cell in cells_to_restate(
            self.fleet,
            self.journal,
            cycle=self.cycle.name,
            tenants=tenants,
            steps=steps,
            logged=self.logged,
            colours=colours,
        ):
            self.context.log_event(
                restatement(
                    self.fleet.name,
                    shard=self.shard,
                    cycle=self.cycle.name,
                    tenant=tenant,
                    step=step,
                    cell=cell,
                )
            )


def is_cancelled(context: OpExecutionContext) -> bool:
    """Tell whether a user terminated the run: it then leaves every key as it was."""
    run = context.instance.get_run_by_id(context.run_id)
    return run is not None and run.status is DagsterRunStatus.CANCELING


def run_open_op(context: OpExecutionContext, fleet: Fleet) -> None:
    """Open the run's cycle in every openable journal, before any shard starts.

    Raises:
        Failure: the request makes no sense; nothing was opened.
    """
    try:
        # every shard's, before the first cell of any
        for shard in shards_of(context.run, fleet):
            config = op_config(context.run, names.fleet_op(fleet.name, shard))
            shard_request(fleet, shard=shard, run=context.run, config=config)
        with hold_run_lock(fleet.state, context.run_id, "_open"):
            open_cycle(
                fleet,
                asked=asked_cycle(context.run, context.op_config),
                root=root_of(context.run),
                run_id=context.run_id,
                tick=asked_tick(context.run),
            )
    except TenantPipelinesError as error:
        raise _failure(error) from None


def run_shard_op(
    context: OpExecutionContext,
    fleet: Fleet,
    shard: str,
    *,
    keys: list[str] | None = None,
    selected: list[str] | None = None,
    opens_cycle: bool,
) -> Iterator[AssetCheckEvaluation]:
    """Run one shard, and yield its asset checks before it fails or ends.

    Args:
        context: of the op.
        fleet: the fleet.
        shard: name of the shard.
        keys: the partition keys that the run targets, None for none.
        selected: the steps whose assets were selected, None when all were.
        opens_cycle: whether this op opens the run's cycle itself (no op before it did).

    Raises:
        Failure: a cell that was asked for is not done, or the shard cannot run; never retried.
    """
    tags = {names.MAX_RETRIES_TAG: "0"}
    if context.job_name != names.fleet_job(fleet.name):
        tags[names.SHARD_TAG] = names.partition_set(fleet.name, shard)
    context.instance.add_run_tags(context.run_id, tags)
    try:
        request = shard_request(
            fleet,
            shard=shard,
            run=context.run,
            config=context.op_config,
            keys=keys,
            selected=selected,
        )
        # before this run's events, or what a dead one left undone would outlast what this one does
        mend(context.instance, fleet, shards=[shard])
        gone = keys_of_nobody(fleet, shard, keys)
        with hold_run_lock(fleet.state, context.run_id, shard):
            planned = None if keys is None else (keys, selected or fleet.pipeline.names)
            report = _run_locked(context, fleet, shard, request, planned, opens_cycle=opens_cycle)
            # one that a user terminated leaves everything as it was, and ends at once
            if not is_cancelled(context):
                yield from evaluate_checks(fleet, shard, now=datetime.now(UTC))
    except TenantPipelinesError as error:
        raise _failure(error) from None
    if gone or not report.is_complete:
        left = (
            f"\nno longer in {fleet.path}: {', '.join(gone)}; nothing ran for them" if gone else ""
        )
        raise Failure(
            description=summary(report) + left + _HOW_TO_GO_ON,
            metadata={IN_JOURNAL: True},
            allow_retries=False,
        )
    said = summary(report) + _how_to_force(report, context.op.name)
    context.log.info(said)


def checks_alone(fleet: Fleet, shard: str) -> list[AssetCheckEvaluation]:
    """Evaluate a shard's checks without running it.

    Raises:
        Failure: its journal cannot be read.
    """
    try:
        return evaluate_checks(fleet, shard, now=datetime.now(UTC))
    except TenantPipelinesError as error:
        raise _failure(error) from None


def _run_locked(
    context: OpExecutionContext,
    fleet: Fleet,
    shard: str,
    request: Request,
    planned: tuple[Collection[str], Collection[str]] | None,
    *,
    opens_cycle: bool,
) -> ShardReport:
    register_shard(context.instance, fleet, shard)
    resource: RunJournalResource = getattr(context.resources, names.journal_resource(fleet.name))
    store: TenantIOManager = getattr(context.resources, names.cells_resource(fleet.name))
    with resource.open(shard) as journal:
        # a re-execution from failure skips the op that opens the cycle
        is_behind = opens_cycle or context.run.parent_run_id is not None
        cycles = cycles_of(journal.cycle_entries())
        cycle = None if is_behind else newest_cycle(cycles)
        asked = asked_cycle(context.run, context.op_config)
        was_opened = any(known.root == request.root or known.name == asked for known in cycles)
        if asked is not None and cycle is not None and not was_opened:
            raise InvalidRequest(
                place=f"journal of shard {shard!r}",
                found=f"no new cycle {asked!r}, which this run was to open",
                wanted="a cycle that the opening op recorded",
                fix="Run again.",
            )
        if cycle is None:
            cycle = open_cycle(
                fleet,
                asked=asked,
                root=request.root,
                run_id=context.run_id,
                tick=asked_tick(context.run),
            )
        return _ShardOp(
            context=context,
            fleet=fleet,
            shard=shard,
            request=request,
            planned=planned,
            journal=journal,
            cycle=cycle,
            store=store,
        ).run()


def _failure(error: TenantPipelinesError) -> Failure:
    return Failure(description=str(error), allow_retries=False)


def _how_to_force(report: ShardReport, op: str) -> str:
    if report.ran or not report.skipped:
        return ""
    return (
        "\nEverything asked for was done already. To run it again all the same, launch with the "
        f"config ops: {{{op}: {{config: {{force: true}}}}}}, or with the run tag "
        f"{names.FORCE_TAG}=true."
    )
