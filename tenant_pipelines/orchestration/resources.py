"""The journals of a fleet as a Dagster resource."""

from tenant_pipelines.fleet.model import Fleet
from tenant_pipelines.journal.journal import Journal


class RunJournalResource:
    """Opens the journal of each shard; what a run records, it records through this.

    It keeps nothing open and nothing in memory: each use opens the shard's own file.
    """

    def __init__(self, fleet: Fleet) -> None:
        """Remember whose journals these are."""
        self.fleet = fleet

    def open(self, shard: str) -> Journal:
        """Open a shard's journal, creating it when there is none; close it after use.

        Raises:
            UnknownName: the fleet has no such shard.
            JournalUnusable: the journal is damaged, foreign, newer or unwritable.
        """
        self.fleet.shard(shard)
        return Journal(self.fleet.journal_path(shard), fleet=self.fleet.name, shard=shard)
