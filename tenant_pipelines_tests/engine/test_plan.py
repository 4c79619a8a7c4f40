"""The pure plan: one reason per cell, and what a done cell is."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenant_pipelines.engine.plan import Action, PlannedCell, Reason, Request, plan_tenant
from tenant_pipelines.fleet.pipeline import Pipeline, Step
from tenant_pipelines.journal.fold import CellState, Outcome, TenantState


def _step(name: str, *upstream: str, code_version: str | None = None) -> Step:
    return Step(name=name, function=lambda ctx: None, upstream=upstream, code_version=code_version)


_PIPELINE = Pipeline([_step("extract"), _step("transform", "extract"), _step("load", "transform")])


def _done(digest: str, **inputs: str) -> CellState:
    return CellState(
        generation=1,
        attempts=1,
        outcome=Outcome.COMPLETED,
        inputs=inputs,
        output={"digest": digest},
    )


def _all_done() -> TenantState:
    return TenantState(
        cells={
            "extract": _done("e"),
            "transform": _done("t", extract="e"),
            "load": _done("l", transform="t"),
        }
    )


def _plan(
    state: TenantState, *, pipeline: Pipeline = _PIPELINE, has_artifact: bool = True, **options: Any
) -> dict[str, tuple[str, str]]:
    hold = options.pop("hold", None)
    is_leased = options.pop("is_leased", False)
    cells = plan_tenant(
        pipeline,
        state,
        Request(root="r", **options),
        has_artifact=lambda _: has_artifact,
        hold=hold,
        is_leased=is_leased,
    )
    return {cell.step: (cell.action.value, cell.reason.value) for cell in cells}


def test_a_tenant_without_history_runs_everything() -> None:
    """The first run of a tenant has one reason for each cell."""
    assert _plan(TenantState()) == {
        "extract": ("run", "never_run"),
        "transform": ("run", "never_run"),
        "load": ("run", "never_run"),
    }


def test_a_done_tenant_runs_nothing() -> None:
    """Invariant 2: a done cell does not run again without a reason."""
    assert _plan(_all_done()) == dict.fromkeys(_PIPELINE.names, ("skip", "done"))


@pytest.mark.parametrize(
    ("outcome", "reason"), [(Outcome.FAILED, "failed"), (Outcome.STARTED, "interrupted")]
)
def test_a_cell_that_did_not_end_well_runs_again_and_so_does_what_never_ran(
    outcome: Outcome, reason: str
) -> None:
    """Only what is missing runs: the done extract does not."""
    state = TenantState(
        cells={
            "extract": _done("e"),
            "transform": CellState(generation=1, attempts=1, outcome=outcome),
        }
    )
    assert _plan(state) == {
        "extract": ("skip", "done"),
        "transform": ("run", reason),
        "load": ("run", "never_run"),
    }


def test_a_new_code_version_runs_the_cell_and_checks_what_is_below() -> None:
    """Whether the load runs depends on the digest that the new code gives."""
    pipeline = Pipeline(
        [
            _step("extract"),
            _step("transform", "extract", code_version="2"),
            _step("load", "transform"),
        ]
    )
    assert _plan(_all_done(), pipeline=pipeline) == {
        "extract": ("skip", "done"),
        "transform": ("run", "code_changed"),
        "load": ("check", "upstream_changed"),
    }


def test_a_changed_upstream_digest_runs_the_cell() -> None:
    """A cell is done only from its upstreams' newest outputs."""
    state = _all_done()
    state.cells["extract"] = _done("other")
    assert _plan(state)["transform"] == ("run", "upstream_changed")


def test_a_selected_step_whose_upstream_is_not_done_is_held() -> None:
    """A selection runs what was selected and nothing else."""
    assert _plan(TenantState(), steps=["load"]) == {"load": ("hold", "upstream_missing")}


def test_a_missing_artifact_is_made_first_only_when_a_cell_needs_it() -> None:
    """Artifacts that nobody needs can be pruned without anything running again."""
    assert _plan(_all_done(), has_artifact=False) == dict.fromkeys(
        _PIPELINE.names, ("skip", "done")
    )
    state = _all_done()
    state.cells["load"] = CellState(generation=1, attempts=1, outcome=Outcome.FAILED)
    assert _plan(state, has_artifact=False) == {
        "extract": ("run", "artifact_missing"),
        "transform": ("run", "artifact_missing"),
        "load": ("run", "failed"),
    }


def test_a_missing_artifact_of_a_step_that_was_not_selected_holds_the_cell() -> None:
    """A selection stays exact, also when that means waiting."""
    state = _all_done()
    state.cells["load"] = CellState(generation=1, attempts=1, outcome=Outcome.FAILED)
    assert _plan(state, has_artifact=False, steps=["load"]) == {
        "load": ("hold", "upstream_missing")
    }


def test_force_reaches_the_selection_and_checks_below_it() -> None:
    """Forcing a cell asks for its downstream too, which runs where the digest changed."""
    assert _plan(_all_done(), steps=["transform"], force=True) == {
        "transform": ("run", "forced"),
        "load": ("check", "upstream_changed"),
    }
    assert _plan(_all_done(), steps=["transform"], force=True, is_exact=True) == {
        "transform": ("run", "forced")
    }


def test_force_applies_once_per_root_run() -> None:
    """A re-execution copies the config and must not force twice."""
    state = _all_done()
    for cell in state.cells.values():
        cell.forced_by = ("r",)
    assert _plan(state, force=True) == dict.fromkeys(_PIPELINE.names, ("skip", "done"))


def test_a_held_tenant_keeps_its_done_cells() -> None:
    """A missing setting holds what would run and says nothing about what is done."""
    state = TenantState(cells={"extract": _done("e")})
    assert _plan(state, hold=Reason.TENANT_SETTING_MISSING) == {
        "extract": ("skip", "done"),
        "transform": ("hold", "tenant_setting_missing"),
        "load": ("hold", "tenant_setting_missing"),
    }


def test_a_started_cell_of_a_leased_tenant_is_running() -> None:
    """A live process is not an interruption."""
    state = TenantState(
        cells={"extract": CellState(generation=1, attempts=1, outcome=Outcome.STARTED)}
    )
    assert _plan(state, is_leased=True)["extract"] == ("skip", "running")


_cell = st.builds(
    CellState,
    generation=st.integers(1, 3),
    attempts=st.integers(1, 3),
    outcome=st.sampled_from(list(Outcome)),
    inputs=st.dictionaries(st.sampled_from(["a", "b", "c"]), st.sampled_from("xy"), max_size=2),
    output=st.one_of(st.none(), st.builds(lambda d: {"digest": d}, st.sampled_from("xy"))),
)


@given(
    cells=st.dictionaries(st.sampled_from(["a", "b", "c", "d"]), _cell),
    steps=st.one_of(st.none(), st.sets(st.sampled_from(["a", "b", "c", "d"]), min_size=1)),
    force=st.booleans(),
    has_artifact=st.booleans(),
)
def test_every_asked_cell_gets_one_decision_and_nothing_runs_below_a_held_one(
    cells: dict[str, CellState], steps: set[str] | None, force: bool, has_artifact: bool
) -> None:
    """The plan of any state is whole, and no cell runs without its upstream outputs."""
    pipeline = Pipeline([_step("a"), _step("b", "a"), _step("c", "a"), _step("d", "b", "c")])
    state = TenantState(cells=cells)
    request = Request(root="r", steps=steps, force=force)
    planned = plan_tenant(pipeline, state, request, has_artifact=lambda _: has_artifact)
    assert {cell.step for cell in planned} == request.asked_steps(pipeline)
    by_step: dict[str, PlannedCell] = {cell.step: cell for cell in planned}
    for cell in planned:
        above = [by_step[name] for name in pipeline[cell.step].upstream if name in by_step]
        if cell.action is not Action.HOLD:
            assert all(upstream.action is not Action.HOLD for upstream in above)
