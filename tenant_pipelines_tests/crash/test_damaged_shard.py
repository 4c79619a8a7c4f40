"""A fleet of which many journals are unusable, each in a way of its own."""

import os
import shutil
import sqlite3
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tenant_pipelines.journal.journal import Journal
from tenant_pipelines_tests.crash.rig import SHORT_STEPS, Rig, rig_of

pytestmark = pytest.mark.slow


def _garbage(path: Path) -> None:
    path.write_bytes(b"not a journal\n" * (path.stat().st_size // 14))


def _half(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def _empty(path: Path) -> None:
    path.write_bytes(b"")


def _directory(path: Path) -> None:
    path.unlink()
    path.mkdir()
    (path / "what.txt").write_text("somebody's file")


def _newer(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 99")
    connection.close()


def _foreign(path: Path) -> None:
    path.unlink()
    Journal(path, fleet="another_fleet", shard="foreign").close()


# how each journal is damaged, and what its error has to say was found and to do about it
_DAMAGES: dict[str, tuple[Callable[[Path], None], str, str]] = {
    "garbage": (_garbage, "not an SQLite file", "Restore the file from a backup"),
    "half": (_half, "cut short or damaged", "Restore the file from a backup"),
    "empty": (_empty, "0 bytes that are not an SQLite file", "Restore the file from a backup"),
    "directory": (_directory, "a directory where the journal should be", "Restore the file"),
    "newer": (_newer, "schema version 99, newer than", "Install the newer tenant-pipelines"),
    "foreign": (_foreign, "fleet 'another_fleet'", "Move it back to where it belongs"),
}
_SOUND = ["sound_1", "sound_2"]


def test_damaged_journals_stop_their_own_shards_only_and_stay_as_they_are(tmp_path: Path) -> None:
    """A damaged journal is evidence and may be all that is left: nobody may write to it.

    The other customers' cycle goes on, and every command says what is wrong and the way out.
    """
    shards = {name: [f"tenant_{name}_{number}" for number in (1, 2)] for name in _names()}
    with rig_of(tmp_path, module=SHORT_STEPS, shards=shards) as rig:
        assert rig.call("run", "--json").code == 0
        for name, (damage, _, _) in _DAMAGES.items():
            damage(rig.fleet.journal_path(name))
        before = {name: _content(rig, name) for name in _DAMAGES}

        ended = rig.call("run", "--new-cycle", "second", "--json")
        assert ended.code == 1
        assert "Traceback" not in ended.err
        found = {shard["shard"]: shard for shard in ended.document["shards"]}
        assert {name: shard["status"] for name, shard in found.items()} == {
            **dict.fromkeys(_DAMAGES, "damaged"),
            **dict.fromkeys(_SOUND, "completed"),
        }
        for name in _SOUND:
            assert (found[name]["cycle"], found[name]["ran"]) == ("second", 4)
        for name in _DAMAGES:
            _check_error(rig, name, found[name]["error"])
        _check_status_and_plan(rig)
        assert {name: _content(rig, name) for name in _DAMAGES} == before
        assert rig.run_statuses() == ["FAILURE", "SUCCESS"]


def _names() -> list[str]:
    # sound shards first and last: neither order may matter
    return [_SOUND[0], *_DAMAGES, _SOUND[1]]


def _content(rig: Rig, shard: str) -> dict[str, bytes]:
    """Return every file of a shard's folder but its locks, byte for byte."""
    folder = rig.fleet.shard_state(shard)
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and "locks" not in path.parts
    }


def _check_error(rig: Rig, shard: str, error: str) -> None:
    _, what, fix = _DAMAGES[shard]
    assert error.startswith(f"{rig.fleet.journal_path(shard)}: ")
    assert what in error
    assert fix in error
    assert "\n" not in error


def _check_status_and_plan(rig: Rig) -> None:
    status = rig.call("status", "--json")
    assert (status.code, "Traceback" in status.err) == (1, False)
    for shard in status.document["shards"]:
        if shard["shard"] in _DAMAGES:
            assert shard["status"] == "damaged"
            _check_error(rig, shard["shard"], shard["error"])
        else:
            assert shard["status"] == "completed"
    plan = rig.call("plan", "--json")
    assert (plan.code, "Traceback" in plan.err) == (1, False)
    assert set(plan.document["damaged"]) == set(_DAMAGES)
    for name, error in plan.document["damaged"].items():
        _check_error(rig, name, error)
    assert {cell["shard"] for cell in plan.document["cells"]} == set(_SOUND)


def test_a_shard_on_a_read_only_mount_stops_alone_and_its_journal_stays_as_it_is(
    tmp_path: Path,
) -> None:
    """A disk that had an error is remounted read-only; the shards on the other disks go on."""
    shards = {"sound": ["s1", "s2"], "frozen": ["f1", "f2"]}
    with rig_of(tmp_path, module=SHORT_STEPS, shards=shards) as rig:
        assert rig.call("run", "--json").code == 0
        folder = rig.fleet.shard_state("frozen")
        before = _content(rig, "frozen")
        # a mount namespace of its own ends with the command, whatever happens
        mounted = ["unshare", "--mount", "sh", "-ec", _READ_ONLY, str(folder)]
        if not _may_mount(mounted):
            pytest.skip("mounting is not permitted here")

        ended = rig.call("run", "--new-cycle", "second", "--json", prefix=mounted)
        assert "Traceback" not in ended.err
        assert ended.code == 1
        found = {shard["shard"]: shard for shard in ended.document["shards"]}
        assert (found["sound"]["status"], found["sound"]["ran"]) == ("completed", 4)
        assert found["frozen"]["status"] == "damaged"
        error = found["frozen"]["error"]
        assert error.startswith(f"{rig.fleet.journal_path('frozen')}: ")
        assert "cannot be written" in error
        assert "Make the folder writable" in error
        for command in ("status", "plan"):
            said = rig.call(command, "--json", prefix=mounted)
            assert (said.code, said.err) == (1, "")
            assert error in said.out
        assert _content(rig, "frozen") == before

        # mounted as it was, nothing has to be mended
        again = rig.call("run", "--json")
        assert again.code == 0, again.err
        assert {shard["shard"]: shard["ran"] for shard in again.document["shards"]} == {
            "sound": 0,
            "frozen": 4,
        }


_READ_ONLY = 'mount --bind "$0" "$0"; mount -o remount,ro,bind "$0"; exec "$@"'


def _may_mount(mounted: list[str]) -> bool:
    if shutil.which("unshare") is None:
        return False
    return subprocess.run([*mounted, "true"], capture_output=True, check=False).returncode == 0
