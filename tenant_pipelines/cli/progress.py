"""Live progress of a run, read from the journals while Dagster works: a bar per shard, or lines."""

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn

from tenant_pipelines.cli.explain import in_words
from tenant_pipelines.errors import JournalUnusable
from tenant_pipelines.fleet.model import Fleet
from tenant_pipelines.journal.entries import EntryKind
from tenant_pipelines.journal.journal import Journal

_MOST_BARS = 20
_LINE_SECONDS = 2.0


@dataclass(slots=True)
class _ShardProgress:
    """What has been read of one shard so far."""

    total: int
    seq: int = 0
    done: int = 0
    failed: dict[str, str] = field(default_factory=dict)


class RunProgress:
    """Follows the journals of a run's shards in a thread of its own until the block is left."""

    def __init__(
        self, fleet: Fleet, todo: Mapping[str, int], *, run_id: str, console: Console
    ) -> None:
        """Prepare to follow a run.

        Args:
            fleet: the fleet.
            todo: cells that each shard is to run at most.
            run_id: id of the run.
            console: where the progress goes.
        """
        self._fleet = fleet
        self._run_id = run_id
        self._console = console
        self._shards = {shard: _ShardProgress(total) for shard, total in todo.items()}
        self._stops = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="progress", daemon=True)
        self._journals: dict[str, Journal] = {}
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[failures]}"),
            console=console,
        )
        self._tasks: dict[str, TaskID] = {}
        self._told: set[tuple[str, str]] = set()
        self._told_at = 0.0
        self._told_done = 0

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            for shard in list(self._shards)[:_MOST_BARS]:
                total = self._shards[shard].total
                self._tasks[shard] = self._bars.add_task(shard, total=total, failures="")
            self._bars.start()
        self._read_all()
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stops.set()
        self._thread.join()
        self._read_all()
        self._show(is_last=True)
        if self._console.is_terminal:
            self._bars.stop()
        for journal in self._journals.values():
            journal.close()

    def _follow(self) -> None:
        pause = max(0.25, 0.005 * len(self._shards))
        while not self._stops.wait(pause):
            self._read_all()
            self._show()

    def _read_all(self) -> None:
        for shard, progress in self._shards.items():
            try:
                self._read(shard, progress)
            except JournalUnusable:
                continue  # the shard's own op says so

    def _read(self, shard: str, progress: _ShardProgress) -> None:
        journal = self._journals.get(shard)
        if journal is None:
            path = self._fleet.journal_path(shard)
            journal = Journal.existing(path, fleet=self._fleet.name, shard=shard)
            if journal is None:
                return
            self._journals[shard] = journal
            if self._thread.ident is None:
                progress.seq = journal.last_seq()  # what older runs wrote is not progress
        for entry in journal.after(progress.seq):
            progress.seq = entry.seq
            if entry.run_id != self._run_id:
                continue
            cell = f"{entry.tenant}:{entry.step}"
            if entry.kind is EntryKind.COMPLETED:
                progress.done += 1
                progress.failed.pop(cell, None)
            elif entry.kind is EntryKind.FAILED:
                progress.failed[cell] = in_words(entry.payload["error"])[:300]

    def _show(self, *, is_last: bool = False) -> None:
        for shard, progress in self._shards.items():
            for cell, error in progress.failed.items():
                if (shard, cell) not in self._told:
                    self._told.add((shard, cell))
                    line = f"{shard}: {cell} failed: {error}"
                    self._console.print(line, markup=False, emoji=False)
        if self._console.is_terminal:
            for shard, task in self._tasks.items():
                progress = self._shards[shard]
                failures = f"{len(progress.failed)} failed" if progress.failed else ""
                self._bars.update(task, completed=progress.done, failures=failures)
            return
        now = time.monotonic()
        done = sum(progress.done for progress in self._shards.values())
        if done != self._told_done and (is_last or now - self._told_at >= _LINE_SECONDS):
            self._told_at, self._told_done = now, done
            total = sum(progress.total for progress in self._shards.values())
            self._console.print(f"{done} of {total} cells done")
