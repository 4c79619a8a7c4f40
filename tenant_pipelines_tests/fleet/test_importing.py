"""Importing the pipeline: every way it can fail is an error at the line of ``pipeline:``."""

import sys
from pathlib import Path

import pytest

from tenant_pipelines_tests.fleet.fleet_files import PLAIN_MODULE, FleetFolder

SHARD = "  a: {tenants: [acme]}\n"
TWO_STEPS = """
from tenant_pipelines import Pipeline, step

@step
def extract(ctx, {parameter}):
    return [1]

@step
def load(ctx, extract):
    pass

pipeline = Pipeline([extract, load])
"""


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("import no_such_module_anywhere", (":1: ", "no_such_module_anywhere")),
        ("\n\n1 / 0", (":3: ", "ZeroDivisionError: division by zero")),
        ("def f(:\n", (":1: ", "SyntaxError")),
        ("import sys\nsys.exit('bye')", (":2: ", "SystemExit('bye')")),
        ("raise SystemExit", ("SystemExit(None)",)),
        ("import json\njson.loads('{')", (":2: ", "JSONDecodeError")),
        ("def f(): f()\nf()", ("RecursionError",)),
        ("raise ValueError('a\\nb\\n' + 'c' * 9999)", ("a b ccc",)),
        (TWO_STEPS.format(parameter="load"), ("the cycle", "load")),
        (TWO_STEPS.format(parameter="lod"), ("the parameter 'lod'", "extract, load")),
        ("from tenant_pipelines import Pipeline\npipeline = Pipeline([])", ("at least one step",)),
        ("def __getattr__(name): raise OSError('odd')", ("OSError: odd",)),
        ("other = 1", ("no 'pipeline'", "Pipeline([…])")),
        ("pipeline = None", ("no 'pipeline'",)),
        (PLAIN_MODULE.replace("pipeline =", "pipelin ="), ("Did you mean 'pipelin'?",)),
        ("pipeline = [1]", ("of type list", "a Pipeline")),
        ("def pipeline(): ...", ("of type function",)),
        ("from tenant_pipelines import Pipeline as pipeline", ("of type type",)),
    ],
)
def test_a_module_without_a_pipeline_is_refused(
    folder: FleetFolder, source: str, said: tuple[str, ...]
) -> None:
    """The user's own code fails in every way, and the place in it is what they need."""
    folder.write_module(source)
    message = folder.refused(folder.head() + SHARD, line=2)
    for part in said:
        assert part in message
    assert len(message) < 1500


def test_a_module_that_does_not_exist_is_refused(folder: FleetFolder) -> None:
    """The fix names the file to write."""
    text = "name: a\npipeline: no_company.pipelines:p\nshards:\n" + SHARD
    message = folder.refused(text, line=2)
    assert "no module 'no_company'" in message
    assert f"Put no_company/pipelines.py into {folder.path}" in message


def test_a_module_missing_from_an_installed_package_names_the_package(folder: FleetFolder) -> None:
    """A file beside the fleet file cannot join a package that is installed elsewhere."""
    (folder.path / "json").mkdir()
    (folder.path / "json" / "mine.py").write_text(PLAIN_MODULE)
    text = "name: a\npipeline: json.mine:pipeline\nshards:\n" + SHARD
    assert "no module 'json.mine' in the package" in folder.refused(text, line=2)


def test_a_module_that_python_found_elsewhere_is_refused(
    folder: FleetFolder, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Two fleets with a pipelines.py each would run the first one's code for both."""
    folder.load(folder.head() + SHARD)
    other = FleetFolder(tmp_path_factory.mktemp("other"))
    other.module = folder.module
    other.write_module(PLAIN_MODULE)
    message = other.refused(other.head() + SHARD, line=2)
    assert str(folder.path / f"{folder.module}.py") in message
    assert str(other.path / f"{folder.module}.py") in message
    assert "Rename" in message


def test_a_failed_import_can_be_mended_and_repeated(folder: FleetFolder) -> None:
    """Dagster's code server reloads in one process."""
    folder.write_module("1 / 0")
    folder.refused(folder.head() + SHARD, line=2)
    folder.write_module(PLAIN_MODULE + "\nmended = True\n")
    assert folder.load(folder.head() + SHARD).pipeline.names == ("extract",)


def test_ctrl_c_during_the_import_is_not_swallowed(folder: FleetFolder) -> None:
    """A person who stops the command wants it to stop."""
    folder.write_module("raise KeyboardInterrupt")
    before = list(sys.path)
    with pytest.raises(KeyboardInterrupt):
        folder.load(folder.head() + SHARD)
    assert sys.path == before


def test_the_file_is_checked_before_the_users_code_runs(folder: FleetFolder) -> None:
    """Code of the user's may write; a file with a mistake must not get that far."""
    trace = folder.path / "trace"
    folder.write_module(f"open({str(trace)!r}, 'w').close()\n{PLAIN_MODULE}")
    folder.refused(folder.head() + "  a: {tenants: [acme, acme]}\n", line=4)
    folder.refused("warehouse: oracle://x\n" + folder.head() + SHARD, line=1)
    assert not Path(trace).exists()


def test_a_pipeline_that_loads_needs_a_warehouse(folder: FleetFolder) -> None:
    """Without one the load would fail after every extract was paid for."""
    folder.write_module(
        "from tenant_pipelines import Pipeline\n"
        "from tenant_pipelines.fleet.pipeline import Target, make_step\n"
        "def load(ctx): ...\n"
        "pipeline = Pipeline([make_step(load, target=Target(table='t', key=('day',)))])\n"
    )
    message = folder.refused(folder.head() + SHARD, line=2)
    assert "Add warehouse: sqlite:///{state}/warehouse.db" in message
    fleet = folder.load(folder.head() + SHARD + "warehouse: sqlite:///{state}/w.db\n")
    assert fleet.pipeline.loads
