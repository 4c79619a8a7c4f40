"""Whether a shard's journal can be believed: its entries, its artifacts, the warehouse's ledger."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy.exc import SQLAlchemyError

from tenant_pipelines.engine.runner import ledger_of
from tenant_pipelines.errors import (
    ArtifactDamaged,
    ArtifactMissing,
    JournalUnusable,
    WarehouseRefused,
)
from tenant_pipelines.fleet.cell import Attempt
from tenant_pipelines.fleet.model import Fleet
from tenant_pipelines.journal.entries import Entry, EntryKind
from tenant_pipelines.journal.journal import Journal, Pruned
from tenant_pipelines.storage.artifacts import ArtifactStore
from tenant_pipelines.storage.output import StoredOutput

_MOST_SHOWN = 3
# a prune between the looks makes them disagree
_MOST_LOOKS = 3


@dataclass(slots=True, kw_only=True)
class ShardVerdict:
    """What ``verify_shard`` found.

    Attributes:
        shard: name of the shard.
        entries: entries read.
        artifacts: files loaded; some may be gone because nobody needs them.
        problems: one line each.
    """

    shard: str
    entries: int = 0
    artifacts: int = 0
    problems: list[str] = field(default_factory=list)

    @property
    def is_sound(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems

    def to_json(self) -> dict[str, Any]:
        """Return the verdict as one mapping."""
        return {
            "shard": self.shard,
            "entries": self.entries,
            "artifacts": self.artifacts,
            "problems": self.problems,
        }


def verify_shard(fleet: Fleet, shard: str) -> ShardVerdict:
    """Check a shard's entries, the artifacts they name, and its loads against the ledger.

    Writes nothing, and may be called beside runs. An artifact that is gone counts when a reader
    would want it: when it is the newest output of its step; older ones may have been pruned.
    """
    verdict = ShardVerdict(shard=shard)
    for _ in range(_MOST_LOOKS):
        verdict = ShardVerdict(shard=shard)
        if _verify_once(fleet, shard, verdict):
            break
    return verdict


def _verify_once(fleet: Fleet, shard: str, verdict: ShardVerdict) -> bool:
    """Verify; tell whether no prune came between the looks at journal and ledger."""
    try:
        journal = Journal.existing(fleet.journal_path(shard), fleet=fleet.name, shard=shard)
        if journal is None:
            return True
        with journal:
            if (damage := journal.integrity()) is not None:
                verdict.problems.append(f"{journal.path}: {damage}")
            check = _Check(fleet, shard, verdict)
            tenants = dict.fromkeys([*fleet.shard(shard).tenants, *sorted(journal.tenants())])
            # a load starts in the journal, takes effect, and completes in the journal: what took
            # effect before this look must be known, what is completed must take effect by the end
            before = check.settled(tenants)
            with journal.snapshot():
                pruned = journal.pruned()
                for entry in journal.all_entries():
                    check.see(entry)
            check.end(pruned, before, check.settled(tenants))
            return journal.pruned() == pruned
    except JournalUnusable as error:
        verdict.problems.append(str(error))
    return True


_Settled = dict[str, dict[tuple[str, str, int], str]]


class _Check:
    """Goes through the entries in order and remembers what only the end can judge."""

    def __init__(self, fleet: Fleet, shard: str, verdict: ShardVerdict) -> None:
        self._fleet = fleet
        self._shard = shard
        self._verdict = verdict
        self._store = ArtifactStore(fleet.artifacts)
        self._load_steps = frozenset(load.name for load in fleet.pipeline.loads)
        self._warehouse_problem = ""
        self._expected = 1
        self._gaps: list[tuple[int, int]] = []
        self._missing: dict[tuple[str, str, str], str] = {}
        # None while the load was started and not completed
        self._loads: dict[str, dict[tuple[str, str, int], Sequence[str] | None]] = {}

    def see(self, entry: Entry) -> None:
        """Check one entry and its artifact."""
        self._verdict.entries += 1
        if entry.seq > self._expected:
            self._gaps.append((self._expected, entry.seq - 1))
        self._expected = entry.seq + 1
        is_completed = entry.kind is EntryKind.COMPLETED
        if is_completed:
            self._check_artifact(entry)
        if entry.step in self._load_steps and (is_completed or entry.kind is EntryKind.STARTED):
            loads = self._loads.setdefault(entry.tenant, {})
            load = (entry.step, entry.cycle, entry.generation)
            if is_completed:
                loads[load] = tuple(entry.payload["inputs"].values())
            else:
                loads.setdefault(load, None)

    def _check_artifact(self, entry: Entry) -> None:
        cell = (entry.tenant, entry.step, entry.item)
        self._missing.pop(cell, None)
        output = StoredOutput.from_json(entry.payload["output"])
        if output.path is None:
            return
        attempt = Attempt(
            shard=self._shard,
            tenant=entry.tenant,
            step=entry.step,
            cycle=entry.cycle,
            generation=entry.generation,
            attempt=entry.attempt,
        )
        try:
            self._store.load(attempt, output)
        except ArtifactMissing as error:
            self._missing[cell] = f"entry {entry.seq}: {error}"
            return
        except (ArtifactDamaged, OSError) as error:
            self._verdict.problems.append(f"entry {entry.seq}: {error}")
        self._verdict.artifacts += 1

    def settled(self, tenants: Iterable[str]) -> _Settled:
        """Return what the ledger has of each tenant: the input of each load."""
        ledger = ledger_of(self._fleet)
        if ledger is None:
            return {}
        try:
            return {
                tenant: {
                    (row.step, row.cycle, row.generation): row.input_digest
                    for row in ledger.of_tenant(tenant)
                }
                for tenant in tenants
            }
        except (WarehouseRefused, SQLAlchemyError, ValueError) as error:
            if not self._warehouse_problem:
                self._warehouse_problem = f"warehouse: {error}"
                self._verdict.problems.append(self._warehouse_problem)
            return {}

    def end(self, pruned: Pruned, before: _Settled, after: _Settled) -> None:
        """Judge what the entries tell together.

        Args:
            pruned: what was deleted from the journal on purpose.
            before: the ledger before the entries were read.
            after: the ledger after that.
        """
        count = sum(last - first + 1 for first, last in self._gaps)
        seqs = sum((first + last) * (last - first + 1) // 2 for first, last in self._gaps)
        if (count, seqs) != (pruned.entries, pruned.seqs):
            gaps = ", ".join(f"{first} to {last}" for first, last in self._gaps[:_MOST_SHOWN])
            self._verdict.problems.append(
                f"{count} entries are gone (seq {gaps or 'none'}, …) where {pruned.entries} were "
                f"pruned"
            )
        self._verdict.problems += self._missing.values()
        if not self._warehouse_problem:
            for tenant, settled in before.items():
                self._check_settled(tenant, settled, pruned)
            self._check_lost(after)

    def _check_settled(
        self, tenant: str, settled: Mapping[tuple[str, str, int], str], pruned: Pruned
    ) -> None:
        loads = self._loads.get(tenant, {})
        for load, digest in settled.items():
            inputs = loads.get(load)
            if load not in loads and load[0] in self._load_steps:
                if load[1] not in pruned.cycles:
                    told = "took effect, and the journal does not know it"
                    self._verdict.problems.append(f"ledger: {_shown(tenant, load)} {told}")
            elif inputs is not None and digest not in inputs:
                told = f"loaded input {digest}, the journal says {', '.join(inputs)}"
                self._verdict.problems.append(f"ledger: {_shown(tenant, load)} {told}")

    def _check_lost(self, after: _Settled) -> None:
        lost = [
            _shown(tenant, load)
            for tenant, loads in self._loads.items()
            for load, inputs in loads.items()
            if inputs is not None and load not in after.get(tenant, {})
        ]
        if lost and ledger_of(self._fleet) is not None:
            self._verdict.problems.append(
                f"ledger: {len(lost)} loads that the journal completed are not there, such as "
                f"{'; '.join(lost[:_MOST_SHOWN])}: the warehouse is older than the journal"
            )


def _shown(tenant: str, load: tuple[str, str, int]) -> str:
    step, cycle, generation = load
    return f"tenant {tenant!r}, step {step!r}, cycle {cycle!r}, generation {generation}"
