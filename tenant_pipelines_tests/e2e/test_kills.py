"""What the UI shows after SIGKILL and SIGTERM of whatever was running: true, two ticks later."""

import os
import signal
from collections.abc import Iterator

import pytest

from tenant_pipelines.orchestration import names
from tenant_pipelines_tests.crash.rig import Started
from tenant_pipelines_tests.crash.side_file import is_alive, note_deaths
from tenant_pipelines_tests.e2e.dev import SHARDS, STEPS, Dev, dev_of
from tenant_pipelines_tests.e2e.sensors import two_ticks_later

pytestmark = pytest.mark.slow

_CELLS = [f"{tenant}:{step}" for tenant in SHARDS["shard_2"] for step in STEPS]
# one cell at a time in the fleet file's order: initech is done, umbrella waits in its transform
_DONE = {*_CELLS[:4]}
_KILLED = {cell: "green" if cell in _DONE else "red" for cell in _CELLS}


@pytest.fixture(scope="module")
def dev(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dev]:
    """Return a ``dagster dev`` whose fleet is done; one run at a time may work on a shard."""
    folder = tmp_path_factory.mktemp("kills")
    with dev_of(folder, name="story", defaults={"max_concurrent": 1, "runs_at_once": 1}) as dev:
        assert dev.rig.call("run", "--json").code == 0
        yield dev


def _hangs(dev: Dev, cycle: str) -> dict[str, str]:
    """Let umbrella's transform wait in a new cycle; return the tags of a run that opens it."""
    (dev.rig.folder / "gate.umbrella").touch()
    (dev.rig.folder / "go.umbrella").unlink(missing_ok=True)
    return {names.NEW_CYCLE_TAG: cycle}


def _wait_until_it_hangs(dev: Dev) -> None:
    dev.wait(
        lambda: any(
            (one.tenant, one.step) == ("umbrella", "transform")
            for one in dev.rig.live_attempts("shard_2")
        ),
        "umbrella's transform",
    )


def _check_two_ticks_later(dev: Dev, run_id: str) -> None:
    """Check run, slots and colours, then that the next run starts at once and does the rest."""
    note_deaths(dev.rig.folder)
    two_ticks_later(dev)
    assert dev.run_status(run_id) == "FAILURE"
    assert dev.slots_held() == {}
    assert dev.shown("shard_2") == _KILLED
    complete = dev.checks("shard_2")[names.COMPLETE_CHECK]
    assert complete.status == "FAILED"
    assert {row["tenant"] for row in complete.metadata["late"]} == {"umbrella", "hooli"}
    (dev.rig.folder / "go.umbrella").touch()
    rest = dev.launch_job(names.shard_job("story", "shard_2"))
    assert dev.wait_for_run(rest) == "SUCCESS"
    made = {one.cell for one in dev.made_by(rest) if not one.is_restated}
    assert made == set(_CELLS) - _DONE
    assert set(dev.shown("shard_2").values()) == {"green"}


def _newest_run(dev: Dev, job: Started) -> str:
    assert job.members() == [], "it is still there"
    return dev.run_ids()[0]


def test_after_the_kill_of_a_runs_worker(dev: Dev) -> None:
    """Out of memory is the most common death there is."""
    tags = _hangs(dev, "worker")
    run = dev.materialize("shard_2", STEPS, ("initech", "hooli"), tags=tags)
    _wait_until_it_hangs(dev)
    processes = dev.processes(run)
    assert processes
    for pid in processes:
        if is_alive(pid):
            os.kill(pid, signal.SIGKILL)
    dev.wait(lambda: not any(map(is_alive, processes)), "the death of the worker")
    _check_two_ticks_later(dev, run)


def test_after_the_kill_of_a_job_execute_that_holds_a_slot(dev: Dev) -> None:
    """Stock Dagster leaves it STARTED and its slot taken: the next run would wait for ever."""
    job = dev.rig.start_job(shard="shard_2", tags=_hangs(dev, "execute"))
    _wait_until_it_hangs(dev)
    assert list(dev.slots_held()) == ["story/shard_2"]
    job.kill()
    _check_two_ticks_later(dev, _newest_run(dev, job))


def test_after_sigterm_of_a_job_execute(dev: Dev) -> None:
    """A container that is moved: nobody asked for less, so it counts as a kill."""
    job = dev.rig.start_job(shard="shard_2", tags=_hangs(dev, "sigterm"))
    _wait_until_it_hangs(dev)
    os.kill(job.pid, signal.SIGTERM)
    dev.wait(lambda: not job.members(), "the end of the command")
    _check_two_ticks_later(dev, _newest_run(dev, job))


def test_after_the_kill_of_everything_once_it_is_started_again(dev: Dev) -> None:
    """The machine lost power: webserver, daemon, code server and run are gone at one instant."""
    run = dev.launch_job(names.shard_job("story", "shard_2"), tags=_hangs(dev, "everything"))
    _wait_until_it_hangs(dev)
    dev.kill()
    dev.restart()
    _check_two_ticks_later(dev, run)


def test_without_any_daemon_our_own_command_does_the_same(dev: Dev) -> None:
    """Last in this module: there is no dagster dev any more when the command looks."""
    job = dev.rig.start_job(shard="shard_2", tags=_hangs(dev, "no daemon"))
    _wait_until_it_hangs(dev)
    job.kill()
    run = _newest_run(dev, job)
    dev.kill()
    (dev.rig.folder / "go.umbrella").touch()
    ended = dev.rig.call("run", "--json")
    assert ended.code == 0, ended.err
    assert f"run {run} had died: marked failed, its slots freed" in ended.err
    assert {shard["shard"]: shard["ran"] for shard in ended.document["shards"]}["shard_2"] == 5
    dev.restart()
    assert dev.run_status(run) == "FAILURE"
    assert dev.slots_held() == {}
    assert set(dev.shown("shard_2").values()) == {"green"}
