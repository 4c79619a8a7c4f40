"""What one run does in one shard: what its chains share, and what they tell."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tenant_pipelines.engine.leases import TenantLeases
from tenant_pipelines.engine.plan import Reason, Request
from tenant_pipelines.engine.ports import CellStore
from tenant_pipelines.engine.slots import Slots
from tenant_pipelines.fleet.cell import Attempt
from tenant_pipelines.fleet.model import Fleet, Shard
from tenant_pipelines.journal.fold import Cycle
from tenant_pipelines.journal.journal import Journal
from tenant_pipelines.storage.ledger import Ledger
from tenant_pipelines.storage.output import StoredOutput


@dataclass(frozen=True, slots=True, kw_only=True)
class CellCompleted:
    """A cell that this run completed; the journal has it.

    Attributes:
        attempt: its address.
        output: what was stored, without the value of one that is inline.
        code_version: the step's, empty when it has none.
        seconds: in the step's function, loading and storing included.
        is_settled: it took effect in an earlier run, which died before it could say so.
    """

    attempt: Attempt
    output: StoredOutput
    code_version: str
    seconds: float
    is_settled: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CellFailed:
    """A cell whose last attempt of this run failed.

    Attributes:
        tenant: name of the tenant.
        step: name of the step.
        error: ``{"type", "message", "traceback"}``, no secrets.
        blocked: asked-for steps of the tenant that could not run because of it.
    """

    tenant: str
    step: str
    error: Mapping[str, str]
    blocked: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CellHeld:
    """A cell that was asked for and may not run, with what a person can do about it."""

    tenant: str
    step: str
    reason: Reason
    detail: str = ""


CellEvent = CellCompleted | CellFailed


@dataclass(slots=True, kw_only=True)
class ShardReport:
    """What became of the cells that a run asked one shard for.

    Attributes:
        shard: name of the shard.
        cycle: name of the cycle.
        ran: cells that this run completed.
        skipped: cells that were done already.
        failed: cells that failed.
        held: cells that may not run.
        unreached: cells that the run was stopped before, or that a newer cycle took over.
    """

    shard: str
    cycle: str
    ran: int = 0
    skipped: int = 0
    failed: list[CellFailed] = field(default_factory=list)
    held: list[CellHeld] = field(default_factory=list)
    unreached: int = 0

    @property
    def is_complete(self) -> bool:
        """Whether every cell that was asked for is done."""
        return not (self.failed or self.held or self.unreached)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardWork:
    """What the chains of one run in one shard share.

    Attributes:
        fleet: the fleet.
        shard: the shard.
        cycle: the run's cycle.
        run_id: the run's id.
        request: what was asked for.
        journal: the shard's journal.
        store: where outputs go.
        ledger: the warehouse's ledger; None when the pipeline does not use one.
        leases: of the shard's tenants.
        slots: of the shard.
        should_stop: whether nothing new may start.
        is_superseded: whether a newer cycle was opened since the run began; an old one's load
            would overwrite newer rows and move the cursor back.
        tell: takes each event; called from worker threads.
    """

    fleet: Fleet
    shard: Shard
    cycle: Cycle
    run_id: str
    request: Request
    journal: Journal
    store: CellStore
    ledger: Ledger | None
    leases: TenantLeases
    slots: Slots
    should_stop: Callable[[], bool]
    is_superseded: Callable[[], bool]
    tell: Callable[[CellEvent], None]
