"""Dagster's settings and releases as this package reads them, against Dagster itself."""

import os
from importlib.metadata import Distribution
from pathlib import Path

import dagster
import pytest
import yaml

from tenant_pipelines.errors import InvalidRequest
from tenant_pipelines.orchestration.dagster_settings import (
    Release,
    Settings,
    open_existing,
    read_settings,
    releases,
)
from tenant_pipelines.orchestration.instance import INSTANCE_SETTINGS, Home


def _home(folder: Path, settings: object) -> Home:
    (folder / "history").mkdir(parents=True)
    (folder / "dagster.yaml").write_text(yaml.safe_dump(settings))
    return Home(folder, "test")


@pytest.fixture(autouse=True)
def _dagster_home(monkeypatch: pytest.MonkeyPatch) -> None:
    # opening an instance sets it
    monkeypatch.setenv("DAGSTER_HOME", os.environ.get("DAGSTER_HOME", ""))


def test_our_own_dagster_yaml_is_read_as_it_is_meant(tmp_path: Path) -> None:
    """What the daemon reads is what decides, not what the file looks like."""
    instance = open_existing(_home(tmp_path, INSTANCE_SETTINGS))
    assert instance is not None
    with instance:
        assert read_settings(instance) == Settings(
            granularity="op",
            default_pool_limit=4,
            is_monitored=True,
            free_slots_after_seconds=30,
            has_run_retries=False,
        )


@pytest.mark.parametrize(
    "written",
    [
        {},
        {
            "run_monitoring": {"enabled": False, "free_slots_after_run_end_seconds": 0},
            "concurrency": {"pools": {"granularity": "op"}},
        },
    ],
)
def test_dagsters_defaults_are_read_as_nothing_set(tmp_path: Path, written: object) -> None:
    """An empty file is what most people start with; to the daemon a 0 means never."""
    instance = open_existing(_home(tmp_path, written))
    assert instance is not None
    with instance:
        assert read_settings(instance) == Settings(
            granularity="op",
            default_pool_limit=None,
            is_monitored=False,
            free_slots_after_seconds=None,
            has_run_retries=False,
        )


def test_where_no_instance_is_nothing_is_made(tmp_path: Path) -> None:
    """Looking must not leave an instance with defaults that nobody chose."""
    missing = tmp_path / "missing"
    assert open_existing(Home(missing, "test")) is None
    assert not missing.exists()
    (tmp_path / "dagster.yaml").write_text(yaml.safe_dump(INSTANCE_SETTINGS))
    assert open_existing(Home(tmp_path, "test")) is None
    assert [path.name for path in tmp_path.iterdir()] == ["dagster.yaml"]


@pytest.mark.parametrize("text", ["run_monitoring: [", "surprise: 1", "concurrency: {pools: 1}"])
def test_a_dagster_yaml_that_is_not_valid_is_named(tmp_path: Path, text: str) -> None:
    """One message with the file, no traceback."""
    home = _home(tmp_path, {})
    (tmp_path / "dagster.yaml").write_text(text)
    with pytest.raises(InvalidRequest, match=r"dagster\.yaml"):
        open_existing(home)


def _distribution(folder: Path, name: str, version: str, *requires: str) -> Distribution:
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    lines = ["Metadata-Version: 2.4", f"Name: {name}", f"Version: {version}"]
    lines += [f"Requires-Dist: {requirement}" for requirement in requires]
    (info / "METADATA").write_text("\n".join(lines) + "\n")
    return Distribution.at(info)


def test_the_installed_releases_match_and_are_all_found() -> None:
    """Beside a false alarm on each machine, a silent one would be worth nothing."""
    found = releases()
    names = {one.name for one in found}
    assert {"dagster", "dagster-graphql", "dagster-pipes", "dagster-shared"} <= names
    assert all(one.version == dagster.__version__ for one in found if one.name == "dagster")
    assert [one for one in found if not one.is_right] == []


def test_an_older_library_is_found_by_the_release_that_it_requires(tmp_path: Path) -> None:
    """Integrations are 0.29.x for 1.13.x; those of others number as they like."""
    found = releases(
        [
            _distribution(tmp_path, "dagster", "1.13.28", "dagster-shared==1.13.28"),
            _distribution(tmp_path, "dagster_shared", "1.13.27"),
            _distribution(tmp_path, "dagster-webserver", "1.13.28", "dagster==1.13.28"),
            _distribution(tmp_path, "dagster-postgres", "0.28.9", "dagster==1.12.9", "psycopg2"),
            _distribution(tmp_path, "dagster-aws", "0.29.28", "dagster (==1.13.28)"),
            _distribution(tmp_path, "dagster-ray", "0.3.1", "dagster>=1.8.0"),
            _distribution(tmp_path, "dag-cbor", "0.1", "dagster==1.0.0"),
        ]
    )
    assert {(one.name, one.wanted) for one in found if not one.is_right} == {
        ("dagster-shared", "1.13.28"),
        ("dagster-postgres", "0.29.28"),
    }
    assert Release(name="dagster-aws", version="0.29.28", wanted="0.29.28", is_right=True) in found
    assert len(found) == 5
