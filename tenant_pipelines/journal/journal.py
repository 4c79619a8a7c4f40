"""The durable, append-only record of what happened in one shard.

An append that has returned survives SIGKILL and power loss. Appends of all threads share commits:
whoever comes first commits for all that wait (group commit), so there is one writer at a time and
a lone thread pays no hand-over. Reading never blocks writing (WAL).
"""

import contextlib
import itertools
import os
import socket
import sqlite3
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self, cast

from sqlalchemy import PoolProxiedConnection

from tenant_pipelines.errors import EntryRefused, JournalUnusable
from tenant_pipelines.journal import sqlite_file
from tenant_pipelines.journal.entries import (
    Draft,
    Entry,
    EntryKind,
    canonical_json,
    checksum,
    entry_from_row,
    instant,
)
from tenant_pipelines.journal.fold import Cycle
from tenant_pipelines.journal.schema import pruned
from tenant_pipelines.journal.statements import CREATE_PRUNED, statements


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruned:
    """What was deleted from a journal so far.

    Attributes:
        cycles: names of the cycles that entries were deleted from.
        entries: how many.
        seqs: the sum of their seqs.
    """

    cycles: frozenset[str] = frozenset()
    entries: int = 0
    seqs: int = 0


@dataclass(slots=True)
class _Ticket:
    """Drafts that wait for a commit, and the lock on which their thread sleeps."""

    drafts: Sequence[Draft]
    payloads: Sequence[str]
    error: BaseException | None = None
    leads: bool = False
    wake: threading.Lock = field(default_factory=threading.Lock)


def _utc_now() -> datetime:
    return datetime.now(UTC)


class Journal:
    """One shard's journal.

    A crash leaves committed entries and nothing else; the next opener needs no repair. After an
    append failed (full disk, I/O error) the journal refuses further appends: a later fsync may
    falsely succeed (https://wiki.postgresql.org/wiki/Fsync_Errors).
    """

    def __init__(
        self, path: Path, *, fleet: str, shard: str, now: Callable[[], datetime] = _utc_now
    ) -> None:
        """Open the journal, creating it when there is none.

        Args:
            path: its file.
            fleet: name of the fleet it must belong to.
            shard: name of the shard it must belong to.
            now: the clock, UTC.

        Raises:
            JournalUnusable: damaged, foreign, newer or unwritable; the file is as it was.
        """
        if not path.exists():
            sqlite_file.create_file(path, fleet=fleet, shard=shard)
        self._claim: tuple[int, int] | None = sqlite_file.claim_checked(
            path, fleet=fleet, shard=shard
        )
        self.path = path
        self.shard = shard
        self._now = now
        self._engine = sqlite_file.connect_engine(path)
        self._mutex = threading.Lock()
        self._pending: list[_Ticket] = []
        self._is_led = False
        self._failure: JournalUnusable | None = None
        self._statements = statements()
        self._writer: sqlite3.Connection | None = None
        self._connections: list[PoolProxiedConnection] = []
        self._local = threading.local()
        self._host = socket.gethostname()

    @classmethod
    def existing(cls, path: Path, *, fleet: str, shard: str) -> Self | None:
        """Open the journal, or return None when there is none; never creates one.

        Raises:
            JournalUnusable: see ``__init__``.
        """
        if not path.exists() and not path.with_name(path.name + "-wal").exists():
            return None
        return cls(path, fleet=fleet, shard=shard)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections; call it when no thread uses the journal any more."""
        for connection in self._connections:
            connection.close()
        self._connections, self._writer = [], None
        self._local = threading.local()
        self._engine.dispose()
        sqlite_file.release(self._claim)
        self._claim = None

    def append(self, *drafts: Draft) -> None:
        """Write entries in one transaction; they are durable when the call returns.

        Raises:
            JournalUnusable: they could not be written, and none of them was.
            EntryRefused: the database's own guarantees forbid one of them; none was written.
            TypeError, ValueError: a payload is not JSON; none was written.
        """
        if not drafts:
            return
        # here, where only the caller pays for what cannot be written
        payloads = [canonical_json(draft.payload) for draft in drafts]
        for payload in payloads:
            payload.encode()
        ticket = _Ticket(drafts, payloads)
        ticket.wake.acquire()
        with self._mutex:
            self._pending.append(ticket)
            ticket.leads = not self._is_led
            self._is_led = True
        if not ticket.leads:
            ticket.wake.acquire()
        if ticket.leads:
            self._lead()
        if ticket.error is not None:
            raise ticket.error

    def _lead(self) -> None:
        with self._mutex:
            batch, self._pending = self._pending, []
        try:
            self._commit(batch)
        finally:
            with self._mutex:
                following = self._pending[0] if self._pending else None
                self._is_led = following is not None
            if following is not None:
                following.leads = True
                following.wake.release()
            for ticket in batch:
                if not ticket.leads:
                    ticket.wake.release()

    def _commit(self, batch: Sequence[_Ticket]) -> None:
        if self._failure is None:
            try:
                self._write(batch)
            except sqlite3.IntegrityError as error:
                if len(batch) == 1:
                    batch[0].error = EntryRefused(path=self.path, found=str(error))
                else:
                    for ticket in batch:
                        self._commit([ticket])
                return
            except sqlite3.Error as error:
                self._failure = sqlite_file.unusable(self.path, error)
                self._failure.__cause__ = error
            except BaseException as error:  # noqa: BLE001  (every waiter must wake with a reason)
                self._failure = JournalUnusable(
                    path=self.path, found=f"an append failed ({error!r})", fix="Run again"
                )
                self._failure.__cause__ = error
        if self._failure is not None:
            for ticket in batch:
                ticket.error = self._failure

    def _write(self, batch: Sequence[_Ticket]) -> None:
        if self._writer is None:
            self._writer = self._connect()
        cursor = self._writer.cursor()
        cursor.execute("BEGIN IMMEDIATE")
        try:
            last: int = cursor.execute(self._statements.last_seq).fetchone()[0] or 0
            at = instant(self._now())
            cursor.executemany(
                self._statements.insert,
                [
                    self._row(draft, payload, seq, at)
                    for seq, (draft, payload) in enumerate(
                        (
                            pair
                            for ticket in batch
                            for pair in zip(ticket.drafts, ticket.payloads, strict=True)
                        ),
                        start=last + 1,
                    )
                ],
            )
            self._writer.commit()
        except BaseException:
            self._writer.rollback()
            raise
        finally:
            # a cursor that an error's traceback keeps would keep the file open after close()
            cursor.close()

    def _row(self, draft: Draft, payload: str, seq: int, at: str) -> list[object]:
        values: list[object] = [
            seq, draft.kind.value, at, draft.cycle, draft.tenant, draft.step, draft.generation,
            draft.attempt, draft.item, draft.run_id, self._host, os.getpid(), draft.code_version,
            payload,
        ]  # fmt: skip
        values.append(checksum(values))
        return values

    def open_cycle(self, cycle: Cycle, *, run_id: str) -> None:
        """Record that a cycle is open, unless one of its name is.

        Args:
            cycle: the cycle.
            run_id: the run that opens it.
        """
        if any(entry.cycle == cycle.name for entry in self.cycle_entries()):
            return
        draft = Draft(
            kind=EntryKind.CYCLE_OPENED,
            cycle=cycle.name,
            run_id=run_id,
            payload={"instant": cycle.instant, "root": cycle.root},
        )
        # refused: another process opened it between the two lines above
        with contextlib.suppress(EntryRefused):
            self.append(draft)

    def prune(self, tenant: str, cycles: Collection[str], *, dry_run: bool = False) -> int:
        """Delete a tenant's entries of some cycles, all or none, and note how many they were.

        The cycles stay known as opened. Call it while the tenant's lease is held and no thread
        appends through this object.

        Args:
            tenant: name of the tenant.
            cycles: names of cycles that nothing needs any more.
            dry_run: only count.

        Returns:
            How many entries.

        Raises:
            JournalUnusable: it could not be written, and nothing was deleted.
        """
        if self._writer is None:
            self._writer = self._connect()
        cursor = self._writer.cursor()
        deleted = 0
        try:
            cursor.execute("BEGIN IMMEDIATE")
            cursor.execute(CREATE_PRUNED)
            for cycle in sorted(cycles):
                count, seqs = cursor.execute(self._statements.old, (cycle, tenant)).fetchone()
                deleted += count
                if count and not dry_run:
                    cursor.execute(self._statements.delete_old, (cycle, tenant))
                    cursor.execute(self._statements.note_pruned, (cycle, count, seqs))
            cursor.execute("ROLLBACK" if dry_run else "COMMIT")
        except sqlite3.Error as error:
            if self._writer.in_transaction:
                self._writer.rollback()
            raise sqlite_file.unusable(self.path, error) from error
        finally:
            cursor.close()
        return deleted

    def pruned(self) -> Pruned:
        """Return what ``prune`` deleted so far."""
        tables = {row[0] for row in self._rows("SELECT name FROM sqlite_master")}
        rows = list(self._rows(self._statements.pruned)) if pruned.name in tables else []
        return Pruned(
            cycles=frozenset(row[0] for row in rows),
            entries=sum(row[1] for row in rows),
            seqs=sum(row[2] for row in rows),
        )

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[None]:
        """Let everything that this thread reads inside see the journal of one instant."""
        reader = self._reader()
        reader.execute("BEGIN")
        try:
            yield
        finally:
            reader.execute("ROLLBACK")

    def cycle_entries(self, *, after_seq: int = 0) -> list[Entry]:
        """Return the ``cycle_opened`` entries with a seq above ``after_seq``, in order."""
        return list(self._read(self._statements.cycles, after_seq))

    def by_tenant(self, cycle: str) -> Iterator[tuple[str, list[Entry]]]:
        """Yield each tenant of a cycle with its entries in order, one tenant in memory."""
        yield from self._grouped(self._statements.of_cycle, cycle)

    def outcomes_by_tenant(self, cycle: str) -> Iterator[tuple[str, list[Entry]]]:
        """As ``by_tenant``, without each ``started`` entry whose generation completed.

        Half the rows, and all that is needed to see that a tenant is done.
        """
        yield from self._grouped(self._statements.outcomes, cycle)

    def _grouped(self, statement: str, cycle: str) -> Iterator[tuple[str, list[Entry]]]:
        rows = self._read(statement, cycle)
        for tenant, group in itertools.groupby(rows, key=lambda entry: entry.tenant):
            yield tenant, list(group)

    def of_tenant(self, *, cycle: str, tenant: str, after_seq: int = 0) -> list[Entry]:
        """Return a tenant's entries of a cycle with a seq above ``after_seq``, in order."""
        return list(self._read(self._statements.of_tenant, cycle, tenant, after_seq))

    def completions_of(self, tenant: str) -> list[Entry]:
        """Return a tenant's ``completed`` entries of all cycles, in order."""
        return list(self._read(self._statements.completions, tenant))

    def cycle_before(self, cycle: str, *, tenant: str, steps: Collection[str]) -> str | None:
        """Return the other cycle in which the tenant last completed one of ``steps``, if any."""
        for found, step in self._rows(self._statements.completed_elsewhere, tenant, cycle):
            if step in steps:
                return str(found)
        return None

    def has_forced(self, root: str, *, outside: str) -> bool:
        """Tell whether a root run forced a cell in another cycle than this one."""
        forced = self._read(self._statements.forced, outside)
        return any(entry.payload["root"] == root for entry in forced)

    def all_entries(self) -> Iterator[Entry]:
        """Yield every entry in order, each checked against its checksum."""
        return self._read(self._statements.all)

    def tenants(self) -> frozenset[str]:
        """Return the name of every tenant that has an entry in any cycle."""
        return frozenset(row[0] for row in self._rows(self._statements.tenants))

    def last_seq(self) -> int:
        """Return the seq of the newest entry, 0 when there is none."""
        return next(self._rows(self._statements.last_seq))[0] or 0

    def after(self, seq: int) -> list[Entry]:
        """Return the entries with a greater seq, in order."""
        return list(self._read(self._statements.after, seq))

    def integrity(self) -> str | None:
        """Return what SQLite's own check finds wrong with the file, None when nothing is."""
        found = [str(row[0]) for row in self._rows("PRAGMA integrity_check(5)")]
        return None if found == ["ok"] else "; ".join(found)

    def _read(self, statement: str, *parameters: object) -> Iterator[Entry]:
        try:
            for row in self._rows(statement, *parameters):
                yield entry_from_row(row)
        except ValueError as error:
            raise sqlite_file.damaged(self.path, str(error)) from error

    def _rows(self, statement: str, *parameters: object) -> Iterator[tuple[Any, ...]]:
        try:
            cursor = self._reader().cursor()
            cursor.execute(statement, parameters)
            while rows := cursor.fetchmany(500):
                yield from rows
        except sqlite3.Error as error:
            raise sqlite_file.unusable(self.path, error) from error

    def _reader(self) -> sqlite3.Connection:
        """Return this thread's own connection; each statement is its own read transaction."""
        connection: sqlite3.Connection | None = getattr(self._local, "connection", None)
        if connection is None:
            connection = self._local.connection = self._connect()
        return connection

    def _connect(self) -> sqlite3.Connection:
        connection = self._engine.raw_connection()
        with self._mutex:
            self._connections.append(connection)
        return cast("sqlite3.Connection", connection.dbapi_connection)
