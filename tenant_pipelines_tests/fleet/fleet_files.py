"""Fleet files for tests, each with a pipeline module of a name of its own."""

import itertools
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tenant_pipelines.errors import InvalidFleetFile
from tenant_pipelines.fleet.file import load_fleet
from tenant_pipelines.fleet.model import Fleet

PLAIN_MODULE = """
from tenant_pipelines import Pipeline, step

@step
def extract(ctx):
    return [1]

pipeline = Pipeline([extract])
"""

_numbers = itertools.count()


class FleetFolder:
    """A folder with a fleet file that can be rewritten, read and looked at."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.file = path / "fleet.yaml"
        self.module = f"fleet_under_test_{next(_numbers)}"
        self.write_module(PLAIN_MODULE)

    def write_module(self, source: str) -> None:
        (self.path / f"{self.module}.py").write_text(source)

    def head(self) -> str:
        """The first three lines of a good file; what is appended begins on line 4."""
        return f"name: flights\npipeline: {self.module}:pipeline\nshards:\n"

    def write(self, text: str | bytes) -> Path:
        text = text.replace("MODULE", self.module) if isinstance(text, str) else text
        self.file.write_bytes(text if isinstance(text, bytes) else text.encode())
        return self.file

    def load(self, text: str | bytes, **environ: str) -> Fleet:
        return load_fleet(self.write(text), environ=environ)

    def refused(self, text: str | bytes, *, line: int | None, **environ: str) -> str:
        """Load ``text``, check the place in the error and that nothing was written; return it."""
        self.write(text)
        return self.refused_file(self.file, line=line, **environ)

    def refused_file(self, file: Path, *, line: int | None, **environ: str) -> str:
        before = self.everything()
        importable = list(sys.path)
        with pytest.raises(InvalidFleetFile) as caught:
            load_fleet(file, environ=environ)
        message = str(caught.value)
        place = f"{file}:{line}: " if line is not None else f"{file}: "
        assert message.startswith(place), f"{message!r} does not begin with {place!r}"
        assert caught.value.facts["line"] == line
        assert "Traceback" not in message
        assert "pydantic" not in message
        assert self.everything() == before
        assert sys.path == importable
        return message

    def everything(self) -> dict[str, bytes | None]:
        """All paths of the folder with their content, Python's own cache aside."""
        return {
            str(path.relative_to(self.path)): path.read_bytes() if path.is_file() else None
            for path in sorted(self.path.rglob("*"))
            if "__pycache__" not in path.parts
        }


def quoted(text: str) -> str:
    """Return ``text`` as a YAML scalar in double quotes."""
    return json.dumps(text)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[FleetFolder]:
    """A fleet folder that leaves ``sys.path`` and ``sys.modules`` as they were."""
    paths, modules = list(sys.path), set(sys.modules)
    yield FleetFolder(tmp_path)
    sys.path[:] = paths
    for name in set(sys.modules) - modules:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]
