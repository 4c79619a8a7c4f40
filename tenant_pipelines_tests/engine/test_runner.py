"""One run in one shard: what runs, what is skipped, what a bad step can and cannot do."""

import json
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tenant_pipelines.engine.cycles import open_cycle
from tenant_pipelines.engine.plan import Reason
from tenant_pipelines.errors import JournalUnusable
from tenant_pipelines.fleet.context import StepContext
from tenant_pipelines.fleet.model import Fleet, Tenant
from tenant_pipelines.fleet.pipeline import Retries, Step, step
from tenant_pipelines.journal.fold import Outcome
from tenant_pipelines_tests.engine.fleets import cell_states, make_fleet, run_shard


@step
def extract(ctx: StepContext) -> dict[str, str]:
    return {"tenant": ctx.tenant}


@step
def transform(ctx: StepContext, extract: dict[str, str]) -> dict[str, str]:
    return {**extract, "by": ctx.step}


@step
def load(ctx: StepContext, transform: dict[str, str]) -> None:
    assert transform == {"tenant": ctx.tenant, "by": "transform"}


STEPS = [extract, transform, load]


def _every_cell(*tenants: str) -> list[tuple[str, str]]:
    return sorted((tenant, name) for tenant in tenants for name in ("extract", "transform", "load"))


def test_a_first_run_does_every_cell_and_a_second_one_none(tmp_path: Path) -> None:
    """Rerunning everything is safe and cheap: the journal decides."""
    fleet = make_fleet(tmp_path, STEPS, {"a": ["acme", "globex"]})
    first = run_shard(fleet)
    assert first.cells == _every_cell("acme", "globex")
    assert (first.report.ran, first.report.skipped) == (6, 0)
    second = run_shard(fleet)
    assert second.cells == []
    assert (second.report.ran, second.report.skipped) == (0, 6)
    assert second.report.is_complete


def test_any_acyclic_graph_runs_in_order_and_sees_its_inputs(tmp_path: Path) -> None:
    """A diamond gets both of its branches."""

    @step
    def top(ctx: StepContext) -> int:
        return 1

    @step
    def left(ctx: StepContext, top: int) -> int:
        return top + 1

    @step
    def right(ctx: StepContext, top: int) -> int:
        return top + 10

    @step
    def bottom(ctx: StepContext, left: int, right: int) -> int:
        return left * right

    fleet = make_fleet(tmp_path, [bottom, right, left, top], {"a": ["acme"]})
    run_shard(fleet)
    output = cell_states(fleet)["acme:bottom"].output
    assert output is not None
    assert output["value"] == 22


class _Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("not even this")


class _Unpicklable(Exception):
    def __init__(self) -> None:
        super().__init__(threading.Lock(), lambda: None)


def _raises(error: Callable[[], BaseException]) -> Callable[[StepContext], None]:
    def run(ctx: StepContext) -> None:
        raise error()

    return run


def _refuses(cls: type) -> str:
    raise RuntimeError("not even my name")


_Nameless = type("_OddClass", (type,), {"__module__": property(_refuses)})(
    "_Nameless", (Exception,), {}
)


def _returns_a_set(ctx: StepContext) -> set[int]:
    return {1}


def _changes_directory(ctx: StepContext) -> None:
    os.chdir("/")


@pytest.mark.parametrize(
    ("bad", "kind", "message"),
    [
        (_raises(lambda: ValueError("the file is broken")), "ValueError", "the file is broken"),
        (_raises(lambda: SystemExit(3)), "SystemExit", "3"),
        (_raises(KeyboardInterrupt), "KeyboardInterrupt", ""),
        (_raises(_Unprintable), "_Unprintable", "cannot be printed"),
        (_raises(_Unpicklable), "_Unpicklable", "lock"),
        (_raises(lambda: ValueError("\ud800")), "ValueError", "ud800"),
        (_raises(lambda: ValueError("x" * 10**7)), "ValueError", "xxx"),
        (_raises(_Nameless), "an exception", ""),
        (
            _raises(lambda: JournalUnusable(path=Path("x"), found="y", fix="z")),
            "JournalUnusable",
            "y",
        ),
        (_returns_a_set, "UnsupportedOutput", "set"),
        (_changes_directory, "StepChangedDirectory", "absolute paths"),
    ],
)
def test_a_bad_step_fails_its_tenant_with_a_clear_entry_and_touches_nobody_else(
    tmp_path: Path, bad: Callable[[StepContext], Any], kind: str, message: str
) -> None:
    """Whatever a step does, the others' cells are done and the reason is in the journal."""
    before = Path.cwd()

    def run(ctx: StepContext) -> Any:
        return bad(ctx) if ctx.tenant == "umbrella" else 1

    only = Step(name="extract", function=run, upstream=())
    after = Step(name="load", function=lambda ctx, extract: None, upstream=("extract",))
    fleet = make_fleet(tmp_path, [only, after], {"a": ["acme", "umbrella", "hooli"]})
    ran = run_shard(fleet)
    assert Path.cwd() == before
    assert ran.cells == sorted((t, s) for t in ("acme", "hooli") for s in ("extract", "load"))
    (failure,) = ran.report.failed
    assert (failure.tenant, failure.step, failure.blocked) == ("umbrella", "extract", ("load",))
    error = cell_states(fleet)["umbrella:extract"].error
    assert error is not None
    assert error["type"].endswith(kind)
    assert message in error["message"]
    assert error["place"].startswith("test_runner.py:") or kind in {
        "UnsupportedOutput",
        "StepChangedDirectory",
        "JournalUnusable",
    }
    assert len(error["message"]) <= 2000


def test_a_child_that_a_step_forks_never_goes_on_as_the_engine(tmp_path: Path) -> None:
    """It would use its parent's connections and locks, and both would hang."""

    @step
    def forks(ctx: StepContext) -> int:
        child = os.fork()
        if child == 0:
            if ctx.tenant == "acme":
                sys.exit(7)
            return 0
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    fleet = make_fleet(tmp_path, [forks], {"a": ["acme", "globex"]})
    assert run_shard(fleet).report.ran == 2
    outputs = {name: cell.output for name, cell in cell_states(fleet).items()}
    assert {name: output and output["value"] for name, output in outputs.items()} == {
        "acme:forks": 7,
        "globex:forks": 70,
    }


def test_a_tenant_of_a_shard_that_left_the_file_is_refused_too(tmp_path: Path) -> None:
    """A renamed shard is a move of all its tenants, and its cycles stay known."""
    before = make_fleet(tmp_path, STEPS, {"a": ["acme"], "b": ["hooli"]})
    run_shard(before, "b", new_cycle="first")
    renamed = make_fleet(tmp_path, STEPS, {"a": ["acme"], "c": ["hooli"]})
    ran = run_shard(renamed, "c")
    assert ran.report.cycle == "first"
    assert {cell.reason for cell in ran.report.held} == {Reason.TENANT_MOVED}
    assert ran.cells == []


def test_a_step_may_print_a_hundred_megabytes(tmp_path: Path, capfd: Any) -> None:
    """Output is the step's business and ends up with the run's log."""

    def run(ctx: StepContext) -> int:
        for _ in range(100):
            sys.stdout.write("x" * 2**20)
        return 1

    fleet = make_fleet(tmp_path, [Step(name="extract", function=run, upstream=())], {"a": ["acme"]})
    assert run_shard(fleet).report.is_complete


def test_a_failed_cell_runs_again_and_only_what_is_missing(tmp_path: Path) -> None:
    """The rerun does the failed cell and what it blocked."""
    fault = tmp_path / "fault"
    fault.touch()

    @step
    def fragile(ctx: StepContext, extract: dict[str, str]) -> int:
        if fault.exists() and ctx.tenant == "acme":
            raise OSError("vendor is down")
        return 1

    @step
    def last(ctx: StepContext, fragile: int) -> None: ...

    fleet = make_fleet(tmp_path, [extract, fragile, last], {"a": ["acme", "globex"]})
    first = run_shard(fleet)
    assert (first.report.ran, len(first.report.failed)) == (4, 1)
    again = run_shard(fleet)
    assert (again.report.ran, again.report.skipped, len(again.report.failed)) == (0, 4, 1)
    assert cell_states(fleet)["acme:fragile"].attempts == 2
    fault.unlink()
    last_run = run_shard(fleet)
    assert last_run.cells == [("acme", "fragile"), ("acme", "last")]
    assert (last_run.report.ran, last_run.report.skipped) == (2, 4)


def test_retries_happen_within_the_run_and_each_attempt_is_journaled(tmp_path: Path) -> None:
    """A step's own retries come first; the attempt's number is the step's to see."""
    seen: list[int] = []

    @step(retries=Retries(attempts=3, wait_seconds=0.01))
    def flaky(ctx: StepContext) -> int:
        seen.append(ctx.attempt)
        if ctx.attempt < 3:
            raise ConnectionError("try again")
        return 1

    fleet = make_fleet(tmp_path, [flaky], {"a": ["acme"]})
    assert run_shard(fleet).report.is_complete
    assert seen == [1, 2, 3]


def test_a_retry_that_waits_gives_its_thread_and_slot_to_others(tmp_path: Path) -> None:
    """With one slot, another tenant runs while the first waits for its second attempt."""
    other_ran = threading.Event()

    @step(retries=Retries(attempts=2, wait_seconds=0.5))
    def work(ctx: StepContext) -> bool:
        if ctx.tenant == "other":
            other_ran.set()
        elif ctx.attempt == 1:
            raise ConnectionError("try again")
        return other_ran.is_set()

    fleet = make_fleet(tmp_path, [work], {"a": ["acme", "other"]}, max_concurrent=1)
    run_shard(fleet)
    output = cell_states(fleet)["acme:work"].output
    assert output is not None
    assert output["value"] is True


def test_a_missing_setting_holds_its_tenant_and_nobody_else(tmp_path: Path) -> None:
    """The report names the variable, the file and the line."""
    tenants: list[str | Tenant] = [
        Tenant(name="acme", settings={"url": "${ACME_URL}"}, line=7, setting_lines={"url": 7}),
        "globex",
    ]
    fleet = make_fleet(tmp_path, STEPS, {"a": tenants})
    ran = run_shard(fleet)
    assert ran.cells == _every_cell("globex")
    assert {cell.reason for cell in ran.report.held} == {Reason.TENANT_SETTING_MISSING}
    assert "ACME_URL" in ran.report.held[0].detail
    assert "fleet.yaml:7" in ran.report.held[0].detail
    assert run_shard(fleet, environ={"ACME_URL": "x"}).cells == _every_cell("acme")


def test_secrets_appear_neither_in_the_journal_nor_in_the_report(tmp_path: Path) -> None:
    """A step's error often quotes the URL it failed on."""
    secret = "hunter2-very-secret"

    @step
    def leaky(ctx: StepContext) -> None:
        raise ValueError(f"cannot connect to {ctx.settings['url']} ({ctx.settings!r})")

    tenant = Tenant(name="acme", settings={"url": "db://u:${PASSWORD}@host"})
    fleet = make_fleet(tmp_path, [leaky], {"a": [tenant]})
    ran = run_shard(fleet, environ={"PASSWORD": secret})
    assert secret not in json.dumps([dict(failure.error) for failure in ran.report.failed])
    journal = b"".join(
        entry.read_bytes() for entry in fleet.shard_state("a").iterdir() if entry.is_file()
    )
    assert secret.encode() not in journal


def test_a_tenant_moved_by_editing_the_file_is_refused(tmp_path: Path) -> None:
    """Editing fleet.yaml must not extract and pay again."""
    before = make_fleet(tmp_path, STEPS, {"a": ["acme", "globex"], "b": ["hooli"]})
    run_shard(before, "a")
    after = make_fleet(tmp_path, STEPS, {"a": ["globex"], "b": ["hooli", "acme"]})
    ran = run_shard(after, "b")
    assert ran.cells == _every_cell("hooli")
    assert {(cell.tenant, cell.reason) for cell in ran.report.held} == {
        ("acme", Reason.TENANT_MOVED)
    }
    assert "moving its history to 'b'" in ran.report.held[0].detail


def test_a_selection_runs_what_was_selected(tmp_path: Path) -> None:
    """One tenant, one step: nothing else is touched."""
    fleet = make_fleet(tmp_path, STEPS, {"a": ["acme", "globex"]})
    assert run_shard(fleet, tenants=["acme"], steps=["extract"]).cells == [("acme", "extract")]
    held = run_shard(fleet, tenants=["globex"], steps=["load"]).report
    assert [(cell.tenant, cell.step, cell.reason) for cell in held.held] == [
        ("globex", "load", Reason.UPSTREAM_MISSING)
    ]


def test_a_forced_cell_runs_in_a_new_generation_and_its_downstream_only_if_changed(
    tmp_path: Path,
) -> None:
    """The same digest means that nothing below has to run."""
    fleet = make_fleet(tmp_path, STEPS, {"a": ["acme", "globex"]})
    run_shard(fleet)
    forced = run_shard(fleet, tenants=["acme"], steps=["transform"], force=True, root="root")
    assert forced.cells == [("acme", "transform")]
    assert cell_states(fleet)["acme:transform"].generation == 2
    assert (
        run_shard(fleet, force=True, tenants=["acme"], steps=["transform"], root="root").cells == []
    )


def test_a_force_that_an_older_cycle_obeyed_is_spent_in_a_newer_one(tmp_path: Path) -> None:
    """Re-executing yesterday's forced run after the nightly tick resumes tonight's cycle."""
    fleet = make_fleet(tmp_path, STEPS, {"a": ["acme", "globex"]})
    run_shard(fleet)
    asked: dict[str, Any] = {"steps": ["transform"], "force": True, "root": "yesterday's"}
    run_shard(fleet, tenants=["acme"], **asked)
    run_shard(fleet, new_cycle="2", tenants=["acme"])
    again = run_shard(fleet, tenants=["acme"], **asked)
    assert (again.report.cycle, again.cells) == ("2", [])
    assert again.report.is_complete
    assert run_shard(fleet, tenants=["acme"], **{**asked, "root": "today's"}).cells == [
        ("acme", "transform")
    ]


def test_an_artifact_that_is_gone_is_made_again_only_when_needed(tmp_path: Path) -> None:
    """A lost output costs its own step, and nothing below it when the digest is the same."""
    big = "x" * 10_000
    fault = tmp_path / "fault"

    @step
    def large(ctx: StepContext) -> str:
        return big

    @step
    def last(ctx: StepContext, large: str) -> int:
        if fault.exists():
            raise OSError("down")
        return len(large)

    fleet = make_fleet(tmp_path, [large, last], {"a": ["acme"]})
    fault.touch()
    run_shard(fleet)
    for artifact in Path(fleet.artifacts).rglob("*.json"):
        artifact.unlink()
    fault.unlink()
    ran = run_shard(fleet)
    assert ran.cells == [("acme", "large"), ("acme", "last")]
    assert cell_states(fleet)["acme:large"].generation == 2


def test_a_new_code_version_runs_the_step_and_what_it_changes(tmp_path: Path) -> None:
    """And nothing else."""

    def versioned(version: str, value: int) -> Step:
        return Step(
            name="transform", function=lambda ctx, extract: value, upstream=("extract",),
            code_version=version,
        )  # fmt: skip

    sink = Step(name="load", function=lambda ctx, transform: transform, upstream=("transform",))
    shards = {"a": ["acme"]}
    run_shard(make_fleet(tmp_path, [extract, versioned("1", 1), sink], shards))
    same = run_shard(make_fleet(tmp_path, [extract, versioned("2", 1), sink], shards))
    assert same.cells == [("acme", "transform")]
    other = run_shard(make_fleet(tmp_path, [extract, versioned("3", 2), sink], shards))
    assert other.cells == [("acme", "load"), ("acme", "transform")]


def test_a_new_cycle_runs_everything_and_reruns_resume_it(tmp_path: Path) -> None:
    """The first cycle is named 1; a rerun works on the newest."""
    fleet = make_fleet(tmp_path, STEPS, {"a": ["acme"]})
    assert run_shard(fleet).report.cycle == "1"
    assert run_shard(fleet, new_cycle="2").cells == _every_cell("acme")
    again = run_shard(fleet)
    assert (again.report.cycle, again.cells) == ("2", [])


def test_a_cycle_opened_meanwhile_takes_over_the_tenants_not_begun(tmp_path: Path) -> None:
    """An old cycle's load after a new one's would overwrite newer rows."""
    fleet = make_fleet(tmp_path, STEPS, {"a": ["acme", "globex"]}, max_concurrent=1)

    @step
    def opens(ctx: StepContext) -> None:
        if ctx.cycle == "1":
            open_cycle(fleet, asked="2", root="other", run_id="other")

    fleet = make_fleet(tmp_path, [opens], {"a": ["acme", "globex"]}, max_concurrent=1)
    first = run_shard(fleet)
    assert first.cells == [("acme", "opens")]
    assert first.report.unreached == 1
    assert not first.report.is_complete
    assert run_shard(fleet).cells == [("acme", "opens"), ("globex", "opens")]


def test_every_cell_moves_through_the_store_that_the_run_was_given(tmp_path: Path) -> None:
    """The IO manager of a Dagster run is called for each cell, stored and loaded."""
    from tenant_pipelines.storage.artifacts import ArtifactStore

    calls: list[tuple[str, str]] = []

    class Recording(ArtifactStore):
        def store(self, attempt: Any, value: Any) -> Any:
            calls.append(("store", attempt.step))
            return super().store(attempt, value)

        def load(self, attempt: Any, stored: Any) -> Any:
            calls.append(("load", attempt.step))
            return super().load(attempt, stored)

    fleet = make_fleet(tmp_path, STEPS, {"a": ["acme"]})
    run_shard(fleet, store=Recording(fleet.artifacts))
    assert calls == [
        ("store", "extract"),
        ("load", "extract"),
        ("store", "transform"),
        ("load", "transform"),
        ("store", "load"),
    ]


def test_a_full_shard_is_as_wide_as_its_limit_and_never_wider(tmp_path: Path) -> None:
    """The peak of live cells reaches max_concurrent while work waits."""
    live, peak, mutex = set[str](), [0], threading.Lock()
    meeting = threading.Barrier(3)

    @step
    def work(ctx: StepContext) -> None:
        with mutex:
            live.add(ctx.tenant)
            peak[0] = max(peak[0], len(live))
        meeting.wait(30)
        with mutex:
            live.discard(ctx.tenant)

    fleet = make_fleet(tmp_path, [work], {"a": [f"t{n}" for n in range(12)]}, max_concurrent=3)
    assert run_shard(fleet).report.ran == 12
    assert peak == [3]
    assert {cell.outcome for cell in cell_states(fleet).values()} == {Outcome.COMPLETED}


def test_no_lock_is_held_after_a_run(tmp_path: Path) -> None:
    """Leases and slots are given back on every way out."""
    from tenant_pipelines.engine.leases import TenantLeases
    from tenant_pipelines.engine.slots import Slots

    fleet: Fleet = make_fleet(tmp_path, STEPS, {"a": ["acme"]})
    run_shard(fleet)
    locks = fleet.shard_state("a") / "locks"
    assert not TenantLeases(locks).is_leased("acme")
    assert Slots(locks, 2).held() == []
