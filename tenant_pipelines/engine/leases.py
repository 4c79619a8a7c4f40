"""Leases: the right to work on one tenant, for one chain of one process of the host at a time.

Leaves to others: several hosts, which share a journal and lease through PostgreSQL.
"""

import hashlib
import threading
from pathlib import Path

from tenant_pipelines.engine.locks import ByteLocks


class TenantLeases:
    """The tenants of one shard that somebody works on, as byte locks of one file.

    A lease excludes other threads, other objects and other processes, and ends with its process: a
    crash leaves ``leases.lock`` behind without locks, and nobody has to clean it. Two tenants whose
    names share a 62-bit hash wait for each other and are otherwise unharmed.
    """

    def __init__(self, folder: Path, *, query_only: bool = False) -> None:
        """Open the leases of one shard.

        Args:
            folder: the shard's private lock folder; made unless ``query_only``.
            query_only: for status: create nothing, take nothing.

        Raises:
            LocksUnusable: locks do not work in the folder.
        """
        self._locks = ByteLocks(folder / "leases.lock", query_only=query_only)
        self._mutex = threading.Lock()
        self._held: set[int] = set()

    def try_take(self, tenant: str) -> bool:
        """Take the tenant's lease if nobody has it, this object's other threads included.

        Args:
            tenant: any text.

        Returns:
            Whether the caller has the lease now and must give it back.

        Raises:
            LocksUnusable: the object is closed, for queries only, or of a forked parent.
        """
        offset = _offset(tenant)
        self._locks.check_usable()
        with self._mutex:
            if offset in self._held or not self._locks.try_lock(offset):
                return False
            self._held.add(offset)
            return True

    def give_back(self, tenant: str) -> None:
        """Give a lease back.

        Args:
            tenant: one that ``try_take`` returned True for.

        Raises:
            ValueError: this object does not hold the lease; nothing was given back.
            LocksUnusable: the object is closed, or of a forked parent.
        """
        offset = _offset(tenant)
        self._locks.check_usable()
        with self._mutex:
            if offset not in self._held:
                raise ValueError(f"the lease of tenant {tenant!r} is not held here")
            self._locks.unlock(offset)
            self._held.discard(offset)

    def is_leased(self, tenant: str) -> bool:
        """Tell whether anybody works on the tenant, through this object or another one.

        Args:
            tenant: any text.

        Returns:
            False as soon as the holder gave the lease back or died.

        Raises:
            LocksUnusable: the object is closed, of a forked parent, or the file cannot be read.
        """
        return _offset(tenant) in self._held or self.holder_alive(tenant)

    def holder_alive(self, tenant: str) -> bool:
        """Tell whether another object, of this or another living process, holds the lease.

        Args:
            tenant: any text.

        Returns:
            False when nobody holds it, or this object does.

        Raises:
            LocksUnusable: as ``is_leased``.
        """
        return self._locks.is_locked_elsewhere(_offset(tenant))

    def close(self) -> None:
        """Give back every lease; call it when no thread uses the object any more."""
        self._locks.close()


def _offset(tenant: str) -> int:
    """Return the tenant's byte, the same on every run: 62 bits of a hash of its name."""
    name = tenant.encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(name, digest_size=8).digest()) >> 2
