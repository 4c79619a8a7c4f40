"""Deletes what no run, reader, cursor or receipt needs any more, tenant by tenant.

A crash leaves each tenant as it was or pruned, at worst with files or ledger rows that the next
``prune`` deletes. A tenant that a run works on is left alone.
"""

from collections.abc import Collection, Iterable
from contextlib import closing
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from tenant_pipelines.engine.cycles import each_once
from tenant_pipelines.engine.leases import TenantLeases
from tenant_pipelines.engine.runner import ledger_of
from tenant_pipelines.fleet.model import Fleet
from tenant_pipelines.journal.entries import Entry, instant
from tenant_pipelines.journal.fold import Cycle
from tenant_pipelines.journal.journal import Journal
from tenant_pipelines.storage.artifacts import ArtifactStore
from tenant_pipelines.storage.ledger import Ledger
from tenant_pipelines.storage.output import StoredOutput


@dataclass(slots=True, kw_only=True)
class ShardPruned:
    """What was deleted in one shard, or would be.

    Attributes:
        shard: name of the shard.
        entries: journal entries.
        artifacts: files.
        size_bytes: of the files.
        ledger_rows: rows of the warehouse's ledger.
        busy: tenants that a run works on; they were left as they are.
    """

    shard: str
    entries: int = 0
    artifacts: int = 0
    size_bytes: int = 0
    ledger_rows: int = 0
    busy: list[str] = field(default_factory=list)


def old_cycles(
    known: Iterable[Cycle], *, keep: int, older_than: timedelta | None, now: datetime
) -> frozenset[str]:
    """Return the cycles that are not among the ``keep`` newest and were opened long enough ago.

    Args:
        known: every cycle that any journal of the fleet knows.
        keep: at least 1.
        older_than: their age at least; None for any.
        now: the time, aware.
    """
    newest_first = sorted(each_once(known), reverse=True)
    before = instant(now - older_than) if older_than is not None else None
    return frozenset(
        cycle.name for cycle in newest_first[keep:] if before is None or cycle.instant < before
    )


def needed_completions(completions: Iterable[Entry]) -> dict[str, Entry]:
    """Return the newest completion of each step and item, by which readers find its output.

    Args:
        completions: a tenant's ``completed`` entries of all cycles, in order.
    """
    return {f"{entry.step}\0{entry.item}": entry for entry in completions}


def prune_shard(
    fleet: Fleet, shard: str, old: Collection[str], *, artifacts_only: bool, dry_run: bool
) -> ShardPruned:
    """Delete a shard's entries, artifacts and ledger rows of old cycles.

    Of each tenant, every cycle stays that holds the newest completion of one of its steps.

    Args:
        fleet: the fleet.
        shard: name of the shard.
        old: names of cycles, see ``old_cycles``.
        artifacts_only: leave journal and ledger as they are.
        dry_run: delete nothing and count.

    Raises:
        JournalUnusable: the journal cannot be read or written.
        WarehouseRefused, sqlalchemy.exc.SQLAlchemyError, OSError: the ledger or the artifacts
            cannot; the tenants before are pruned, and the next prune goes on.
    """
    pruned = ShardPruned(shard=shard)
    journal = Journal.existing(fleet.journal_path(shard), fleet=fleet.name, shard=shard)
    if journal is None or not old:
        return pruned
    store, ledger = ArtifactStore(fleet.artifacts), ledger_of(fleet)
    locks = fleet.shard_state(shard) / "locks"
    with journal, closing(TenantLeases(locks)) as leases:
        # a tenant that moved away belongs to the other shard, with its artifacts
        elsewhere = {
            name for other in fleet.shards.values() if other.name != shard for name in other.tenants
        }
        for tenant in sorted(journal.tenants() - elsewhere):
            if not leases.try_take(tenant):
                pruned.busy.append(tenant)
                continue
            try:
                _prune_tenant(
                    journal,
                    store,
                    None if artifacts_only else ledger,
                    tenant,
                    old,
                    pruned,
                    artifacts_only=artifacts_only,
                    dry_run=dry_run,
                )
            finally:
                leases.give_back(tenant)
    return pruned


def _prune_tenant(
    journal: Journal,
    store: ArtifactStore,
    ledger: Ledger | None,
    tenant: str,
    old: Collection[str],
    pruned: ShardPruned,
    *,
    artifacts_only: bool,
    dry_run: bool,
) -> None:
    completions = journal.completions_of(tenant)
    needed = needed_completions(completions)
    gone = frozenset(old) - {entry.cycle for entry in needed.values()}
    newest = {entry.seq for entry in needed.values()}
    keep: set[str] = set()
    for entry in completions:
        output = StoredOutput.from_json(entry.payload["output"])
        if output.path is None:
            continue
        if entry.cycle not in old or entry.seq in newest:
            keep.add(output.path)
        elif store.exists(output):
            pruned.artifacts += 1
            pruned.size_bytes += output.size_bytes
    if ledger is not None:
        # first, so that a warehouse that cannot be read leaves everything as it is
        ledger.prune(tenant, gone, dry_run=True)
    if not artifacts_only:
        pruned.entries += journal.prune(tenant, gone, dry_run=dry_run)
    if ledger is not None:
        pruned.ledger_rows += ledger.prune(tenant, gone, dry_run=dry_run)
    if not dry_run:
        # after the entries: what they named is then nobody's
        store.collect(tenant=tenant, keep=keep)
