"""The store gives back what it was given, once written and whole, or says what is wrong."""

import contextlib
import errno
import math
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings

from tenant_pipelines.engine.ports import CellStore
from tenant_pipelines.errors import ArtifactDamaged, ArtifactMissing, UnsupportedOutput
from tenant_pipelines.storage.artifacts import ArtifactStore, folder_name
from tenant_pipelines.storage.digest import table_digest
from tenant_pipelines.storage.frame import to_table
from tenant_pipelines.storage.output import StoredOutput
from tenant_pipelines_tests.storage.cells import attempt, finish, start
from tenant_pipelines_tests.storage.frames import frames, json_values

FRAME = pd.DataFrame({"a": [1, 2, 3], "s": ["x", None, "z"]})
ONE_ROOT = settings(
    deadline=None,
    max_examples=100,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@pytest.fixture(params=["local", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> CellStore:
    if request.param == "local":
        return ArtifactStore(tmp_path / "artifacts")
    return ArtifactStore(f"memory://{tmp_path}")


@pytest.fixture
def local(tmp_path: Path) -> ArtifactStore:
    return ArtifactStore(tmp_path)


def files(root: Path) -> set[str]:
    return {path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()}


@given(frame=frames())
@ONE_ROOT
def test_a_frame_comes_back_equal(local: ArtifactStore, frame: pd.DataFrame) -> None:
    """Dtypes, values, index and names survive the file, and so does the digest."""
    stored = local.store(attempt(), frame)
    loaded = local.load(attempt(), stored)
    pd.testing.assert_frame_equal(loaded, frame)
    assert table_digest(to_table(loaded)) == stored.digest
    assert local.store(attempt(number=2), loaded).digest == stored.digest


@given(value=json_values())
@ONE_ROOT
def test_json_comes_back_equal(local: ArtifactStore, value: Any) -> None:
    """Equal, of the same types, and with the same digest whatever the order of keys."""
    stored = StoredOutput.from_json(local.store(attempt(), value).to_json())
    loaded = local.load(attempt(), stored)
    assert repr(loaded) == repr(value) or loaded == value
    assert local.store(attempt(), loaded).digest == stored.digest


def test_the_contract_of_every_kind(store: CellStore) -> None:
    """None and small JSON are inline, large JSON and frames are files, all load and exist."""
    values = [None, {"b": 1, "a": [True, 1.5, "ü"]}, "x" * 9000, FRAME]
    stored = [store.store(attempt(), value) for value in values]
    assert [(output.kind, output.path is None, output.rows) for output in stored] == [
        ("none", True, None),
        ("json", True, None),
        ("json", False, None),
        ("parquet", False, 3),
    ]
    assert all(store.exists(output) for output in stored)
    loaded = [store.load(attempt(), output) for output in stored]
    assert loaded[:3] == values[:3]
    pd.testing.assert_frame_equal(loaded[3], FRAME)
    kept = {output.path for output in stored[3:] if output.path}
    assert store.collect(tenant="acme", keep=kept) == 1
    assert [store.exists(output) for output in stored] == [True, True, False, True]
    assert store.collect(tenant="acme", keep=set()) == 1
    for output in stored[2:]:
        with pytest.raises(ArtifactMissing, match="acme"):
            store.load(attempt(), output)


def test_inline_ends_at_8192_bytes(local: ArtifactStore) -> None:
    """The journal's entries stay small; the quotes of the JSON text count."""
    assert local.store(attempt(), "x" * 8190).path is None
    assert local.store(attempt(), "x" * 8191).path is not None


def test_a_loaded_value_is_nobody_elses(local: ArtifactStore) -> None:
    """A step that changes its input must not change what the journal's entry holds."""
    given_value = {"a": [1]}
    stored = local.store(attempt(), given_value)
    given_value["a"].append(2)
    local.load(attempt(), stored)["a"].append(3)
    assert local.load(attempt(), stored) == {"a": [1]}


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (math.nan, "nan"),
        ({"a": [1, math.inf]}, r"inf at \['a'\]\[1\]"),
        ({1: "x"}, "the key 1 "),
        ({"n": np.int64(3)}, r"numpy.int64 at \['n'\].*\.item\(\)"),
        (np.float64(1.0), r"\.item\(\)"),
        (np.array([1]), r"\.tolist\(\)"),
        ((1, 2), "a list"),
        ({1, 2}, "type set"),
        (b"x", "type bytes"),
        (pd.Series([1]), r"to_frame\(\)"),
        pytest.param({"a": ["\ud800"]}, r"surrogate pair at \['a'\]\[0\]", id="surrogate"),
        pytest.param([10**5000], r"a number at \[0\]", id="5000 digits"),
        (object(), "object"),
        (pd.DataFrame([[1, 2]], columns=["a", "a"]), "'a' more than once"),
        (pd.DataFrame({1: [1]}), "column name 1"),
        (pd.DataFrame({"m": [1, "x"]}), "column 'm'"),
        (pd.DataFrame({"m": pd.Series([1, 2.5], dtype=object)}), "column 'm'"),
        (pd.DataFrame({"m": pd.Series(["a", b"b"], dtype=object)}), "column 'm'"),
        (pd.DataFrame({"m": [2**70]}), "column 'm'"),
        (pd.DataFrame({"m": [1j]}), "column 'm'"),
        (pd.DataFrame({"m": [{"a": 1}, {"b": 1}]}), "column 'm'"),
        (pd.DataFrame({"m": pd.period_range("2024", periods=1, freq="M")}), "column 'm'"),
    ],
)
def test_what_cannot_be_kept_is_refused(tmp_path: Path, value: Any, says: str) -> None:
    """The error names tenant, step, place and the way out; nothing is written."""
    with pytest.raises(UnsupportedOutput, match=f"(?s)'acme'.*'extract'.*{says}"):
        ArtifactStore(tmp_path / "artifacts").store(attempt(), value)
    assert not (tmp_path / "artifacts").exists()


def test_data_that_contains_itself_is_refused(local: ArtifactStore) -> None:
    """No recursion without end."""
    value: list[Any] = []
    value.append(value)
    with pytest.raises(UnsupportedOutput, match="deep"):
        local.store(attempt(), value)


@pytest.mark.slow
@pytest.mark.parametrize("value", [FRAME, "x" * 9000], ids=["parquet", "json"])
def test_no_changed_byte_goes_unnoticed(local: ArtifactStore, tmp_path: Path, value: Any) -> None:
    """Every single byte of a file, flipped: an error, or still exactly the data."""
    stored = local.store(attempt(), value)
    assert stored.path
    file = tmp_path / stored.path
    whole = file.read_bytes()
    noticed = 0
    for position in range(len(whole)):
        file.write_bytes(whole[:position] + bytes([whole[position] ^ 0x10]) + whole[position + 1 :])
        try:
            loaded = local.load(attempt(), stored)
        except ArtifactDamaged:
            noticed += 1
        else:
            assert FRAME.equals(loaded), position
    assert noticed > len(whole) / 2
    for wrong in (whole[:-9], b"", whole[: len(whole) // 2]):
        file.write_bytes(wrong)
        with pytest.raises(ArtifactDamaged, match="'acme'"):
            local.load(attempt(), stored)


def test_an_exchanged_artifact_is_noticed(local: ArtifactStore, tmp_path: Path) -> None:
    """A whole file of other data is damage too."""
    stored = local.store(attempt(), FRAME)
    other = local.store(attempt(), FRAME.iloc[::-1].reset_index(drop=True))
    assert stored.path
    assert other.path
    (tmp_path / stored.path).write_bytes((tmp_path / other.path).read_bytes())
    with pytest.raises(ArtifactDamaged, match="digest"):
        local.load(attempt(), stored)


def test_a_damaged_inline_value_is_noticed(local: ArtifactStore) -> None:
    """A payload that says other than its digest."""
    payload = {**local.store(attempt(), {"a": 1}).to_json(), "value": {"a": 2}}
    with pytest.raises(ArtifactDamaged, match="journal entry"):
        local.load(attempt(), StoredOutput.from_json(payload))


@pytest.mark.parametrize(
    "names",
    [
        ["Acme", "acme", "ACME"],
        ["a/b", "a_b", "a b", "../a_b", "a\\b"],
        ["é", "e\u0301", "…", ".", ".."],
        ["x" * 250, "x" * 251],
    ],
    ids=["case", "separators", "unicode", "long"],
)
def test_no_two_names_share_a_folder(names: list[str]) -> None:
    """Also where the file system ignores case; and no name leaves the root."""
    folders = [folder_name(name) for name in names]
    assert len({folder.casefold() for folder in folders}) == len(names)
    for folder in folders:
        assert folder.isascii()
        assert len(folder) <= 57
        assert not set(folder) & set("/\\.")


def test_a_path_says_what_it_holds(local: ArtifactStore) -> None:
    """Someone who looks at the folder finds tenant, step, cycle, generation and attempt."""
    where = attempt(tenant="Ünited, Inc.", step="load", cycle="2024-01-01T00:00", generation=2)
    path = local.store(where, FRAME).path
    assert path
    tenant, step, cycle, name = path.split("/")
    assert tenant == folder_name("Ünited, Inc.")
    assert (tenant[:9], step, cycle[:17]) == ("nited_Inc", "load", "2024_01_01T00_00-")
    assert name.startswith("g2-a1-")
    assert name.endswith(".parquet")


def test_collect_touches_one_tenant(local: ArtifactStore, tmp_path: Path) -> None:
    """Others keep their artifacts; emptied folders go; storing again works."""
    other = local.store(attempt(tenant="Acme"), FRAME)
    local.store(attempt(), FRAME)
    local.store(attempt(step="transform"), FRAME)
    assert local.collect(tenant="acme", keep=set()) == 2
    assert files(tmp_path) == {other.path}
    assert not (tmp_path / folder_name("acme")).exists()
    assert local.exists(local.store(attempt(), FRAME))
    assert local.collect(tenant="nobody", keep=set()) == 0


@contextlib.contextmanager
def full_disk(folder: Path) -> Iterator[None]:
    """Mount a file system of 64 KB."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("a small tmpfs needs root and the right to mount")
    try:
        yield
    finally:
        subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.parametrize(
    "value",
    [pd.DataFrame({"a": np.random.default_rng(1).bytes(400_000)}, index=[0]), "x" * 400_000],
)
def test_a_full_disk_leaves_no_partial_file(tmp_path: Path, value: Any) -> None:
    """The error names the file; afterwards the store works again."""
    with full_disk(tmp_path / "disk"):
        local = ArtifactStore(tmp_path / "disk")
        with pytest.raises(OSError, match="No space left") as caught:
            local.store(attempt(), value)
        assert caught.value.errno == errno.ENOSPC
        assert str(tmp_path / "disk") in str(caught.value.filename)
        assert files(tmp_path / "disk") == set()
        assert local.exists(local.store(attempt(), FRAME))


STORE_FOR_EVER = """
import sys, pandas as pd
from tenant_pipelines.storage.artifacts import ArtifactStore
from tenant_pipelines_tests.storage.cells import attempt
store = ArtifactStore(sys.argv[1])
frame = pd.DataFrame({"a": range(200_000)})
for number in range(1, 10**6):
    print(store.store(attempt(number=number), frame).path, flush=True)
"""


@pytest.mark.slow
def test_sigkill_while_storing_loses_nothing_that_was_reported(tmp_path: Path) -> None:
    """What store returned is whole; what it did not is at most one stray that collect deletes."""
    process = start(STORE_FOR_EVER, tmp_path)
    assert process.stdout
    reported = [process.stdout.readline().strip() for _ in range(20)]
    process.send_signal(signal.SIGKILL)
    rest, _ = process.communicate(timeout=60)
    reported += rest.split("\n")[:-1]
    local = ArtifactStore(tmp_path)
    expected = pd.DataFrame({"a": range(200_000)})
    digest = table_digest(to_table(expected))
    for path in reported:
        output = StoredOutput(kind="parquet", digest=digest, rows=200_000, path=path)
        pd.testing.assert_frame_equal(local.load(attempt(), output), expected)
    assert set(reported) <= files(tmp_path)
    assert local.collect(tenant="acme", keep=set(reported)) <= 1
    assert files(tmp_path) == set(reported)


def test_json_needs_neither_pandas_nor_arrow(tmp_path: Path) -> None:
    """A fleet of JSON steps starts without the second that importing them takes."""
    script = """
import sys
import tenant_pipelines
from tenant_pipelines.storage.artifacts import ArtifactStore
from tenant_pipelines_tests.storage.cells import attempt
store = ArtifactStore(sys.argv[1])
assert store.load(attempt(), store.store(attempt(), ["x" * 9000])) == ["x" * 9000]
print(sorted({"pandas", "pyarrow", "sqlalchemy", "upath", "numpy"} & set(sys.modules)))
"""
    assert finish(start(script, tmp_path)) == "[]\n"
