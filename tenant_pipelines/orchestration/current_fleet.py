"""The fleet as its file has it now, for processes that live longer than one version of the file.

A file that became unusable keeps the last good fleet, and the error is told with every look. The
shards are those that Dagster loaded: a new or renamed one needs its code location to be reloaded.
"""

import hashlib
import threading
from dataclasses import dataclass, replace

from tenant_pipelines.errors import InvalidFleetFile
from tenant_pipelines.fleet.file import load_fleet
from tenant_pipelines.fleet.model import Fleet


@dataclass(frozen=True, slots=True, kw_only=True)
class Current:
    """One look at a fleet file.

    Attributes:
        fleet: the newest good content, with the shards that Dagster loaded.
        version: changes with the file's content.
        error: why the file cannot be used now, None when it can.
        to_reload: what changed in the file that Dagster shows only after a reload.
    """

    fleet: Fleet
    version: str
    error: InvalidFleetFile | None = None
    to_reload: tuple[str, ...] = ()


class CurrentFleet:
    """Reads a fleet file again when its content has changed."""

    def __init__(self, loaded: Fleet) -> None:
        """Begin with the fleet that Dagster's definitions were made of."""
        self._loaded = loaded
        self._newest = Current(fleet=loaded, version="")
        self._content: bytes | None = None
        self._mutex = threading.Lock()

    def look(self) -> Current:
        """Return the fleet as its file has it now; the last good one when the file is broken."""
        with self._mutex:
            try:
                content = self._loaded.path.read_bytes()
            except OSError as error:
                self._content = None
                found = f"a file that cannot be read ({error.strerror})"
                return self._broken(
                    InvalidFleetFile(
                        path=self._loaded.path,
                        line=None,
                        found=found,
                        wanted="the fleet file",
                        fix="Put it back, or remove the fleet from what Dagster loads.",
                    )
                )
            if content != self._content:
                self._newest = self._read(content)
                self._content = content
            return self._newest

    def _read(self, content: bytes) -> Current:
        try:
            fleet = load_fleet(self._loaded.path)
        except InvalidFleetFile as error:
            return self._broken(error)
        if (fleet.name, fleet.state) != (self._loaded.name, self._loaded.state):
            return self._broken(
                InvalidFleetFile(
                    path=fleet.path,
                    line=None,
                    found=f"the fleet {fleet.name!r} with its state in {fleet.state}",
                    wanted=f"{self._loaded.name!r}, which Dagster has loaded",
                    fix="Reload the code location.",
                )
            )
        return Current(
            fleet=replace(
                fleet,
                pipeline=self._loaded.pipeline,
                shards={k: shard for k, shard in fleet.shards.items() if k in self._loaded.shards},
            ),
            version=hashlib.sha256(content).hexdigest()[:16],
            to_reload=tuple(self._to_reload(fleet)),
        )

    def _to_reload(self, fleet: Fleet) -> list[str]:
        known = self._loaded.shards
        changed = [f"shard {name} is new" for name in fleet.shards if name not in known]
        changed += [f"shard {name} is gone" for name in known if name not in fleet.shards]
        if fleet.schedule != self._loaded.schedule:
            changed.append("the schedule changed")
        return changed

    def _broken(self, error: InvalidFleetFile) -> Current:
        return replace(self._newest, error=error)
