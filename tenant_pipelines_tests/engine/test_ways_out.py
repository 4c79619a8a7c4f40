"""Every way out of a run: stopped, superseded, broken files, a force cut short, damage."""

import threading
import uuid
from pathlib import Path

import pandas as pd
import pytest

from tenant_pipelines.engine.cycles import open_cycle
from tenant_pipelines.engine.leases import TenantLeases
from tenant_pipelines.engine.overview import FleetReader, State
from tenant_pipelines.engine.plan import Request
from tenant_pipelines.engine.runner import ShardRun
from tenant_pipelines.fleet.context import StepContext
from tenant_pipelines.fleet.model import Fleet
from tenant_pipelines.fleet.pipeline import Retries, step
from tenant_pipelines.journal.fold import Cycle
from tenant_pipelines.journal.journal import Journal
from tenant_pipelines.storage.artifacts import ArtifactStore
from tenant_pipelines.storage.sql_warehouse import sql_load
from tenant_pipelines_tests.engine.fleets import cell_states, make_fleet, run_shard
from tenant_pipelines_tests.engine.test_settle import _forget_completion_of_load


@pytest.fixture
def fault(tmp_path: Path) -> Path:
    return tmp_path / "fault"


@pytest.fixture
def loading(tmp_path: Path, fault: Path) -> Fleet:
    """Return a fleet whose extract fails while the fault is there, and whose load has a ledger."""

    @step
    def extract(ctx: StepContext) -> pd.DataFrame:
        if fault.exists():
            raise OSError("down")
        return pd.DataFrame({"day": ["d1"], "orders": [1]})

    load = sql_load(table="daily", key=["day"], upstream="extract")
    warehouse = f"sqlite:///{tmp_path}/warehouse.db"
    return make_fleet(tmp_path, [extract, load], {"a": ["acme"]}, warehouse=warehouse)


def test_a_forced_load_whose_extract_fails_first_runs_later(loading: Fleet, fault: Path) -> None:
    """Its new generation never started: the ledger's older one is no damage."""
    run_shard(loading)
    fault.touch()
    assert not run_shard(loading, force=True).report.is_complete
    fault.unlink()
    again = run_shard(loading)
    assert again.report.is_complete
    assert again.cells == [("acme", "extract"), ("acme", "load")]


def test_a_settled_load_that_is_forced_runs_in_the_same_run(loading: Fleet) -> None:
    """What took effect before the crash is journaled, and the force still does its work."""
    run_shard(loading)
    _forget_completion_of_load(loading)
    forced = run_shard(loading, force=True)
    assert forced.report.is_complete
    assert cell_states(loading)["acme:load"].generation == 2


def test_damage_is_journaled_and_shown_and_found_again(loading: Fleet) -> None:
    """A ledger that knows more than the journal must not pass silently, now or next time."""
    run_shard(loading)
    for name in ("journal.db", "journal.db-wal", "journal.db-shm"):
        loading.journal_path("a").with_name(name).unlink(missing_ok=True)
    for _ in range(2):
        (failure,) = run_shard(loading).report.failed
        assert failure.error["type"].endswith("LedgerDisagrees")
    view = FleetReader(loading, environ={}).shard("a", Request(root=""))
    (load,) = [cell for cell in view.cells if cell.step == "load"]
    assert load.state is State.FAILED
    assert load.cell.error is not None
    assert "warehouse.db" in load.cell.error["message"]


def test_a_tenant_whose_leftovers_cannot_be_collected_goes_on(tmp_path: Path, fault: Path) -> None:
    """A leftover costs space; it must not cost a shard."""

    class Stubborn(ArtifactStore):
        def collect(self, **_: object) -> int:
            raise PermissionError(13, "not yours")

    @step
    def extract(ctx: StepContext) -> int:
        if fault.exists():
            raise OSError("down")
        return 1

    fleet = make_fleet(tmp_path, [extract], {"a": ["acme", "globex"]})
    fault.touch()
    run_shard(fleet)
    fault.unlink()
    assert run_shard(fleet, store=Stubborn(fleet.artifacts)).report.ran == 2


def _started(fleet: Fleet, journal: Journal, **request: object) -> ShardRun:
    run_id = uuid.uuid4().hex
    cycle = open_cycle(fleet, asked=None, root=run_id, run_id=run_id)
    return ShardRun(
        fleet=fleet,
        shard="a",
        journal=journal,
        store=ArtifactStore(fleet.artifacts),
        cycle=cycle,
        run_id=run_id,
        request=Request(root=run_id, **request),  # type: ignore[arg-type]  # as the test says
        environ={},
    )


def test_a_stopped_run_forces_nothing_further_and_gives_every_lock_back(tmp_path: Path) -> None:
    """A termination must not turn a done shard into one that is not."""
    begun, goes_on = threading.Event(), threading.Event()
    goes_on.set()

    @step
    def work(ctx: StepContext) -> None:
        begun.set()
        assert goes_on.wait(30)

    tenants = [f"t{number}" for number in range(50)]
    fleet = make_fleet(tmp_path, [work], {"a": tenants}, max_concurrent=1)
    run_shard(fleet)
    begun.clear()
    goes_on.clear()
    with Journal(fleet.journal_path("a"), fleet="fleet", shard="a") as journal:
        run = _started(fleet, journal, force=True)

        def stop() -> None:
            assert begun.wait(30)
            run.stop()
            goes_on.set()

        stopper = threading.Thread(target=stop)
        stopper.start()
        list(run.events())
        stopper.join(30)
        forced = [entry for entry in journal.all_entries() if entry.kind.value == "forced"]
    assert len(forced) <= 2
    assert run.report.ran == len(forced)
    assert run.report.unreached == 50 - run.report.ran
    leases = TenantLeases(fleet.shard_state("a") / "locks")
    assert not any(leases.is_leased(tenant) for tenant in tenants)


def test_a_stop_does_not_wait_for_retries(tmp_path: Path) -> None:
    """A tenant that waits an hour for its next attempt gives its lease back at once."""
    failed = threading.Event()

    @step(retries=Retries(attempts=2, wait_seconds=3600.0))
    def flaky(ctx: StepContext) -> None:
        failed.set()
        raise ConnectionError("later")

    fleet = make_fleet(tmp_path, [flaky], {"a": ["acme"]})
    with Journal(fleet.journal_path("a"), fleet="fleet", shard="a") as journal:
        run = _started(fleet, journal)
        events = run.events()
        ended = threading.Event()

        def consume() -> None:
            list(events)
            ended.set()

        threading.Thread(target=consume, daemon=True).start()
        assert failed.wait(30)
        run.stop()
        assert ended.wait(30)
    assert not TenantLeases(fleet.shard_state("a") / "locks").is_leased("acme")


def test_a_newer_cycle_opened_before_planning_is_seen(tmp_path: Path) -> None:
    """The cycle is chosen over all journals, and another run may open one meanwhile."""

    @step
    def work(ctx: StepContext) -> None: ...

    fleet = make_fleet(tmp_path, [work], {"a": ["acme"]})
    with Journal(fleet.journal_path("a"), fleet="fleet", shard="a") as journal:
        run = _started(fleet, journal)
        open_cycle(fleet, asked="2", root="other", run_id="other")
        assert list(run.events()) == []
    assert run.report.unreached == 1


def test_a_late_opener_of_an_older_cycle_does_not_lock_a_shard_out(tmp_path: Path) -> None:
    """Two first runs record different instants of cycle 1, and one of them may write late."""

    @step
    def work(ctx: StepContext) -> None: ...

    fleet = make_fleet(tmp_path, [work], {"a": ["acme"], "b": ["hooli"]})
    instants = {"a": [("1", 1), ("2", 2)], "b": [("1", 3)]}
    for shard, cycles in instants.items():
        with Journal(fleet.journal_path(shard), fleet="fleet", shard=shard) as journal:
            for name, hour in cycles:
                at = f"2026-01-01T0{hour}:00:00.000000Z"
                journal.open_cycle(Cycle(instant=at, name=name, root=name), run_id="r")
    ran = run_shard(fleet, "b")
    assert ran.report.cycle == "2"
    assert ran.cells == [("hooli", "work")]


def test_a_window_that_is_no_cursor_fails_its_tenant_alone(tmp_path: Path) -> None:
    """Whatever a window function returns, the journal stays usable for the others."""

    @step(window=lambda ctx: object() if ctx.tenant == "acme" else 1)  # type: ignore[arg-type, return-value]  # the point
    def extract(ctx: StepContext) -> int:
        return 1

    fleet = make_fleet(tmp_path, [extract], {"a": ["acme", "globex"]})
    ran = run_shard(fleet)
    assert ran.cells == [("globex", "extract")]
    (failure,) = ran.report.failed
    assert "window" in failure.error["message"]
