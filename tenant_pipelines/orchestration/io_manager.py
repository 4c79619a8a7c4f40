"""The IO manager: every cell of a run is stored and loaded through it, and users' assets too."""

import contextlib
import time
from collections.abc import Sequence, Set
from dataclasses import replace
from typing import Any

from dagster import AssetKey, InputContext, IOManager, OutputContext

from tenant_pipelines.engine.cycles import FIRST_CYCLE, newest_cycle
from tenant_pipelines.engine.leases import TenantLeases
from tenant_pipelines.errors import InvalidRequest, OutputMissing
from tenant_pipelines.fleet.cell import Attempt
from tenant_pipelines.fleet.model import Fleet
from tenant_pipelines.journal.entries import Draft, EntryKind
from tenant_pipelines.journal.fold import CellState, cycles_of, fold_tenant
from tenant_pipelines.journal.journal import Journal
from tenant_pipelines.storage.artifacts import ArtifactStore
from tenant_pipelines.storage.output import StoredOutput

MISSING_METADATA = "tenant_pipelines/missing"


class TenantIOManager(IOManager):
    """Stores each tenant's outputs as write-once artifacts that a journal entry publishes.

    The engine stores and loads its cells through the ``CellStore`` methods. Downstream assets of
    the user name it as their input manager and get one tenant's value for a single partition key,
    else a dict by tenant; a tenant without a completed output is an OutputMissing error, or is left
    out with the input metadata ``{"tenant_pipelines/missing": "skip"}``. An asset of the user on a
    shard's partition set that writes through it gets the same persistence.
    """

    def __init__(self, fleet: Fleet) -> None:
        """Remember the fleet; nothing is opened."""
        self.fleet = fleet
        self._store = ArtifactStore(fleet.artifacts)

    def store(self, attempt: Attempt, value: Any) -> StoredOutput:
        """See CellStore.store."""
        return self._store.store(attempt, value)

    def load(self, attempt: Attempt, stored: StoredOutput) -> Any:
        """See CellStore.load."""
        return self._store.load(attempt, stored)

    def exists(self, stored: StoredOutput) -> bool:
        """See CellStore.exists."""
        return self._store.exists(stored)

    def collect(self, *, tenant: str, keep: Set[str]) -> int:
        """See CellStore.collect."""
        return self._store.collect(tenant=tenant, keep=keep)

    def load_input(self, context: InputContext) -> Any:
        """Load the newest completed output of one tenant, or a dict of several by tenant.

        Raises:
            OutputMissing: a tenant has none, and the input does not say to skip it.
            InvalidRequest: the upstream asset is not one of this fleet's.
        """
        shard, step = self._address(context)
        metadata = context.definition_metadata or {}
        skips = metadata.get(MISSING_METADATA) == "skip"
        has_keys = context.has_asset_partitions
        wanted = (
            set(context.asset_partition_keys) if has_keys else set(self.fleet.shard(shard).tenants)
        )
        values: dict[str, Any] = {}
        with self._open(shard) as journal:
            for tenant in (name for name in self.fleet.shard(shard).tenants if name in wanted):
                cell = self._newest(journal, tenant, step)
                if cell.output is not None:
                    address = _attempt(shard, tenant, step, "", cell)
                    values[tenant] = self.load(address, StoredOutput.from_json(cell.output))
                elif not skips:
                    raise OutputMissing(shard=shard, tenant=tenant, step=step)
        if has_keys and context.has_partition_key and len(wanted) == 1:
            return values.get(next(iter(wanted)))
        return values

    def handle_output(self, context: OutputContext, obj: Any) -> None:
        """Store what a user's asset on a shard's partition set returns, one entry per tenant.

        Args:
            context: of the output; its partitions definition is a shard's.
            obj: the value for a single key, a dict by tenant for several.

        Raises:
            InvalidRequest: no such partition set, or a dict that misses a key.
            UnsupportedOutput: a value that cannot be stored.
        """
        shard = self._shard_of(context)
        keys = list(context.asset_partition_keys)
        step = _asset_step(context.asset_key)
        values = {keys[0]: obj} if context.has_partition_key and len(keys) == 1 else obj
        if not isinstance(values, dict) or set(values) != set(keys):
            raise InvalidRequest(
                place=f"asset {context.asset_key.to_user_string()!r}",
                found=f"a {type(obj).__name__} for {len(keys)} partition keys",
                wanted="a dict with one value per partition key",
                fix="Return {key: value for key in context.partition_keys}.",
            )
        locks = self.fleet.shard_state(shard) / "locks"
        with self._open(shard) as journal, contextlib.closing(TenantLeases(locks)) as leases:
            for tenant, value in values.items():
                while not leases.try_take(tenant):
                    time.sleep(0.02)
                try:
                    self._write(journal, tenant, step, value, run_id=context.run_id)
                finally:
                    leases.give_back(tenant)

    def _write(self, journal: Journal, tenant: str, step: str, value: Any, *, run_id: str) -> None:
        newest = newest_cycle(cycles_of(journal.cycle_entries()))
        cycle = newest.name if newest is not None else FIRST_CYCLE
        state = fold_tenant(journal.of_tenant(cycle=cycle, tenant=tenant))
        generation = state.cell(step).generation + 1
        cell = CellState(generation=generation, attempts=1)
        attempt = _attempt(journal.shard, tenant, step, cycle, cell)
        started = Draft(
            kind=EntryKind.STARTED,
            cycle=cycle,
            run_id=run_id,
            tenant=tenant,
            step=step,
            generation=generation,
            attempt=1,
            payload={"inputs": {}, "reason": "asset"},
        )
        # before the artifact: a crash in between leaves a trace by which it is collected
        journal.append(started)
        stored = self.store(attempt, value)
        completed = replace(
            started,
            kind=EntryKind.COMPLETED,
            payload={"inputs": {}, "output": stored.to_json(), "seconds": 0.0},
        )
        journal.append(completed)

    def _newest(self, journal: Journal, tenant: str, step: str) -> CellState:
        """Return the tenant's newest completed output of a step, of whatever cycle."""
        newest = CellState()
        for entry in journal.completions_of(tenant):
            if entry.step == step and not entry.item:
                newest = CellState(
                    generation=entry.generation,
                    attempts=entry.attempt,
                    output=entry.payload["output"],
                )
        return newest

    def _open(self, shard: str) -> Journal:
        return Journal(self.fleet.journal_path(shard), fleet=self.fleet.name, shard=shard)

    def _address(self, context: InputContext) -> tuple[str, str]:
        """Return the (shard, step) under which the upstream asset's outputs are journaled."""
        path: Sequence[str] = context.asset_key.path
        if len(path) == 3 and path[0] == self.fleet.name and path[1] in self.fleet.shards:
            return path[1], path[2]
        if context.has_asset_partitions:
            fleet, _, shard = (getattr(context.asset_partitions_def, "name", "") or "").partition(
                "/"
            )
            if fleet == self.fleet.name and shard in self.fleet.shards:
                return shard, _asset_step(context.asset_key)
        raise InvalidRequest(
            place=f"asset {'/'.join(path)!r}",
            found="an asset that this IO manager does not store",
            wanted=f"an asset of fleet {self.fleet.name!r}",
            fix="Give this input another IO manager.",
        )

    def _shard_of(self, context: OutputContext) -> str:
        partitions = context.asset_partitions_def if context.has_asset_partitions else None
        name = getattr(partitions, "name", None) or ""
        fleet, _, shard = name.partition("/")
        if fleet == self.fleet.name and shard in self.fleet.shards:
            return shard
        raise InvalidRequest(
            place=f"asset {context.asset_key.to_user_string()!r}",
            found=f"the partition set {name!r}",
            wanted=f"a shard's partition set, '{self.fleet.name}/SHARD'",
            fix="Use DynamicPartitionsDefinition(name=…) with that name.",
        )


def _asset_step(key: AssetKey) -> str:
    """Return the step that stands for a user's own asset; no step of a pipeline has a colon."""
    return "asset:" + key.to_user_string()


def _attempt(shard: str, tenant: str, step: str, cycle: str, cell: CellState) -> Attempt:
    return Attempt(
        shard=shard,
        tenant=tenant,
        step=step,
        cycle=cycle,
        generation=cell.generation,
        attempt=cell.attempts,
    )
