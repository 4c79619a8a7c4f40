"""Files written once: whole and durable when ``create`` returns, absent when it raised.

On the local file system durable means: the file's bytes and the entry of every folder down to it
survive a power cut. A kill in the middle leaves a partial file that nobody refers to; ``sweep``
removes it. An object store (any fsspec URL) shows a file only once it is complete.
"""

import contextlib
import io
import os
from collections.abc import Callable, Set
from pathlib import Path
from typing import IO, Any, Protocol

_MOST_FOLDERS_KNOWN = 10_000


class Files(Protocol):
    """Where artifacts lie; paths are relative, with forward slashes."""

    def create(self, path: str, write: Callable[[IO[bytes]], object]) -> int:
        """Write a new file and return its size in bytes; FileExistsError when there is one."""
        ...

    def open(self, path: str) -> IO[bytes]:
        """Open a file for reading; FileNotFoundError when there is none."""
        ...

    def exists(self, path: str) -> bool:
        """Tell whether there is such a file."""
        ...

    def sweep(self, folder: str, *, keep: Set[str]) -> int:
        """Delete the files below ``folder`` that are not in ``keep``; return how many."""
        ...


def files_at(root: Path | str) -> Files:
    """Return the files below a folder or an fsspec URL."""
    text = str(root)
    if text.startswith("file://"):
        return LocalFiles(Path(text.removeprefix("file://")))
    return RemoteFiles(text) if "://" in text else LocalFiles(Path(root))


class LocalFiles:
    """Files below a folder, which is made on the first write."""

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        self._durable: set[Path] = set()  # folders whose entry this process has made durable

    def __repr__(self) -> str:
        return str(self.root)

    def create(self, path: str, write: Callable[[IO[bytes]], object]) -> int:
        """Write a new file; see Files."""
        full = self.root / path
        self._make_folder(full.parent)
        descriptor = os.open(full, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        try:
            with os.fdopen(descriptor, "wb") as file:
                write(file)
                file.flush()
                os.fsync(file.fileno())
                size = os.fstat(file.fileno()).st_size
            sync_folder(full.parent)
        except BaseException as error:
            full.unlink(missing_ok=True)
            if isinstance(error, OSError) and error.errno is not None and error.filename is None:
                raise OSError(error.errno, os.strerror(error.errno), str(full)) from error
            raise
        return size

    def open(self, path: str) -> IO[bytes]:
        """Open a file for reading; see Files."""
        return (self.root / path).open("rb")

    def exists(self, path: str) -> bool:
        """Tell whether there is such a file."""
        return (self.root / path).is_file()

    def sweep(self, folder: str, *, keep: Set[str]) -> int:
        """Delete files and empty folders, ``folder`` included; see Files."""
        deleted = 0
        for parent, _, names in os.walk(self.root / folder, topdown=False):
            for name in names:
                full = Path(parent, name)
                if full.relative_to(self.root).as_posix() not in keep:
                    full.unlink(missing_ok=True)
                    deleted += 1
            with contextlib.suppress(OSError):  # not empty
                Path(parent).rmdir()
                self._durable.discard(Path(parent))
        return deleted

    def _make_folder(self, folder: Path) -> None:
        """Make a folder and its parents, and make their entries durable up to the root.

        A folder that is already there may have been made by a process that died before its fsync,
        so the first use of it in this process syncs too.
        """
        is_ours = folder.is_relative_to(self.root) and folder != folder.parent
        if folder.is_dir() and (not is_ours or folder in self._durable):
            return
        self._make_folder(folder.parent)
        with contextlib.suppress(FileExistsError):
            folder.mkdir()
        sync_folder(folder.parent)
        if len(self._durable) >= _MOST_FOLDERS_KNOWN:
            self._durable.clear()
        self._durable.add(folder)


class RemoteFiles:
    """Files below an fsspec URL."""

    def __init__(self, url: str) -> None:
        from upath import UPath

        self._root: Any = UPath(url)

    def __repr__(self) -> str:
        return str(self._root)

    def create(self, path: str, write: Callable[[IO[bytes]], object]) -> int:
        """Write a new file in one piece; see Files."""
        full = self._root / path
        if full.exists():
            raise FileExistsError(str(full))
        buffer = io.BytesIO()
        write(buffer)
        full.parent.mkdir(parents=True, exist_ok=True)
        full.write_bytes(buffer.getbuffer())
        return buffer.tell()

    def open(self, path: str) -> IO[bytes]:
        """Open a file for reading; see Files."""
        file: IO[bytes] = (self._root / path).open("rb")
        return file

    def exists(self, path: str) -> bool:
        """Tell whether there is such a file."""
        return bool((self._root / path).is_file())

    def sweep(self, folder: str, *, keep: Set[str]) -> int:
        """Delete files; see Files."""
        top = self._root / folder
        if not top.exists():
            return 0
        kept = {(self._root / path).path for path in keep}
        found = [entry for entry in top.rglob("*") if entry.is_file() and entry.path not in kept]
        for entry in found:
            entry.unlink(missing_ok=True)
        return len(found)


def sync_folder(folder: Path) -> None:
    """Make the entries of a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
