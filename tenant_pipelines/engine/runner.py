"""Runs one shard: a pool of daemon threads, one chain per tenant, events to the calling thread.

The threads are daemons: on termination nothing new starts, what runs gets a few seconds, and then
the process may exit with a step still in it; the journal calls that step interrupted.
"""

import heapq
import itertools
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial

from tenant_pipelines.engine.chain import Chain
from tenant_pipelines.engine.cycles import shards_with_history
from tenant_pipelines.engine.leases import TenantLeases
from tenant_pipelines.engine.plan import Action, PlannedCell, Reason, Request, plan_tenant
from tenant_pipelines.engine.ports import CellStore, has_artifact
from tenant_pipelines.engine.slots import Slots
from tenant_pipelines.engine.work import CellEvent, CellHeld, ShardReport, ShardWork
from tenant_pipelines.errors import JournalUnusable, TenantMoved, TenantSettingMissing
from tenant_pipelines.fleet.model import Fleet, Shard
from tenant_pipelines.fleet.settings import ResolvedSettings, resolve_settings
from tenant_pipelines.journal.fold import Cycle, TenantState, cycles_of, fold_tenant
from tenant_pipelines.journal.journal import Journal
from tenant_pipelines.storage.ledger import Ledger

STOP_SECONDS = 4.0


class ShardRun:
    """One run's work in one shard; iterate ``events``, then read ``report``."""

    def __init__(
        self,
        *,
        fleet: Fleet,
        shard: str,
        journal: Journal,
        store: CellStore,
        cycle: Cycle,
        run_id: str,
        request: Request,
        environ: Mapping[str, str],
    ) -> None:
        """Prepare the run; nothing is written yet.

        Args:
            fleet: the fleet.
            shard: name of the shard.
            journal: the shard's journal, with ``cycle`` open in it.
            store: where outputs go.
            cycle: the cycle to work on.
            run_id: id of the run.
            request: what was asked for.
            environ: for ``${…}`` in the tenants' settings.
        """
        request = as_spent(request, journal, cycle.name)
        self._fleet = fleet
        self._shard = fleet.shard(shard)
        self._environ = environ
        self._stops = threading.Event()
        self._opened_at_seq = 0
        self._pool: _Pool | None = None
        self._told: queue.SimpleQueue[CellEvent | BaseException | None] = queue.SimpleQueue()
        locks = fleet.shard_state(shard) / "locks"
        limit = self._shard.limits.max_concurrent
        self._leases = TenantLeases(locks)
        self._slots = Slots(locks, limit)
        self._work = ShardWork(
            fleet=fleet,
            shard=self._shard,
            cycle=cycle,
            run_id=run_id,
            request=request,
            journal=journal,
            store=store,
            ledger=ledger_of(fleet),
            leases=self._leases,
            slots=self._slots,
            should_stop=self._stops.is_set,
            is_superseded=self._is_superseded,
            tell=self._told.put,
        )
        self.report = ShardReport(shard=shard, cycle=cycle.name)

    def stop(self) -> None:
        """Start nothing new; cells that run may end, and who waits ends at once."""
        self._stops.set()
        if self._pool is not None:
            self._pool.stop()

    def events(self) -> Iterator[CellEvent]:
        """Run the shard, yielding each completed and failed cell once the journal has it.

        Closing the iterator, or an exception thrown into it, stops the run: cells that run get
        ``STOP_SECONDS`` to end.

        Raises:
            JournalUnusable: the journal cannot be read or written any more.
        """
        pool = self._pool = _Pool(self._chains(), self._told, self.report)
        threads = min(self._shard.limits.max_concurrent, pool.left)
        pool.start(threads, name=f"{self._fleet.name}/{self._shard.name}")
        try:
            while (told := self._told.get()) is not None:
                if isinstance(told, BaseException):
                    raise told
                yield told
        finally:
            self.stop()
            if pool.join(STOP_SECONDS):
                self._leases.close()
                self._slots.close()
            pool.report_rest()

    def _is_superseded(self) -> bool:
        # what this journal opened before mine is older, whatever instant its opener recorded; and
        # two openers of one cycle record different ones
        mine = self._work.cycle
        opened = cycles_of(self._work.journal.cycle_entries(after_seq=self._opened_at_seq))
        return any(cycle.name != mine.name and cycle > mine for cycle in opened)

    def _chains(self) -> deque[Callable[[], Chain]]:
        """Plan every asked-for tenant; return what makes the chain of each that has work.

        A chain is made when a thread takes it: a tenant that waits or has ended costs no state.
        """
        opened = self._work.journal.cycle_entries()
        mine = [entry.seq for entry in opened if entry.cycle == self._work.cycle.name]
        self._opened_at_seq = max(mine, default=0)
        states, seen = self._unfinished()
        strangers = [name for name in self._asked() if name not in seen]
        new, plan_of_new = frozenset(strangers), self._plan(TenantState())
        moved = find_moved(
            self._shard, self._work.journal, strangers, partial(read_histories, self._fleet)
        )
        chains: deque[Callable[[], Chain]] = deque()
        for name in self._asked():
            if name not in states and name not in new:
                continue
            cells = self._plan(states[name]) if name in states else plan_of_new
            waiting = [cell for cell in cells if cell.action is not Action.SKIP]
            try:
                if name in moved:
                    raise moved[name]
                resolved = resolve_settings(
                    self._fleet.path, self._shard.tenants[name], self._environ
                )
            except (TenantSettingMissing, TenantMoved) as error:
                self.report.skipped += len(cells) - len(waiting)
                self.report.held += [
                    CellHeld(
                        tenant=name, step=cell.step, reason=hold_reason(error), detail=str(error)
                    )
                    for cell in waiting
                ]
                continue
            chains.append(partial(self._chain, name, resolved, states.pop(name, None)))
        return chains

    def _chain(self, tenant: str, resolved: ResolvedSettings, state: TenantState | None) -> Chain:
        return Chain(self._work, tenant=tenant, resolved=resolved, state=state or TenantState())

    def _plan(self, state: TenantState) -> list[PlannedCell]:
        return plan_tenant(
            self._fleet.pipeline,
            state,
            self._work.request,
            has_artifact=partial(has_artifact, self._work.store),
        )

    def _asked(self) -> list[str]:
        return self._work.request.asked_tenants(self._shard.tenants)

    def _unfinished(self) -> tuple[dict[str, TenantState], set[str]]:
        """Return the state of each asked-for tenant with something to do, and who has entries."""
        asked, seen = set(self._asked()), set()
        states: dict[str, TenantState] = {}
        for tenant, entries in self._work.journal.outcomes_by_tenant(self._work.cycle.name):
            if tenant not in asked:
                continue
            seen.add(tenant)
            state = fold_tenant(entries)
            cells = self._plan(state)
            if all(cell.action is Action.SKIP for cell in cells):
                self.report.skipped += len(cells)
            else:
                # the starts hold the window
                states[tenant] = fold_tenant(
                    self._work.journal.of_tenant(cycle=self._work.cycle.name, tenant=tenant)
                )
        return states, seen


class _Pool:
    """Daemon threads that make and advance chains, the ones that wait when they are due."""

    def __init__(
        self,
        new: deque[Callable[[], Chain]],
        told: "queue.SimpleQueue[CellEvent | BaseException | None]",
        report: ShardReport,
    ) -> None:
        self.left = len(new)
        self._new = new
        self._begun: set[Chain] = set()
        self._due: list[tuple[float, int, Chain]] = []
        self._order = itertools.count()
        self._changed = threading.Condition()
        self._told = told
        self._report = report
        self._stops = threading.Event()
        self._threads: list[threading.Thread] = []
        if not new:
            told.put(None)

    def start(self, threads: int, *, name: str) -> None:
        for number in range(threads):
            thread = threading.Thread(target=self._work, name=f"{name}-{number}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def stop(self) -> None:
        """Begin no further chain, and end those that wait."""
        with self._changed:
            if self._stops.is_set():
                return
            self._stops.set()
            self.left -= len(self._new) + len(self._due)
            for _, _, chain in self._due:
                chain.give_back()
            self._due = []
            if self.left <= 0:
                self._told.put(None)
            self._changed.notify_all()

    def join(self, seconds: float) -> bool:
        """Wait for the threads; tell whether all have ended."""
        end = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def report_rest(self) -> None:
        """Report the tenants that have not ended; what ends later is not reported."""
        with self._changed:
            rest, self._begun = list(self._begun), set()
            rest += [make() for make in self._new]
            self._new.clear()
            for chain in rest:
                chain.report_to(self._report)

    def _work(self) -> None:
        try:
            while (chain := self._take()) is not None:
                wait = chain.advance()
                if wait is None or self._stops.is_set():
                    chain.give_back()
                    self._end(chain)
                else:
                    with self._changed:
                        due = time.monotonic() + wait
                        heapq.heappush(self._due, (due, next(self._order), chain))
                        self._changed.notify()
        except BaseException as error:  # noqa: BLE001  (told to the run's own thread)
            self._told.put(error)
            with self._changed:
                self.left = 0
                self._changed.notify_all()

    def _take(self) -> Chain | None:
        with self._changed:
            while self.left > 0:
                wait = self._due[0][0] - time.monotonic() if self._due else None
                if wait is not None and wait <= 0:
                    return heapq.heappop(self._due)[2]
                if self._new and not self._stops.is_set():
                    chain = self._new.popleft()()
                    self._begun.add(chain)
                    return chain
                self._changed.wait(wait)
        return None

    def _end(self, chain: Chain) -> None:
        """Report and forget a chain that has ended; the last one ends the run."""
        with self._changed:
            if chain in self._begun:
                self._begun.discard(chain)
                chain.report_to(self._report)
            self.left -= 1
            if self.left == 0:
                self._told.put(None)
            if self.left <= 0:
                self._changed.notify_all()


def as_spent(request: Request, journal: Journal, cycle: str) -> Request:
    """Return the request as it is in a cycle: its root may have forced cells in an older one.

    The newer cycle ran it all since, and a re-execution only resumes it.
    """
    if request.force and journal.has_forced(request.root, outside=cycle):
        return replace(request, is_spent=True)
    return request


def ledger_of(fleet: Fleet) -> Ledger | None:
    """Return the ledger of the fleet's warehouse; None when the pipeline does not use one."""
    if fleet.warehouse is None or not fleet.pipeline.loads:
        return None
    return Ledger(fleet.warehouse, fleet.name)


def hold_reason(error: TenantSettingMissing | TenantMoved) -> Reason:
    """Return the reason that stands for the error in a plan."""
    if isinstance(error, TenantMoved):
        return Reason.TENANT_MOVED
    return Reason.TENANT_SETTING_MISSING


def find_moved(
    shard: Shard,
    journal: Journal | None,
    strangers: Iterable[str],
    histories: Callable[[], Mapping[str, str]],
) -> dict[str, TenantMoved]:
    """Return the error for each tenant whose history is in another shard's journal.

    Args:
        shard: the shard that lists them now.
        journal: that shard's journal, None when there is none yet.
        strangers: tenants of the shard without an entry in the newest cycle.
        histories: gives the shard in whose journal a tenant is; read only if a stranger is new.
    """
    unknown = set(strangers)
    if unknown and journal is not None:
        unknown -= journal.tenants()
    if not unknown:
        return {}
    homes = histories()
    return {
        tenant: TenantMoved(tenant=tenant, shard=shard.name, old_shard=homes[tenant])
        for tenant in unknown & homes.keys()
    }


def read_histories(fleet: Fleet) -> dict[str, str]:
    """Return the shard in whose journal each tenant of any cycle is; opens every journal."""
    homes: dict[str, str] = {}
    for shard in shards_with_history(fleet):
        try:
            journal = Journal.existing(fleet.journal_path(shard), fleet=fleet.name, shard=shard)
        except JournalUnusable:
            continue  # what it knows cannot be read; its own shard says so
        if journal is not None:
            with journal:
                homes.update(dict.fromkeys(journal.tenants(), shard))
    return homes
