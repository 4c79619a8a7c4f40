"""Byte locks on one file that the kernel takes back the moment their process is gone.

Guarantees: of all objects on all processes of the host, one holds a byte at a time; a forked child
never keeps a byte of its parent. Leaves to others: what a byte means, and threads that share an
object (a byte belongs to the object, not to a thread).

The rules are those of "open file description locks" in fcntl(2) and fcntl_locking(2):
https://man7.org/linux/man-pages/man2/F_OFD_SETLK.2const.html
"""

import errno
import fcntl
import io
import os
import struct
import threading
import weakref
from pathlib import Path

from tenant_pipelines.errors import LocksUnusable

# linux/fcntl.h; a Python built against old headers lacks the names
_GETLK: int = getattr(fcntl, "F_OFD_GETLK", 36)
_SETLK: int = getattr(fcntl, "F_OFD_SETLK", 37)
_SETLKW: int = getattr(fcntl, "F_OFD_SETLKW", 38)

# struct flock: type, whence, start, len, pid (which must be 0), padded to its alignment
_FLOCK = struct.Struct("hhqqi0q")

_PROBE = (1 << 63) - 2
_FOLDER_FIX = (
    "Keep the state folder ($TENANT_PIPELINES_STATE) on a local Linux file system that this user "
    "may write"
)

_opened: weakref.WeakSet[io.FileIO] = weakref.WeakSet()
# held over a fork, so that no child is made between the opening of a file and its registration
_opening = threading.RLock()


def _close_in_child() -> None:
    """Close what the parent opened; closing a copy of a descriptor leaves the parent's locks."""
    _opening.release()
    for file in list(_opened):
        file.close()


os.register_at_fork(
    before=_opening.acquire, after_in_parent=_opening.release, after_in_child=_close_in_child
)


def open_private(path: Path, flags: int) -> io.FileIO:
    """Open a file for this process alone: closed at exec and in every child that Python forks.

    Args:
        path: the file; made with mode 0600 when ``flags`` hold O_CREAT.
        flags: those of open(2).

    Returns:
        An unbuffered file, whose locks go when it is closed or collected.

    Raises:
        OSError: as open(2) says.
    """
    mode = "rb" if flags & os.O_ACCMODE == os.O_RDONLY else "r+b"
    with _opening:
        # os.open sets O_CLOEXEC (PEP 446)
        file = io.FileIO(os.fspath(path), mode, opener=lambda name, _: os.open(name, flags, 0o600))
        _opened.add(file)
    return file


class ByteLocks:
    """Exclusive locks on single bytes of one file, through one descriptor of its own.

    A crash leaves the empty file behind and no lock: the kernel drops the locks with the last copy
    of the descriptor. Nobody unlinks the file, since a lock on an unlinked file keeps nobody out.
    A fork from C code that neither execs nor runs Python's hooks would keep the locks.

    Locking a byte that the object holds already succeeds: threads that share an object need a
    mutex and a note of what they hold. Close it after the last thread has finished with it.
    """

    def __init__(self, path: Path, *, create: bool = True, query_only: bool = False) -> None:
        """Open the file, and prove that its file system has locks that exclude.

        Args:
            path: the lock file.
            create: make the file and its folders where they do not exist.
            query_only: answer ``is_locked_elsewhere`` only, create nothing, and take a file that
                does not exist for one without locks.

        Raises:
            FileNotFoundError: the file does not exist and is not to be made.
            LocksUnusable: the file cannot be made or opened, or its locks do not work.
        """
        self._path = path
        self._file: io.FileIO | None = None
        if query_only:
            return
        try:
            if create:
                path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._file = open_private(path, os.O_RDWR | (os.O_CREAT if create else 0))
        except OSError as error:
            if not create and isinstance(error, FileNotFoundError):
                raise
            raise self._unusable(error) from error
        try:
            self._prove_exclusion()
        except BaseException:
            self.close()
            raise

    def try_lock(self, offset: int) -> bool:
        """Lock one byte if no other object holds it.

        Args:
            offset: 0 to 2**63 - 3.

        Returns:
            Whether this object holds the byte now.

        Raises:
            LocksUnusable: the object is closed or of a forked parent, or the kernel refuses locks.
        """
        try:
            self._call(_SETLK, fcntl.F_WRLCK, offset)
        # fcntl_locking(2): a conflict is EAGAIN or EACCES
        except (BlockingIOError, PermissionError):
            return False
        except OSError as error:
            raise self._unusable(error) from error
        return True

    def lock(self, offset: int) -> None:
        """Lock one byte, waiting without a limit while another object holds it.

        The wait ends only with the lock or with an exception from a signal handler: use it for
        bytes that are held for microseconds.

        Args:
            offset: 0 to 2**63 - 3.

        Raises:
            LocksUnusable: as ``try_lock``.
        """
        try:
            self._call(_SETLKW, fcntl.F_WRLCK, offset)
        except OSError as error:
            raise self._unusable(error) from error

    def unlock(self, offset: int) -> None:
        """Give a byte back; one that this object does not hold stays as it is.

        Args:
            offset: 0 to 2**63 - 3.

        Raises:
            LocksUnusable: as ``try_lock``.
        """
        try:
            self._call(_SETLK, fcntl.F_UNLCK, offset)
        except OSError as error:
            raise self._unusable(error) from error

    def is_locked_elsewhere(self, offset: int, length: int = 1) -> bool:
        """Tell whether another object, of any process of the host, holds one of some bytes.

        Args:
            offset: the first byte.
            length: how many bytes, at least 1.

        Returns:
            False for the bytes that only this object holds.

        Raises:
            LocksUnusable: as ``try_lock``, or the file exists and cannot be read.
        """
        try:
            if self._file is None:
                self._file = open_private(self._path, os.O_RDONLY)
            answer = self._call(_GETLK, fcntl.F_WRLCK, offset, length)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise self._unusable(error) from error
        return bool(_FLOCK.unpack(answer)[0] != fcntl.F_UNLCK)

    def is_file(self, path: Path) -> bool:
        """Tell whether a path still names the very file whose bytes this object locks.

        Args:
            path: where to look.

        Returns:
            False when the path names nothing or another file.

        Raises:
            LocksUnusable: as ``try_lock``.
        """
        self.check_usable()
        try:
            return self._file is not None and os.path.samestat(
                os.fstat(self._file.fileno()), path.stat()
            )
        except FileNotFoundError:
            return False

    def check_usable(self) -> None:
        """Refuse the object in a forked child and after ``close``, without waiting for anybody.

        Raises:
            LocksUnusable: the object is closed, or belongs to the parent of this process.
        """
        if self._file is not None and self._file.closed:
            raise LocksUnusable(
                path=self._path,
                found="these locks were closed, or opened by a process that forked this one",
                fix="Open them again in the process that uses them",
            )

    def close(self) -> None:
        """Give back every byte and the descriptor; closing twice does no harm."""
        if self._file is not None:
            self._file.close()

    def _call(self, command: int, kind: int, offset: int, length: int = 1) -> bytes:
        """Call fcntl(2), which Python repeats after EINTR (PEP 475)."""
        self.check_usable()
        if self._file is None:
            raise OSError(errno.EBADF, "opened for queries only")
        request = _FLOCK.pack(kind, os.SEEK_SET, offset, length, 0)
        return fcntl.fcntl(self._file, command, request)

    def _prove_exclusion(self) -> None:
        """Check by a second descriptor that a lock excludes: some mounts grant every lock."""
        if not self.try_lock(_PROBE):
            return
        try:
            other = ByteLocks(self._path, query_only=True)
            is_seen = other.is_locked_elsewhere(_PROBE)
            other.close()
        finally:
            self.unlock(_PROBE)
        # a file that was removed or renamed meanwhile proves nothing; its user looks with is_file
        if not is_seen and self.is_file(self._path):
            raise LocksUnusable(
                path=self._path,
                found="the file system grants the same lock twice",
                fix=_FOLDER_FIX,
            )

    def _unusable(self, error: OSError) -> LocksUnusable:
        fix = _FOLDER_FIX
        if error.errno == errno.ENOLCK:
            fix = "The kernel's lock table is full or the file server lost its locks; mend that"
        return LocksUnusable(path=self._path, found=f"locking failed: {error.strerror}", fix=fix)
