"""Which shards a sensor need not look at again: a cursor that may be lost.

A mark is a hash of everything that a look depends on. A shard whose mark is still the same is
passed over; without a cursor every shard is looked at again, and a look that finds nothing wrong
changes nothing.
"""

import hashlib
import json
import os
import zlib
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from tenant_pipelines.fleet.model import Fleet


@dataclass(slots=True)
class LookedAt:
    """What a sensor remembers from tick to tick.

    Attributes:
        marks: by shard, the mark of its last look that found everything right.
        notes: what else the sensor remembers, by a name of its own.

    People edit cursors in the UI, so nothing relies on a value but that it is text.
    """

    marks: dict[str, str] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)

    @classmethod
    def from_cursor(cls, cursor: str | None) -> "LookedAt":
        """Read a cursor; one that is missing or is none of ours is an empty one."""
        try:
            document = json.loads(cursor or "{}")
            marks, notes = document.get("marks", {}), document.get("notes", {})
        except (ValueError, AttributeError):
            return cls()
        if not isinstance(marks, dict) or not isinstance(notes, dict):
            return cls()
        return cls(_texts(marks), _texts(notes))

    def to_cursor(self) -> str:
        """Return what ``from_cursor`` reads back."""
        return json.dumps({"marks": self.marks, "notes": self.notes}, sort_keys=True)


def _texts(values: dict[str, Any]) -> dict[str, str]:
    return {key: str(value) for key, value in values.items()}


def instant_of(note: str | None) -> datetime | None:
    """Return the instant that a note holds, None when it holds none."""
    try:
        at = datetime.fromisoformat(note or "")
    except ValueError:
        return None
    return at if at.tzinfo is not None else None


def period_of(shard: str, seconds: float, now: float) -> int:
    """Return a number that changes once in a while: a look is due then, whatever the marks say.

    Args:
        shard: name of the shard; all shards' at once would be too many for one tick.
        seconds: how often it changes.
        now: the present, in seconds since 1970.
    """
    return int((now + zlib.crc32(shard.encode()) % seconds) // seconds)


def mark_of(fleet: Fleet, shard: str, *facts: object) -> str:
    """Return a shard's mark: of its journal's files, the steps, and further facts.

    Args:
        fleet: the fleet.
        shard: name of the shard.
        facts: what else a look depends on, such as the fleet file's version.
    """
    journal = fleet.journal_path(shard)
    files = [_stamp(journal.with_name(journal.name + suffix)) for suffix in ("", "-wal")]
    steps = [(step.name, step.code_version, step.upstream) for step in fleet.pipeline.steps]
    # the names of the variables that are set, on which held tenants depend
    seen = (files, steps, sorted(os.environ), facts)
    return hashlib.sha256(repr(seen).encode()).hexdigest()[:12]


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_ctime_ns, stat.st_size
