"""Runs from the asset pages, one at a time: done already, forced, selected in part, stopped."""

import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tenant_pipelines.orchestration import names
from tenant_pipelines_tests.crash.side_file import attempts
from tenant_pipelines_tests.e2e.dev import SHARDS, STEPS, Dev, dev_of

pytestmark = pytest.mark.slow

_SHARD_1 = [f"{tenant}:{step}" for tenant in SHARDS["shard_1"] for step in STEPS]
_SHARD_2 = [f"{tenant}:{step}" for tenant in SHARDS["shard_2"] for step in STEPS]
# the UI waits for a run that it terminates
_GONE_WITHIN_SECONDS = 8.0


@pytest.fixture(scope="module")
def dev(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dev]:
    """Return one ``dagster dev`` for the tests of this module; each works on a shard of its own."""
    with dev_of(tmp_path_factory.mktemp("asset_page"), name="story", defaults=_ONE) as dev:
        yield dev


_ONE = {"max_concurrent": 1}


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
    # globex has nothing yet: its load cannot run, and nothing runs for it
    alone = dev.materialize("shard_1", ["load"], "globex")
    assert dev.wait_for_run(alone) == "FAILURE"
    said = "\n".join(dev.messages(alone))
    assert "globex:load held: upstream_missing" in said
    assert not _ran_since(folder, before)
    expected = {**dict.fromkeys(_SHARD_1, "none"), "globex:load": "red"}
    assert dev.shown("shard_1") == expected

    first = dev.materialize("shard_1", STEPS, "acme")
    assert dev.wait_for_run(first) == "SUCCESS"
    expected |= {f"acme:{step}": "green" for step in STEPS}
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
    dev: Dev,
) -> None:
    """A person stops a run because it must stop; what it was doing runs again, and nothing else.

    With one cell at a time, initech is done, umbrella is on its way, and hooli was not reached.
    """
    folder = dev.rig.folder
    (folder / "gate.umbrella").touch()
    before = _count(folder)
    files = set(dev.rig.artifact_files())
    run = dev.materialize("shard_2", STEPS, ("initech", "hooli"))

    def is_held() -> bool:
        return any(one.step == "transform" and one.tenant == "umbrella" for one in attempts(folder))

    dev.wait(is_held, "umbrella in its transform")
    worked = {one.pid for one in attempts(folder)[before:]}
    reached = _ran_since(folder, before)
    was = dev.shown("shard_2")
    sent_at = time.monotonic()
    dev.terminate(run)
    dev.wait(lambda: not any(Path(f"/proc/{pid}").exists() for pid in worked), "the worker's end")
    seconds = time.monotonic() - sent_at
    assert dev.wait_for_run(run) == "CANCELED"
    assert seconds < _GONE_WITHIN_SECONDS

    # nothing half written
    dev.rig.check_nothing_held()
    assert dev.slots_held() == {}
    assert set(dev.rig.artifact_files()) - files <= set(dev.rig.published_files())
    completed = {f"{one[0]}:{one[1]}" for one in dev.rig.completed() if one[0] in SHARDS["shard_2"]}
    assert completed == set(reached) - {"umbrella:transform"}
    assert "umbrella:transform" in reached

    # what it completed is green, and all else is as it was
    now = dev.shown("shard_2")
    assert now == {cell: "green" if cell in completed else "none" for cell in _SHARD_2}
    assert set(was) == set(now)

    (folder / "gate.umbrella").unlink()
    before = _count(folder)
    again = dev.reexecute(run, "FROM_FAILURE")
    assert dev.wait_for_run(again) == "SUCCESS"
    assert _ran_since(folder, before) == dict.fromkeys(set(_SHARD_2) - completed, 1)
    assert dev.shown("shard_2") == dict.fromkeys(_SHARD_2, "green")
