"""A forced run that is killed: its force is spent once per root run, and the next one ends it.

The forced cell is umbrella's transform. What it returns is read from a file, so that the new
generation's output is the old one or another.
"""

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import pytest

from tenant_pipelines.orchestration import names
from tenant_pipelines.orchestration.instance import end_dead_runs
from tenant_pipelines.orchestration.register import register_shard
from tenant_pipelines_tests.crash.rig import Rig, rig_of
from tenant_pipelines_tests.engine.fleets import run_shard

pytestmark = pytest.mark.slow

_STEPS = """
@step
def extract(ctx: StepContext) -> dict:
    with noted(HERE, ctx):
        return {"tenant": ctx.tenant}

@step
def transform(ctx: StepContext, extract: dict) -> dict:
    with noted(HERE, ctx):
        die_at("in the forced transform")
        return {**extract, "rate": (HERE / "rate").read_text()}

@step
def load(ctx: StepContext, transform: dict) -> None:
    with noted(HERE, ctx):
        pass

pipeline = Pipeline([extract, transform, load])

if dies_at("after the forced transform"):
    from tenant_pipelines.journal.journal import Journal
    append = Journal.append

    def appends(self, *drafts):
        append(self, *drafts)
        if ("completed", "transform", 2) in {(d.kind, d.step, d.generation) for d in drafts}:
            die_at("after the forced transform")

    Journal.append = appends
"""
_SHARDS = {"a": ["acme"], "b": ["initech", "umbrella"]}
# of one of umbrella's cells, before anything is forced
_DONE = ["started 1", "completed 1"]
_FORCED: dict[str, Any] = {"tenants": ["umbrella"], "steps": ["transform"], "force": True}


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    """Return a fleet that is done, by the engine."""
    with rig_of(tmp_path, module=_STEPS, shards=_SHARDS) as made:
        (tmp_path / "rate").write_text("1.00")
        for shard in _SHARDS:
            assert run_shard(made.fleet, shard).report.is_complete
        yield made


def test_a_re_execution_ends_what_a_killed_forced_run_of_the_fleet_job_began(rig: Rig) -> None:
    """Dagster copies the config, which says force, into the re-execution.

    The forced output is the one that was there, so that nothing below it runs.
    """
    ops = {names.fleet_op(rig.name, "b"): {"config": _FORCED}}
    with rig.dying_at("in the forced transform"):
        rig.start_job(config={"ops": ops}).die()
    assert _history(rig, "transform") == [*_DONE, "forced 2", "started 2"]

    _re_execute(rig, "from failure")
    forced = [*_DONE, "forced 2", "started 2", "started 2", "completed 2"]
    assert (_history(rig, "transform"), _history(rig, "load")) == (forced, _DONE)
    _check_nothing_else_ran(rig, ["transform"])


def test_a_killed_forced_run_of_a_shards_key_forces_once_however_often_it_is_re_executed(
    rig: Rig,
) -> None:
    """Dagster copies the run's tag, which says force, as well.

    The kill comes when the journal has the forced output, another one than before: the load is
    started in the same commit, interrupted, and runs to its end in the re-execution.
    """
    with rig.instance() as instance:
        register_shard(instance, rig.fleet, "b")
    (rig.folder / "rate").write_text("1.25")
    op = {names.cells_op(rig.name, "b"): {"config": {"steps": ["transform"]}}}
    config = {"ops": op, "execution": {"config": {"in_process": {}}}}
    tags = {"dagster/partition": "umbrella", names.FORCE_TAG: "true"}
    with rig.dying_at("after the forced transform"):
        rig.start_job(shard="b", config=config, tags=tags).die()
    forced = [*_DONE, "forced 2", "started 2", "completed 2"]
    assert (_history(rig, "transform"), _history(rig, "load")) == (forced, [*_DONE, "started 2"])

    _re_execute(rig, "all steps")
    loaded = [*_DONE, "started 2", "started 2", "completed 2"]
    assert (_history(rig, "transform"), _history(rig, "load")) == (forced, loaded)
    _re_execute(rig, "from failure")
    assert (_history(rig, "transform"), _history(rig, "load")) == (forced, loaded)
    _check_nothing_else_ran(rig, ["transform", "load"])


def test_a_plain_run_ends_what_a_killed_forced_one_began(rig: Rig) -> None:
    """Whoever comes next need not know that somebody had forced a cell."""
    (rig.folder / "rate").write_text("1.25")
    with rig.dying_at("in the forced transform"):
        rig.start("run", "--force", "--tenant", "umbrella", "--step", "transform").die()
    assert _history(rig, "transform") == [*_DONE, "forced 2", "started 2"]

    plain = rig.call("run", "--json")
    assert plain.code == 0, plain.err
    assert sum(shard["ran"] for shard in plain.document["shards"]) == 2
    forced = [*_DONE, "forced 2", "started 2", "started 2", "completed 2"]
    assert _history(rig, "transform") == forced
    assert _history(rig, "load") == [*_DONE, "started 2", "completed 2"]
    _check_nothing_else_ran(rig, ["transform", "load"])


@pytest.mark.parametrize("rate", ["1.00", "1.25"], ids=["same output", "other output"])
@pytest.mark.parametrize("moment", ["in the forced transform", "after the forced transform"])
@pytest.mark.parametrize("follower", ["the same root", "a plain run"])
def test_wherever_it_dies_the_cell_is_forced_once_and_its_load_runs_if_it_must(
    rig: Rig, moment: str, rate: str, follower: str
) -> None:
    """By the engine alone: every moment, both outputs, and both who may come next."""
    (rig.folder / "rate").write_text(rate)
    forced = {**_FORCED, "root": "killed"}
    with rig.dying_at(moment):
        rig.start_engine("b", **forced).die()
    for _ in range(2):
        again = run_shard(rig.fleet, "b", **(forced if follower == "the same root" else {}))
        assert again.report.is_complete
    ends = [entry for entry in _history(rig, "transform") if not entry.startswith("started")]
    assert ends == ["completed 1", "forced 2", "completed 2"]
    runs = ["transform"] if rate == "1.00" else ["transform", "load"]
    _check_nothing_else_ran(rig, runs)


def test_a_force_is_spent_though_another_one_came_after_it(rig: Rig) -> None:
    """A re-execution of last week's killed run must not undo what was forced since."""
    with rig.dying_at("in the forced transform"):
        rig.start_engine("b", **_FORCED, root="killed").die()
    (rig.folder / "rate").write_text("1.25")
    assert run_shard(rig.fleet, "b", **_FORCED, root="later").report.is_complete
    assert run_shard(rig.fleet, "b", **_FORCED, root="killed").cells == []
    forced = ["forced 2", "started 2", "forced 3", "started 3", "completed 3"]
    assert _history(rig, "transform") == [*_DONE, *forced]


def _re_execute(rig: Rig, strategy: str) -> None:
    """Re-execute the killed run, once Dagster shows it as failed."""
    with rig.instance() as instance:
        end_dead_runs(instance, rig.fleet)
        (killed,) = (run for run in instance.get_runs() if run.parent_run_id is None)
    ended = rig.start_reexecution(killed.run_id, strategy).finish()
    assert ended.code == 0, ended.err


def _history(rig: Rig, step: str) -> list[str]:
    """Return the entries of one of umbrella's cells as ``kind generation``."""
    return [
        f"{entry.kind} {entry.generation}"
        for entry in rig.entries("b")
        if (entry.tenant, entry.step) == ("umbrella", step)
    ]


def _check_nothing_else_ran(rig: Rig, forced: Collection[str]) -> None:
    """Check that of all cells only these of umbrella were completed once more, in generation 2."""
    steps = ("extract", "transform", "load")
    tenants = [tenant for shard in _SHARDS.values() for tenant in shard]
    cells = [(tenant, step, "1", 1) for tenant in tenants for step in steps]
    assert rig.completed() == sorted([*cells, *(("umbrella", step, "1", 2) for step in forced)])
