"""A shard's ``max_concurrent`` under runs of every kind at once."""

from collections import Counter
from pathlib import Path

import pytest

from tenant_pipelines.orchestration import names
from tenant_pipelines_tests.crash.side_file import attempts, executions, peak
from tenant_pipelines_tests.e2e.dev import dev_of

pytestmark = pytest.mark.slow

_MAX_CONCURRENT = 2
_TENANTS = [f"t{number:02}" for number in range(12)]
# three tenants for each kind of run; none begins to end before the file "go" is there
_GROUPS = [_TENANTS[start : start + 3] for start in range(0, len(_TENANTS), 3)]
_STEPS = """
@step
def extract(ctx: StepContext) -> dict:
    with noted(HERE, ctx):
        wait_for(HERE / "go")
        time.sleep(0.2)
        return {"tenant": ctx.tenant}

@step
def transform(ctx: StepContext, extract: dict) -> dict:
    with noted(HERE, ctx):
        time.sleep(0.2)
        return extract

@step
def load(ctx: StepContext, transform: dict) -> None:
    with noted(HERE, ctx):
        time.sleep(0.2)

pipeline = Pipeline([extract, transform, load])
"""


def test_max_concurrent_holds_over_runs_from_assets_the_queue_and_the_shell_together(
    tmp_path: Path,
) -> None:
    """A vendor that allows two calls at once does not care who started them.

    Dagster's own limits do not see it: one run takes one slot however many tenants it has, and a
    ``dagster job execute`` passes by the queue.
    """
    with dev_of(
        tmp_path,
        name="limits",
        module=_STEPS,
        shards={"busy": _TENANTS},
        defaults={"max_concurrent": _MAX_CONCURRENT, "runs_at_once": 4},
    ) as dev:
        op = names.cells_op("limits", "busy")
        assets, queued, *shell = _GROUPS
        runs = [
            dev.materialize("busy", ("extract", "transform", "load"), (assets[0], assets[-1])),
            dev.launch_job(
                names.shard_job("limits", "busy"),
                config={"ops": {op: {"config": {"tenants": queued}}}},
            ),
        ]
        jobs = [
            dev.rig.start_job(
                shard="busy",
                tags={names.RANGE_START_TAG: group[0], names.RANGE_END_TAG: group[-1]},
            )
            for group in shell
        ]

        # all four are in the shard's op, and two cells hold the slots
        dev.wait(lambda: sum(map(len, dev.slots_held().values())) == 4, "four runs in the shard")
        dev.wait(lambda: len(attempts(tmp_path)) >= _MAX_CONCURRENT, "cells that wait")
        (tmp_path / "go").touch()
        assert [dev.wait_for_run(run) for run in runs] == ["SUCCESS"] * 2
        for job in jobs:
            ended = job.finish()
            assert ended.code == 0, ended.err

        assert peak(tmp_path, "busy") == _MAX_CONCURRENT
        assert executions(tmp_path) == Counter(
            (tenant, step) for tenant in _TENANTS for step in ("extract", "transform", "load")
        )
        # each kind of run did its own share, in a process of its own
        workers = [
            {one.pid for one in attempts(tmp_path) if one.tenant in group} for group in _GROUPS
        ]
        assert [len(pids) for pids in workers] == [1] * 4
        assert len(set.union(*workers)) == 4
        assert set(dev.shown().values()) == {"green"}
        assert dev.slots_held() == {}
