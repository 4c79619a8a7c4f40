"""The resume sensor of a running daemon: one run for each unfinished shard, and not for ever."""

from pathlib import Path

import pytest

from tenant_pipelines.orchestration import names
from tenant_pipelines_tests.crash.side_file import attempts
from tenant_pipelines_tests.e2e.dev import dev_of
from tenant_pipelines_tests.e2e.sensors import forget_cursor, ticks

pytestmark = pytest.mark.slow


def test_an_unfinished_shard_is_asked_for_alone_until_it_is_done_or_given_up(
    tmp_path: Path,
) -> None:
    """Nobody has to be awake for a vendor that is back in a minute, and nobody's bill explodes."""
    asks = {"attempts": 2, "wait_seconds": 1}
    with dev_of(tmp_path, name="story", resumes=True, resume=asks) as dev:
        sensor = names.resume("story")
        fault = tmp_path / "fault.umbrella"
        fault.touch()
        assert dev.rig.call("run", "--json").code == 1
        (first,) = dev.run_ids()

        def resumed() -> list[str]:
            return [run for run in dev.run_ids() if names.RESUME_TAG in dev.run_tags(run)]

        dev.wait(lambda: len(resumed()) == 1, "the first resumed run")
        assert dev.wait_for_run(resumed()[0]) == "FAILURE"
        forget_cursor(dev, sensor)
        fault.unlink()
        dev.wait(lambda: set(dev.shown().values()) == {"green"}, "everything green")
        assert dev.wait_for_run(resumed()[0]) == "SUCCESS"
        assert len(resumed()) == 2
        assert set(dev.run_ids()) == {first, *resumed()}
        ran = [f"{one.tenant}:{one.step}" for one in attempts(tmp_path)]
        # 17 cells of the first run, one that failed again, and the two that were missing
        assert (len(ran), ran[-3:]) == (
            20,
            ["umbrella:transform", "umbrella:transform", "umbrella:load"],
        )

        fault.touch()
        assert dev.rig.call("run", "--json", "--new-cycle", "2").code == 1
        dev.wait(lambda: len(resumed()) == 4, "two resumed runs of the second cycle")
        assert {dev.wait_for_run(run) for run in resumed()[:2]} == {"FAILURE"}
        dev.wait(
            lambda: any(
                "nothing asks for them any more" in (tick["skipReason"] or "")
                for tick in ticks(dev, sensor)
            ),
            "the word that it stops",
        )
        assert len(resumed()) == 4
