"""Two runs of one fleet at one time, and commands that mend while a run lives."""

from pathlib import Path

import pytest

from tenant_pipelines.orchestration.instance import end_dead_runs
from tenant_pipelines_tests.crash.rig import SHORT_STEPS, rig_of, wait_until
from tenant_pipelines_tests.crash.side_file import executions
from tenant_pipelines_tests.engine.fleets import run_shard

pytestmark = pytest.mark.slow


def test_two_runs_started_together_do_each_cell_once_and_both_end_well(tmp_path: Path) -> None:
    """A schedule and a person start the same fleet in the same second, on a fresh machine too."""
    shards = {"a": ["a1", "a2", "a3", "a4"], "b": ["b1", "b2", "b3"]}
    with rig_of(tmp_path, module=SHORT_STEPS, shards=shards) as rig:
        started = [rig.start("run", "--json"), rig.start("run", "--json")]
        ended = [one.finish() for one in started]
        assert [(one.code, one.err) for one in ended if one.code] == []
        cells = {
            (tenant, step): 1
            for tenants in shards.values()
            for tenant in tenants
            for step in ("extract", "load")
        }
        assert executions(tmp_path) == cells
        assert rig.completed() == [(*cell, "1", 1) for cell in sorted(cells)]
        assert rig.opened() == {shard: ["1"] for shard in shards}
        found = [shard for one in ended for shard in one.document["shards"]]
        assert {shard["status"] for shard in found} == {"completed"}
        assert sum(shard["ran"] for shard in found) == len(cells)
        assert set(rig.run_statuses()) == {"SUCCESS"}
        rig.check_nothing_held()


def test_two_runs_that_open_a_cycle_of_one_name_together_open_one(tmp_path: Path) -> None:
    """A cron job on two hosts, or a retry beside the first try: they ask for one pass, by date."""
    shards = {"a": ["a1", "a2"], "b": ["b1"]}
    with rig_of(tmp_path, module=SHORT_STEPS, shards=shards) as rig:
        for shard in shards:
            assert run_shard(rig.fleet, shard).report.is_complete
        new = ("run", "--json", "--new-cycle", "2026-03-01")
        started = [rig.start(*new), rig.start(*new)]
        ended = [one.finish() for one in started]
        assert [(one.code, one.err) for one in ended if one.code] == []
        assert rig.opened() == {shard: ["1", "2026-03-01"] for shard in shards}
        assert rig.completed() == sorted(
            (tenant, step, cycle, 1)
            for tenants in shards.values()
            for tenant in tenants
            for step in ("extract", "load")
            for cycle in ("1", "2026-03-01")
        )
        assert set(executions(tmp_path).values()) == {2}
        assert set(rig.run_statuses()) == {"SUCCESS"}


@pytest.mark.parametrize("how", ["run", "job"])
def test_a_run_that_waits_between_two_shards_processes_is_never_taken_for_dead(
    tmp_path: Path, how: str
) -> None:
    """A mender that fails a healthy run between its shards does more harm than the crash did.

    With one process at a time there are moments at which no process of the run works on a shard.
    The dead runs are looked for as often as this process can, and by the commands themselves.
    """
    shards = {"a": ["a1"], "b": ["b1"], "c": ["c1"], "d": ["d1"]}
    with rig_of(tmp_path, module=SHORT_STEPS, shards=shards, processes=1) as rig:
        # or doctor would find what the run has not registered yet
        assert rig.call("sync", "--json").code == 0
        live = rig.start_as(how)
        wait_until(lambda: "STARTED" in rig.run_statuses(), "the run")
        beside = [rig.start("doctor", "--fix", "--json"), rig.start("run", "--json")]
        fleet, taken_for_dead, looks = rig.fleet, [], 0
        with rig.instance() as instance:
            while not live.has_ended():
                taken_for_dead += end_dead_runs(instance, fleet)
                looks += 1
        ended = live.finish()
        assert taken_for_dead == []
        assert looks > 20
        assert ended.code == 0, ended.err
        doctor, second = (one.finish() for one in beside)
        assert doctor.document["findings"] == []
        assert (doctor.code, second.code) == (0, 0)
        assert set(rig.run_statuses()) == {"SUCCESS"}
        assert set(executions(tmp_path).values()) == {1}
        assert len(executions(tmp_path)) == 8
