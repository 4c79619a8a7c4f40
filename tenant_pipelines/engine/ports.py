"""What the engine needs of the world: where cells are stored, and what took effect."""

from collections.abc import Set
from typing import Any, Protocol

from tenant_pipelines.fleet.cell import Attempt
from tenant_pipelines.journal.fold import CellState
from tenant_pipelines.storage.output import StoredOutput


def has_artifact(store: "CellStore", cell: CellState) -> bool:
    """Tell whether the output of a completed cell can be loaded."""
    return cell.output is not None and store.exists(StoredOutput.from_json(cell.output))


class CellStore(Protocol):
    """Stores the output of each attempt once, and loads it for the steps downstream."""

    def store(self, attempt: Attempt, value: Any) -> StoredOutput:
        """Make ``value`` durable; it is published by the journal entry, not by being there.

        Raises:
            UnsupportedOutput: the value cannot be stored; nothing was written.
        """
        ...

    def load(self, attempt: Attempt, stored: StoredOutput) -> Any:
        """Return the value that ``store`` was given.

        Raises:
            ArtifactMissing: the file is gone.
            ArtifactDamaged: the file is not what ``stored`` says.
        """
        ...

    def exists(self, stored: StoredOutput) -> bool:
        """Tell whether ``load`` would find the artifact."""
        ...

    def collect(self, *, tenant: str, keep: Set[str]) -> int:
        """Delete the tenant's artifacts whose path is not in ``keep``; return how many.

        Call it only while the tenant's lease is held.
        """
        ...
