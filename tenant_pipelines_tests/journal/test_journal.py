"""The journal: durable, append-only, one completion per cell, one truth for many threads."""

import contextlib
import itertools
import multiprocessing
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tenant_pipelines.errors import EntryRefused, JournalUnusable
from tenant_pipelines.journal.entries import Draft, EntryKind
from tenant_pipelines.journal.fold import Cycle, Outcome, cycles_of, fold_tenant
from tenant_pipelines.journal.journal import Journal
from tenant_pipelines.journal.statements import statements
from tenant_pipelines_tests.journal.drafts import completed, failed, started


def _open(path: Path, *, fleet: str = "f", shard: str = "a") -> Journal:
    return Journal(path, fleet=fleet, shard=shard)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "shards" / "a" / "journal.db"


def test_entries_come_back_in_order_with_what_was_written(path: Path) -> None:
    """Every field survives, and seq has no gaps."""
    with _open(path) as journal:
        journal.append(started("acme", "extract"), completed("acme", "extract", digest="d1"))
        journal.append(failed("acme", "load"))
        found = list(journal.all_entries())
    assert [entry.seq for entry in found] == [1, 2, 3]
    assert [entry.kind.value for entry in found] == ["started", "completed", "failed"]
    assert found[1].payload["output"]["digest"] == "d1"
    assert {entry.pid for entry in found} == {os.getpid()}


def test_the_fold_tells_how_each_cell_stands(path: Path) -> None:
    """States come from entries alone."""
    with _open(path) as journal:
        journal.append(started("acme", "extract"), completed("acme", "extract", digest="d1"))
        journal.append(started("acme", "load"), failed("acme", "load"))
        journal.append(started("acme", "load", attempt=2))
        ((_, entries),) = journal.by_tenant("1")
        state = fold_tenant(entries)
    assert state.cell("extract").outcome is Outcome.COMPLETED
    assert state.cell("load").outcome is Outcome.STARTED
    assert state.cell("load").attempts == 2
    assert state.cell("other").outcome is Outcome.MISSING


def test_a_second_completion_of_a_cell_is_refused_with_all_of_its_transaction(path: Path) -> None:
    """The database itself holds the invariant, and nothing of the refused call is written."""
    with _open(path) as journal:
        journal.append(completed("acme", "extract"))
        with pytest.raises(EntryRefused):
            journal.append(started("acme", "load"), completed("acme", "extract"))
        journal.append(started("acme", "load"))
        assert [entry.kind.value for entry in journal.all_entries()] == ["completed", "started"]


def test_a_refused_entry_does_not_take_other_threads_entries_with_it(path: Path) -> None:
    """A shared commit fails only for who caused it."""
    with _open(path) as journal:
        journal.append(completed("t", "extract"))
        refused: list[int] = []
        barrier = threading.Barrier(16)

        def work(number: int) -> None:
            barrier.wait(10)
            try:
                journal.append(completed("t" if number % 2 else f"t{number}", "extract"))
            except EntryRefused:
                refused.append(number)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert sorted(refused) == list(range(1, 16, 2))
        assert {entry.tenant for entry in journal.all_entries()} == {
            "t", *(f"t{number}" for number in range(0, 16, 2)),
        }  # fmt: skip


def test_entries_are_never_updated(path: Path) -> None:
    """Not even by someone with a database tool."""
    with _open(path) as journal:
        journal.append(completed("acme", "extract"))
    with sqlite3.connect(path) as connection, pytest.raises(sqlite3.IntegrityError, match="never"):
        connection.execute("UPDATE entries SET tenant = 'globex'")


def test_an_entry_changed_behind_the_trigger_is_damage(path: Path) -> None:
    """A checksum covers every field, so an altered completion is never believed."""
    with _open(path) as journal:
        journal.append(completed("acme", "extract"))
    with sqlite3.connect(path) as connection:
        connection.execute("DROP TRIGGER entries_are_never_updated")
        connection.execute("UPDATE entries SET tenant = 'globex'")
    with _open(path) as journal, pytest.raises(JournalUnusable, match="checksum"):
        list(journal.all_entries())


def test_sixteen_threads_write_every_entry_exactly_once(path: Path) -> None:
    """Group commit loses nothing and doubles nothing."""
    with _open(path) as journal:

        def work(number: int) -> None:
            for index in range(25):
                journal.append(started(f"t{number}", f"s{index}"))

        threads = [threading.Thread(target=work, args=(number,)) for number in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        found = list(journal.all_entries())
    assert [entry.seq for entry in found] == list(range(1, 401))
    assert len({(entry.tenant, entry.step) for entry in found}) == 400


def _write_many(path: Path, name: str) -> None:
    with _open(path) as journal:
        for index in range(100):
            journal.append(started(f"{name}-{index}", "extract"))


def test_processes_that_create_and_write_one_journal_at_once_lose_nothing(path: Path) -> None:
    """The first to link its file wins; the others write into it."""
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_write_many, args=(path, str(n))) for n in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0, 0, 0, 0]
    with _open(path) as journal:
        assert len({entry.tenant for entry in journal.all_entries()}) == 400
    assert not list(path.parent.glob("*.new"))


_KILLED = """
import sys
from pathlib import Path
from tenant_pipelines.journal.journal import Journal
from tenant_pipelines.journal.statements import statements
from tenant_pipelines_tests.journal.drafts import completed
journal = Journal(Path(sys.argv[1]), fleet="f", shard="a")
for index in range(10_000):
    journal.append(completed(f"t{index}", "extract"))
    print(index, flush=True)
"""


def test_what_was_reported_before_a_sigkill_is_there_after_it(path: Path) -> None:
    """Invariant 1, with a real process and a real SIGKILL."""
    process = subprocess.Popen(
        [sys.executable, "-c", _KILLED, str(path)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        reported = [int(process.stdout.readline()) for _ in range(50)]
    finally:
        process.send_signal(signal.SIGKILL)
        rest = process.stdout.read()
        process.wait(30)
    reported += [int(line) for line in rest.split()]
    with _open(path) as journal:
        found = {entry.tenant for entry in journal.all_entries()}
    assert {f"t{index}" for index in reported} <= found
    assert len(found) <= len(reported) + 1


_WRITES_WHILE_OPENED_AGAIN = """
import os, signal, sys
from pathlib import Path
from tenant_pipelines.journal.journal import Journal
from tenant_pipelines.journal.statements import statements
from tenant_pipelines_tests.journal.drafts import completed
path = Path(sys.argv[1])
journal = Journal(path, fleet="f", shard="a")
journal.append(completed("t0", "extract"))
Journal(path, fleet="f", shard="a").close()
print("opened again", flush=True)
sys.stdin.readline()
journal.append(completed("t1", "extract"))
journal.append(completed("t2", "extract"))
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_second_journal_object_does_not_drop_the_locks_of_the_first(path: Path) -> None:
    """Closing any descriptor of a file drops the process's locks on it, SQLite's own too.

    Another process that closes its connection then takes the write-ahead log away, and what was
    reported afterwards is lost.
    """
    process = subprocess.Popen(
        [sys.executable, "-c", _WRITES_WHILE_OPENED_AGAIN, str(path)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "opened again\n"
        with _open(path) as other:
            assert len(list(other.all_entries())) == 1
        process.stdin.write("go\n")
        process.stdin.flush()
        process.wait(30)
    finally:
        process.kill()
        process.wait(30)
        process.stdin.close()
        process.stdout.close()
    with _open(path) as journal:
        assert [entry.tenant for entry in journal.all_entries()] == ["t0", "t1", "t2"]


def test_a_folder_with_a_question_mark_holds_its_own_journal(tmp_path: Path) -> None:
    """A path is not a URL."""
    path = tmp_path / "what?mode=ro" / "journal.db"
    with _open(path) as journal:
        journal.append(started("acme", "extract"))
    with _open(path) as journal:
        assert len(list(journal.all_entries())) == 1
    assert [entry.name for entry in tmp_path.iterdir()] == ["what?mode=ro"]


def test_opening_a_cycle_is_idempotent_by_name(path: Path) -> None:
    """Two runs that open the same cycle leave one entry."""
    with _open(path) as journal:
        for instant in ("2026-01-01T00:00:00.000000Z", "2026-01-02T00:00:00.000000Z"):
            journal.open_cycle(Cycle(instant=instant, name="1", root="r"), run_id="r")
        assert [cycle.instant for cycle in cycles_of(journal.cycle_entries())] == [
            "2026-01-01T00:00:00.000000Z"
        ]


def test_a_payload_that_is_not_json_fails_its_caller_and_nobody_else(path: Path) -> None:
    """One tenant's odd value must not stop the shard."""
    with _open(path) as journal:
        for odd in (object(), "half a surrogate \ud800"):
            with pytest.raises((TypeError, ValueError)):
                journal.append(replace(started("acme", "extract"), payload={"odd": odd}))
        journal.append(started("globex", "extract"))
        assert [entry.tenant for entry in journal.all_entries()] == ["globex"]


def test_pages_are_small(path: Path) -> None:
    """A commit writes every page it touches whole."""
    _open(path).close()
    assert int.from_bytes(path.read_bytes()[16:18], "big") == 1024


@pytest.mark.parametrize(
    ("statement", "parameters", "index"),
    [
        ("cycles", (0,), "one_cycle_opened"),
        ("of_tenant", ("1", "acme", 0), "by_tenant"),
        ("of_cycle", ("1",), "by_tenant"),
        ("completions", ("acme",), "one_completed"),
    ],
)
def test_what_a_chain_asks_for_is_found_by_an_index(
    path: Path, statement: str, parameters: tuple[object, ...], index: str
) -> None:
    """A look-up that reads the whole journal makes a run of n tenants cost n times n."""
    _open(path).close()
    text = getattr(statements(), statement)
    with contextlib.closing(sqlite3.connect(path)) as connection:
        plan = connection.execute(f"EXPLAIN QUERY PLAN {text}", parameters).fetchall()
    assert index in plan[0][3], plan


def _garbage(path: Path) -> None:
    path.write_bytes(b"not a database" * 4000)


def _empty(path: Path) -> None:
    path.write_bytes(b"")


def _half(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def _directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _newer(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 99")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def _foreign_application(path: Path) -> None:
    path.unlink()
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE t (x)")


def _other_fleet(path: Path) -> None:
    path.unlink()
    _open(path, fleet="other").close()


def _other_shard(path: Path) -> None:
    path.unlink()
    _open(path, shard="b").close()


@pytest.mark.parametrize(
    ("damage", "found"),
    [
        (_garbage, "not an SQLite file"),
        (_empty, "0 bytes"),
        (_half, "cut short"),
        (_directory, "a directory"),
        (_newer, "schema version 99"),
        (_foreign_application, "another application"),
        (_other_fleet, "of fleet 'other'"),
        (_other_shard, "of shard 'b'"),
    ],
)
def test_a_file_that_is_not_this_shards_journal_is_refused_and_left_untouched(
    path: Path, damage: Callable[[Path], None], found: str
) -> None:
    """The error names the file, what was found and the way out; not a byte changes."""
    with _open(path) as journal:
        journal.append(*(started(f"t{index}", "extract") for index in range(500)))
    damage(path)
    before = _content(path.parent)
    with pytest.raises(JournalUnusable, match=found) as caught:
        _open(path)
    assert str(path) in str(caught.value)
    assert caught.value.facts["fix"]
    assert _content(path.parent) == before


def _content(folder: Path) -> dict[str, bytes | None]:
    return {
        str(entry.relative_to(folder)): entry.read_bytes() if entry.is_file() else None
        for entry in sorted(folder.rglob("*"))
    }


def test_a_journal_that_is_gone_while_its_log_is_there_is_damage(path: Path) -> None:
    """A new file beside an old write-ahead log would replay it."""
    _open(path).close()
    path.rename(path.with_name("elsewhere.db"))
    path.with_name(path.name + "-wal").write_bytes(b"frames")
    with pytest.raises(JournalUnusable, match="is gone"):
        Journal.existing(path, fleet="f", shard="a")


def test_a_crash_in_the_middle_of_a_checkpoint_is_not_damage(path: Path, tmp_path: Path) -> None:
    """The main file is shorter than its header says, and the write-ahead log mends it."""
    with _open(path) as journal:
        journal.append(*(started(f"t{index}", "extract") for index in range(300)))
        copy = tmp_path / "copy" / "journal.db"
        copy.parent.mkdir()
        shutil.copyfile(path, copy)
        shutil.copyfile(path.with_name("journal.db-wal"), copy.with_name("journal.db-wal"))
    header = bytearray(copy.read_bytes()[:4096])
    header[28:32] = (1000).to_bytes(4, "big")
    with copy.open("r+b") as file:
        file.write(header[:100])
    with _open(copy) as journal:
        assert len(list(journal.all_entries())) == 300


def _append_for_ever(journal: Journal) -> None:
    for index in itertools.count():
        journal.append(started(f"t{index}", "extract"))


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """Return a folder on a disk of 400 kB."""
    if os.geteuid() != 0:
        pytest.skip("needs root to mount")
    mount = tmp_path / "small"
    mount.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", str(mount)]
    if subprocess.run(command, check=False).returncode:
        pytest.skip("this machine does not let root mount")
    try:
        yield mount
    finally:
        subprocess.run(["umount", str(mount)], check=True)


def test_a_full_disk_is_named_and_nothing_further_is_written(small: Path) -> None:
    """After a failed append the journal refuses more: a later fsync may falsely succeed."""
    with _open(small / "journal.db") as journal:
        with pytest.raises(JournalUnusable, match="disk is full"):
            _append_for_ever(journal)
        with pytest.raises(JournalUnusable, match="disk is full"):
            journal.append(started("after", "extract"))
        assert "after" not in {entry.tenant for entry in journal.all_entries()}


@pytest.mark.parametrize("free", [8, 24, 40, 56, 68])
def test_a_disk_that_is_full_while_a_journal_is_made_leaves_none(small: Path, free: int) -> None:
    """A journal whose content stayed in its log would be damaged for good."""
    filling = small / "filling"
    filling.write_bytes(b"x" * (400 - free) * 1024)
    with pytest.raises(JournalUnusable, match=r"journal\.db"):
        _open(small / "journal.db")
    assert [path.name for path in small.iterdir()] == ["filling"]
    filling.unlink()
    with _open(small / "journal.db") as journal:
        assert journal.integrity() is None


def test_a_draft_of_the_whole_shard_needs_no_tenant(path: Path) -> None:
    """Entries of the shard are not entries of a tenant called ''."""
    with _open(path) as journal:
        journal.append(
            Draft(
                kind=EntryKind.CYCLE_OPENED, cycle="1", run_id="r",
                payload={"instant": "2026-01-01T00:00:00.000000Z", "root": "r"},
            )
        )  # fmt: skip
        assert list(journal.by_tenant("1")) == []
        assert journal.tenants() == frozenset()
