"""Runs from the asset pages, one at a time: done already, forced, selected in part, stopped."""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tenant_pipelines.orchestration import names
from tenant_pipelines_tests.crash.side_file import attempts, is_alive
from tenant_pipelines_tests.e2e.dev import SHARDS, STEPS, Dev, dev_of

pytestmark = pytest.mark.slow

_SHARD_1 = [f"{tenant}:{step}" for tenant in SHARDS["shard_1"] for step in STEPS]
_SHARD_2 = [f"{tenant}:{step}" for tenant in SHARDS["shard_2"] for step in STEPS]
_HALF_OF_UMBRELLA = ("umbrella:extract", "umbrella:transform")
_ONE = {"max_concurrent": 1}
# 5 s are given to the workers. At a load of seven on two cores the run was canceled after 6.4 to
# 7.2 s and its last process gone after 7.9 to 9.6 s; a run that waited for its step would be there
# for minutes
_GONE_WITHIN_SECONDS = 20.0


@pytest.fixture(scope="module")
def dev(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dev]:
    """Return a ``dagster dev`` whose fleet is done in its first cycle; each test opens another.

    Keys that have a colour to lose show more than keys that nobody has made.
    """
    folder = tmp_path_factory.mktemp("asset_page")
    with dev_of(folder, name="story", first="run", defaults=_ONE) as dev:
        yield dev


@pytest.fixture(autouse=True)
def _mended(dev: Dev) -> Iterator[None]:
    """Leave no fault of a test that failed to the next one."""
    yield
    dev.mend()


def _count(folder: Path) -> int:
    return len(attempts(folder))


def _ran_since(folder: Path, before: int) -> Counter[str]:
    return Counter(f"{one.tenant}:{one.step}" for one in attempts(folder)[before:])


def test_a_done_tenant_runs_again_only_when_forced_and_load_alone_not_without_its_input(
    dev: Dev,
) -> None:
    """ "Materialize" on a green tenant must not pay again; whoever means it is told how to say so.

    And a person who selects one asset means that one: nothing else is run for it in silence.
    """
    folder = dev.rig.folder
    before = _count(folder)
    expected = dict.fromkeys(_SHARD_1, "green")
    assert dev.shown("shard_1") == expected
    # in a new cycle globex has nothing yet: its load cannot run, and nothing runs for it
    opening = {names.NEW_CYCLE_TAG: "one at a time"}
    alone = dev.materialize("shard_1", ["load"], "globex", tags=opening)
    assert dev.wait_for_run(alone) == "FAILURE"
    said = "\n".join(dev.messages(alone))
    assert "globex:load held: upstream_missing" in said
    assert not _ran_since(folder, before)
    expected["globex:load"] = "red"
    assert dev.shown("shard_1") == expected

    # acme has its input: exactly what was selected runs
    for steps in (STEPS[:2], STEPS[2:]):
        before = _count(folder)
        assert dev.wait_for_run(dev.materialize("shard_1", steps, "acme")) == "SUCCESS"
        assert _ran_since(folder, before) == {f"acme:{step}": 1 for step in steps}
        assert dev.shown("shard_1") == expected
    made = dev.newest("shard_1")

    # done: green, nothing ran, and how to force it
    before = _count(folder)
    again = dev.materialize("shard_1", STEPS, "acme")
    assert dev.wait_for_run(again) == "SUCCESS"
    assert not _ran_since(folder, before)
    assert dev.made_by(again) == []
    assert dev.shown("shard_1") == expected
    assert dev.newest("shard_1") == made
    said = "\n".join(dev.messages(again))
    assert "force: true" in said
    assert f"{names.FORCE_TAG}=true" in said

    # by config, as the launchpad has it
    before = _count(folder)
    forced = dev.materialize("shard_1", STEPS, "acme", config={"force": True})
    assert dev.wait_for_run(forced) == "SUCCESS"
    assert _ran_since(folder, before) == {f"acme:{step}": 1 for step in STEPS}
    assert dev.shown("shard_1") == expected

    # by tag, one asset of it: exactly that one
    before = _count(folder)
    forced = dev.materialize("shard_1", ["load"], "acme", tags={names.FORCE_TAG: "true"})
    assert dev.wait_for_run(forced) == "SUCCESS"
    assert _ran_since(folder, before) == {"acme:load": 1}
    assert [(one.cell, one.is_restated) for one in dev.made_by(forced)] == [("acme:load", False)]
    assert dev.shown("shard_1") == expected
    assert dev.slots_held() == {}


def test_a_run_that_is_terminated_is_gone_at_once_and_leaves_what_it_had_not_reached(
    dev: Dev, record_property: Callable[[str, object], None]
) -> None:
    """A person stops a run because it must stop; what it was doing runs again, and nothing else.

    With one cell at a time: initech is done, umbrella is on its way, and hooli, which failed in the
    cycle before, was not reached.
    """
    folder = dev.rig.folder
    fault, gate = folder / "fault.hooli", folder / "gate.umbrella"
    fault.touch()
    every = ("initech", "hooli")
    opening = {names.NEW_CYCLE_TAG: "hooli fails"}
    assert dev.wait_for_run(dev.materialize("shard_2", STEPS, every, tags=opening)) == "FAILURE"
    fault.unlink()
    was = dev.shown("shard_2")
    hooli_red = dict.fromkeys(("hooli:transform", "hooli:load"), "red")
    assert was == {**dict.fromkeys(_SHARD_2, "green"), **hooli_red}
    versions = dev.newest("shard_2")

    gate.touch()
    before = _count(folder)
    files = set(dev.rig.artifact_files())
    run = dev.materialize("shard_2", STEPS, every, tags={names.NEW_CYCLE_TAG: "stopped"})

    def is_held() -> bool:
        cells = [(one.tenant, one.step) for one in attempts(folder)[before:]]
        return ("umbrella", "transform") in cells

    dev.wait(is_held, "umbrella in its transform")
    working = dev.processes(run) | {one.pid for one in attempts(folder)[before:]}
    assert len(working) > 1
    reached = set(_ran_since(folder, before))
    assert reached == {*(f"initech:{step}" for step in STEPS), *_HALF_OF_UMBRELLA}
    sent_at = time.monotonic()
    dev.terminate(run)
    dev.wait(lambda: not any(map(is_alive, working)), "the end of the run's processes")
    seconds = time.monotonic() - sent_at
    record_property("seconds_to_end", round(seconds, 2))
    assert dev.wait_for_run(run) == "CANCELED"
    assert seconds < _GONE_WITHIN_SECONDS

    # nothing half written
    dev.rig.check_nothing_held()
    assert dev.slots_held() == {}
    assert set(dev.rig.artifact_files()) - files <= set(dev.rig.published_files())
    completed = {f"{one[0]}:{one[1]}" for one in dev.rig.completed() if one[2] == "stopped"}
    assert completed == reached - {"umbrella:transform"}

    # every key keeps its colour, and what was not completed its version too
    assert dev.shown("shard_2") == was
    now = dev.newest("shard_2")
    assert {cell for cell, made in now.items() if made != versions.get(cell)} == completed

    gate.unlink()
    before = _count(folder)
    again = dev.reexecute(run, "FROM_FAILURE")
    assert dev.wait_for_run(again) == "SUCCESS"
    assert _ran_since(folder, before) == dict.fromkeys(set(_SHARD_2) - completed, 1)
    assert dev.shown("shard_2") == dict.fromkeys(_SHARD_2, "green")
