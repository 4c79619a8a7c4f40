"""The same story through ``dagster job execute``, in a second cycle, as the UI shows it."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tenant_pipelines.orchestration import names
from tenant_pipelines_tests.crash.side_file import attempts
from tenant_pipelines_tests.e2e.dev import SHARDS, STEPS, Dev, dev_of

pytestmark = pytest.mark.slow

_ALL_GREEN = {
    f"{tenant}:{step}": "green"
    for tenants in SHARDS.values()
    for tenant in tenants
    for step in STEPS
}
_BLOCKED = {"umbrella:transform", "umbrella:load"}
_UMBRELLA_RED = {**_ALL_GREEN, **dict.fromkeys(_BLOCKED, "red")}
_SHARD_2 = {f"{tenant}:{step}" for tenant in SHARDS["shard_2"] for step in STEPS}


@pytest.fixture(scope="module")
def dev(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dev]:
    """Return a ``dagster dev`` whose fleet is done in its first cycle; each test opens another."""
    with dev_of(tmp_path_factory.mktemp("shell"), name="story", first="run") as dev:
        assert dev.shown() == _ALL_GREEN
        yield dev


@pytest.fixture(autouse=True)
def _mended(dev: Dev) -> Iterator[None]:
    """Leave no fault of a test that failed to the next one."""
    yield
    dev.mend()


def _ran_since(folder: Path, before: int) -> Counter[str]:
    return Counter(f"{one.tenant}:{one.step}" for one in attempts(folder)[before:])


@pytest.mark.parametrize("shard", [None, "shard_2"], ids=["fleet job", "shard job"])
def test_a_job_that_fails_in_a_second_cycle_shows_one_tenant_red_until_it_is_mended(
    dev: Dev, shard: str | None
) -> None:
    """A run without partition keys plans none: stock Dagster would leave umbrella green.

    Those who start jobs from cron and those who look at the UI are different people.
    """
    folder = dev.rig.folder
    cells = set(_ALL_GREEN) if shard is None else _SHARD_2
    fault = folder / "fault.umbrella"
    fault.touch()
    before = len(attempts(folder))
    opening = {names.NEW_CYCLE_TAG: f"second of {shard or 'all'}"}
    assert dev.rig.start_job(shard=shard, tags=opening).finish().code != 0
    assert _ran_since(folder, before) == dict.fromkeys(cells - {"umbrella:load"}, 1)
    assert dev.shown() == _UMBRELLA_RED
    complete = dev.checks("shard_2")[names.COMPLETE_CHECK]
    assert complete.status == "FAILED"
    assert {row["tenant"] for row in complete.metadata["late"]} == {"umbrella"}

    # again, the fault still there
    before = len(attempts(folder))
    assert dev.rig.start_job(shard=shard).finish().code != 0
    assert _ran_since(folder, before) == {"umbrella:transform": 1}
    assert dev.shown() == _UMBRELLA_RED

    # mended
    fault.unlink()
    before = len(attempts(folder))
    ended = dev.rig.start_job(shard=shard).finish()
    assert ended.code == 0, ended.err
    assert _ran_since(folder, before) == dict.fromkeys(_BLOCKED, 1)
    made = dev.made_by(dev.run_ids()[0])
    assert {(one.cell, one.is_restated) for one in made} == {(cell, False) for cell in _BLOCKED}
    assert dev.shown() == _ALL_GREEN
    assert dev.checks("shard_2")[names.COMPLETE_CHECK].status == "SUCCEEDED"
    assert dev.slots_held() == {}


def test_our_own_command_makes_one_run_of_what_is_missing_of_scattered_tenants(dev: Dev) -> None:
    """A retried backfill makes a run for each range of neighbours; ours makes one for the fleet."""
    folder = dev.rig.folder
    faults = [folder / f"fault.{tenant}" for tenant in ("globex", "initech", "hooli")]
    missing = {f"{fault.suffix[1:]}:{step}" for fault in faults for step in STEPS[1:]}
    for fault in faults:
        fault.touch()
    assert dev.rig.call("run", "--json", "--new-cycle", "scattered").code == 1
    assert dev.shown() == {**_ALL_GREEN, **dict.fromkeys(missing, "red")}

    for fault in faults:
        fault.unlink()
    before, runs = len(attempts(folder)), dev.run_ids()
    ended = dev.rig.call("run", "--json")
    assert ended.code == 0, ended.err
    assert _ran_since(folder, before) == dict.fromkeys(missing, 1)
    assert dev.run_ids()[1:] == runs
    assert dev.shown() == _ALL_GREEN
