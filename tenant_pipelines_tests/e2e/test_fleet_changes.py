"""A fleet file that is edited, and a daemon that dies, while everything runs."""

from collections import Counter
from collections.abc import Iterator

import pytest
import yaml

from tenant_pipelines.orchestration import names
from tenant_pipelines_tests.crash.side_file import attempts
from tenant_pipelines_tests.e2e.dev import SHARDS, STEPS, Dev, dev_of
from tenant_pipelines_tests.e2e.sensors import forget_cursor, keys, ticks, two_ticks_later

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def dev(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dev]:
    """Return one ``dagster dev`` whose fleet is done; the tests follow each other."""
    folder = tmp_path_factory.mktemp("changes")
    with dev_of(folder, name="story", defaults={"max_concurrent": 1}) as dev:
        assert dev.rig.call("run", "--json").code == 0
        yield dev


def _list(dev: Dev, shard: str, tenants: list[str]) -> None:
    """Give a shard of the fleet file other tenants."""
    path = dev.rig.folder / "fleet.yaml"
    document = yaml.safe_load(path.read_text())
    document["shards"][shard]["tenants"] = tenants
    path.write_text(yaml.safe_dump(document, sort_keys=False))


def _hang(dev: Dev, tenant: str) -> None:
    (dev.rig.folder / f"gate.{tenant}").touch()
    (dev.rig.folder / f"go.{tenant}").unlink(missing_ok=True)


def _let_go(dev: Dev, tenant: str) -> None:
    (dev.rig.folder / f"go.{tenant}").touch()


def test_a_tenant_added_while_a_run_is_at_work_is_run_alone_and_once(dev: Dev) -> None:
    """A new customer signs up in the middle of the night's run."""
    _hang(dev, "acme")
    before = dev.run_ids()
    run = dev.launch_job(
        names.shard_job("story", "shard_1"), tags={names.NEW_CYCLE_TAG: "with a new tenant"}
    )
    dev.wait(lambda: bool(dev.rig.live_attempts("shard_1")), "acme's turn")
    _list(dev, "shard_1", ["acme", "globex", "pied_piper"])
    dev.wait(lambda: len(dev.run_ids()) > len(before) + 1, "the run for the new tenant")
    assert keys(dev, "shard_1") == ["acme", "globex", "pied_piper"]
    new = dev.run_ids()[0]
    _let_go(dev, "acme")
    assert dev.wait_for_run(run) == "SUCCESS"
    assert dev.wait_for_run(new) == "SUCCESS"
    assert {one.cell for one in dev.made_by(new)} == {f"pied_piper:{step}" for step in STEPS}
    two_ticks_later(dev)
    assert dev.run_ids() == [new, run, *before]
    assert set(dev.shown("shard_1").values()) == {"green"}


def test_cursors_that_are_lost_lose_and_repeat_nothing(dev: Dev) -> None:
    """The page of a sensor has a button for it."""
    runs, made = dev.run_ids(), dev.newest()
    for sensor in (names.caretaker("story"), names.resume("story")):
        forget_cursor(dev, sensor)
    two_ticks_later(dev)
    assert dev.run_ids() == runs
    assert dev.newest() == made


def test_a_fleet_file_broken_meanwhile_fails_the_tick_with_its_line(dev: Dev) -> None:
    """The last good fleet goes on, and no key is deleted."""
    path = dev.rig.folder / "fleet.yaml"
    good = path.read_text()
    path.write_text(good + "colour: red\n")
    try:
        two_ticks_later(dev)
        newest = ticks(dev, names.caretaker("story"))[0]
        assert newest["status"] == "FAILURE"
        line = len(good.splitlines()) + 1
        said = [cause["error"]["message"] for cause in newest["error"]["errorChain"]]
        assert f"fleet.yaml:{line}: found the unknown key 'colour'" in "\n".join(said)
        assert keys(dev, "shard_2") == SHARDS["shard_2"]
    finally:
        path.write_text(good)
    two_ticks_later(dev)
    assert ticks(dev, names.caretaker("story"))[0]["status"] in {"SKIPPED", "SUCCESS"}


def test_a_tenant_removed_while_a_backfill_targets_it_keeps_its_key_until_the_end(
    dev: Dev,
) -> None:
    """A key that is deleted under a range makes Dagster refuse the whole range."""
    _hang(dev, "initech")
    backfill = dev.backfill(
        shards=["shard_2"], tags={names.NEW_CYCLE_TAG: "with a tenant that leaves"}
    )
    dev.wait(lambda: bool(dev.rig.live_attempts("shard_2")), "initech's turn")
    _list(dev, "shard_2", ["initech", "umbrella"])
    two_ticks_later(dev)
    assert keys(dev, "shard_2") == SHARDS["shard_2"]
    _let_go(dev, "initech")
    # its run began with hooli in the file, and does what it was asked for
    assert dev.wait_for_backfill(backfill) == "COMPLETED_SUCCESS"
    two_ticks_later(dev)
    assert keys(dev, "shard_2") == ["initech", "umbrella"]
    assert {entry.tenant for entry in dev.rig.entries("shard_2")} >= {"hooli"}
    assert set(dev.shown("shard_2").values()) == {"green"}


def test_a_daemon_that_dies_in_the_middle_of_a_backfill_loses_and_repeats_nothing(
    dev: Dev,
) -> None:
    """Started again, it ends the backfill; the retry does what is missing."""
    _hang(dev, "acme")
    before = len(attempts(dev.rig.folder))
    backfill = dev.backfill(tags={names.NEW_CYCLE_TAG: "with a dead daemon"})
    dev.wait(
        lambda: (
            any(one.tenant == "acme" for one in dev.rig.live_attempts("shard_1"))
            and len(dev.backfill_runs(backfill)) == 3
        ),
        "acme's turn in its run of three",
    )
    dev.kill()
    dev.restart()
    _let_go(dev, "acme")
    if dev.wait_for_backfill(backfill) != "COMPLETED_SUCCESS":
        retry = dev.retry_backfill(backfill)
        assert dev.wait_for_backfill(retry) == "COMPLETED_SUCCESS"
    assert set(dev.shown().values()) == {"green"}
    ran = Counter(f"{one.tenant}:{one.step}" for one in attempts(dev.rig.folder)[before:])
    # what hung when it was killed ran again; a step of a few milliseconds may have died as well
    assert ran["acme:transform"] == 2
    assert {cell for cell, times in ran.items() if times > 2} == set()
    completed = Counter(
        (tenant, step)
        for tenant, step, cycle, _ in dev.rig.completed()
        if cycle == "with a dead daemon"
    )
    assert set(completed.values()) == {1}
    assert len(completed) == len(dev.shown())
