"""One tenant's way through the pipeline: lease, settle, then cell after cell until done or failed.

A chain that has to wait (for its lease, for a retry) says for how long and gives its thread back.
The completion of one cell and the start of the next share a commit.
"""

import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from tenant_pipelines.engine.opening import (
    collect_leftovers,
    effects_to_settle,
    find_window,
    open_forced,
    read_what_others_wrote,
)
from tenant_pipelines.engine.plan import Action, PlannedCell, Reason, plan_tenant
from tenant_pipelines.engine.ports import has_artifact
from tenant_pipelines.engine.step_context import context_of
from tenant_pipelines.engine.step_guard import describe_failure, guarded
from tenant_pipelines.engine.window import close_window, window_from, window_to
from tenant_pipelines.engine.work import (
    CellCompleted,
    CellFailed,
    CellHeld,
    ShardReport,
    ShardWork,
)
from tenant_pipelines.errors import (
    EntryRefused,
    JournalUnusable,
    LedgerDisagrees,
    LocksUnusable,
    TenantPipelinesError,
    UnsupportedOutput,
)
from tenant_pipelines.fleet.cell import Attempt
from tenant_pipelines.fleet.context import StepContext, Window, is_cursor
from tenant_pipelines.fleet.pipeline import Step
from tenant_pipelines.fleet.settings import ResolvedSettings
from tenant_pipelines.journal.entries import Draft, EntryKind
from tenant_pipelines.journal.fold import Outcome, TenantState
from tenant_pipelines.storage.output import StoredOutput

_LEASE_WAIT_SECONDS = 0.02
_LONGEST_LEASE_WAIT_SECONDS = 0.25


class Chain:
    """The work on one tenant in one run.

    A crash leaves the lease and the slot to the kernel, a ``started`` entry without its end, and
    at worst an artifact that no entry names; the next chain of the tenant collects it.
    """

    def __init__(
        self, work: ShardWork, *, tenant: str, resolved: ResolvedSettings, state: TenantState
    ) -> None:
        """Prepare the chain.

        Args:
            work: what the chains share.
            tenant: name of the tenant.
            resolved: its settings and secrets.
            state: its cells as read before; looked up again under the lease.
        """
        self.tenant = tenant
        self._work = work
        self._resolved = resolved
        self._state = state
        self._is_leased = False
        self._slot: int | None = None
        self._lease_wait = _LEASE_WAIT_SECONDS
        self._tries: dict[str, int] = {}
        self._completed: set[str] = set()
        self._settled: set[str] = set()
        self._ahead: list[PlannedCell] | None = None
        self._pending: list[tuple[Draft, CellCompleted]] = []
        self._failure: CellFailed | None = None

    def advance(self) -> float | None:
        """Work until the chain ends or has to wait.

        Returns:
            Seconds to wait before the next call; None when the chain has ended.

        Raises:
            JournalUnusable: the journal cannot be written; nothing of the shard may go on.
        """
        try:
            wait = self._advance()
        except BaseException:
            self.give_back()
            raise
        self._give_back_slot()
        if wait is None:
            self.give_back()
        return wait

    def report_to(self, report: ShardReport) -> None:
        """Add this chain's cells to the report, once it has ended."""
        ended = self._completed | self._settled
        report.ran += len(ended)
        for cell in self._plan():
            if cell.action is Action.SKIP:
                report.skipped += cell.step not in ended
            elif self._failure is not None:
                continue  # it failed or was blocked; the failure names both
            elif cell.action is Action.HOLD:
                report.held.append(CellHeld(tenant=self.tenant, step=cell.step, reason=cell.reason))
            else:
                report.unreached += 1
        if self._failure is not None:
            report.failed.append(self._failure)

    def _advance(self) -> float | None:
        if not self._is_leased:
            if self._work.should_stop():
                return None
            if not self._work.leases.try_take(self.tenant):
                wait, self._lease_wait = (
                    self._lease_wait,
                    min(2 * self._lease_wait, _LONGEST_LEASE_WAIT_SECONDS),
                )
                return wait
            self._is_leased = True
            if self._work.is_superseded():
                return None
            try:
                self._look_again()
            except (JournalUnusable, EntryRefused, LocksUnusable):
                raise
            except Exception as error:  # noqa: BLE001  (one tenant's files or ledger, not the shard's)
                self._fail_before_first_cell(error)
                return None
        return self._run_cells()

    def _run_cells(self) -> float | None:
        while True:
            following = None if self._work.should_stop() else self._next_cell()
            if following is None:
                self._flush()
                return None
            if self._slot is None:
                self._flush()
                self._slot = self._work.slots.take(self._work.should_stop)
                if self._slot is None:
                    return None
            wait = self._run_cell(following)
            if self._failure is not None or wait is not None:
                return wait

    def _plan(self) -> list[PlannedCell]:
        return plan_tenant(
            self._work.fleet.pipeline,
            self._state,
            self._work.request,
            has_artifact=partial(has_artifact, self._work.store),
        )

    def _fail_before_first_cell(self, error: Exception) -> None:
        """Journal why a tenant could not begin; attempt 0, since no execution was started."""
        waiting = [cell.step for cell in self._plan() if cell.action is not Action.SKIP]
        step = error.facts["step"] if isinstance(error, LedgerDisagrees) else (waiting or [""])[0]
        if not step:
            return
        attempt = self._attempt(step, max(self._state.cell(step).generation, 1), 0)
        described = describe_failure(error, self._resolved.secrets)
        payload = {"error": described, "seconds": 0.0}
        draft = self._draft(EntryKind.FAILED, attempt, "", payload)
        self._work.journal.append(draft)
        self._state.apply_one(draft)
        self._fail(step, error)

    def _next_cell(self) -> PlannedCell | None:
        # what is planned to run still is when the cells above it have completed; a cell to be
        # checked is planned again with what was learned
        if self._ahead is None or (self._ahead and self._ahead[0].action is Action.CHECK):
            self._ahead = [
                cell for cell in self._plan() if cell.action in {Action.RUN, Action.CHECK}
            ]
        if not self._ahead or self._ahead[0].action is Action.CHECK:
            return None
        cell = self._ahead.pop(0)
        # asked for by its own effect, which would have no end
        return None if cell.step in self._completed else cell

    def _look_again(self) -> None:
        work, state = self._work, self._state
        read_what_others_wrote(work, self.tenant, state)
        collect_leftovers(work, self.tenant, state)
        for row in effects_to_settle(work, self.tenant, state):
            cell = state.cell(row.step)
            attempt = self._attempt(row.step, cell.generation, cell.attempts)
            self._complete(
                work.fleet.pipeline[row.step],
                attempt,
                work.store.store(attempt, row.output),
                inputs=dict(cell.inputs),
                code_version=cell.code_version,
                seconds=0.0,
                is_settled=True,
            )
        self._flush()
        open_forced(work, self.tenant, state)

    def _run_cell(self, planned: PlannedCell) -> float | None:
        step = self._work.fleet.pipeline[planned.step]
        cell = self._state.cell(step.name)
        is_new = cell.outcome is Outcome.COMPLETED or cell.generation == 0
        generation = cell.generation + 1 if is_new else cell.generation
        attempt = self._attempt(step.name, generation, 1 if is_new else cell.attempts + 1)
        inputs = {name: str(self._state.cell(name).digest) for name in step.upstream}
        began = time.perf_counter()
        window_error: BaseException | None = None
        if self._state.window is None and not step.upstream:
            try:
                self._state.window = self._pin_window(attempt)
            except JournalUnusable:
                raise
            except BaseException as error:  # noqa: BLE001  (a window function is a step's code)
                window_error = error
        self._start(step, attempt, inputs=inputs, reason=planned.reason)
        try:
            output = self._execute(step, attempt, inputs, window_error)
        except BaseException as error:  # noqa: BLE001  (SystemExit of a step ends its tenant only)
            return self._after_failure(step, attempt, error, time.perf_counter() - began)
        self._complete(
            step,
            attempt,
            output,
            inputs=inputs,
            code_version=step.code_version or "",
            seconds=time.perf_counter() - began,
        )
        return None

    def _attempt(self, step: str, generation: int, attempt: int) -> Attempt:
        return Attempt(
            shard=self._work.shard.name,
            tenant=self.tenant,
            step=step,
            cycle=self._work.cycle.name,
            generation=generation,
            attempt=attempt,
        )

    def _context(self, attempt: Attempt, window: Window, inputs: dict[str, str]) -> StepContext:
        return context_of(
            self._work.fleet,
            attempt,
            self._resolved.settings,
            window=window,
            inputs=inputs,
            run_id=self._work.run_id,
        )

    def _pin_window(self, attempt: Attempt) -> dict[str, Any]:
        """Return the window that every attempt and generation of the cycle then reads."""
        window = find_window(self._work, self.tenant)
        step = self._work.fleet.pipeline.window_step
        to: Any = self._work.cycle.instant
        if step is not None and step.window is not None:
            context = self._context(replace(attempt, step=step.name), window, {})
            with guarded():
                to = step.window(context)
            if to is not None and not is_cursor(to):
                raise UnsupportedOutput(
                    tenant=self.tenant,
                    step=f"{step.name} (its window)",
                    found=f"a {type(to).__name__}",
                    wanted="a string, an integer, a finite float or None",
                )
        return window_to(close_window(window, to))

    def _start(
        self, step: Step, attempt: Attempt, *, inputs: dict[str, str], reason: Reason
    ) -> None:
        payload: dict[str, Any] = {"inputs": inputs, "reason": reason.value}
        if not step.upstream and self._state.window is not None:
            payload["window"] = self._state.window
        started = self._draft(EntryKind.STARTED, attempt, step.code_version or "", payload)
        self._flush(started)
        self._state.apply_one(started)
        self._tries[step.name] = self._tries.get(step.name, 0) + 1

    def _execute(
        self,
        step: Step,
        attempt: Attempt,
        inputs: dict[str, str],
        window_error: BaseException | None,
    ) -> StoredOutput:
        if window_error is not None:
            raise window_error
        store = self._work.store
        values = {name: self._load(name) for name in step.upstream}
        context = self._context(attempt, window_from(self._state.window), inputs)
        with guarded():
            value = step(context, **values)
        return replace(store.store(attempt, value), accounted=context.accounted)

    def _load(self, step: str) -> Any:
        cell = self._state.cell(step)
        output = StoredOutput.from_json(cell.output or {})
        address = self._attempt(step, cell.generation, cell.attempts)
        return self._work.store.load(address, output)

    def _complete(
        self,
        step: Step,
        attempt: Attempt,
        output: StoredOutput,
        *,
        inputs: dict[str, str],
        code_version: str,
        seconds: float,
        is_settled: bool = False,
    ) -> None:
        payload: dict[str, Any] = {
            "inputs": inputs,
            "output": output.to_json(),
            "seconds": round(seconds, 6),
        }
        if is_settled:
            payload["settled"] = True
        draft = self._draft(EntryKind.COMPLETED, attempt, code_version, payload)
        self._state.apply_one(draft)
        (self._settled if is_settled else self._completed).add(step.name)
        event = CellCompleted(
            attempt=attempt,
            # thousands can wait to be told; a value in each would hold their memory
            output=output if output.value is None else replace(output, value=None),
            code_version=code_version,
            seconds=seconds,
            is_settled=is_settled,
        )
        self._pending.append((draft, event))

    def _after_failure(
        self, step: Step, attempt: Attempt, error: BaseException, seconds: float
    ) -> float | None:
        described = describe_failure(error, self._resolved.secrets)
        payload = {"error": described, "seconds": round(seconds, 6)}
        draft = self._draft(EntryKind.FAILED, attempt, step.code_version or "", payload)
        self._work.journal.append(draft)
        self._state.apply_one(draft)
        self._ahead = None
        tries = self._tries[step.name]
        is_hopeless = isinstance(error, TenantPipelinesError) and not error.is_retryable
        if tries < step.retries.attempts and not is_hopeless and not self._work.should_stop():
            return step.retries.wait_before(tries + 1)
        self._fail(step.name, error)
        return None

    def _fail(self, step: str, error: BaseException) -> None:
        done_before = {cell.step for cell in self._plan() if cell.action is Action.SKIP}
        asked = self._work.request.asked_steps(self._work.fleet.pipeline)
        blocked = [
            name
            for name in self._work.fleet.pipeline.names
            if name in asked and name != step and name not in done_before | self._completed
        ]
        self._failure = CellFailed(
            tenant=self.tenant,
            step=step,
            error=describe_failure(error, self._resolved.secrets),
            blocked=tuple(blocked),
        )
        self._work.tell(self._failure)

    def _draft(
        self, kind: EntryKind, attempt: Attempt, code_version: str, payload: dict[str, Any]
    ) -> Draft:
        return Draft(
            kind=kind,
            cycle=attempt.cycle,
            run_id=self._work.run_id,
            tenant=attempt.tenant,
            step=attempt.step,
            generation=attempt.generation,
            attempt=attempt.attempt,
            code_version=code_version,
            payload=payload,
        )

    def _flush(self, *further: Draft) -> None:
        """Make pending completions durable, with further entries in the same commit."""
        pending: Sequence[tuple[Draft, CellCompleted]] = self._pending
        self._pending = []
        self._work.journal.append(*(draft for draft, _ in pending), *further)
        for _, event in pending:
            self._work.tell(event)

    def _give_back_slot(self) -> None:
        if self._slot is not None:
            self._work.slots.give_back(self._slot)
            self._slot = None

    def give_back(self) -> None:
        """Give slot and lease back; call it while no thread advances the chain."""
        self._give_back_slot()
        if self._is_leased:
            self._work.leases.give_back(self.tenant)
            self._is_leased = False
