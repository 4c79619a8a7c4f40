"""Imports the pipeline that a fleet file names, from beside the file or from what is installed.

The fleet file's folder goes to the front of ``sys.path`` only when the module really lies in it,
so that no other file of that folder can hide an installed module. Whatever the import raises
becomes one InvalidFleetFile at the line of ``pipeline:``.
"""

import contextlib
import importlib
import os
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from tenant_pipelines.errors import InvalidFleetFile, InvalidPipeline, nearest
from tenant_pipelines.fleet.pipeline import Pipeline

_LONGEST_MESSAGE = 500


def import_pipeline(path: Path, line: int, reference: str, *, has_warehouse: bool) -> Pipeline:
    """Import ``module.path:attribute`` and return the Pipeline it names.

    Args:
        path: the fleet file, absolute.
        line: the line of ``pipeline:``, for errors.
        reference: checked to look like ``module.path:attribute``.
        has_warehouse: whether steps may load into one.

    Raises:
        InvalidFleetFile: the module cannot be imported or comes from elsewhere than the file beside
            the fleet file, or the attribute is missing, no Pipeline, or needs a warehouse.
    """
    name, _, attribute = reference.partition(":")
    files = _files_of(path.parent, name)
    with _importable(path.parent if files else None):
        module = _import_module(path, line, name)
        _check_origin(path, line, module, files)
        pipeline = _attribute(path, line, module, attribute)
        if pipeline.loads and not has_warehouse:
            raise InvalidFleetFile(
                path=path,
                line=line,
                found="a pipeline that loads into a warehouse, and no 'warehouse'",
                wanted="the database that holds the rows and their ledger",
                fix="Add warehouse: sqlite:///{state}/warehouse.db.",
            )
    return pipeline


@contextlib.contextmanager
def _importable(folder: Path | None) -> Iterator[None]:
    """Put ``folder`` to the front of ``sys.path`` for good, unless the block raises."""
    entry = str(folder)
    added = folder is not None and entry not in sys.path
    if added:
        sys.path.insert(0, entry)
    try:
        yield
    except BaseException:
        if added and entry in sys.path:
            sys.path.remove(entry)
        raise


def _import_module(path: Path, line: int, name: str) -> ModuleType:
    importlib.invalidate_caches()
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:
        raise _not_imported(path, line, name, error) from error


def _attribute(path: Path, line: int, module: ModuleType, name: str) -> Pipeline:
    try:
        found = getattr(module, name, None)
    except Exception as error:
        raise _not_imported(path, line, module.__name__, error) from error
    if isinstance(found, Pipeline):
        return found
    pipelines = [key for key, value in vars(module).items() if isinstance(value, Pipeline)]
    hint = nearest(name, pipelines)
    raise InvalidFleetFile(
        path=path,
        line=line,
        found=f"no {name!r} in the module {module.__name__!r}"
        if found is None
        else f"{module.__name__}:{name}, which is of type {type(found).__name__}",
        wanted=f"the name of a Pipeline (there: {', '.join(pipelines) or 'none'})",
        fix=f"{hint[:1].upper()}{hint[1:]}Write {name} = Pipeline([…]) in that module, "
        "or name another one.",
    )


def _files_of(folder: Path, module: str) -> list[Path]:
    """Return the files in ``folder`` that would be the module."""
    base = folder.joinpath(*module.split("."))
    candidates = (base.parent / f"{base.name}.py", base / "__init__.py")
    return [file for file in candidates if file.is_file()]


def _check_origin(path: Path, line: int, module: ModuleType, files: list[Path]) -> None:
    """Refuse a module of another folder under the name of the one beside the fleet file."""
    origin = getattr(module, "__file__", None)
    if not files or any(
        origin is not None and os.path.realpath(origin) == os.path.realpath(file) for file in files
    ):
        return
    raise InvalidFleetFile(
        path=path,
        line=line,
        found=f"the module {module.__name__!r} of {origin or 'Python itself'}, found before",
        wanted=f"{files[0]}",
        fix="Rename one of the two: Python knows a module by its name only.",
    )


def _not_imported(path: Path, line: int, name: str, error: BaseException) -> InvalidFleetFile:
    """Say in one line what the import raised, and where in the user's code."""
    if isinstance(error, ModuleNotFoundError) and f"{name}.".startswith(f"{error.name}."):
        top = name.partition(".")[0]
        hidden = getattr(sys.modules.get(top), "__file__", None) if error.name != top else None
        return InvalidFleetFile(
            path=path,
            line=line,
            found=f"no module {error.name!r}" + (f" in the package {hidden}" if hidden else ""),
            wanted="a module beside the fleet file or an installed one",
            fix=f"Put {name.replace('.', '/')}.py into {path.parent}, or install its package.",
        )
    if isinstance(error, InvalidPipeline):
        what = str(error)
    elif isinstance(error, SystemExit):
        what = f"it ends Python with SystemExit({error.code!r})"
    else:
        what = f"{type(error).__name__}: {error}"
    return InvalidFleetFile(
        path=path,
        line=line,
        found=f"the module {name!r}, which fails at {_place(error, path.parent) or 'import'}: "
        + " ".join(what.split())[:_LONGEST_MESSAGE],
        wanted="a module that can be imported",
        fix=f"Mend it; to try it alone: PYTHONPATH={path.parent} python -c 'import {name}'.",
    )


def _place(error: BaseException, folder: Path) -> str | None:
    """Return file and line of the innermost code in ``folder``, else of the outermost elsewhere."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}"
    ours = (__file__, importlib.__file__)
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename not in ours and Path(frame.filename).is_file()
    ]
    inside = [frame for frame in frames if Path(frame.filename).is_relative_to(folder)]
    chosen = [*inside[-1:], *frames[:1]]
    return f"{chosen[0].filename}:{chosen[0].lineno}" if chosen else None
