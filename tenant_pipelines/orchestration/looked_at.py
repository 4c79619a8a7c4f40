"""Which shards a sensor need not look at again: a cursor that may be lost.

A mark is a hash of everything that a look depends on. A shard whose mark is still the same is
passed over; without a cursor every shard is looked at again, and a look that finds nothing wrong
changes nothing.
"""

import hashlib
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tenant_pipelines.fleet.model import Fleet


@dataclass(slots=True)
class LookedAt:
    """What a sensor remembers from tick to tick.

    Attributes:
        marks: by shard, the mark of its last look that found everything right.
        notes: what else the sensor remembers, by a name of its own.
    """

    marks: dict[str, str] = field(default_factory=dict)
    notes: dict[str, Any] = field(default_factory=dict)

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
        return cls({str(key): str(value) for key, value in marks.items()}, notes)

    def to_cursor(self) -> str:
        """Return what ``from_cursor`` reads back."""
        return json.dumps({"marks": self.marks, "notes": self.notes}, sort_keys=True)


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
