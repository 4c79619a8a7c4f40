"""Whether the warehouse is what a computation from scratch gives, tenant by tenant.

For each load the steps above it run again with the window ``(nothing, cursor]``, the cursor being
the one that the load committed last, and the rows that it would load are compared with the table.
The load itself does not run, and neither journal nor warehouse is written. So the steps above a
load must have no effect of their own and give the same output for the same rows.
"""

import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from tenant_pipelines.engine.step_context import context_of
from tenant_pipelines.engine.step_guard import describe_failure, guarded
from tenant_pipelines.errors import InvalidRequest, TenantSettingMissing
from tenant_pipelines.fleet.cell import Attempt
from tenant_pipelines.fleet.context import Cursor, Window
from tenant_pipelines.fleet.model import Fleet
from tenant_pipelines.fleet.pipeline import Step
from tenant_pipelines.fleet.settings import ResolvedSettings, resolve_settings
from tenant_pipelines.storage.artifacts import ArtifactStore
from tenant_pipelines.storage.engines import Place, reading
from tenant_pipelines.storage.ledger import Ledger, LedgerRow
from tenant_pipelines.storage.sql_compare import Difference, compare_rows


class Verdict(StrEnum):
    """What a recomputation found.

    ``NOT_LOADED``: the ledger knows no load, and the table has no row of the tenant.
    """

    EQUAL = "equal"
    DIFFERS = "differs"
    NOT_LOADED = "not_loaded"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recomputed:
    """One tenant's rows of one load, recomputed.

    Attributes:
        shard: name of the shard.
        tenant: name of the tenant.
        step: name of the load step.
        table: its table.
        verdict: what was found.
        cursor: up to which the source was read.
        difference: how the rows differ; None when they could not be compared.
        error: why not, as ``describe_failure`` gives it.
    """

    shard: str
    tenant: str
    step: str
    table: str
    verdict: Verdict
    cursor: Cursor | None = None
    difference: Difference | None = None
    error: Mapping[str, str] = field(default_factory=dict)


def recompute(
    fleet: Fleet, shard: str, *, tenants: list[str] | None, environ: Mapping[str, str]
) -> Iterator[Recomputed]:
    """Yield what the recomputation of each tenant and load of a shard finds.

    Args:
        fleet: the fleet.
        shard: name of the shard.
        tenants: names of some of its tenants, None for all.
        environ: for ``${…}`` in the tenants' settings.

    Raises:
        InvalidRequest: the pipeline loads nothing that could be compared.
    """
    if fleet.warehouse is None or not fleet.pipeline.loads:
        raise InvalidRequest(
            place=f"verify of fleet {fleet.name!r}",
            found="a pipeline without a sql_load",
            wanted="a load whose rows can be compared with the source",
            fix="Only the rows of sql_load can be verified.",
        )
    for name, tenant in fleet.shard(shard).tenants.items():
        if tenants is not None and name not in tenants:
            continue
        try:
            resolved = resolve_settings(fleet.path, tenant, environ)
        except TenantSettingMissing as missing:
            for load in fleet.pipeline.loads:
                yield _failed(shard, name, load, describe_failure(missing, []))
            continue
        for load in fleet.pipeline.loads:
            yield _recompute_load(fleet, shard, name, resolved, load)


def _recompute_load(
    fleet: Fleet, shard: str, tenant: str, resolved: ResolvedSettings, load: Step
) -> Recomputed:
    target, warehouse = load.target, fleet.warehouse
    assert target is not None
    assert warehouse is not None  # both were checked by recompute
    ledger = Ledger(warehouse, fleet.name)
    facts: dict[str, Any] = {
        "shard": shard, "tenant": tenant, "step": load.name, "table": target.table
    }  # fmt: skip
    try:
        # one transaction, so that a load that ends meanwhile is not seen by half
        with reading(warehouse, Place(target.table, tenant)) as connection:
            if connection is None:
                return Recomputed(**facts, verdict=Verdict.NOT_LOADED)
            rows = {
                other.name: ledger.newest_in(
                    connection, tenant=tenant, step=other.name, table=other.target.table
                )
                for other in fleet.pipeline.loads
                if other.target
            }
            newest = rows[load.name]
            loaded = {name: row.output for name, row in rows.items() if row is not None}
            value = (
                _empty() if newest is None else _input(fleet, shard, newest, resolved, load, loaded)
            )
            difference = compare_rows(connection, target, tenant=tenant, value=value)
    except (Exception, SystemExit) as error:  # noqa: BLE001  (a step's code; one tenant's)
        return _failed(shard, tenant, load, describe_failure(error, resolved.secrets))
    if not difference.is_none:
        verdict = Verdict.DIFFERS
    else:
        verdict = Verdict.NOT_LOADED if newest is None else Verdict.EQUAL
    return Recomputed(
        **facts,
        verdict=verdict,
        cursor=None if newest is None else newest.cursor,
        difference=difference,
    )


def _failed(shard: str, tenant: str, load: Step, error: Mapping[str, str]) -> Recomputed:
    return Recomputed(
        shard=shard,
        tenant=tenant,
        step=load.name,
        table=load.target.table if load.target else "",
        verdict=Verdict.FAILED,
        error=error,
    )


def _empty() -> Any:
    import pandas as pd

    return pd.DataFrame()


def _input(
    fleet: Fleet,
    shard: str,
    newest: LedgerRow,
    resolved: ResolvedSettings,
    load: Step,
    loaded: Mapping[str, Any],
) -> Any:
    """Return what the load would be given, had it one window over everything up to its cursor.

    A load above it has an effect and does not run: ``loaded`` has what it returned.
    """
    pipeline = fleet.pipeline
    needed = pipeline.upstream_of(load.name)
    values: dict[str, Any] = {}
    digests: dict[str, str] = {}
    window = Window(after=None, to=newest.cursor)
    # through a store, since storing normalises some values
    with tempfile.TemporaryDirectory(prefix="tenant-pipelines-verify-") as folder:
        store = ArtifactStore(Path(folder))
        for step in (entry for entry in pipeline.steps if entry.name in needed):
            attempt = Attempt(
                shard=shard,
                tenant=newest.tenant,
                step=step.name,
                cycle=newest.cycle,
                generation=1,
                attempt=1,
            )
            inputs = {name: digests[name] for name in step.upstream}
            context = context_of(
                fleet, attempt, resolved.settings, window=window, inputs=inputs, run_id="verify"
            )
            if step.target is not None:
                value = loaded.get(step.name)
            else:
                with guarded():
                    value = step(context, **{name: values[name] for name in step.upstream})
            stored = store.store(attempt, value)
            digests[step.name] = stored.digest
            values[step.name] = store.load(attempt, stored)
    return values[load.upstream[0]]
