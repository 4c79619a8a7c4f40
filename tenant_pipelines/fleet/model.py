"""A fleet as values: shards, tenants, limits, and where its state lives."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

from tenant_pipelines.errors import UnknownName
from tenant_pipelines.fleet.pipeline import Pipeline


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """A shard's limits.

    Attributes:
        max_concurrent: cells of the shard that run at once, over all processes; at least 1.
        runs_at_once: Dagster runs that may work on the shard at once (its pool's limit).
    """

    max_concurrent: int = 2
    runs_at_once: int = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Resume:
    """How a shard that a run left unfinished is asked for again, by itself.

    Attributes:
        attempts: runs a cycle at most; 0 for none.
        wait_seconds: before the first one; doubled before each further one, up to an hour.
    """

    attempts: int = 8
    wait_seconds: int = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    """One customer: its name, its settings as written, and the lines they stand on.

    Attributes:
        name: free text, unique in the fleet.
        settings: as in the file, ``${…}`` not resolved; not printed, they may hold passwords.
        line: line of the fleet file, from 1.
        setting_lines: line of each setting that stands on another line than the tenant's name, by
            dotted path (``source.url``, ``tables.0``).
    """

    name: str
    settings: Mapping[str, Any] = field(default_factory=dict, repr=False)
    line: int = 1
    setting_lines: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """A named set of tenants with its own journal, limits and process."""

    name: str
    tenants: Mapping[str, Tenant]
    limits: Limits = Limits()


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """All shards plus the one pipeline they run.

    Attributes:
        name: an identifier, unique in the Dagster instance.
        path: the fleet file, absolute.
        pipeline: what every tenant runs.
        shards: by name, in the file's order.
        state: folder of journals, locks and artifacts, absolute; made on first write.
        processes: shard processes at once in the fleet job.
        schedule: when a new cycle is opened and run: five cron fields, in UTC, or None.
        stale_after: age of a tenant's last completion from which it counts as late, or None.
        resume: how unfinished shards are asked for again.
        warehouse: SQLAlchemy URL, placeholders replaced, or None.
        artifacts: folder of the artifacts, placeholders replaced.
    """

    name: str
    path: Path
    pipeline: Pipeline
    shards: Mapping[str, Shard]
    state: Path
    processes: int = 16
    schedule: str | None = None
    stale_after: timedelta | None = None
    resume: Resume = Resume()
    warehouse: str | None = None
    artifacts: str

    def shard(self, name: str) -> Shard:
        """Return the shard ``name``; UnknownName when there is none."""
        try:
            return self.shards[name]
        except KeyError:
            raise UnknownName(
                kind="shard", name=name, known=list(self.shards), place=str(self.path)
            ) from None

    def shard_of(self, tenant: str) -> Shard:
        """Return the shard that lists ``tenant``; UnknownName when none does."""
        for shard in self.shards.values():
            if tenant in shard.tenants:
                return shard
        known = [name for shard in self.shards.values() for name in shard.tenants]
        raise UnknownName(kind="tenant", name=tenant, known=known, place=str(self.path))

    def shard_state(self, shard: str) -> Path:
        """Return the folder of one shard's journal and locks."""
        return self.state / "shards" / shard

    def journal_path(self, shard: str) -> Path:
        """Return the file of one shard's journal."""
        return self.shard_state(shard) / "journal.db"
