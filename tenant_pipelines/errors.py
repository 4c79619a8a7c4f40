"""The one tree of errors: each names the place, what was found, what was wanted, what to do next.

Errors take their facts as keyword arguments, keep them as attributes and survive pickling.
Nothing here writes; whoever raises has written nothing either.
"""

import difflib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar


class TenantPipelinesError(Exception):
    """Root of every error that this package raises on purpose.

    Attributes:
        is_retryable: whether the same call may succeed later without anybody changing anything.
    """

    is_retryable: ClassVar[bool] = False

    def __init__(self, message: str, **facts: Any) -> None:
        super().__init__(message)
        self.facts = facts
        for name, value in facts.items():
            setattr(self, name, value)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.facts)


def _rebuild(cls: type[TenantPipelinesError], facts: dict[str, Any]) -> TenantPipelinesError:
    return cls(**facts)


def nearest(name: str, known: Iterable[str]) -> str:
    """Return ``"did you mean 'x'? "`` for the known name most like ``name``, or nothing."""
    matches = difflib.get_close_matches(name, list(known), n=1)
    return f"did you mean {matches[0]!r}? " if matches else ""


def _listed(names: Iterable[str], most: int = 8) -> str:
    names = [repr(name) for name in sorted(names)]
    more = f", … ({len(names) - most} more)" if len(names) > most else ""
    return (", ".join(names[:most]) + more) or "none"


class InvalidFleetFile(TenantPipelinesError, ValueError):
    """A fleet file that cannot be used; ``line`` counts from 1, None when the file has none."""

    def __init__(self, *, path: Path, line: int | None, found: str, wanted: str, fix: str) -> None:
        place = f"{path}:{line}" if line is not None else str(path)
        super().__init__(
            f"{place}: found {found}; wanted {wanted}. {fix}",
            path=path,
            line=line,
            found=found,
            wanted=wanted,
            fix=fix,
        )


class _Refused(TenantPipelinesError, ValueError):
    """Something that a user gave and that cannot be used."""

    def __init__(self, *, place: str, found: str, wanted: str, fix: str) -> None:
        super().__init__(
            f"{place}: found {found}; wanted {wanted}. {fix}",
            place=place,
            found=found,
            wanted=wanted,
            fix=fix,
        )


class InvalidPipeline(_Refused):
    """Steps that do not make a pipeline; raised where they are defined."""


class InvalidRequest(_Refused):
    """What a run was asked for (options, op config, run tags) makes no sense."""


class UnknownName(TenantPipelinesError, LookupError):
    """A fleet, shard, tenant, step or cycle that was asked for and does not exist."""

    def __init__(self, *, kind: str, name: str, known: list[str], place: str) -> None:
        super().__init__(
            f"{place}: there is no {kind} {name!r}; {nearest(name, known)}Known: {_listed(known)}.",
            kind=kind,
            name=name,
            known=known,
            place=place,
        )


class TenantSettingMissing(TenantPipelinesError):
    """A ``${VARIABLE}`` in a tenant's settings is not set; holds that tenant and nobody else."""

    def __init__(self, *, path: Path, line: int, tenant: str, setting: str, variable: str) -> None:
        super().__init__(
            f"{path}:{line}: setting {setting!r} of tenant {tenant!r} reads the environment "
            f"variable {variable}, which is not set here. Set {variable} and run again.",
            path=path,
            line=line,
            tenant=tenant,
            setting=setting,
            variable=variable,
        )


class TenantMoved(TenantPipelinesError):
    """A tenant without history in its shard has history in another shard's journal."""

    def __init__(self, *, tenant: str, shard: str, old_shard: str) -> None:
        super().__init__(
            f"tenant {tenant!r} is listed in shard {shard!r}, but its history is in the journal "
            f"of shard {old_shard!r}: running it here would extract and load everything again. "
            f"Put it back into {old_shard!r} in the fleet file "
            f"(moving its history to {shard!r} is not built yet).",
            tenant=tenant,
            shard=shard,
            old_shard=old_shard,
        )


class JournalUnusable(TenantPipelinesError):
    """A shard's journal cannot be used; the file was left as it was and other shards go on."""

    def __init__(self, *, path: Path, found: str, fix: str) -> None:
        super().__init__(f"{path}: {found}. {fix}", path=path, found=found, fix=fix)


class EntryRefused(TenantPipelinesError):
    """The journal's own guarantees forbid an entry, such as a second completion of a cell."""

    def __init__(self, *, path: Path, found: str) -> None:
        super().__init__(
            f"{path}: the journal refused an entry ({found}). Another process completed the same "
            f"cell; run again to work from what it wrote.",
            path=path,
            found=found,
        )


class LedgerDisagrees(TenantPipelinesError):
    """The warehouse's ledger holds what the journal does not know: one of them was damaged."""

    def __init__(
        self,
        *,
        warehouse: str,
        shard: str,
        tenant: str,
        step: str,
        cycle: str,
        generation: int,
        found: str,
    ) -> None:
        super().__init__(
            f"ledger in {warehouse}: {found} for shard {shard!r}, tenant {tenant!r}, step "
            f"{step!r}, cycle {cycle!r}, generation {generation}. Restore the shard's journal from "
            f"a backup that knows it, or delete this ledger row to load that generation again.",
            warehouse=warehouse,
            shard=shard,
            tenant=tenant,
            step=step,
            cycle=cycle,
            generation=generation,
            found=found,
        )


class UnsupportedOutput(TenantPipelinesError, TypeError):
    """A step returned what cannot be stored; raised before anything was written."""

    def __init__(self, *, tenant: str, step: str, found: str, wanted: str) -> None:
        super().__init__(
            f"tenant {tenant!r}, step {step!r} returned {found}; wanted {wanted}. "
            f"Change what the step returns.",
            tenant=tenant,
            step=step,
            found=found,
            wanted=wanted,
        )


class OutputMissing(TenantPipelinesError, LookupError):
    """A downstream asset wants the output of a cell that never completed."""

    def __init__(self, *, shard: str, tenant: str, step: str) -> None:
        super().__init__(
            f"shard {shard!r}, tenant {tenant!r}: step {step!r} has no completed output. Run it "
            f"first, or give the input the metadata "
            f"{{'tenant_pipelines/missing': 'skip'}} to go on without this tenant.",
            shard=shard,
            tenant=tenant,
            step=step,
        )


class ArtifactMissing(TenantPipelinesError, FileNotFoundError):
    """The stored output of a cell is gone."""

    def __init__(self, *, path: str, tenant: str, step: str) -> None:
        super().__init__(
            f"{path}: the artifact of tenant {tenant!r}, step {step!r} is gone. "
            f"Run that step again; a run that needs it makes it again first.",
            path=path,
            tenant=tenant,
            step=step,
        )


class ArtifactDamaged(TenantPipelinesError):
    """The stored output of a cell is not what its journal entry says."""

    def __init__(self, *, path: str, tenant: str, step: str, found: str) -> None:
        super().__init__(
            f"{path}: the artifact of tenant {tenant!r}, step {step!r} is damaged: {found}. "
            f"Delete the file; a run that needs it makes it again first.",
            path=path,
            tenant=tenant,
            step=step,
            found=found,
        )


class WarehouseRefused(TenantPipelinesError):
    """A source or warehouse table is not what a step needs; nothing was written."""

    def __init__(self, *, table: str, tenant: str, found: str, wanted: str, fix: str) -> None:
        super().__init__(
            f"table {table!r}, tenant {tenant!r}: found {found}; wanted {wanted}. {fix}",
            table=table,
            tenant=tenant,
            found=found,
            wanted=wanted,
            fix=fix,
        )


class StepChangedDirectory(TenantPipelinesError):
    """A step tried to change the working directory, which all tenants of a process share."""

    def __init__(self, *, directory: str) -> None:
        super().__init__(
            f"the step called os.chdir({directory!r}); the working directory belongs to all "
            f"tenants of the process and was left alone. Use absolute paths.",
            directory=directory,
        )


class LocksUnusable(TenantPipelinesError):
    """Locks cannot be taken or asked for here; nothing was started under them."""

    def __init__(self, *, path: Path, found: str, fix: str) -> None:
        super().__init__(f"{path}: {found}. {fix}.", path=path, found=found, fix=fix)
