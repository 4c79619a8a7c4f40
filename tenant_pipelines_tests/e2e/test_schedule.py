"""A real schedule, every minute, whose first run takes longer than a minute."""

from collections import Counter
from datetime import datetime
from pathlib import Path

import pytest

from tenant_pipelines.orchestration import names
from tenant_pipelines_tests.e2e.dev import SHARDS, STEPS, dev_of

pytestmark = pytest.mark.slow


def test_a_run_that_outlives_the_next_tick_gives_way_to_the_newer_cycle(tmp_path: Path) -> None:
    """Each tick opens its cycle once, and no cell of the newest one runs twice or not at all."""
    (tmp_path / "gate.acme").touch()
    with dev_of(tmp_path, name="story", schedule="* * * * *") as dev:

        def opened() -> list[str]:
            return dev.rig.opened()["shard_3"]

        def tagged() -> dict[str, str]:
            tags = {run_id: dev.run_tags(run_id) for run_id in dev.run_ids()}
            return {tags[run_id][names.TICK_TAG]: run_id for run_id in tags}

        dev.wait(lambda: bool(dev.rig.live_attempts("shard_1")), "the first tick's run")
        dev.wait(lambda: len(opened()) >= 2, "the second tick's cycle")
        # the first run still has acme, and the second does everybody else's new cycle meanwhile
        dev.wait(
            lambda: ("wonka", "load", opened()[1], 1) in dev.rig.completed(), "wonka in cycle two"
        )
        assert dev.run_status(tagged()[min(tagged())]) != "SUCCESS"
        (tmp_path / "go.acme").touch()
        cycles = opened()
        newest = cycles[1]
        dev.wait(
            lambda: (
                ("acme", "load", newest, 1) in dev.rig.completed() or len(opened()) > len(cycles)
            ),
            "acme in the newest cycle",
        )

        for shard in SHARDS:
            assert dev.rig.opened()[shard] == sorted(set(dev.rig.opened()[shard]))
        for name in opened():
            at = datetime.fromisoformat(name)
            assert (at.second, at.microsecond) == (0, 0)
        runs = tagged()
        assert len(runs) == len(dev.run_ids())
        # one run for each tick, each with the tick of its own minute
        assert len({datetime.fromisoformat(at) for at in runs}) == len(runs)
        done = Counter((tenant, step, cycle) for tenant, step, cycle, _ in dev.rig.completed())
        assert set(done.values()) == {1}
        for tenant in ("globex", *SHARDS["shard_2"], "wonka"):
            for step in STEPS:
                assert done[tenant, step, newest] == 1
