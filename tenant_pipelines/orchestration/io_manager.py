"""The IO manager: every cell of a run is stored and loaded through it, and users' assets too."""

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

from dagster import (
    AssetKey,
    AssetMaterialization,
    DagsterInvariantViolationError,
    InputContext,
    IOManager,
    OutputContext,
)

from tenant_pipelines.engine.cycles import newest_cycle, open_cycle
from tenant_pipelines.engine.leases import TenantLeases
from tenant_pipelines.engine.step_guard import describe_failure
from tenant_pipelines.errors import InvalidRequest, OutputMissing
from tenant_pipelines.fleet.cell import Attempt
from tenant_pipelines.fleet.model import Fleet
from tenant_pipelines.journal.entries import Draft, EntryKind
from tenant_pipelines.journal.fold import CellState, Cycle, Outcome, cycles_of, fold_tenant
from tenant_pipelines.journal.journal import Journal
from tenant_pipelines.storage.artifacts import ArtifactStore
from tenant_pipelines.storage.output import StoredOutput

MISSING_METADATA = "tenant_pipelines/missing"

# Dagster reads all keys of the set again for each key that is given numbers of its own
_MOST_KEYS_WITH_NUMBERS = 1000


class TenantIOManager(IOManager):
    """Stores each tenant's outputs as write-once artifacts that a journal entry publishes.

    The engine stores and loads its cells through the ``CellStore`` methods.

    Downstream assets of the user name it as their input manager. A run on one partition key gets
    that tenant's value; any other run gets a dict by tenant, also when it has one entry: a range, a
    range of one, a partition mapping, and a run without a partition, which gets every tenant of the
    fleet file. A tenant without a completed output is an OutputMissing error; with the input
    metadata ``{"tenant_pipelines/missing": "skip"}`` it is left out (None for a single key).

    An asset of the user on a shard's partition set that writes through it gets the cells'
    persistence: write-once artifacts under the tenant's lease, journaled under a step named
    ``asset:<key>``. Each tenant is stored by itself, and one that cannot be stored fails the run
    and nobody else. A crash leaves each tenant's old or new value, at worst with an artifact that
    no entry names, which the tenant's next write or run deletes.
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
        skips = (context.definition_metadata or {}).get(MISSING_METADATA) == "skip"
        values: dict[str, Any] = {}
        # reading makes no journal
        found = Journal.existing(self.fleet.journal_path(shard), fleet=self.fleet.name, shard=shard)
        with found or contextlib.nullcontext() as journal:
            for tenant in self._tenants(context, shard):
                cell = _newest(journal, tenant, step) if journal is not None else CellState()
                if cell.output is not None:
                    address = _attempt(shard, tenant, step, "", cell)
                    values[tenant] = self.load(address, StoredOutput.from_json(cell.output))
                elif not skips:
                    raise OutputMissing(shard=shard, tenant=tenant, step=step)
        if _is_of_one_key(context):
            return values.get(context.partition_key)
        return values

    def _tenants(self, context: InputContext, shard: str) -> list[str]:
        """Return the tenants that an input is made of, in the fleet file's order."""
        listed = self.fleet.shard(shard).tenants
        if not _is_read_by_key(context):
            # not Dagster's keys: an instance that has not seen this fleet yet knows none
            return list(listed)
        keys = set(context.asset_partition_keys)
        # one that left the fleet file has its data still
        return [name for name in listed if name in keys] + sorted(keys - listed.keys())

    def handle_output(  # type: ignore[override]  # the base says None; Dagster takes a generator
        self, context: OutputContext, obj: Any
    ) -> Iterator[AssetMaterialization]:
        """Store what a user's asset on a shard's partition set returns, tenant by tenant.

        A tenant that fails is logged and journaled; the others are stored, and shown so, before the
        first error is raised.

        Args:
            context: of the output; its partitions definition is a shard's.
            obj: the value for a single key, a dict by tenant for several.

        Raises:
            InvalidRequest: no such partition set, a run without a key, or a dict whose keys are not
                the run's; nothing was written.
            UnsupportedOutput: a value that cannot be stored.
        """
        shard = self._shard_of(context)
        values = _values(context, obj)
        errors: list[Exception] = []
        done: dict[str, dict[str, Any]] = {}
        locks = self.fleet.shard_state(shard) / "locks"
        with self._open(shard) as journal, contextlib.closing(TenantLeases(locks)) as leases:
            writer = _Writer(self, journal, self._cycle(journal, context.run_id), context)
            for tenant, value in values.items():
                while not leases.try_take(tenant):
                    time.sleep(0.02)
                try:
                    done[tenant] = writer.write(tenant, value)
                except Exception as error:  # noqa: BLE001  (one tenant's; raised below)
                    context.log.error("tenant %r was not stored: %s", tenant, error)  # noqa: TRY400
                    errors.append(error)
                finally:
                    leases.give_back(tenant)
        if errors:
            # Dagster shows every key of a failed run as failed that has no event of its own
            events = [
                AssetMaterialization(context.asset_key, partition=tenant, metadata=numbers)
                for tenant, numbers in done.items()
            ]
            for event in events:
                context.log_event(event)
            # what was logged is taken up when something is yielded; what is, only after a success
            yield from events[:1]
            raise errors[0]
        if len(done) <= _MOST_KEYS_WITH_NUMBERS:
            for tenant, numbers in done.items():
                context.step_context.add_asset_metadata(
                    numbers, asset_key=context.asset_key, partition_key=tenant
                )

    def _cycle(self, journal: Journal, run_id: str) -> Cycle:
        """Return the journal's newest cycle, opening the fleet's first one before any run did."""
        newest = newest_cycle(cycles_of(journal.cycle_entries()))
        return newest or open_cycle(self.fleet, asked=None, root=run_id, run_id=run_id)

    def _open(self, shard: str) -> Journal:
        return Journal(self.fleet.journal_path(shard), fleet=self.fleet.name, shard=shard)

    def _address(self, context: InputContext) -> tuple[str, str]:
        """Return the (shard, step) under which the upstream asset's outputs are journaled."""
        path: Sequence[str] = context.asset_key.path
        if len(path) == 3 and path[0] == self.fleet.name:
            _, shard, step = path
            if shard in self.fleet.shards and step in self.fleet.pipeline.every_name:
                return shard, step
        if context.has_asset_partitions:
            named = self._shard_named(context.asset_partitions_def)
            if named is not None:
                return named, _asset_step(context.asset_key)
        raise InvalidRequest(
            place=f"asset {'/'.join(path)!r}",
            found="an asset that this IO manager does not store",
            wanted=f"a step of fleet {self.fleet.name!r}, or an asset on one of its partition sets",
            fix="Give this input another IO manager.",
        )

    def _shard_of(self, context: OutputContext) -> str:
        if not context.has_asset_key:
            raise InvalidRequest(
                place=f"output {context.name!r}",
                found="an output of an op",
                wanted="an asset on a shard's partition set",
                fix="Give this output another IO manager.",
            )
        place = f"asset {context.asset_key.to_user_string()!r}"
        partitions = context.asset_spec.partitions_def
        shard = self._shard_named(partitions)
        if shard is None:
            name = getattr(partitions, "name", None)
            raise InvalidRequest(
                place=place,
                found="no partition set of a shard" + (f", but {name!r}" if name else ""),
                wanted=f"a shard's partition set, '{self.fleet.name}/SHARD'",
                fix="Use DynamicPartitionsDefinition(name=…) with that name.",
            )
        if not context.has_asset_partitions:
            raise InvalidRequest(
                place=place,
                found="a run without a partition key",
                wanted="a partition key or a range of them",
                fix="Launch it on partitions of the shard.",
            )
        return shard

    def _shard_named(self, partitions: Any) -> str | None:
        """Return the shard whose partition set this is, None when it is none of this fleet's."""
        fleet, _, shard = (getattr(partitions, "name", None) or "").partition("/")
        return shard if fleet == self.fleet.name and shard in self.fleet.shards else None


@dataclass(frozen=True, slots=True)
class _Writer:
    """Writes the values of one run of a user's asset; the tenant's lease is held meanwhile."""

    store: TenantIOManager
    journal: Journal
    cycle: Cycle
    context: OutputContext

    def write(self, tenant: str, value: Any) -> dict[str, Any]:
        """Store and journal one tenant's value; return the numbers that Dagster shows."""
        began = time.monotonic()
        step = _asset_step(self.context.asset_key)
        entries = self.journal.of_tenant(cycle=self.cycle.name, tenant=tenant)
        before = fold_tenant(entries).cell(step)
        is_again = before.outcome in (Outcome.STARTED, Outcome.FAILED)
        if is_again:
            # the lease is ours, so whoever started is gone and may have left an artifact
            outputs = [entry.payload["output"] for entry in self.journal.completions_of(tenant)]
            self.store.collect(tenant=tenant, keep={output["path"] for output in outputs} - {None})
        cell = CellState(
            generation=before.generation + (0 if is_again else 1),
            attempts=before.attempts + 1 if is_again else 1,
        )
        attempt = _attempt(self.journal.shard, tenant, step, self.cycle.name, cell)
        # before the artifact: a crash in between leaves a trace by which it is collected
        self._append(EntryKind.STARTED, attempt, {"inputs": {}, "reason": "asset"})
        try:
            stored = self.store.store(attempt, value)
        except Exception as error:
            failed = {"error": describe_failure(error, ()), "seconds": time.monotonic() - began}
            self._append(EntryKind.FAILED, attempt, failed)
            raise
        seconds = time.monotonic() - began
        completed = {"inputs": {}, "output": stored.to_json(), "seconds": seconds}
        self._append(EntryKind.COMPLETED, attempt, completed)
        numbers = {
            "cycle": attempt.cycle,
            "generation": attempt.generation,
            "rows": stored.rows,
            "bytes": stored.size_bytes,
            "digest": stored.digest,
        }
        return {name: number for name, number in numbers.items() if number is not None}

    def _append(self, kind: EntryKind, attempt: Attempt, payload: Mapping[str, Any]) -> None:
        self.journal.append(
            Draft(
                kind=kind,
                cycle=attempt.cycle,
                run_id=self.context.run_id,
                tenant=attempt.tenant,
                step=attempt.step,
                generation=attempt.generation,
                attempt=attempt.attempt,
                payload=payload,
            )
        )


def _values(context: OutputContext, obj: Any) -> dict[str, Any]:
    """Return the value of each partition key of the run, in the dict's order."""
    keys = list(context.asset_partition_keys)
    if context.has_partition_key and keys == [context.partition_key]:
        return {keys[0]: obj}
    if isinstance(obj, dict) and set(obj) == set(keys):
        return obj
    found = f"a {type(obj).__name__}"
    if isinstance(obj, dict):
        missing, strange = sorted(set(keys) - set(obj)), sorted(map(repr, set(obj) - set(keys)))
        found += f", without {', '.join(map(repr, missing[:5]))}" if missing else ""
        found += f", with {', '.join(strange[:5])}" if strange else ""
    raise InvalidRequest(
        place=f"asset {context.asset_key.to_user_string()!r}",
        found=f"{found}, for a range of {len(keys)} partition keys",
        wanted="a dict with one value per partition key, also for a range of one",
        fix="Return {key: value for key in context.partition_keys}.",
    )


def _is_read_by_key(context: InputContext) -> bool:
    """Tell whether the reading asset is partitioned itself, so that Dagster maps its keys."""
    if not context.has_asset_partitions:
        return False
    try:
        reader = context.step_context.assets_def
    except DagsterInvariantViolationError:
        return True  # no run: build_input_context was given the keys
    return reader is not None and reader.partitions_def is not None


def _is_of_one_key(context: InputContext) -> bool:
    """Tell whether the run's own single partition key is the tenant, by its name.

    Not whether there is one key: a mapping or a range that happens to give one would then change
    the type of what the asset gets (dagster-io/dagster#28942).
    """
    if not (context.has_partition_key and _is_read_by_key(context)):
        return False
    return list(context.asset_partition_keys) == [context.partition_key]


def _newest(journal: Journal, tenant: str, step: str) -> CellState:
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


def _asset_step(key: AssetKey) -> str:
    """Return the step that stands for a user's own asset; no step of a pipeline has a colon."""
    # escaped: the keys ["a/b"] and ["a", "b"] are two assets
    return "asset:" + key.to_escaped_user_string()


def _attempt(shard: str, tenant: str, step: str, cycle: str, cell: CellState) -> Attempt:
    return Attempt(
        shard=shard,
        tenant=tenant,
        step=step,
        cycle=cycle,
        generation=cell.generation,
        attempt=cell.attempts,
    )
