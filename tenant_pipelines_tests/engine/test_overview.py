"""What status and plan say of a fleet: state, action and reason of each cell, read only."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tenant_pipelines.engine.cycles import open_cycle
from tenant_pipelines.engine.leases import TenantLeases
from tenant_pipelines.engine.overview import CellView, FleetReader, ShardStatus, ShardView
from tenant_pipelines.engine.plan import Request
from tenant_pipelines.errors import InvalidRequest, JournalUnusable
from tenant_pipelines.fleet.context import StepContext
from tenant_pipelines.fleet.model import Fleet, Tenant
from tenant_pipelines.fleet.pipeline import step
from tenant_pipelines.journal.entries import Entry
from tenant_pipelines.journal.fold import Cycle
from tenant_pipelines.journal.journal import Journal
from tenant_pipelines_tests.engine.fleets import make_fleet, run_shard
from tenant_pipelines_tests.journal.drafts import started


@step
def extract(ctx: StepContext) -> dict[str, str]:
    if ctx.tenant == "broken":
        raise ValueError("no such file")
    return {"tenant": ctx.tenant}


@step
def load(ctx: StepContext, extract: dict[str, str]) -> None:
    return None


_STEPS = [extract, load]
_DONE = ("completed", "skip", "done")
_NEW = ("missing", "run", "never_run")


def _view(
    fleet: Fleet, shard: str = "a", *, environ: Mapping[str, str] | None = None, **request: Any
) -> ShardView:
    return FleetReader(fleet, environ=environ or {}).shard(shard, Request(root="", **request))


def _cells(view: ShardView) -> dict[str, tuple[str, str, str]]:
    return {
        f"{cell.tenant}:{cell.step}": (cell.state.value, cell.action.value, cell.reason.value)
        for cell in view.cells
    }


def _cell(view: ShardView, tenant: str, step: str) -> CellView:
    return next(cell for cell in view.cells if (cell.tenant, cell.step) == (tenant, step))


def _start_and_die(fleet: Fleet, tenant: str, step: str) -> None:
    """Leave what a process leaves that dies in a cell: its start, and no lease."""
    open_cycle(fleet, asked=None, root="dead", run_id="dead")
    with Journal(fleet.journal_path("a"), fleet=fleet.name, shard="a") as journal:
        journal.append(started(tenant, step))


def _damage(fleet: Fleet, shard: str) -> Path:
    path = fleet.journal_path(shard)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"not a journal\n" * 100)
    return path


def test_reading_a_fleet_that_never_ran_creates_nothing(tmp_path: Path) -> None:
    """plan and status are safe anywhere: also on a read-only disk, also with a wrong path."""
    fleet = make_fleet(tmp_path, _STEPS, {"a": ["acme"], "b": ["globex"]})
    reader = FleetReader(fleet, environ={})
    assert reader.cycle is None
    assert reader.opens_cycle("first", root="r")
    for shard in fleet.shards:
        view = reader.shard(shard, Request(root=""))
        assert (view.cycle, view.lags, view.damage) == (None, True, None)
        assert view.status is ShardStatus.NOT_STARTED
        assert view.has_work
    assert list(tmp_path.iterdir()) == []


def test_a_cell_that_never_ran_is_missing_and_runs(tmp_path: Path) -> None:
    """Every asked-for cell shows, tenant by tenant in the file's order."""
    fleet = make_fleet(tmp_path, _STEPS, {"a": ["zeta", "acme"]})
    cells = _cells(_view(fleet))
    assert cells == {
        "zeta:extract": _NEW,
        "zeta:load": _NEW,
        "acme:extract": _NEW,
        "acme:load": _NEW,
    }
    assert list(cells)[::2] == ["zeta:extract", "acme:extract"]


def test_completed_cells_are_skipped_and_their_shard_is_completed(tmp_path: Path) -> None:
    """Nothing to do is told from nothing done."""
    fleet = make_fleet(tmp_path, _STEPS, {"a": ["acme"]})
    run_shard(fleet, root="r")
    view = _view(fleet)
    assert _cells(view) == {"acme:extract": _DONE, "acme:load": _DONE}
    assert (view.status, view.lags, view.cycle) == (ShardStatus.COMPLETED, False, "1")
    assert not view.has_work
    cell = _cell(view, "acme", "extract").cell
    assert (cell.attempts, cell.run_id, cell.error) == (1, "r", None)


def test_a_failed_cell_runs_again_and_says_what_failed(tmp_path: Path) -> None:
    """One bad tenant makes a partial failure, and the good one stays done."""
    fleet = make_fleet(tmp_path, _STEPS, {"a": ["acme", "broken"]})
    run_shard(fleet)
    view = _view(fleet)
    assert _cells(view) == {
        "acme:extract": _DONE,
        "acme:load": _DONE,
        "broken:extract": ("failed", "run", "failed"),
        "broken:load": _NEW,
    }
    assert view.status is ShardStatus.PARTIAL_FAILURE
    error = _cell(view, "broken", "extract").cell.error
    assert error is not None
    assert (error["type"], error["message"]) == ("ValueError", "no such file")


def test_a_started_cell_that_nobody_leases_is_interrupted(tmp_path: Path) -> None:
    """The process died: the cell runs again and the shard is not merely incomplete."""
    fleet = make_fleet(tmp_path, _STEPS, {"a": ["acme", "globex"]})
    _start_and_die(fleet, "acme", "extract")
    view = _view(fleet)
    assert _cells(view) == {
        "acme:extract": ("interrupted", "run", "interrupted"),
        "acme:load": _NEW,
        "globex:extract": _NEW,
        "globex:load": _NEW,
    }
    assert view.status is ShardStatus.PARTIAL_FAILURE


def test_a_started_cell_is_running_as_long_as_its_tenant_is_leased(tmp_path: Path) -> None:
    """A second run must leave it alone, and only until the holder is gone."""
    fleet = make_fleet(tmp_path, _STEPS, {"a": ["acme", "globex"]})
    _start_and_die(fleet, "acme", "extract")
    leases = TenantLeases(fleet.shard_state("a") / "locks")
    assert leases.try_take("acme")
    running = _view(fleet)
    leases.close()
    assert _cells(running)["acme:extract"] == ("running", "skip", "running")
    assert running.status is ShardStatus.INCOMPLETE
    assert running.has_work
    assert _cells(_view(fleet))["acme:extract"] == ("interrupted", "run", "interrupted")


def test_a_lease_on_another_tenant_makes_no_cell_running(tmp_path: Path) -> None:
    """A neighbour's live process says nothing about a cell whose own process died."""
    fleet = make_fleet(tmp_path, _STEPS, {"a": ["acme", "globex"]})
    _start_and_die(fleet, "acme", "extract")
    leases = TenantLeases(fleet.shard_state("a") / "locks")
    assert leases.try_take("globex")
    cells = _cells(_view(fleet))
    leases.close()
    assert cells["acme:extract"] == ("interrupted", "run", "interrupted")
    assert cells["globex:extract"] == _NEW


def test_a_tenant_with_a_missing_setting_is_held_and_told_which(tmp_path: Path) -> None:
    """The others are not held, and setting the variable is all that it takes."""
    held = Tenant(name="hooli", settings={"token": "${HOOLI_TOKEN}"})
    fleet = make_fleet(tmp_path, _STEPS, {"a": ["acme", held]})
    view = _view(fleet)
    hold = ("held", "hold", "tenant_setting_missing")
    assert _cells(view) == {
        "acme:extract": _NEW, "acme:load": _NEW, "hooli:extract": hold, "hooli:load": hold,
    }  # fmt: skip
    assert "HOOLI_TOKEN" in _cell(view, "hooli", "extract").detail
    assert _cell(view, "acme", "extract").detail == ""
    assert view.status is ShardStatus.INCOMPLETE
    given = _cells(_view(fleet, environ={"HOOLI_TOKEN": "t"}))
    assert (given["hooli:extract"], given["hooli:load"]) == (_NEW, _NEW)


def test_a_done_tenant_whose_setting_went_missing_stays_done(tmp_path: Path) -> None:
    """Looking at a fleet needs no secrets, and nothing of it is in doubt without them."""
    tenant = Tenant(name="hooli", settings={"token": "${HOOLI_TOKEN}"})
    fleet = make_fleet(tmp_path, _STEPS, {"a": [tenant]})
    run_shard(fleet, environ={"HOOLI_TOKEN": "t"})
    view = _view(fleet)
    assert _cells(view) == {"hooli:extract": _DONE, "hooli:load": _DONE}
    assert view.status is ShardStatus.COMPLETED
    assert [cell.detail for cell in view.cells] == ["", ""]


def test_a_tenant_moved_by_editing_the_file_is_held_in_its_new_shard(tmp_path: Path) -> None:
    """Run there, it would load everything again; the message says how to move it."""
    run_shard(make_fleet(tmp_path, _STEPS, {"a": ["acme", "globex"], "b": ["hooli"]}))
    fleet = make_fleet(tmp_path, _STEPS, {"a": ["globex"], "b": ["hooli", "acme"]})
    view = _view(fleet, "b")
    hold = ("held", "hold", "tenant_moved")
    assert _cells(view) == {
        "hooli:extract": _NEW, "hooli:load": _NEW, "acme:extract": hold, "acme:load": hold,
    }  # fmt: skip
    assert "'a'" in _cell(view, "acme", "load").detail
    assert _cell(view, "hooli", "load").detail == ""
    assert _cells(_view(fleet, "a")) == {"globex:extract": _DONE, "globex:load": _DONE}


def test_a_half_done_shard_without_failures_is_incomplete(tmp_path: Path) -> None:
    """A run of one step is no failure, and not the whole cycle."""
    fleet = make_fleet(tmp_path, _STEPS, {"a": ["acme"]})
    run_shard(fleet, steps=["extract"])
    view = _view(fleet)
    assert _cells(view) == {"acme:extract": _DONE, "acme:load": _NEW}
    assert view.status is ShardStatus.INCOMPLETE


def test_a_view_has_the_asked_for_cells_only(tmp_path: Path) -> None:
    """And so has its status: the chosen tenant can be done in a shard with a failure."""
    fleet = make_fleet(tmp_path, _STEPS, {"a": ["acme", "broken"]})
    run_shard(fleet)
    view = _view(fleet, tenants=["acme"], steps=["load"])
    assert _cells(view) == {"acme:load": _DONE}
    assert view.status is ShardStatus.COMPLETED


def test_a_forced_request_shows_what_it_would_run_and_check(tmp_path: Path) -> None:
    """plan --force tells before anything is spent; below, only a changed output runs."""
    fleet = make_fleet(tmp_path, _STEPS, {"a": ["acme"]})
    run_shard(fleet)
    view = FleetReader(fleet, environ={}).shard(
        "a", Request(root="new", steps=["extract"], force=True)
    )
    assert _cells(view) == {
        "acme:extract": ("completed", "run", "forced"),
        "acme:load": ("completed", "check", "upstream_changed"),
    }
    assert _cells(_view(fleet)) == {"acme:extract": _DONE, "acme:load": _DONE}


@pytest.mark.parametrize("sound_ran", [False, True])
def test_a_damaged_journal_makes_its_shard_damaged_and_no_other(
    tmp_path: Path, sound_ran: bool
) -> None:
    """The reader keeps going, names the file and leaves it byte for byte."""
    fleet = make_fleet(tmp_path, _STEPS, {"a": ["acme"], "b": ["globex"]})
    if sound_ran:
        run_shard(fleet, "a")
    path = _damage(fleet, "b")
    before = path.read_bytes()
    reader = FleetReader(fleet, environ={})
    damaged, sound = (reader.shard(shard, Request(root="")) for shard in ("b", "a"))
    assert damaged.status is ShardStatus.DAMAGED
    assert isinstance(damaged.damage, JournalUnusable)
    assert str(path) in str(damaged.damage)
    assert (damaged.cells, damaged.has_work) == ([], True)
    assert sound.status is (ShardStatus.COMPLETED if sound_ran else ShardStatus.NOT_STARTED)
    assert sound.damage is None
    assert path.read_bytes() == before


def test_an_entry_that_fails_its_checksum_makes_the_shard_damaged(tmp_path: Path) -> None:
    """SQLite reads the file gladly; a cell must not look done because a byte was changed."""
    fleet = make_fleet(tmp_path, _STEPS, {"a": ["acme"]})
    run_shard(fleet)
    path = fleet.journal_path("a")
    content = path.read_bytes()
    assert content.count(b'"tenant":"acme"') == 1
    path.write_bytes(content.replace(b'"tenant":"acme"', b'"tenant":"acmf"'))
    view = _view(fleet)
    assert view.status is ShardStatus.DAMAGED
    assert "checksum" in str(view.damage)


def test_a_shard_that_lags_shows_missing_cells(tmp_path: Path) -> None:
    """What it did in an older cycle is not done in the newest one."""
    fleet = make_fleet(tmp_path, _STEPS, {"a": ["acme"], "b": ["globex"]})
    run_shard(fleet, "a")
    run_shard(fleet, "b")
    second = Cycle(instant="9999-01-01T00:00:00.000000Z", name="2", root="r")
    with Journal(fleet.journal_path("a"), fleet=fleet.name, shard="a") as journal:
        journal.open_cycle(second, run_id="r")
    reader = FleetReader(fleet, environ={})
    assert reader.cycle == second
    up_to_date, lagging = (reader.shard(shard, Request(root="")) for shard in ("a", "b"))
    assert (up_to_date.lags, lagging.lags) == (False, True)
    assert lagging.cycle == "2"
    assert _cells(lagging) == {"globex:extract": _NEW, "globex:load": _NEW}
    assert lagging.status is ShardStatus.NOT_STARTED
    assert [cell.cell.at for cell in lagging.cells] == ["", ""]


def test_a_plan_of_a_new_cycle_runs_everything_and_opens_nothing(tmp_path: Path) -> None:
    """It shows what run --new-cycle would do; the newest cycle stays what it was."""
    fleet = make_fleet(tmp_path, _STEPS, {"a": ["acme"]})
    run_shard(fleet)
    planned = FleetReader(fleet, environ={}).shard("a", Request(root=""), new_cycle=True)
    assert _cells(planned) == {"acme:extract": _NEW, "acme:load": _NEW}
    view = _view(fleet)
    assert (view.cycle, view.status) == ("1", ShardStatus.COMPLETED)


def test_a_new_cycle_that_a_run_could_not_open_is_refused_before_anything_starts(
    tmp_path: Path,
) -> None:
    """The same refusal as the run's own, while there is no run yet that could fail."""
    fleet = make_fleet(tmp_path, _STEPS, {"a": ["acme"]})
    for name in ("feb", "mar"):
        open_cycle(fleet, asked=name, root=name, run_id=name)
    reader = FleetReader(fleet, environ={})
    assert not reader.opens_cycle(None, root="r")
    assert not reader.opens_cycle("mar", root="r")
    assert reader.opens_cycle("apr", root="r")
    with pytest.raises(InvalidRequest, match=r"'feb', which an older cycle has.*'mar'"):
        reader.opens_cycle("feb", root="r")


def test_the_reader_passes_on_each_entry_of_the_newest_cycle_only(tmp_path: Path) -> None:
    """What a run did is counted from them; an older cycle's would be counted as well."""
    fleet = make_fleet(tmp_path, _STEPS, {"a": ["acme"]})
    run_shard(fleet, root="one")
    run_shard(fleet, root="two", new_cycle="second")
    told: list[Entry] = []
    FleetReader(fleet, environ={}).shard("a", Request(root=""), notice=told.append)
    assert [(e.run_id, e.cycle, e.step, e.kind.value) for e in told] == [
        ("two", "second", "extract", "started"),
        ("two", "second", "extract", "completed"),
        ("two", "second", "load", "started"),
        ("two", "second", "load", "completed"),
    ]
