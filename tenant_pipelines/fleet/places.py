"""Where a fleet keeps things: its state folder, its artifacts, its warehouse; and the samples.

Every path is absolute and none depends on the working directory. Nothing is made here.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path

import platformdirs
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from tenant_pipelines.errors import InvalidFleetFile

STATE_VARIABLE = "TENANT_PIPELINES_STATE"
SAMPLES = Path(os.path.realpath(__file__)).parents[1] / "samples"

_BRACES = re.compile(r"[{}]")
_SQLITE = frozenset({"sqlite", "sqlite+pysqlite"})
_WAREHOUSE_WANTED = "the SQLAlchemy URL of a SQLite file"
_WAREHOUSE_FIX = "Write warehouse: sqlite:///{state}/warehouse.db."


def state_folder(path: Path, fleet: str, environ: Mapping[str, str]) -> Path:
    """Return the folder of the fleet's journals, locks and artifacts.

    Args:
        path: the fleet file, absolute.
        fleet: its name.
        environ: read for TENANT_PIPELINES_STATE; set to nothing counts as not set.

    Raises:
        InvalidFleetFile: the variable holds a relative path.
    """
    if given := environ.get(STATE_VARIABLE):
        chosen = Path(given).expanduser() if given.startswith("~/") else Path(given)
        if not chosen.is_absolute():
            raise InvalidFleetFile(
                path=path,
                line=None,
                found=f"{STATE_VARIABLE}={given!r} in the environment",
                wanted="an absolute path, which does not depend on the working directory",
                fix=f"Set {STATE_VARIABLE} to a path that begins with /.",
            )
        return Path(os.path.normpath(chosen)) / fleet
    if path.is_relative_to(SAMPLES):
        return platformdirs.user_data_path("tenant-pipelines").absolute() / fleet
    return path.parent / ".tenant_pipelines" / fleet


def artifacts_folder(path: Path, line: int, written: str, state: Path) -> str:
    """Return the absolute folder of the artifacts.

    Args:
        path: the fleet file, absolute.
        line: the line of ``artifacts:``.
        written: its value; ``{state}`` is replaced.
        state: the state folder.

    Raises:
        InvalidFleetFile: a URL, or another placeholder.
    """
    if "://" in written:
        raise InvalidFleetFile(
            path=path,
            line=line,
            found="a URL as 'artifacts', which is not built yet",
            wanted="a folder",
            fix='Write artifacts: "{state}/artifacts", or remove the key.',
        )
    _check_placeholders(path, line, "artifacts", written)
    folder = _absolute(path, written.replace("{state}", str(state)))
    # the state folder is the fleet's own; two fleets in one other folder would collect each other's
    return folder if "{state}" in written else f"{folder}/{state.name}"


def warehouse_url(path: Path, line: int, written: str, state: Path) -> str:
    """Return the warehouse's URL with an absolute path; errors never print the URL.

    Args:
        path: the fleet file, absolute.
        line: the line of ``warehouse:``.
        written: its value; ``{state}`` is replaced.
        state: the state folder.

    Raises:
        InvalidFleetFile: it does not parse, is no SQLite file, or has another placeholder.
    """

    def invalid(found: str, fix: str = _WAREHOUSE_FIX) -> InvalidFleetFile:
        return InvalidFleetFile(
            path=path, line=line, found=found, wanted=_WAREHOUSE_WANTED, fix=fix
        )

    _check_placeholders(path, line, "warehouse", written)
    try:
        url = make_url(written)
    except (ArgumentError, ValueError):
        raise invalid("a 'warehouse' that is no SQLAlchemy URL") from None
    if url.drivername not in _SQLITE:
        raise invalid(f"a warehouse in {url.drivername[:40]!r}, which is not built yet")
    if url.host or url.port or url.username or url.password:
        raise invalid(
            "a SQLite URL with a host",
            "Write three slashes before a relative path, four before an absolute one.",
        )
    if not url.database or url.database.startswith((":memory:", "file:")) or "uri" in url.query:
        raise invalid("a SQLite URL without a file, which processes cannot share")
    database = _absolute(path, url.database.replace("{state}", str(state)))
    rendered = url.set(database=database).render_as_string(hide_password=False)
    if _database(rendered) != database:
        raise invalid(
            f"a path that SQLAlchemy cannot carry in a URL ({database!r})",
            "Rename the folder: it holds one of the characters ? and %.",
        )
    return rendered


def _database(url: str) -> str | None:
    parsed: URL = make_url(url)
    return parsed.database


def _check_placeholders(path: Path, line: int, key: str, written: str) -> None:
    """Refuse every brace that is not part of ``{state}``."""
    rest = written.replace("{state}", "")
    if _BRACES.search(rest):
        later = ": {shard} is not built yet" if "{shard}" in rest else ""
        raise InvalidFleetFile(
            path=path,
            line=line,
            found=f"a placeholder in {key!r} that is not known{later}",
            wanted="no other placeholder than {state}; ${NAME} works in tenants' settings only",
            fix=f"Write {key} with {{state}} or with a plain path.",
        )


def _absolute(path: Path, written: str) -> str:
    """Return ``written`` as an absolute path, counted from the fleet file's folder."""
    expanded = os.path.expanduser(written) if written.startswith("~/") else written  # noqa: PTH111
    return os.path.normpath(path.parent / expanded)
