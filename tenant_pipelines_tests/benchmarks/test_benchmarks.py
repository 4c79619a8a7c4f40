"""The benchmark keeps working; what it measures is for people and asserted nowhere."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

_SPREAD = {"title", "median", "min", "max", "rounds"}
_SUBJECTS = {
    "one_thread": {"engine"},
    "many_threads": {"engine"},
    "rerun": {"rerun", "plan"},
    "flights": {"in_turn", "processes"},
    "startup": {"run", "nothing"},
    "memory_first_run": {"1k", "10k"},
    "memory_rerun": {"1k", "10k"},
}
_DATA = {
    "plan": {"reader", "command"},
    "load": {"first", "generation", "merge", "replaces_groups", "replaces_all"},
    "tenant_memory": {"chain"},
}
_DAGSTER = {
    "definitions": {"load", "tell"},
    "sync": {"shards_of_1000", "shards_of_100", "again"},
    "events": {"planned", "materialization"},
    "reconcile": {"right", "tick", "lost"},
}
_BYTES = {"bytes_per_tenant_1k", "bytes_per_tenant_10k", "bytes_per_further_tenant"}
_DERIVED = {
    "one_thread": {"append_fsync_per_second", "cpu_ms_per_cell"},
    "many_threads": {"cpu_ms_per_cell"},
    "memory_first_run": _BYTES,
    "memory_rerun": _BYTES,
    "definitions": {"peak_mib"},
}


def _benchmarks(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tenant_pipelines_tests.benchmarks", *arguments],
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )


def _check_spread(found: dict[str, Any], *, any_sign: bool = False) -> None:
    assert found.keys() >= _SPREAD
    assert found["rounds"] == [found["min"]]
    assert found["min"] == found["median"] == found["max"]
    assert any_sign or found["min"] > 0


def _check_document(done: subprocess.CompletedProcess[str], subjects: dict[str, set[str]]) -> None:
    document = json.loads(done.stdout)
    assert document.keys() == {"scale", "rounds", "machine", "measurements"}
    assert document["machine"].keys() == {"cpus", "load_average", "python", "sqlite"}
    found = document["measurements"]
    assert {key: set(value["subjects"]) for key, value in found.items()} == subjects
    for key, measurement in found.items():
        assert measurement.keys() == {"title", "unit", "floor", "subjects", "derived"}
        _check_spread(measurement["floor"])
        for subject in measurement["subjects"].values():
            _check_spread(subject)
            assert subject["ratio"] > 0
            assert (subject["is_met"] is None) == (subject["target"] == "")
        assert set(measurement["derived"]) == _DERIVED.get(key, set())
        for name, derived in measurement["derived"].items():
            # a difference of two small processes can have any sign
            _check_spread(derived, any_sign=name in _BYTES)
        assert measurement["title"] in done.stderr


@pytest.mark.slow
def test_engine_measures_everything_beside_its_floor(tmp_path: Path) -> None:
    """At a hundredth of the size every part runs, and the document has every number."""
    done = _benchmarks(
        *("engine", "--json", "--scale", "0.01", "--rounds", "1"),
        *("--folder", str(tmp_path), "--profile"),
    )
    _check_document(done, _SUBJECTS)
    assert "chain.py" in done.stderr, "the profile shows the worker's thread"
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_data_measures_everything_beside_its_floor(tmp_path: Path) -> None:
    """At a thousandth of the size every part runs, and the document has every number."""
    small = ("--scale", "0.001", "--rounds", "1", "--folder", str(tmp_path))
    _check_document(_benchmarks("data", "--json", *small), _DATA)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_dagster_measures_everything_beside_its_floor(tmp_path: Path) -> None:
    """At a hundredth of the size every part runs, and the document has every number."""
    small = ("--scale", "0.01", "--rounds", "1", "--folder", str(tmp_path))
    _check_document(_benchmarks("dagster", "--json", *small), _DAGSTER)
    assert not list(tmp_path.iterdir())


def test_a_part_alone_prints_a_table() -> None:
    """Optimising one thing does not cost measuring all, and the table shows its target."""
    done = _benchmarks("engine", "--scale", "0.01", "--rounds", "3", "--only", "cells")
    assert "floor: append + fsync of 200 B" in done.stdout
    assert "≤ 0.5, ≤ 3 x floor: " in done.stdout
    assert "flights" not in done.stdout + done.stderr


@pytest.mark.parametrize("arguments", [(), ("engine",), ("data",), ("limits",), ("dagster",)])
def test_help_shows_an_example(arguments: tuple[str, ...]) -> None:
    """Who measures once a year starts from the example."""
    done = _benchmarks(*arguments, "--help")
    assert "python -m tenant_pipelines_tests.benchmarks" in done.stdout
    assert done.stderr == ""
