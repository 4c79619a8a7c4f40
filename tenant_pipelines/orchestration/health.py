"""What is unhealthy about a fleet in its Dagster instance, and mending what a command can mend.

Guarantees: looking changes nothing, and a run that lives, waits or ends is never a finding. The
decisions are functions of facts; ``look`` gathers the facts. Leaves to others: what the journals
say of the cells (reconcile.py), and the user's dagster.yaml, for which the edit is only told.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from itertools import islice
from pathlib import Path
from typing import Any

import yaml
from dagster import DagsterInstance

from tenant_pipelines.engine.cycles import is_of_the_future, known_cycles, newest_cycle
from tenant_pipelines.errors import JournalUnusable
from tenant_pipelines.fleet.model import Fleet
from tenant_pipelines.journal.fold import Cycle
from tenant_pipelines.orchestration import names
from tenant_pipelines.orchestration.dagster_settings import Release, Settings, read_settings
from tenant_pipelines.orchestration.instance import INSTANCE_SETTINGS, find_dead_runs
from tenant_pipelines.orchestration.reconcile import mend
from tenant_pipelines.orchestration.register import register_shards

# beyond it the planned events of a UI run, before its first cell, take longer than people wait
TENANTS_PER_SHARD = 1_000
# docs.dagster.io, "Partitioning assets": 100,000 partitions or fewer per asset
KEYS_PER_ASSET = 100_000
# on SQLite; python -m tenant_pipelines_tests.benchmarks dagster --only events measures it
SECONDS_PER_EVENT = 0.006

# one SQL "IN (…)" each
_CHUNK = 500
_NAMED_AT_MOST = 5


class Severity(StrEnum):
    """Whether a finding must be mended."""

    PROBLEM = "problem"
    WARNING = "warning"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is not as it should be.

    Attributes:
        what: what was found, in one line.
        advice: the one command or edit that mends it.
        severity: a warning can be lived with.
        subjects: the runs, pools, keys, shards or distributions it is about.
        is_fixed: whether it was mended since.
    """

    what: str
    advice: str
    severity: Severity = Severity.PROBLEM
    subjects: tuple[str, ...] = ()
    is_fixed: bool = False


@dataclass(frozen=True, slots=True)
class Pool:
    """The limit of a pool; None for none, and whether it is only the instance's default."""

    limit: int | None
    is_default: bool


@dataclass(frozen=True, slots=True)
class SlotHolder:
    """A run that holds slots and needs none.

    Attributes:
        run_id: its id.
        state: what Dagster shows of it; None when it no longer knows the run.
        slots: how many.
        is_dead: whether its process is gone.
    """

    run_id: str
    state: str | None
    slots: int
    is_dead: bool


def look(
    instance: DagsterInstance,
    fleet: Fleet,
    *,
    home: Path,
    fix_command: str,
    at_shard: Callable[[int], None] | None = None,
) -> list[Finding]:
    """Return what is wrong about the fleet in this instance.

    Args:
        instance: the Dagster instance.
        fleet: the fleet.
        home: the instance's folder, for the advice.
        fix_command: the command that mends, for the advice.
        at_shard: called after each shard with how many are done.
    """
    infos = _concurrency_infos(instance, fleet)
    pools = {name: Pool(info.limit, info.using_default_limit) for name, info in infos.items()}
    known: dict[str, Sequence[str]] = {}
    for shard in fleet.shards:
        known[shard] = instance.get_dynamic_partitions(names.partition_set(fleet.name, shard))
        if at_shard is not None:
            at_shard(len(known))
    return [
        *journal_findings(*known_cycles(fleet), now=datetime.now(UTC)),
        *run_findings(find_slot_holders(instance, fleet), fix_command),
        *pool_findings(fleet, pools, fix_command),
        *key_findings(fleet, known, fix_command),
        *settings_findings(read_settings(instance), home / "dagster.yaml"),
        *size_findings(fleet, {shard: len(keys) for shard, keys in known.items()}),
    ]


def fix(
    instance: DagsterInstance, fleet: Fleet, *, at_shard: Callable[[int], None] | None = None
) -> None:
    """Mend what ``look`` finds, but for dagster.yaml and what only a person can decide.

    Dead runs are ended and what they did not tell Dagster is told, slots that nobody needs are
    freed, keys are added and pools get their limits. A crash in between is harmless: the next call
    does the rest.
    """
    # before its runs are ended: afterwards nothing tells that they were dead
    holders = find_slot_holders(instance, fleet)
    mend(instance, fleet)
    for holder in holders:
        instance.event_log_storage.free_concurrency_slots_for_run(holder.run_id)
    for done, _ in enumerate(register_shards(instance, fleet, fleet.shards), start=1):
        if at_shard is not None:
            at_shard(done)


def find_slot_holders(instance: DagsterInstance, fleet: Fleet) -> list[SlotHolder]:
    """Return the dead runs that show as running, and the runs that hold slots for nothing."""
    slots: dict[str, int] = {}
    for info in _concurrency_infos(instance, fleet).values():
        # a slot is assigned to a waiting step before the step claims it
        assigned = [step for step in info.pending_steps if step.assigned_timestamp is not None]
        steps = {(one.run_id, one.step_key) for one in [*info.claimed_slots, *assigned]}
        for run_id, _ in steps:
            slots[run_id] = slots.get(run_id, 0) + 1
    found = []
    dead = {run.run_id: run for run in find_dead_runs(instance, fleet)}
    for run in dead.values():
        held = slots.get(run.run_id, 0)
        if not run.is_finished or held:
            found.append(SlotHolder(run.run_id, run.status.value, held, is_dead=True))
    for run_id, held in slots.items():
        # a run that is marked failed or cancelled may still be on its way out
        if run_id in dead or any((fleet.state / "runs" / run_id).glob("*.lock")):
            continue
        known = instance.get_run_by_id(run_id)
        if known is None or known.is_finished:
            state = known.status.value if known is not None else None
            found.append(SlotHolder(run_id, state, held, is_dead=False))
    return found


def journal_findings(
    cycles: Collection[Cycle], unusable: Mapping[str, JournalUnusable], *, now: datetime
) -> list[Finding]:
    """Decide what to say of journals that cannot be read, and of a cycle of the future."""
    found = [
        Finding(f"shard {shard}: {error}", "tenant-pipelines journal verify", subjects=(shard,))
        for shard, error in unusable.items()
    ]
    newest = newest_cycle(cycles)
    if newest is not None and is_of_the_future(newest, now):
        what = f"the newest cycle, {newest.name}, was opened by a clock that ran ahead: at "
        advice = "set the clocks right; the schedule's next tick opens a newer one all the same"
        found.append(Finding(what + newest.instant, advice, Severity.WARNING, (newest.name,)))
    return found


def run_findings(holders: Collection[SlotHolder], fix_command: str) -> list[Finding]:
    """Decide what to say of each run that is dead, or holds slots and needs none."""
    found = []
    for holder in holders:
        held = f"holds {holder.slots} slot{'' if holder.slots == 1 else 's'}"
        if holder.is_dead:
            what = f"run {holder.run_id} is dead, shows {holder.state}, {held}"
        elif holder.state is None:
            what = f"run {holder.run_id}, which was deleted, {held}"
        else:
            what = f"run {holder.run_id} has ended ({holder.state}) and still {held}"
        found.append(Finding(what, fix_command, subjects=(holder.run_id,)))
    return found


def pool_findings(fleet: Fleet, pools: Mapping[str, Pool], fix_command: str) -> list[Finding]:
    """Decide which shards' pools do not have the limit of the fleet file."""
    unset: list[str] = []
    wrong: dict[str, str] = {}
    for shard in fleet.shards.values():
        name = names.partition_set(fleet.name, shard.name)
        pool = pools[name]
        wanted = shard.limits.runs_at_once
        if pool.is_default or pool.limit is None:
            unset.append(name)
        elif pool.limit != wanted:
            wrong[name] = f"{name} has {pool.limit} and not {wanted}"
    found = []
    if unset:
        what = f"pools without the limit that fleet.yaml asks for (runs_at_once): {_some(unset)}"
        found.append(Finding(what, fix_command, subjects=tuple(unset)))
    if wrong:
        what = f"pools with another limit than fleet.yaml's runs_at_once: {_some(wrong.values())}"
        found.append(Finding(what, fix_command, subjects=tuple(wrong)))
    return found


def key_findings(
    fleet: Fleet, known: Mapping[str, Collection[str]], fix_command: str
) -> list[Finding]:
    """Decide where partition sets differ from the fleet.

    Args:
        fleet: the fleet.
        known: by shard, the keys that Dagster has.
        fix_command: the command that mends, for the advice.
    """
    missing: dict[str, str] = {}
    found = []
    for shard in fleet.shards.values():
        keys = set(known[shard.name])
        new = [tenant for tenant in shard.tenants if tenant not in keys]
        if new:
            missing[shard.name] = f"{shard.name} ({len(new):,} of {len(shard.tenants):,})"
        extra = [key for key in known[shard.name] if key not in shard.tenants]
        if extra:
            name = names.partition_set(fleet.name, shard.name)
            what = (
                f"partition set {name} has keys of tenants that are not in the shard: "
                f"{_some([repr(key) for key in extra])}; a run over all partitions is refused "
                f"because of them"
            )
            advice = (
                f"keep dagster dev (or dagster-daemon) running: the sensor "
                f"{names.caretaker(fleet.name)} removes them once no run and no backfill targets "
                f"them; or list the tenants in {fleet.path} again"
            )
            found.append(Finding(what, advice, subjects=tuple(extra)))
    if missing:
        what = f"shards with tenants that are no partition keys yet: {_some(missing.values())}"
        found.insert(0, Finding(what, fix_command, subjects=tuple(missing)))
    return found


def settings_findings(settings: Settings, file: Path) -> list[Finding]:
    """Decide which settings of the instance would keep a crash from healing."""
    found = []
    if settings.granularity != "op":
        what = (
            f"the granularity of pools is {settings.granularity!r}: only the run queue would keep "
            f"their limits, and dagster job execute would not"
        )
        found.append(Finding(what, _edit(file, "concurrency", "pools", "granularity")))
    if settings.default_pool_limit is None:
        what = "pools have no default limit: a pool that nobody has set a limit for is unlimited"
        found.append(Finding(what, _edit(file, "concurrency", "pools", "default_limit")))
    if not settings.is_monitored:
        what = "run monitoring is off: nobody notices a run whose process is gone"
        found.append(Finding(what, _edit(file, "run_monitoring", "enabled")))
    if settings.free_slots_after_seconds is None:
        what = "slots are never freed after a run's end: a run that crashed keeps its own for good"
        found.append(
            Finding(what, _edit(file, "run_monitoring", "free_slots_after_run_end_seconds"))
        )
    if settings.has_run_retries:
        what = (
            "run retries are on: Dagster and this package would both start failed runs again, "
            "and neither counts the other's"
        )
        found.append(Finding(what, _edit(file, "run_retries", "enabled")))
    return found


def release_findings(releases: Collection[Release]) -> list[Finding]:
    """Decide which distributions are not of the installed Dagster's release."""
    core = next((one.version for one in releases if one.name == "dagster"), "")
    return [
        Finding(
            f"{one.name} {one.version} belongs to another release than dagster {core}",
            f"pip install {one.name}=={one.wanted}",
            subjects=(one.name,),
        )
        for one in releases
        if not one.is_right
    ]


def size_findings(fleet: Fleet, keys: Mapping[str, int]) -> list[Finding]:
    """Decide which shards are so large that the UI gets slow, and say what it costs.

    Args:
        fleet: the fleet.
        keys: by shard, how many keys Dagster has.
    """
    found = []
    for shard in fleet.shards.values():
        tenants, steps = len(shard.tenants), len(fleet.pipeline.names)
        if tenants > TENANTS_PER_SHARD:
            seconds = tenants * steps * SECONDS_PER_EVENT
            what = (
                f"shard {shard.name} has {tenants:,} tenants: a backfill of all of them from the "
                f"UI first writes {tenants * steps:,} planned events, about {seconds:,.0f} s on "
                f"SQLite ({1_000 * SECONDS_PER_EVENT:.0f} ms each)"
            )
            advice = (
                f"run it with tenant-pipelines run or its schedule, which plan none, or keep a "
                f"shard at {TENANTS_PER_SHARD:,} tenants"
            )
            found.append(Finding(what, advice, Severity.WARNING, (shard.name,)))
        most = max(tenants, keys[shard.name])
        if most > KEYS_PER_ASSET:
            what = (
                f"each asset of shard {shard.name} has {most:,} partition keys; Dagster advises "
                f"{KEYS_PER_ASSET:,} at most"
            )
            advice = "spread its tenants over more shards"
            found.append(Finding(what, advice, Severity.WARNING, (shard.name,)))
    return found


def _concurrency_infos(instance: DagsterInstance, fleet: Fleet) -> dict[str, Any]:
    """Return Dagster's ConcurrencyKeyInfo of each shard's pool."""
    infos: dict[str, Any] = {}
    pools = (names.partition_set(fleet.name, shard) for shard in fleet.shards)
    while chunk := list(islice(pools, _CHUNK)):
        infos |= instance.event_log_storage.get_concurrency_infos(chunk)
    return infos


def _edit(file: Path, *path: str) -> str:
    """Return the advice to set one setting as this package's own dagster.yaml has it."""
    value: Any = INSTANCE_SETTINGS
    for key in path:
        value = value[key]
    for key in reversed(path):
        value = {key: value}
    lines = yaml.safe_dump(value).rstrip().replace("\n", "\n  ")
    return f"in {file}, set\n  {lines}"


def _some(subjects: Collection[str]) -> str:
    """Return a few of them, and how many more there are."""
    named = ", ".join(islice(subjects, _NAMED_AT_MOST))
    more = len(subjects) - _NAMED_AT_MOST
    return f"{named} and {more:,} more" if more > 0 else named
