"""Whether a shard's journal can be believed: its entries, and the artifacts that they name."""

from dataclasses import dataclass, field
from typing import Any

from tenant_pipelines.errors import ArtifactDamaged, ArtifactMissing, JournalUnusable
from tenant_pipelines.fleet.cell import Attempt
from tenant_pipelines.fleet.model import Fleet
from tenant_pipelines.journal.entries import Entry, EntryKind
from tenant_pipelines.journal.journal import Journal
from tenant_pipelines.storage.artifacts import ArtifactStore
from tenant_pipelines.storage.output import StoredOutput


@dataclass(slots=True, kw_only=True)
class ShardVerdict:
    """What ``verify_shard`` found.

    Attributes:
        shard: name of the shard.
        entries: entries read.
        artifacts: files loaded.
        problems: one line each.
    """

    shard: str
    entries: int = 0
    artifacts: int = 0
    problems: list[str] = field(default_factory=list)

    @property
    def is_sound(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems

    def to_json(self) -> dict[str, Any]:
        """Return the verdict as one mapping."""
        return {
            "shard": self.shard,
            "entries": self.entries,
            "artifacts": self.artifacts,
            "problems": self.problems,
        }


def verify_shard(fleet: Fleet, shard: str) -> ShardVerdict:
    """Check every entry of a shard's journal and load every artifact it names; writes nothing."""
    verdict = ShardVerdict(shard=shard)
    store = ArtifactStore(fleet.artifacts)
    try:
        journal = Journal.existing(fleet.journal_path(shard), fleet=fleet.name, shard=shard)
        if journal is None:
            return verdict
        with journal:
            if (damage := journal.integrity()) is not None:
                verdict.problems.append(f"{journal.path}: {damage}")
            expected = 1
            for entry in journal.all_entries():
                verdict.entries += 1
                if entry.seq != expected:
                    verdict.problems.append(f"entry {entry.seq} follows entry {expected - 1}")
                expected = entry.seq + 1
                _check_artifact(shard, entry, store, verdict)
    except JournalUnusable as error:
        verdict.problems.append(str(error))
    return verdict


def _check_artifact(shard: str, entry: Entry, store: ArtifactStore, verdict: ShardVerdict) -> None:
    if entry.kind is not EntryKind.COMPLETED:
        return
    output = StoredOutput.from_json(entry.payload["output"])
    if output.path is None:
        return
    verdict.artifacts += 1
    attempt = Attempt(
        shard=shard,
        tenant=entry.tenant,
        step=entry.step,
        cycle=entry.cycle,
        generation=entry.generation,
        attempt=entry.attempt,
    )
    try:
        store.load(attempt, output)
    except (ArtifactMissing, ArtifactDamaged) as error:
        verdict.problems.append(f"entry {entry.seq}: {error}")
