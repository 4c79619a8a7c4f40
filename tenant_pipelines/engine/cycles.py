"""Which cycle a run works on, and opening one in every journal before any cell starts.

Opening is idempotent by name. A shard that lags is brought to the fleet's newest cycle; a damaged
journal is left to its own shard's run.
"""

from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta

from tenant_pipelines.errors import InvalidRequest, JournalUnusable
from tenant_pipelines.fleet.model import Fleet
from tenant_pipelines.fleet.names import tenant_name_problem
from tenant_pipelines.journal.entries import instant
from tenant_pipelines.journal.fold import Cycle, cycles_of
from tenant_pipelines.journal.journal import Journal

FIRST_CYCLE = "1"
# how far the clocks of two hosts may differ before an instant counts as one of the future
CLOCK_TOLERANCE = timedelta(minutes=5)


def newest_cycle(cycles: Iterable[Cycle]) -> Cycle | None:
    """Return the newest cycle: the latest instant, each name at its earliest one."""
    return max(each_once(cycles), default=None)


def each_once(cycles: Iterable[Cycle]) -> list[Cycle]:
    """Return each name's cycle at its earliest instant: two openers can have recorded two."""
    earliest: dict[str, Cycle] = {}
    for cycle in sorted(cycles):
        earliest.setdefault(cycle.name, cycle)
    return list(earliest.values())


def cycle_to_open(
    known: Iterable[Cycle],
    *,
    asked: str | None,
    root: str,
    now: datetime,
    tick: datetime | None = None,
) -> Cycle:
    """Decide which cycle a run works on.

    Args:
        known: every cycle that any journal of the fleet knows.
        asked: name of the new cycle asked for, ``""`` for one named by the root run, None for none.
        root: id of the root run or backfill: its new cycle is opened once.
        now: the opening time, for a cycle that is new.
        tick: scheduled time of the schedule's tick that started the run, aware. It opens a cycle of
            that time and name if that is newer than every cycle, however late the tick comes.
            Cycles of the future, which a clock that ran ahead has opened, do not silence it.

    Returns:
        The cycle; it is new when no known cycle has its name.

    Raises:
        InvalidRequest: the asked-for name belongs to a cycle that is not the newest.
    """
    known = list(known)
    newest = newest_cycle(known)
    if tick is not None:
        at, name = instant(tick), tick_name(tick)
        if newest is None:
            return Cycle(instant=at, name=name, root=root)
        begun = newest_cycle(cycle for cycle in known if not is_of_the_future(cycle, now))
        is_newer = begun is None or at > begun.instant
        if any(cycle.name == name for cycle in known) or not is_newer:
            return newest
        # newer still means later, also than a cycle of the future
        return Cycle(instant=max(at, _just_after(newest.instant)), name=name, root=root)
    at = instant(now)
    if asked is None:
        return newest or Cycle(instant=at, name=FIRST_CYCLE, root=root)
    opened_by_root = newest_cycle(cycle for cycle in known if cycle.root == root)
    if newest is not None and opened_by_root is not None:
        return newest  # the force of this root is spent: a re-execution resumes
    name = asked or root
    if asked and (problem := tenant_name_problem(asked)) is not None:
        raise InvalidRequest(
            place="new cycle",
            found=problem,
            wanted="a name of up to 255 bytes without control characters",
            fix="Choose another name, such as a date.",
        )
    if newest is not None and newest.name == name:
        return newest
    if newest is not None and any(cycle.name == name for cycle in known):
        raise InvalidRequest(
            place="new cycle",
            found=f"the name {name!r}, which an older cycle has",
            wanted=f"a new name, or the newest cycle's, {newest.name!r}",
            fix="Choose another name; an old cycle is never opened again.",
        )
    if newest is not None and at <= newest.instant:
        at = _just_after(newest.instant)  # the clock went back; newer still means later
    return Cycle(instant=at, name=name, root=root)


def is_of_the_future(cycle: Cycle, now: datetime) -> bool:
    """Tell whether a clock that ran ahead opened a cycle."""
    return cycle.instant > instant(now + CLOCK_TOLERANCE)


def tick_name(tick: datetime) -> str:
    """Return the name of the cycle that a schedule's tick opens: its scheduled time, in UTC."""
    return tick.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def _just_after(at: str) -> str:
    return instant(datetime.fromisoformat(at) + timedelta(microseconds=1))


def shards_with_history(fleet: Fleet) -> list[str]:
    """Return the fleet's shards, and those that left the fleet file but whose journal is there."""
    left = sorted(path.parent.name for path in (fleet.state / "shards").glob("*/journal.db"))
    return [*fleet.shards, *(name for name in left if name not in fleet.shards)]


def known_cycles(fleet: Fleet) -> tuple[list[Cycle], dict[str, JournalUnusable]]:
    """Return every cycle that the fleet's readable journals know, and the unusable journals."""
    found: list[Cycle] = []
    unusable: dict[str, JournalUnusable] = {}
    for shard in shards_with_history(fleet):
        try:
            journal = Journal.existing(fleet.journal_path(shard), fleet=fleet.name, shard=shard)
            if journal is not None:
                with journal:
                    found.extend(cycles_of(journal.cycle_entries()))
        except JournalUnusable as error:
            unusable[shard] = error
    return found, unusable


def open_cycle(
    fleet: Fleet,
    *,
    asked: str | None,
    root: str,
    run_id: str,
    tick: datetime | None = None,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> Cycle:
    """Choose the run's cycle and record it in every openable journal that lags.

    Args:
        fleet: the fleet.
        asked: see ``cycle_to_open``.
        root: id of the root run or backfill.
        run_id: the run that opens it.
        tick: see ``cycle_to_open``.
        now: the clock, UTC.

    Returns:
        The cycle that the run works on.

    Raises:
        InvalidRequest: see ``cycle_to_open``.
    """
    # before looking: whoever opens a cycle after this look then has a later instant
    at = now()
    known, unusable = known_cycles(fleet)
    cycle = cycle_to_open(known, asked=asked, root=root, now=at, tick=tick)
    for shard in fleet.shards:
        if shard in unusable:
            continue
        try:
            with Journal(fleet.journal_path(shard), fleet=fleet.name, shard=shard) as journal:
                journal.open_cycle(cycle, run_id=run_id)
        except JournalUnusable:
            continue  # left to its own shard's run, which says so
    return cycle
