"""What a journal records: entries, their checksum, and the one converter from rows."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, NamedTuple


class EntryKind(StrEnum):
    """What happened. Kinds of later parts are refused by the schema until they are built."""

    CYCLE_OPENED = "cycle_opened"
    STARTED = "started"
    COMPLETED = "completed"
    FAILED = "failed"
    FORCED = "forced"


class Entry(NamedTuple):
    """One row of a journal.

    Attributes:
        seq: position in the journal, from 1, without gaps.
        kind: what happened.
        at: instant, UTC, ISO 8601 with microseconds and ``Z``.
        cycle: name of the cycle.
        tenant: name of the tenant; empty for an entry of the whole shard.
        step: name of the step; empty for an entry of the whole shard.
        generation: which asked-for run of the cell; 0 for an entry of the whole shard.
        attempt: which execution within the generation; 0 where there is none.
        item: empty for the cell itself.
        run_id: of the run that wrote it.
        host: name of the machine.
        pid: process that wrote it.
        code_version: the step's, empty when it has none.
        payload_text: canonical JSON.
    """

    seq: int
    kind: EntryKind
    at: str
    cycle: str
    tenant: str
    step: str
    generation: int
    attempt: int
    item: str
    run_id: str
    host: str
    pid: int
    code_version: str
    payload_text: str

    @property
    def payload(self) -> dict[str, Any]:
        """The payload as a mapping; parsed on each use."""
        parsed: dict[str, Any] = _parse(self.payload_text)[0]
        return parsed

    def to_json(self) -> dict[str, Any]:
        """Return the entry as one JSON-able mapping, for people and for export."""
        fields = self._asdict()
        fields["payload"] = json.loads(fields.pop("payload_text"))
        return fields


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """An entry that is not written yet; the journal adds seq, instant, host, pid and checksum."""

    kind: EntryKind
    cycle: str
    run_id: str
    tenant: str = ""
    step: str = ""
    generation: int = 0
    attempt: int = 0
    item: str = ""
    code_version: str = ""
    payload: Mapping[str, Any] = field(default_factory=dict)


# half of json.loads is the search for spaces, which canonical JSON has none of
_parse = json.JSONDecoder().raw_decode
_KINDS = {kind.value: kind for kind in EntryKind}
# made once: json.dumps would make an encoder on each call
_encoder = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def canonical_json(value: Any) -> str:
    """Return the one JSON text that stands for ``value``."""
    return _encoder.encode(value)


def instant(at: datetime) -> str:
    """Return an aware datetime as the journal writes instants."""
    return at.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def checksum(entry: Sequence[Any]) -> str:
    """Return the checksum over every field of an entry, in the order of ``Entry``."""
    text = "\x1f".join(map(str, entry))
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def entry_from_row(row: Sequence[Any]) -> Entry:
    """Convert a row (the fields of ``Entry``, then the checksum) to an Entry.

    Raises:
        ValueError: the checksum does not match, or the kind is unknown.
    """
    *fields, recorded = row
    if checksum(fields) != recorded:
        raise ValueError(f"entry {row[0]} does not match its checksum")
    fields[1] = _KINDS.get(fields[1]) or EntryKind(fields[1])
    return Entry._make(fields)
