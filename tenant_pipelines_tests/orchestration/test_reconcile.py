"""Bringing Dagster's view back to the journals, from outside of any run."""

from pathlib import Path
from typing import Any

import pytest

from tenant_pipelines.engine.leases import TenantLeases
from tenant_pipelines.engine.run_locks import dead_runs
from tenant_pipelines.errors import JournalUnusable
from tenant_pipelines.orchestration.reconcile import Reconciled, mend, reconcile_shard
from tenant_pipelines_tests.crash.rig import Rig as CrashRig
from tenant_pipelines_tests.crash.rig import rig_of
from tenant_pipelines_tests.engine.fleets import run_shard
from tenant_pipelines_tests.orchestration.conftest import Rig, shown_of

_TENANTS = ("initech", "umbrella", "hooli")
_STEPS = ("extract", "transform", "load")


def _look(rig: Rig, **asked: Any) -> Reconciled:
    return reconcile_shard(rig.instance, rig.fleet, "shard_2", **asked)


def test_cells_that_dagster_never_heard_of_are_shown_done_once(rig: Rig) -> None:
    """A second look finds nothing wrong, so that the sensor may look as often as it likes."""
    assert _look(rig) == Reconciled(shard="shard_2")
    run_shard(rig.fleet, "shard_2")
    assert _look(rig) == Reconciled(shard="shard_2", green=9)
    assert set(rig.shown().values()) == {"green"}
    assert _look(rig) == Reconciled(shard="shard_2")


def test_a_large_repair_goes_on_from_look_to_look(rig: Rig) -> None:
    """A tick of the sensor has a budget; what is left is said, and done by the next ones."""
    run_shard(rig.fleet, "shard_2")
    looks = [_look(rig, limit=1) for _ in range(4)]
    assert [(look.green, look.left) for look in looks] == [(3, 6), (3, 3), (3, 0), (0, 0)]
    assert set(rig.shown().values()) == {"green"}


def test_a_tenant_that_a_run_works_on_is_left_to_it(rig: Rig) -> None:
    """Its run tells Dagster itself, and what it tells is newer."""
    run_shard(rig.fleet, "shard_2")
    leases = TenantLeases(rig.fleet.shard_state("shard_2") / "locks")
    assert leases.try_take("umbrella")
    assert _look(rig) == Reconciled(shard="shard_2", green=6, busy=1)
    leases.close()
    assert _look(rig).green == 3


def test_a_run_that_dagster_does_not_know_makes_nothing_red(rig: Rig) -> None:
    """A failure outside of Dagster has no run by which it could be shown; status tells it."""
    rig.fault.touch()
    run_shard(rig.fleet, "shard_2")
    assert _look(rig) == Reconciled(shard="shard_2", green=7)
    assert rig.shown()["umbrella:transform"] == "none"


def test_a_green_key_of_a_cell_that_failed_in_the_newest_cycle_becomes_red(rig: Rig) -> None:
    """Whatever turned it green, such as somebody's materialization by hand, the journal decides."""
    rig.run()
    rig.fault.touch()
    failed = rig.run(config={"new_cycle": "2"})
    assert not failed.success
    assert rig.shown()["umbrella:load"] == "red"
    rig.report("umbrella", "transform", "load")
    assert rig.shown()["umbrella:load"] == "green"
    assert _look(rig) == Reconciled(shard="shard_2", red=2)
    assert [rig.shown()[f"umbrella:{step}"] for step in _STEPS] == ["green", "red", "red"]


def test_a_step_that_nobody_asked_for_stays_as_it_was(rig: Rig) -> None:
    """A person picked extract and transform in the UI; load is green from the cycle before."""
    rig.run()
    rig.fault.touch()
    picked = ["extract", "transform"]
    assert not rig.run(first="umbrella", steps=picked, tags={
        "tenant_pipelines/new_cycle": "2"}).success  # fmt: skip
    before = rig.shown()
    assert [before[f"umbrella:{step}"] for step in _STEPS] == ["green", "red", "green"]
    assert _look(rig) == Reconciled(shard="shard_2")
    assert rig.shown() == before


def test_a_damaged_journal_changes_nothing(rig: Rig) -> None:
    """Nobody can say then what Dagster should show."""
    run_shard(rig.fleet, "shard_2")
    rig.fleet.journal_path("shard_2").write_bytes(b"no journal" * 1000)
    with pytest.raises(JournalUnusable):
        _look(rig)
    assert set(rig.shown().values()) == {"none"}


_DIES = """
@step
def extract(ctx: StepContext) -> dict:
    return {"tenant": ctx.tenant, "cycle": ctx.cycle}

@step
def transform(ctx: StepContext, extract: dict) -> dict:
    if ctx.tenant == "umbrella":
        die_at("transform")
    return extract

@step
def load(ctx: StepContext, transform: dict) -> None:
    pass

pipeline = Pipeline([extract, transform, load])
"""


def _colours(rig: CrashRig) -> dict[str, str]:
    with rig.instance() as instance:
        return shown_of(instance, rig.fleet, "b")


@pytest.mark.slow
@pytest.mark.parametrize("shard", [None, "b"], ids=["the fleet job", "the job of the shard"])
def test_what_a_killed_run_without_keys_left_undone_is_red_where_it_was_green_before(
    tmp_path: Path, shard: str | None
) -> None:
    """Dagster planned no key for such a run and leaves each as the cycle before had it.

    initech is done before umbrella dies and hooli's turn never comes: one at a time.
    """
    shards = {"a": ["acme"], "b": list(_TENANTS)}
    with rig_of(tmp_path, module=_DIES, shards=shards, defaults={"max_concurrent": 1}) as rig:
        assert rig.call("run", "--json").code == 0
        assert set(_colours(rig).values()) == {"green"}
        with rig.dying_at("transform"):
            rig.start_job(shard=shard, tags={"tenant_pipelines/new_cycle": "2"}).die()
        assert set(_colours(rig).values()) == {"green"}
        ended = rig.call("reconcile", "--shard", "b", "--json")
        assert ended.code == 0, ended.err
        assert len(ended.document["ended_runs"]) == 1
        undone = {"umbrella:transform", "umbrella:load", *(f"hooli:{step}" for step in _STEPS)}
        colours = _colours(rig)
        assert {cell for cell, colour in colours.items() if colour == "red"} == undone
        assert set(colours.values()) == {"green", "red"}
        again = rig.call("reconcile", "--json")
        changed = {one["shard"]: one["green"] + one["red"] for one in again.document["shards"]}
        assert changed["b"] == 0
        assert dead_runs(rig.fleet.state) == []
        assert rig.call("run", "--json").code == 0
        assert set(_colours(rig).values()) == {"green"}


@pytest.mark.slow
def test_a_dead_run_is_remembered_until_all_of_it_is_told(tmp_path: Path) -> None:
    """While somebody works on a tenant, and of shards that the run never came to."""
    shards = {"a": ["acme"], "b": list(_TENANTS), "c": ["wonka"]}
    with rig_of(tmp_path, module=_DIES, shards=shards, processes=1,
                defaults={"max_concurrent": 1}) as rig:  # fmt: skip
        assert rig.call("run", "--json").code == 0
        with rig.dying_at("transform"):
            rig.start("run", "--json", "--new-cycle", "2").die()
        leases = TenantLeases(rig.fleet.shard_state("b") / "locks")
        assert leases.try_take("umbrella")
        with rig.instance() as instance:
            mend(instance, rig.fleet)
            assert shown_of(instance, rig.fleet, "b")["umbrella:load"] == "green"
            assert dead_runs(rig.fleet.state) != []
            leases.close()
            mend(instance, rig.fleet)
            assert dead_runs(rig.fleet.state) == []
            began = {entry.tenant for shard in "ac" for entry in rig.entries(shard)
                     if entry.cycle == "2" and entry.tenant}  # fmt: skip
            for shard, tenant in (("a", "acme"), ("c", "wonka")):
                there = set(shown_of(instance, rig.fleet, shard).values())
                assert there == ({"green"} if tenant in began else {"red"})
            assert len(began) < 2
        colours = _colours(rig)
        assert {cell for cell, colour in colours.items() if colour == "red"} == {
            "umbrella:transform", "umbrella:load", *(f"hooli:{step}" for step in _STEPS)
        }  # fmt: skip


@pytest.mark.slow
def test_a_damaged_shard_keeps_the_trace_of_its_dead_run_until_it_can_be_told(
    tmp_path: Path,
) -> None:
    """Forgetting it would leave Dagster wrong for good once the journal is restored."""
    with rig_of(tmp_path, module=_DIES, shards={"b": list(_TENANTS)}) as rig:
        with rig.dying_at("transform"):
            rig.start_job().die()
        journal = rig.fleet.journal_path("b")
        whole = {path: path.read_bytes() for path in journal.parent.glob("journal.db*")}
        for path in whole:
            path.write_bytes(b"no journal" * 1000)
        with rig.instance() as instance:
            mended = mend(instance, rig.fleet)
            assert [shard for shard, _ in mended.unusable] == ["b"]
            assert [run.parts for run in dead_runs(rig.fleet.state)] == [("b",)]
            for path, content in whole.items():
                path.write_bytes(content)
            assert mend(instance, rig.fleet).unusable == ()
            assert dead_runs(rig.fleet.state) == []
        assert _colours(rig)["umbrella:transform"] == "red"
