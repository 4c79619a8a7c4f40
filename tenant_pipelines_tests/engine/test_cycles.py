"""Which cycle a run works on: the same one for every shard and process, whatever the clocks say."""

from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenant_pipelines.engine.cycles import (
    FIRST_CYCLE,
    cycle_to_open,
    known_cycles,
    newest_cycle,
    open_cycle,
)
from tenant_pipelines.errors import InvalidRequest
from tenant_pipelines.fleet.context import StepContext
from tenant_pipelines.fleet.model import Fleet
from tenant_pipelines.fleet.pipeline import step
from tenant_pipelines.journal.entries import instant
from tenant_pipelines.journal.fold import Cycle, cycles_of
from tenant_pipelines.journal.journal import Journal
from tenant_pipelines_tests.engine.fleets import make_fleet

_NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


@step
def extract(ctx: StepContext) -> int:
    return 1


def _fleet(folder: Path, *shards: str) -> Fleet:
    return make_fleet(folder, [extract], {shard: [f"tenant_of_{shard}"] for shard in shards})


def _cycle(name: str, *, hour: int, root: str = "earlier") -> Cycle:
    return Cycle(instant=instant(_NOON.replace(hour=hour)), name=name, root=root)


def _open(fleet: Fleet, *, asked: str | None = None, root: str = "r", hour: int = 12) -> Cycle:
    now = _NOON.replace(hour=hour)
    return open_cycle(fleet, asked=asked, root=root, run_id=f"run of {root}", now=lambda: now)


def _open_in(fleet: Fleet, shard: str, *cycles: Cycle) -> None:
    with Journal(fleet.journal_path(shard), fleet=fleet.name, shard=shard) as journal:
        for cycle in cycles:
            journal.open_cycle(cycle, run_id="earlier")


def _opened(fleet: Fleet, shard: str) -> list[Cycle]:
    """Return the cycles in one shard's journal, in the order in which they were written."""
    journal = Journal.existing(fleet.journal_path(shard), fleet=fleet.name, shard=shard)
    assert journal is not None
    with journal:
        return [cycle for entry in journal.cycle_entries() for cycle in cycles_of([entry])]


def test_the_first_cycle_is_named_1_and_opened_in_every_shard(tmp_path: Path) -> None:
    """A newcomer names nothing, and no shard can be left behind in a cycle that nobody named."""
    fleet = _fleet(tmp_path, "a", "b")
    opened = _open(fleet, root="r")
    assert opened == Cycle(instant="2026-03-01T12:00:00.000000Z", name="1", root="r")
    assert opened.name == FIRST_CYCLE
    assert {shard: _opened(fleet, shard) for shard in fleet.shards} == {
        "a": [opened],
        "b": [opened],
    }


def test_a_fleet_without_cycles_has_no_newest_one() -> None:
    """Readers tell a fleet that never ran from one in its first cycle."""
    assert newest_cycle([]) is None


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 1, 0], [1, 2, 0]])
def test_the_newest_cycle_has_the_latest_instant_whatever_its_name(order: list[int]) -> None:
    """Names are free text: 10 sorts before 9, and 2026-02 after backfill."""
    cycles = [_cycle("9", hour=8), _cycle("zebra", hour=9), _cycle("10", hour=10)]
    assert newest_cycle(cycles[position] for position in order) == cycles[2]


def test_of_two_cycles_of_one_instant_every_reader_takes_the_same() -> None:
    """Two schedules can tick in one microsecond; shards must not disagree about the newest."""
    one, other = _cycle("a", hour=9), _cycle("b", hour=9)
    assert newest_cycle([one, other]) == newest_cycle([other, one])


def test_a_cycle_opened_twice_counts_from_its_earliest_instant() -> None:
    """A late second opener of 1 must not make 1 newer than the 2 opened in between."""
    first, late = _cycle("1", hour=8), _cycle("1", hour=11)
    second = _cycle("2", hour=9)
    assert newest_cycle([late, second, first]) == second


def test_a_run_that_asks_for_no_new_cycle_gets_the_newest(tmp_path: Path) -> None:
    """Rerunning resumes, it does not start over."""
    fleet = _fleet(tmp_path, "a")
    first = _open(fleet, root="one", hour=12)
    assert _open(fleet, root="two", hour=13) == first
    assert _opened(fleet, "a") == [first]


def test_opening_a_cycle_by_the_newest_ones_name_opens_nothing(tmp_path: Path) -> None:
    """A cron job that is retried with the same date must not run the fleet twice."""
    fleet = _fleet(tmp_path, "a", "b")
    _open(fleet, root="zero", hour=10)
    opened = _open(fleet, asked="2026-03-01", root="one", hour=12)
    assert opened.name == "2026-03-01"
    assert _open(fleet, asked="2026-03-01", root="two", hour=15) == opened
    for shard in fleet.shards:
        assert [cycle.name for cycle in _opened(fleet, shard)] == ["1", "2026-03-01"]


def test_two_openers_of_one_name_with_different_instants_open_one_cycle(tmp_path: Path) -> None:
    """Two first runs at once each believe that they opened 1; they work on the same cycle."""
    fleet = _fleet(tmp_path, "a", "b")
    early, late = _cycle("1", hour=9, root="one"), _cycle("1", hour=10, root="two")
    _open_in(fleet, "a", late)
    _open_in(fleet, "b", early)
    assert _open(fleet, root="three") == early
    assert _opened(fleet, "a") == [late]
    assert _opened(fleet, "b") == [early]


def test_a_clock_that_went_back_still_makes_the_new_cycle_the_newest(tmp_path: Path) -> None:
    """Otherwise the run would open a cycle, and every later run would go on with the older one."""
    fleet = _fleet(tmp_path, "a")
    first = _open(fleet, root="one", hour=12)
    second = _open(fleet, asked="two", root="two", hour=7)
    assert second.instant > first.instant
    assert newest_cycle(_opened(fleet, "a")) == second
    assert _open(fleet, root="three", hour=7) == second


def test_a_clock_that_stands_still_makes_the_new_cycle_newer() -> None:
    """Equal instants would leave it to the names, and 10 is less than 9."""
    nine = _cycle("9", hour=12)
    ten = cycle_to_open([nine], asked="10", root="r", now=_NOON)
    assert ten == Cycle(instant="2026-03-01T12:00:00.000001Z", name="10", root="r")


_cycles = st.builds(
    Cycle,
    instant=st.integers(-3, 3).map(lambda n: instant(_NOON + timedelta(microseconds=n))),
    name=st.sampled_from(["1", "2", "9", "10", "z"]),
    root=st.sampled_from(["one", "two"]),
)


@given(known=st.lists(_cycles, max_size=8), ticks=st.integers(-4, 4))
def test_a_new_cycle_is_newer_than_all_that_is_known(known: list[Cycle], ticks: int) -> None:
    """Whatever the journals hold and the clock says, the run that opened it goes on with it."""
    now = _NOON + timedelta(microseconds=ticks)
    opened = cycle_to_open(known, asked="new", root="three", now=now)
    assert opened.name == "new"
    assert newest_cycle([*known, opened]) == opened
    assert cycle_to_open([*known, opened], asked=None, root="four", now=now) == opened


def test_an_older_cycles_name_is_refused_with_what_to_do_and_nothing_is_written(
    tmp_path: Path,
) -> None:
    """Going back would load old rows over newer ones; the user needs a name that works."""
    fleet = _fleet(tmp_path, "a", "b")
    _open(fleet, root="one", hour=10)
    _open(fleet, asked="feb", root="two", hour=11)
    before = {shard: _opened(fleet, shard) for shard in fleet.shards}
    with pytest.raises(InvalidRequest) as refused:
        _open(fleet, asked="1", root="three", hour=12)
    message = str(refused.value)
    assert "'1', which an older cycle has" in message
    assert "'feb'" in message
    assert "Choose another name" in message
    assert {shard: _opened(fleet, shard) for shard in fleet.shards} == before


def test_a_root_opens_its_new_cycle_once(tmp_path: Path) -> None:
    """Dagster copies the config into a re-execution, which has to resume and not start over."""
    fleet = _fleet(tmp_path, "a", "b")
    _open(fleet, root="zero", hour=9)
    opened = _open(fleet, asked="", root="r", hour=10)
    assert _open(fleet, asked="", root="r", hour=11) == opened
    for shard in fleet.shards:
        assert [cycle.name for cycle in _opened(fleet, shard)] == ["1", "r"]


def test_a_root_whose_cycle_is_no_longer_the_newest_resumes_the_newest(tmp_path: Path) -> None:
    """A re-execution of last week's run neither goes back nor opens a third cycle."""
    fleet = _fleet(tmp_path, "a")
    _open(fleet, asked="", root="old", hour=9)
    newest = _open(fleet, asked="", root="new", hour=10)
    for asked in ("", "another"):
        assert _open(fleet, asked=asked, root="old", hour=11) == newest
    assert [cycle.name for cycle in _opened(fleet, "a")] == ["old", "new"]


def test_a_new_cycle_without_a_name_takes_the_roots(tmp_path: Path) -> None:
    """It is unique and leads a person from the cycle to the run."""
    opened = _open(_fleet(tmp_path, "a"), asked="", root="7c9e")
    assert (opened.name, opened.root) == ("7c9e", "7c9e")


def test_a_lagging_shard_is_brought_to_the_newest_cycle_and_not_through_the_missed_ones(
    tmp_path: Path,
) -> None:
    """A shard added to the file, or damaged and restored, takes part in the cycle that counts."""
    fleet = _fleet(tmp_path, "a", "b", "added")
    first, second, third = (_cycle(str(n), hour=n) for n in (1, 2, 3))
    _open_in(fleet, "a", first, second, third)
    _open_in(fleet, "b", first)
    assert _open(fleet, root="r") == third
    assert {shard: _opened(fleet, shard) for shard in fleet.shards} == {
        "a": [first, second, third],
        "b": [first, third],
        "added": [third],
    }


@pytest.mark.parametrize("garbage", [b"", b"not a journal\n" * 500], ids=["empty", "text"])
def test_a_damaged_journal_is_left_as_it_is_while_the_others_open(
    tmp_path: Path, garbage: bytes
) -> None:
    """It may be all that is left of the shard's history, and it is one shard's trouble."""
    fleet = _fleet(tmp_path, "a", "b", "c")
    damaged = fleet.journal_path("b")
    damaged.parent.mkdir(parents=True)
    damaged.write_bytes(garbage)
    opened = _open(fleet, root="r")
    assert damaged.read_bytes() == garbage
    assert [path.name for path in damaged.parent.iterdir()] == [damaged.name]
    assert (_opened(fleet, "a"), _opened(fleet, "c")) == ([opened], [opened])
    known, unusable = known_cycles(fleet)
    assert known == [opened, opened]
    assert list(unusable) == ["b"]
    assert str(damaged) in str(unusable["b"])


def test_looking_for_cycles_creates_nothing(tmp_path: Path) -> None:
    """plan and status ask too, of a fleet that may never have run."""
    fleet = _fleet(tmp_path, "a", "b")
    assert known_cycles(fleet) == ([], {})
    assert list(tmp_path.iterdir()) == []


def _tick(hour: int, known: list[Cycle]) -> Cycle:
    """Return the cycle of a run that the tick of ``hour`` started, at noon."""
    tick = _NOON.replace(hour=hour)
    return cycle_to_open(known, asked=None, root="tick", now=_NOON, tick=tick)


def test_a_tick_opens_a_cycle_of_its_scheduled_time_however_late_it_runs() -> None:
    """The data belongs to the time that was scheduled, in whatever zone the schedule thinks."""
    opened = _tick(3, [_cycle("old", hour=2)])
    assert (opened.name, opened.instant) == ("2026-03-01T03:00:00Z", "2026-03-01T03:00:00.000000Z")
    assert _tick(3, []) == opened
    berlin = _NOON.replace(hour=3).astimezone(timezone(timedelta(hours=1)))
    assert cycle_to_open([], asked=None, root="tick", now=_NOON, tick=berlin) == opened


def test_a_late_or_repeated_tick_opens_nothing() -> None:
    """A cycle opened after its scheduled time is newer; its own cycle is not opened again."""
    newer = _cycle("by hand", hour=4)
    assert _tick(3, [newer]) == newer
    own = _tick(3, [])
    assert _tick(3, [own]) == own
    assert _tick(3, [own, newer]) == newer
    same_name = _cycle(own.name, hour=1)
    assert _tick(3, [same_name]) == same_name


def test_cycles_of_the_future_do_not_silence_the_schedule() -> None:
    """A clock that ran ahead for a minute must not stop every tick until its time has come."""
    future = Cycle(instant=instant(_NOON + timedelta(days=9999)), name="ahead", root="x")
    old = _cycle("old", hour=4)
    assert _tick(3, [old, future]) == future
    first = _tick(5, [old, future])
    assert first.name == "2026-03-01T05:00:00Z"
    assert first > future
    assert _tick(5, [old, future, first]) == first
    second = _tick(6, [old, future, first])
    assert second > first
    # another host's clock may be a minute ahead
    near = Cycle(instant=instant(_NOON + timedelta(minutes=1)), name="near", root="x")
    assert _tick(11, [near]) == near
