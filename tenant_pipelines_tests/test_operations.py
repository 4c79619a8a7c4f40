"""Every command on the page for three in the morning is run, on a fleet with that trouble."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tenant_pipelines_tests.crash.rig import rig_of

pytestmark = pytest.mark.slow

_PAGE = (Path(__file__).parents[1] / "docs" / "operations.md").read_text(encoding="utf-8")
_COMMANDS = re.findall(r"<!-- command: (\w+), exit (\d) -->\s*```sh\n(.+?)\n```", _PAGE)

_STEPS = """
@step
def extract(ctx: StepContext) -> dict:
    return {}

@step
def transform(ctx: StepContext, extract: dict) -> dict:
    if ctx.tenant == "umbrella" and (HERE / "fault").exists():
        raise RuntimeError("the vendor's file is broken")
    return extract

pipeline = Pipeline([extract, transform])
"""


def test_every_command_of_the_page_does_what_it_says(tmp_path: Path) -> None:
    """Whoever reads it at night types it without thinking."""
    shards = {"shard_1": ["acme"], "shard_2": ["initech", "umbrella"]}
    assert len(_COMMANDS) == len(re.findall(r"^tenant-pipelines ", _PAGE, re.MULTILINE)) > 8
    with rig_of(tmp_path, module=_STEPS, shards=shards) as rig:
        (tmp_path / "fault").touch()
        assert rig.call("run").code == 1
        said: dict[str, str] = {}
        for name, code, line in _COMMANDS:
            if name == "mend":
                (tmp_path / "fault").unlink()
            ended = subprocess.run(
                line.replace("tenant-pipelines", f"{sys.executable} -m tenant_pipelines", 1),
                shell=True, cwd=tmp_path, env=rig.environ, capture_output=True, text=True,
                timeout=120, check=False,
            )  # fmt: skip
            assert ended.returncode == int(code), f"{line}: {ended.stdout} {ended.stderr}"
            said[name] = ended.stdout
        assert "umbrella transform: failed" in said["status"]
        assert "the vendor's file is broken" in said["why"]
        assert "in transform" in said["why"]
        assert "total: 1 ran, 3 skipped" in said["mend"]
        assert "total: 1 ran, 0 skipped" in said["force"]
        assert "nothing to run" in said["plan"]
