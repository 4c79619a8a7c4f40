"""What is known of a stored output: enough to load it, compare it and show it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

OutputKind = Literal["none", "json", "parquet"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredOutput:
    """The output of one attempt, as its ``completed`` entry records it.

    Attributes:
        kind: how it is stored.
        digest: of the logical data (Arrow schema and values, or canonical JSON), 32 hex digits.
        rows: rows of a DataFrame; None for the other kinds.
        size_bytes: bytes of the file, or of the canonical JSON.
        path: file of the artifact, relative to the artifacts folder; None when it is inline.
        value: the JSON value itself when it is inline.
        accounted: extracted rows that the step accounted for, see ``StepContext.account``.
    """

    kind: OutputKind
    digest: str
    rows: int | None = None
    size_bytes: int = 0
    path: str | None = None
    value: Any = None
    accounted: int | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the mapping that goes into a journal entry's payload."""
        document = {
            "kind": self.kind,
            "digest": self.digest,
            "rows": self.rows,
            "bytes": self.size_bytes,
            "path": self.path,
            "value": self.value,
        }
        return document if self.accounted is None else {**document, "accounted": self.accounted}

    @classmethod
    def from_json(cls, payload: Mapping[str, Any]) -> "StoredOutput":
        """Read back what ``to_json`` wrote; KeyError when a field is missing."""
        return cls(
            kind=payload["kind"],
            digest=payload["digest"],
            rows=payload["rows"],
            size_bytes=payload["bytes"],
            path=payload["path"],
            value=payload["value"],
            accounted=payload.get("accounted"),
        )
