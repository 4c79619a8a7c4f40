"""Outputs of attempts as artifacts: written once, digested by content, checked when loaded.

The store never publishes: a file counts once the journal's ``completed`` entry names it. A crash
leaves at most a file that no entry names; ``collect`` deletes it.

On load the content digest is not computed again: measured on a million rows, that would take 30 to
70 % of the time to read them. Instead Parquet's page checksums, the recorded digest, schema and row
count are compared, which finds a damaged or exchanged file at no measurable cost. JSON is small and
its digest is compared.
"""

import hashlib
import json
import re
import secrets
import sys
from collections.abc import Set
from pathlib import Path
from typing import Any

from tenant_pipelines.errors import ArtifactDamaged, ArtifactMissing, UnsupportedOutput
from tenant_pipelines.fleet.cell import Attempt
from tenant_pipelines.storage.digest import NONE_DIGEST, bytes_digest, table_digest
from tenant_pipelines.storage.files import files_at
from tenant_pipelines.storage.json_value import UnstorableValue, canonical_json
from tenant_pipelines.storage.output import StoredOutput

MOST_INLINE_BYTES = 8192


class ArtifactStore:
    """Stores outputs below one folder (or fsspec URL), a folder per tenant, step and cycle.

    Safe to use from several threads and processes, also across a fork. A crash leaves whole files
    and at most one partial file per running ``store``, none of them named by a journal.
    """

    def __init__(self, root: Path | str) -> None:
        self._files = files_at(root)

    def __repr__(self) -> str:
        return f"ArtifactStore({self._files!r})"

    def store(self, attempt: Attempt, value: Any) -> StoredOutput:
        """Make an output durable.

        Args:
            attempt: whose output it is.
            value: a DataFrame, JSON data, or None.

        Returns:
            What the journal records; JSON of up to 8,192 bytes is in there, not in a file.

        Raises:
            UnsupportedOutput: the value cannot be stored exactly; nothing was written.
            OSError: the disk refused; nothing is left behind.
        """
        if value is None:
            return StoredOutput(kind="none", digest=NONE_DIGEST)
        pandas = sys.modules.get("pandas")  # a DataFrame exists only where pandas is imported
        if pandas is not None and isinstance(value, pandas.DataFrame):
            return self._store_frame(attempt, value)
        try:
            text = canonical_json(value)
        except UnstorableValue as error:
            raise _unsupported(attempt, error) from None
        digest = bytes_digest(text)
        if len(text) <= MOST_INLINE_BYTES:
            return StoredOutput(
                kind="json", digest=digest, size_bytes=len(text), value=json.loads(text)
            )
        path = _artifact_path(attempt, "json")
        size = self._files.create(path, lambda file: file.write(text))
        return StoredOutput(kind="json", digest=digest, size_bytes=size, path=path)

    def _store_frame(self, attempt: Attempt, value: Any) -> StoredOutput:
        import pyarrow as pa

        from tenant_pipelines.storage.frame import UnstorableFrame, to_table
        from tenant_pipelines.storage.parquet import write_table

        try:
            table = to_table(value)
        except UnstorableFrame as error:
            raise _unsupported(attempt, error) from error
        digest = table_digest(table)
        path = _artifact_path(attempt, "parquet")
        try:
            size = self._files.create(path, lambda file: write_table(table, file, digest=digest))
        except pa.ArrowException as error:
            raise UnsupportedOutput(
                tenant=attempt.tenant,
                step=attempt.step,
                found=f"a DataFrame that Parquet cannot hold ({error})",
                wanted="plain dtypes",
            ) from error
        finally:
            _give_back_memory()
        return StoredOutput(
            kind="parquet", digest=digest, rows=len(value), size_bytes=size, path=path
        )

    def load(self, attempt: Attempt, stored: StoredOutput) -> Any:
        """Return an output, equal to what ``store`` was given and independent of it.

        Args:
            attempt: whose output it is; for the error's text.
            stored: what ``store`` returned.

        Raises:
            ArtifactMissing: the file is gone.
            ArtifactDamaged: the content is not what ``stored`` says.
        """
        if stored.kind == "none":
            return None
        if stored.path is None:
            if stored.kind != "json":
                raise _damaged(attempt, stored, "its journal entry names no file")
            return self._parsed(attempt, stored, canonical_json(stored.value))
        try:
            with self._files.open(stored.path) as file:
                if stored.kind == "parquet":
                    return self._frame(attempt, stored, file)
                return self._parsed(attempt, stored, file.read())
        except FileNotFoundError:
            raise ArtifactMissing(
                path=self._place(stored), tenant=attempt.tenant, step=attempt.step
            ) from None

    def _parsed(self, attempt: Attempt, stored: StoredOutput, text: bytes) -> Any:
        found = bytes_digest(text)
        if found != stored.digest:
            raise _damaged(attempt, stored, f"digest {found}, wanted {stored.digest}", self)
        return json.loads(text)

    def _frame(self, attempt: Attempt, stored: StoredOutput, file: Any) -> Any:
        from tenant_pipelines.storage.frame import from_table
        from tenant_pipelines.storage.parquet import DamagedParquet, read_table

        _give_back_memory()  # of a frame that was there before
        try:
            table = read_table(file, digest=stored.digest)
        except DamagedParquet as error:
            raise _damaged(attempt, stored, str(error), self) from error
        if table.num_rows != stored.rows:
            found = f"{table.num_rows} rows, wanted {stored.rows}"
            raise _damaged(attempt, stored, found, self)
        try:
            frame = from_table(table)
        except (KeyError, TypeError, ValueError) as error:
            found = f"data that the pandas installed here cannot hold ({error!r})"
            raise _damaged(attempt, stored, found, self) from error
        del table
        _give_back_memory()
        return frame

    def exists(self, stored: StoredOutput) -> bool:
        """Tell whether ``load`` would find the artifact."""
        return stored.path is None or self._files.exists(stored.path)

    def collect(self, *, tenant: str, keep: Set[str]) -> int:
        """Delete a tenant's artifacts that nobody needs, and the folders this empties.

        Args:
            tenant: whose lease the caller holds.
            keep: paths (``StoredOutput.path``) that stay.

        Returns:
            How many files were deleted.
        """
        return self._files.sweep(folder_name(tenant), keep=keep)

    def _place(self, stored: StoredOutput) -> str:
        return f"{self._files!r}/{stored.path}"


def _give_back_memory() -> None:
    """Give the system what Arrow keeps in stock: as much as a whole table, beside pandas' own."""
    import pyarrow as pa

    pa.default_memory_pool().release_unused()


def folder_name(name: str) -> str:
    """Return a folder name: a readable ASCII prefix, and a hash that differs for every name.

    Two names never share a folder, not even where the file system ignores case or normalises.
    """
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    readable = re.sub(r"[^A-Za-z0-9]+", "_", name)[:40].strip("_")
    return f"{readable or 'x'}-{digest}"


def _artifact_path(attempt: Attempt, suffix: str) -> str:
    unique = f"g{attempt.generation}-a{attempt.attempt}-{secrets.token_hex(4)}.{suffix}"
    # a user's own asset is a step whose name can hold anything
    step = attempt.step if attempt.step.isidentifier() else folder_name(attempt.step)
    return f"{folder_name(attempt.tenant)}/{step}/{folder_name(attempt.cycle)}/{unique}"


def _unsupported(attempt: Attempt, error: Any) -> UnsupportedOutput:
    return UnsupportedOutput(
        tenant=attempt.tenant, step=attempt.step, found=error.found, wanted=error.wanted
    )


def _damaged(
    attempt: Attempt, stored: StoredOutput, found: str, store: ArtifactStore | None = None
) -> ArtifactDamaged:
    place = store._place(stored) if store and stored.path else "journal entry"
    return ArtifactDamaged(path=place, tenant=attempt.tenant, step=attempt.step, found=found)
