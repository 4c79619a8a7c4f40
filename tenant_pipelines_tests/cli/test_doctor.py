"""``doctor`` and ``sync`` as a user meets them, with real processes that were really killed."""

from pathlib import Path

import pytest
import yaml

from tenant_pipelines.orchestration import names
from tenant_pipelines.orchestration.instance import INSTANCE_SETTINGS
from tenant_pipelines_tests.cli.command import document, tenant_pipelines
from tenant_pipelines_tests.crash.rig import GATED_STEPS, rig_of, wait_until

_SHARDS = {"a": ["a1", "a2"], "b": ["b1"]}


@pytest.mark.slow
def test_a_killed_job_is_found_its_slot_is_freed_and_the_next_run_starts(tmp_path: Path) -> None:
    """Stock Dagster leaves the run STARTED and the pool full; the next run waits for ever."""
    with rig_of(tmp_path, module=GATED_STEPS, shards=_SHARDS, defaults={"runs_at_once": 1}) as rig:
        assert rig.call("sync", "--json").code == 0
        job = rig.start_job(shard="a")
        wait_until(lambda: len(rig.live_attempts("a")) == 2, "both tenants at work")
        assert rig.call("doctor", "--json").document["findings"] == []
        job.kill()
        found = rig.call("doctor", "--json")
        assert found.code == 1
        (dead,) = found.document["findings"]
        (run_id,) = dead["subjects"]
        assert dead == {
            "what": f"run {run_id} is dead, shows STARTED, holds 1 slot",
            "advice": f"tenant-pipelines doctor --fix --fleet {rig.fleet_file}",
            "severity": "problem",
            "subjects": [run_id],
            "is_fixed": False,
        }
        assert rig.call("doctor", "--json").document["findings"] == [dead]
        assert rig.run_statuses() == ["STARTED"]

        mended = rig.call("doctor", "--fix", "--json")
        assert mended.code == 0, mended.err
        assert mended.document["findings"] == [{**dead, "is_fixed": True}]
        assert rig.run_statuses() == ["FAILURE"]
        with rig.instance() as instance:
            pool = names.partition_set(rig.name, "a")
            assert instance.event_log_storage.get_concurrency_info(pool).claimed_slots == []
        well = rig.call("doctor")
        assert (well.code, well.out) == (0, "nothing found\n")
        rig.open_gate("a")
        assert rig.start_job(shard="a").finish().code == 0


@pytest.fixture
def fleet(tmp_path: Path) -> Path:
    (tmp_path / "one.py").write_text(
        "from tenant_pipelines import Pipeline, step\n\n"
        "@step\ndef only(ctx):\n    return None\n\n"
        "pipeline = Pipeline([only])\n"
    )
    path = tmp_path / "fleet.yaml"
    shards = {"a": {"tenants": ["a1", "a2"]}, "b": {"tenants": ["b1"], "runs_at_once": 2}}
    path.write_text(yaml.safe_dump({"name": "small", "pipeline": "one:pipeline", "shards": shards}))
    return path


def test_sync_says_what_holds_now_and_doctor_finds_nothing_after_it(
    fleet: Path, tmp_path: Path
) -> None:
    """A limit that is right already reads as right, and looking makes no instance."""
    new = tenant_pipelines("doctor", "--json", "--fleet", fleet, state=tmp_path)
    assert new.returncode == 1
    (none_yet,) = document(new)["findings"]
    assert none_yet["advice"] == f"tenant-pipelines sync --fleet {fleet}"
    assert list((tmp_path / "dagster_home").iterdir()) == []

    first = tenant_pipelines("sync", "--json", "--fleet", fleet, state=tmp_path)
    assert document(first)["shards"] == [
        {"shard": "a", "keys_added": 2, "pool_limit": 4, "is_limit_changed": True},
        {"shard": "b", "keys_added": 1, "pool_limit": 2, "is_limit_changed": True},
    ]
    again = tenant_pipelines("sync", "--fleet", fleet, state=tmp_path)
    assert again.stdout.splitlines()[:2] == [
        "a: 0 keys added, pool limit already 4",
        "b: 0 keys added, pool limit already 2",
    ]
    well = tenant_pipelines("doctor", "--fleet", fleet, state=tmp_path)
    assert (well.returncode, well.stdout) == (0, "nothing found\n")


def test_doctor_never_edits_a_dagster_yaml_and_says_what_to_add(
    fleet: Path, tmp_path: Path
) -> None:
    """The file is the user's; following the advice makes the next look clean."""
    home = tmp_path / "dagster_home"
    home.mkdir()
    (home / "history").mkdir()
    written = {"telemetry": {"enabled": False}, "run_retries": {"enabled": True}}
    (home / "dagster.yaml").write_text(yaml.safe_dump(written))
    before = (home / "dagster.yaml").read_bytes()
    ended = tenant_pipelines("doctor", "--fix", "--json", "--fleet", fleet, state=tmp_path)
    assert ended.returncode == 1
    assert (home / "dagster.yaml").read_bytes() == before
    findings = document(ended)["findings"]
    assert [one["subjects"] for one in findings if one["is_fixed"]] == [
        ["small/a", "small/b"],
        ["a", "b"],
    ]
    left = [one for one in findings if not one["is_fixed"]]
    assert len(left) == 4
    followed: dict[str, object] = dict(written)
    for one in left:
        place, lines = one["advice"].split("\n", 1)
        assert place == f"in {home / 'dagster.yaml'}, set"
        for section, value in yaml.safe_load(lines).items():
            before_it = followed.get(section)
            followed[section] = {**(before_it if isinstance(before_it, dict) else {}), **value}
    (home / "dagster.yaml").write_text(yaml.safe_dump(followed))
    well = tenant_pipelines("doctor", "--fleet", fleet, state=tmp_path)
    assert (well.returncode, well.stdout) == (0, "nothing found\n")


def test_without_dagster_home_a_well_fleet_exits_0_with_a_warning(
    fleet: Path, tmp_path: Path
) -> None:
    """Our commands work without it, and cron must be able to get a 0."""
    for fix in (["--fix"], []):
        ended = tenant_pipelines(
            "doctor", *fix, "--json", "--fleet", fleet, state=tmp_path, DAGSTER_HOME=""
        )
        assert ended.returncode == 0, ended.stderr
    (warning,) = document(ended)["findings"]
    assert warning["severity"] == "warning"
    home = tmp_path / "small" / "dagster"
    assert f"export DAGSTER_HOME={home}" in warning["advice"]
    assert yaml.safe_load((home / "dagster.yaml").read_text()) == INSTANCE_SETTINGS


def test_a_dagster_yaml_that_is_broken_is_one_message_and_exit_2(
    fleet: Path, tmp_path: Path
) -> None:
    """Not a traceback from inside Dagster."""
    home = tmp_path / "dagster_home"
    home.mkdir()
    (home / "dagster.yaml").write_text("run_monitoring: [\n")
    ended = tenant_pipelines("doctor", "--fleet", fleet, state=tmp_path)
    assert ended.returncode == 2
    assert str(home / "dagster.yaml") in ended.stderr
    assert "Traceback" not in ended.stderr
    assert [path.name for path in home.iterdir()] == ["dagster.yaml"]
