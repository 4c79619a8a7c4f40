"""What a Dagster run was asked for: op config, run tags, partition keys, selected assets."""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from dagster import DagsterRun, Field, Noneable

from tenant_pipelines.engine.cycles import CLOCK_TOLERANCE
from tenant_pipelines.engine.plan import Request
from tenant_pipelines.errors import InvalidRequest, UnknownName, nearest
from tenant_pipelines.fleet.model import Fleet
from tenant_pipelines.orchestration import names

# of a run over one partition, and over a range
_KEY_TAGS = (names.PARTITION_TAG, names.RANGE_START_TAG)

OPEN_CONFIG = {
    "new_cycle": Field(
        Noneable(str),
        default_value=None,
        is_required=False,
        description="Open a new cycle of this name first; '' names it after the root run.",
    ),
}
SHARD_CONFIG = {
    "tenants": Field(
        Noneable([str]), default_value=None, is_required=False, description="Only these tenants."
    ),
    "steps": Field(
        Noneable([str]), default_value=None, is_required=False, description="Only these steps."
    ),
    "force": Field(
        bool,
        default_value=False,
        is_required=False,
        description="Run the asked-for cells again, once per root run or backfill.",
    ),
    **OPEN_CONFIG,
}


def root_of(run: DagsterRun) -> str:
    """Return the id of the root run or backfill, which re-executions share."""
    return run.tags.get(names.BACKFILL_TAG) or run.root_run_id or run.run_id


def asked_cycle(run: DagsterRun, config: Mapping[str, Any]) -> str | None:
    """Return the new cycle asked for by op config or run tag: a name, ``""``, or None."""
    asked: str | None = config.get("new_cycle")
    if asked is not None:
        return asked
    tag = run.tags.get(names.NEW_CYCLE_TAG)
    return {"true": "", "false": None}.get(tag, tag) if tag is not None else None


def asked_tick(run: DagsterRun) -> datetime | None:
    """Return the scheduled time of the schedule's tick that started the run, None without one.

    Raises:
        InvalidRequest: the run tag holds no time with a zone, or one of the future.
    """
    tag = run.tags.get(names.TICK_TAG)
    if tag is None:
        return None
    try:
        tick = datetime.fromisoformat(tag)
    except ValueError:
        tick = None
    if tick is None or tick.tzinfo is None:
        raise InvalidRequest(
            place=f"run tag {names.TICK_TAG}",
            found=repr(tag),
            wanted="a time with its zone, such as 2026-12-01T03:00:00+00:00",
            fix="Launch again without the tag, or with such a time.",
        )
    now = datetime.now(UTC)
    if tick > now + CLOCK_TOLERANCE:
        # its cycle would be newer than those of all ticks until then
        raise InvalidRequest(
            place=f"run tag {names.TICK_TAG}",
            found=f"{tag!r}, a time of the future",
            wanted=f"a time that has come; this host's clock says {now.isoformat()}",
            fix="Launch again without the tag, or set the clock right.",
        )
    return tick


def check_tags(run: DagsterRun) -> None:
    """Refuse run tags of ours that do not exist.

    Raises:
        InvalidRequest: names the tag, and the one that was probably meant.
    """
    for tag in run.tags:
        if tag.startswith(names.TAG_PREFIX) and tag not in names.TAGS:
            hint = nearest(tag, names.TAGS)
            raise InvalidRequest(
                place="run tags",
                found=f"the unknown tag {tag!r}",
                wanted=", ".join(sorted(names.TAGS)),
                fix=f"{hint[:1].upper()}{hint[1:]}Launch again without it.",
            )


def keys_of_nobody(fleet: Fleet, shard: str, keys: Iterable[str] | None) -> list[str]:
    """Return the partition keys of tenants that are no longer in the fleet file."""
    return [name for name in keys or () if name not in fleet.shard(shard).tenants]


def op_config(run: DagsterRun, op: str) -> dict[str, Any]:
    """Return the config that a run has for one of its ops, as it was given."""
    given = run.run_config.get("ops") if isinstance(run.run_config, dict) else None
    config: dict[str, Any] = ((given or {}).get(op) or {}).get("config") or {}
    return config


def config_for_tenants(op: str, tenants: Iterable[str]) -> dict[str, Any]:
    """Return the run config by which a shard's op does some tenants only."""
    return {"ops": {op: {"config": {"tenants": list(tenants)}}}}


def asked_without_keys(run: DagsterRun, *, fleet: Fleet, shard: str) -> Request | None:
    """Return what a run asked of a shard by its op config alone; None for one with partition keys.

    Dagster itself remembers the keys of a run that has some.
    """
    if any(tag in run.tags for tag in _KEY_TAGS):
        return None
    return _asked_by_config(run, fleet=fleet, shard=shard)


def steps_asked(run: DagsterRun, *, fleet: Fleet, shard: str) -> frozenset[str]:
    """Return the steps of a shard that a run was asked for, by its assets or its op config."""
    if run.asset_selection:
        picked = {tuple(key.path) for key in run.asset_selection}
        return frozenset(
            name for name in fleet.pipeline.names if (fleet.name, shard, name) in picked
        )
    return _asked_by_config(run, fleet=fleet, shard=shard).asked_steps(fleet.pipeline)


def _asked_by_config(run: DagsterRun, *, fleet: Fleet, shard: str) -> Request:
    is_fleet_job = run.job_name == names.fleet_job(fleet.name)
    op = names.fleet_op(fleet.name, shard) if is_fleet_job else names.cells_op(fleet.name, shard)
    config = op_config(run, op)
    tenants = config.get("tenants")
    return Request(
        root=root_of(run),
        tenants=None if tenants is None else frozenset(tenants),
        steps=config.get("steps"),
        force=bool(config.get("force")),
    )


def shard_request(
    fleet: Fleet,
    *,
    shard: str,
    run: DagsterRun,
    config: Mapping[str, Any],
    keys: list[str] | None = None,
    selected: list[str] | None = None,
) -> Request:
    """Return the request, checked before the run does anything.

    Args:
        fleet: the fleet.
        shard: name of the shard.
        run: the Dagster run.
        config: its op config.
        keys: the partition keys that the run targets, None for none.
        selected: the steps whose assets were selected, None when all were.

    Raises:
        UnknownName: a tenant or step that does not exist.
        InvalidRequest: a tag's value, or nothing left to do.
    """
    force_tag = run.tags.get(names.FORCE_TAG, "false")
    if force_tag not in {"true", "false"}:
        raise InvalidRequest(
            place=f"run tag {names.FORCE_TAG}",
            found=repr(force_tag),
            wanted="'true' or 'false'",
            fix="Launch again with one of them.",
        )
    check_tags(run)
    listed = fleet.shard(shard).tenants
    tenants: list[str] | None = config.get("tenants")
    gone = keys_of_nobody(fleet, shard, keys)
    if keys is not None and len(gone) < len(keys):
        # a backfill may target a tenant that left the fleet file since; the others go on
        keys = [name for name in keys if name in listed]
    for name in [*(keys or []), *(tenants or [])]:
        if name not in listed:
            place = f"shard {shard!r} of {fleet.path}"
            raise UnknownName(kind="tenant", name=name, known=list(listed), place=place)
    if keys is not None:
        tenants = keys if tenants is None else [name for name in keys if name in tenants]
    steps: list[str] | None = config.get("steps")
    for name in steps or []:
        fleet.pipeline[name]
    if selected is not None:
        steps = selected if steps is None else [name for name in selected if name in steps]
    if tenants == [] or steps == []:
        raise InvalidRequest(
            place=f"op config of shard {shard!r}",
            found="tenants or steps that the selected partitions and assets leave out",
            wanted="at least one cell",
            fix="Select them in one place only.",
        )
    return Request(
        root=root_of(run),
        tenants=None if tenants is None else frozenset(tenants),
        steps=None if steps is None else frozenset(steps),
        force=bool(config.get("force")) or force_tag == "true",
        is_exact=selected is not None,
    )
