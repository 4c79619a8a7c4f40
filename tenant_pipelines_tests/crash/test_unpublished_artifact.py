"""A process that dies when an artifact is written and the journal does not name it yet."""

from pathlib import Path

import pytest

from tenant_pipelines_tests.crash.rig import rig_of

pytestmark = pytest.mark.slow

# while the file "dies" is there, the shard dies with the artifact of a2's extract in place
_STEPS = """
import os
import signal

@step
def extract(ctx: StepContext) -> list:
    with noted(HERE, ctx):
        return [ctx.tenant] * 5000  # too much for the journal's entry

@step
def load(ctx: StepContext, extract: list) -> int:
    with noted(HERE, ctx):
        return len(extract)

pipeline = Pipeline([extract, load])

if (HERE / "dies").exists():
    from tenant_pipelines.storage.artifacts import ArtifactStore
    store = ArtifactStore.store

    def stores_and_dies(self, attempt, value):
        stored = store(self, attempt, value)
        if (attempt.tenant, attempt.step) == ("a2", "extract"):
            os.kill(os.getpid(), signal.SIGKILL)
        return stored

    ArtifactStore.store = stores_and_dies
"""


def test_an_artifact_that_a_kill_kept_from_the_journal_is_collected_by_the_next_run(
    tmp_path: Path,
) -> None:
    """Nobody knows of such a file: without that, each crash fills the disk a little more."""
    with rig_of(
        tmp_path,
        module=_STEPS,
        shards={"a": ["a1", "a2", "a3"]},
        defaults={"max_concurrent": 1},
    ) as rig:
        (tmp_path / "dies").touch()
        assert rig.call("run", "--json").code == 1
        (tmp_path / "dies").unlink()
        (unknown,) = set(rig.artifact_files()) - set(rig.published_files())
        assert unknown.startswith("a2-")

        again = rig.call("run", "--json")
        assert again.code == 0, again.err
        assert len(rig.published_files()) == 3
        assert rig.artifact_files() == rig.published_files()
        assert rig.call("journal", "verify").code == 0
