"""The address of one execution: what journal, storage and engine mean by 'this attempt'."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One execution of a cell.

    Attributes:
        shard: name of the shard.
        tenant: name of the tenant.
        step: name of the step.
        cycle: name of the cycle.
        generation: which asked-for run of the cell, from 1.
        attempt: which execution within the generation, from 1.
    """

    shard: str
    tenant: str
    step: str
    cycle: str
    generation: int
    attempt: int
