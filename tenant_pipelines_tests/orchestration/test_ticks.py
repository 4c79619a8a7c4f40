"""A run that a schedule's tick started works on the cycle of its scheduled time, once."""

from typing import Any

from tenant_pipelines.engine.cycles import known_cycles
from tenant_pipelines_tests.orchestration.conftest import Rig

_TICK = "tenant_pipelines/tick"


def _cycles(rig: Rig) -> list[str]:
    cycles, _ = known_cycles(rig.fleet)
    return sorted({cycle.name for cycle in cycles})


def _failure(result: Any) -> str:
    failed = next(event for event in result.all_events if event.is_step_failure)
    return str(failed.step_failure_data.user_failure_data)


def test_a_tick_opens_its_cycle_and_a_late_or_repeated_one_only_resumes(rig: Rig) -> None:
    """Whatever order the ticks' runs come in, each cell runs once in the newest cycle."""
    first = rig.run("shard_3", tags={_TICK: "2026-03-01T04:00:00+01:00"})
    assert _cycles(rig) == ["2026-03-01T03:00:00Z"]
    assert len(rig.materializations(first.run_id)) == 3
    for late in ("2026-03-01T03:00:00+00:00", "2026-02-28T03:00:00Z"):
        again = rig.run("shard_3", tags={_TICK: late})
        assert again.success
        assert rig.materializations(again.run_id) == {}
    assert _cycles(rig) == ["2026-03-01T03:00:00Z"]
    rig.run("shard_3", tags={_TICK: "2026-03-02T03:00:00Z"})
    assert _cycles(rig) == ["2026-03-01T03:00:00Z", "2026-03-02T03:00:00Z"]


def test_a_tick_without_a_usable_time_is_refused(rig: Rig) -> None:
    """A time without its zone would mean another instant on another host."""
    for tag in ("soon", "2026-03-01T03:00:00"):
        result = rig.run("shard_3", tags={_TICK: tag})
        assert not result.success
        assert f"run tag {_TICK}: found {tag!r}" in _failure(result)
    assert _cycles(rig) == []


def test_a_tick_of_the_future_is_refused(rig: Rig) -> None:
    """The UI can evaluate a schedule at any time; that cycle would outlast every real tick."""
    result = rig.run("shard_3", tags={_TICK: "2226-03-01T03:00:00Z"})
    assert not result.success
    assert "'2226-03-01T03:00:00Z', a time of the future" in _failure(result)
    assert _cycles(rig) == []
