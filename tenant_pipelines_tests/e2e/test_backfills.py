"""Backfills and re-executions from the UI: what is red, what runs again, what is left alone."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tenant_pipelines.orchestration import names
from tenant_pipelines_tests.crash.side_file import attempts
from tenant_pipelines_tests.e2e.dev import SHARDS, STEPS, Dev, Made, Refused, dev_of

pytestmark = pytest.mark.slow

_ALL_GREEN = {
    f"{tenant}:{step}": "green"
    for tenants in SHARDS.values()
    for tenant in tenants
    for step in STEPS
}
_BLOCKED = {"umbrella:transform", "umbrella:load"}
_UMBRELLA_RED = {**_ALL_GREEN, **dict.fromkeys(_BLOCKED, "red")}
_SHARD_2 = [f"{tenant}:{step}" for tenant in SHARDS["shard_2"] for step in STEPS]


@pytest.fixture(scope="module")
def dev(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dev]:
    """Return one ``dagster dev`` for the tests of this module; each works in cycles of its own."""
    with dev_of(tmp_path_factory.mktemp("backfills"), name="story") as dev:
        yield dev


@pytest.fixture(autouse=True)
def _mended(dev: Dev) -> Iterator[None]:
    """Leave no fault of a test that failed to the next one."""
    yield
    dev.mend()


def _cells(made: list[Made]) -> Counter[str]:
    return Counter(one.cell for one in made)


def _began(folder: Path) -> int:
    return len(attempts(folder))


def _ran_since(folder: Path, before: int) -> Counter[str]:
    return Counter(f"{one.tenant}:{one.step}" for one in attempts(folder)[before:])


def test_one_bad_tenant_is_red_alone_until_it_is_mended(dev: Dev) -> None:
    """The story that the package is for, clicked by a person; stock Dagster loses it at each turn.

    A failed run turns every planned key red that it did not materialize itself, so a re-execution
    that skips finished tenants in silence, and fails again, shows them all as failed.
    """
    folder = dev.rig.folder
    fault = folder / "fault.umbrella"
    fault.touch()
    opening = {names.NEW_CYCLE_TAG: "one bad tenant"}
    backfill = dev.backfill(tags=opening)
    assert dev.wait_for_backfill(backfill) in {"FAILED", "COMPLETED_FAILED"}
    runs = dev.backfill_runs(backfill)
    assert {shard: len(ids) for shard, ids in runs.items()} == dict.fromkeys(SHARDS, 1)
    assert {shard: dev.run_status(ids[0]) for shard, ids in runs.items()} == {
        "shard_1": "SUCCESS",
        "shard_2": "FAILURE",
        "shard_3": "SUCCESS",
    }
    assert dev.shown() == _UMBRELLA_RED
    complete = {shard: dev.checks(shard)[names.COMPLETE_CHECK] for shard in SHARDS}
    assert {shard: check.status for shard, check in complete.items()} == {
        "shard_1": "SUCCEEDED",
        "shard_2": "FAILED",
        "shard_3": "SUCCEEDED",
    }
    late = complete["shard_2"].metadata["late"]
    assert {(row["tenant"], row["step"]) for row in late} == {
        ("umbrella", "transform"),
        ("umbrella", "load"),
    }
    assert "umbrella" in complete["shard_2"].description
    assert not [tenant for tenant in ("initech", "hooli") if tenant in str(complete["shard_2"])]

    # the fault still there
    (failed,) = runs["shard_2"]
    for strategy in ("FROM_FAILURE", "ALL_STEPS"):
        before = _began(folder)
        again = dev.reexecute(failed, strategy)
        assert dev.wait_for_run(again) == "FAILURE"
        assert _ran_since(folder, before) == {"umbrella:transform": 1}
        assert dev.shown() == _UMBRELLA_RED
        made = dev.made_by(again)
        assert sorted(_cells(made)) == sorted(
            set(_SHARD_2) - {"umbrella:transform", "umbrella:load"}
        )
        assert all(one.is_restated for one in made)

    # mended
    fault.unlink()
    before = _began(folder)
    mended = dev.reexecute(failed, "FROM_FAILURE")
    assert dev.wait_for_run(mended) == "SUCCESS"
    expected = dict.fromkeys(_BLOCKED, 1)
    assert _ran_since(folder, before) == expected
    assert _cells(dev.made_by(mended)) == expected
    assert dev.shown() == _ALL_GREEN
    assert dev.checks("shard_2")[names.COMPLETE_CHECK].status == "SUCCEEDED"

    # everything is done: a second backfill of everything
    before, was = _began(folder), dev.newest()
    second = dev.backfill()
    assert dev.wait_for_backfill(second) == "COMPLETED_SUCCESS"
    assert not _ran_since(folder, before)
    assert dev.shown() == _ALL_GREEN
    now = dev.newest()
    assert {cell: made.version for cell, made in now.items()} == {
        cell: made.version for cell, made in was.items()
    }
    assert now.keys() == _ALL_GREEN.keys()
    assert all(made.is_restated for made in now.values())
    runs = dev.backfill_runs(second)
    assert {made.run_id for made in now.values()} == {ids[0] for ids in runs.values()}
    assert dev.slots_held() == {}


def test_the_retry_of_a_failed_backfill_does_what_is_missing_and_nothing_else(dev: Dev) -> None:
    """People press "Retry from failure" on the backfill's page at least as often as on the run's.

    Two tenants that are no neighbours are missing: Dagster makes a run for each range of keys.
    """
    folder = dev.rig.folder
    faults = [folder / f"fault.{tenant}" for tenant in ("initech", "hooli")]
    for fault in faults:
        fault.touch()
    before = _began(folder)
    opening = {names.NEW_CYCLE_TAG: "two bad tenants"}
    backfill = dev.backfill(shards=["shard_2"], tags=opening)
    assert dev.wait_for_backfill(backfill) in {"FAILED", "COMPLETED_FAILED"}
    missing = [f"{tenant}:{step}" for tenant in ("initech", "hooli") for step in STEPS[1:]]
    half = {**dict.fromkeys(_SHARD_2, "green"), **dict.fromkeys(missing, "red")}
    assert dev.shown("shard_2") == half
    assert sum(_ran_since(folder, before).values()) == 7

    # what a person presses next is no help, and says so
    ((failed,),) = dev.backfill_runs(backfill).values()
    with pytest.raises(Refused, match="No assets or asset checks needed to be retried"):
        dev.reexecute(failed, "FROM_ASSET_FAILURE")
    said = "\n".join(dev.messages(failed)).lower()
    assert "from failure" in said
    assert "asset failure" in said
    assert dev.shown("shard_2") == half

    for fault in faults:
        fault.unlink()
    before = _began(folder)
    retry = dev.retry_backfill(backfill)
    assert dev.wait_for_backfill(retry) == "COMPLETED_SUCCESS"
    assert _ran_since(folder, before) == dict.fromkeys(missing, 1)
    assert dev.shown("shard_2") == dict.fromkeys(_SHARD_2, "green")
    made = [one for run in dev.backfill_runs(retry)["shard_2"] for one in dev.made_by(run)]
    assert {one.cell for one in made if not one.is_restated} == set(missing)
    assert dev.slots_held() == {}
