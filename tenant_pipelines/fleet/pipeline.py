"""Steps and the acyclic graph they form: defined once, the same for every tenant.

A parameter named like a step is that step's output; the first parameter is the context. Everything
that can be wrong with a pipeline is refused when it is built, before any tenant is touched.
"""

import graphlib
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, overload

from tenant_pipelines.errors import InvalidPipeline, UnknownName
from tenant_pipelines.fleet.context import Cursor, StepContext
from tenant_pipelines.fleet.names import IDENTIFIER_WANTED, is_identifier


@dataclass(frozen=True, slots=True, kw_only=True)
class Retries:
    """How often a step is tried within one run.

    Attributes:
        attempts: executions at most, the first included; at least 1.
        wait_seconds: pause before the second attempt; doubles with each further one.
    """

    attempts: int = 1
    wait_seconds: float = 1.0

    def __post_init__(self) -> None:
        wait = self.wait_seconds
        is_usable = type(self.attempts) is int and self.attempts >= 1
        if not is_usable or type(wait) not in {int, float} or not 0 <= wait <= 3600:
            raise InvalidPipeline(
                place="Retries",
                found=f"attempts={self.attempts!r}, wait_seconds={wait!r}",
                wanted="attempts, a whole number of at least 1, and wait_seconds from 0 to 3600",
                fix="Change the numbers.",
            )

    def wait_before(self, attempt: int) -> float:
        """Return the seconds to wait before ``attempt`` (2 is the first retry)."""
        # 2.0 ** 1024 is an OverflowError
        return min(self.wait_seconds * 2.0 ** min(attempt - 2, 1000), 3600.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The warehouse table that a load merges its input into.

    Attributes:
        table: its name.
        key: columns that identify a row within a tenant.
        replaces: columns of a group of rows; a load replaces every group that its input touches,
            all of the tenant's rows when there are no columns; None replaces rows by their key.
    """

    table: str
    key: tuple[str, ...]
    replaces: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One function of a pipeline; calling it calls the function.

    Attributes:
        name: unique in its pipeline.
        function: takes a StepContext, then the outputs of its upstream steps by name.
        upstream: names of the steps whose outputs it takes.
        code_version: a change of it makes done cells run again; None never does.
        retries: how often it is tried within a run.
        window: gives the newest cursor value to read this cycle; called once per tenant and cycle.
        target: the warehouse table that it loads, None for a step that is no load. Its effect is
            recorded in the warehouse's ledger in one transaction with the data, so that the engine
            can settle a crash between commit and journal.
    """

    name: str
    function: Callable[..., Any]
    upstream: tuple[str, ...]
    code_version: str | None = None
    retries: Retries = Retries()
    window: Callable[[StepContext], Cursor | None] | None = None
    target: Target | None = None

    def __call__(self, ctx: StepContext, /, *args: Any, **inputs: Any) -> Any:
        """Call the function, as a test of one step does."""
        return self.function(ctx, *args, **inputs)


@overload
def step(function: Callable[..., Any], /) -> Step: ...
@overload
def step(
    *,
    name: str | None = None,
    code_version: str | None = None,
    retries: Retries = ...,
    window: Callable[[StepContext], Cursor | None] | None = None,
) -> Callable[[Callable[..., Any]], Step]: ...
def step(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    code_version: str | None = None,
    retries: Retries = Retries(),
    window: Callable[[StepContext], Cursor | None] | None = None,
) -> Step | Callable[[Callable[..., Any]], Step]:
    """Make a step of a function; usable as ``@step`` and as ``@step(code_version="2")``.

    Args:
        function: the function; its first parameter is the context, each other one names a step.
        name: the step's name, when it is not the function's.
        code_version: see Step.
        retries: see Step.
        window: see Step.

    Raises:
        InvalidPipeline: the name or the parameters cannot be used.
    """

    def make(function: Callable[..., Any]) -> Step:
        return make_step(
            function, name=name, code_version=code_version, retries=retries, window=window
        )

    return make if function is None else make(function)


def make_step(
    function: Callable[..., Any],
    *,
    name: str | None = None,
    code_version: str | None = None,
    retries: Retries = Retries(),
    window: Callable[[StepContext], Cursor | None] | None = None,
    target: Target | None = None,
    upstream: tuple[str, ...] | None = None,
) -> Step:
    """Build a Step, reading the upstream names from the function's parameters unless given."""
    name = name if name is not None else getattr(function, "__name__", "")
    place = f"step {name!r} ({getattr(function, '__module__', '?')})"
    if not is_identifier(name):
        raise InvalidPipeline(
            place=place,
            found=f"the name {name!r}",
            wanted=IDENTIFIER_WANTED,
            fix="Rename the function, or give @step(name=…).",
        )
    if code_version is not None and not isinstance(code_version, str):
        raise InvalidPipeline(
            place=place,
            found=f"code_version={code_version!r}",
            wanted="a string",
            fix=f'Write code_version="{code_version}".',
        )
    if not isinstance(retries, Retries) or not (window is None or callable(window)):
        raise InvalidPipeline(
            place=place,
            found=f"retries={retries!r}, window={window!r}",
            wanted="Retries and a function",
            fix="Write retries=Retries(attempts=3) and window=a_function, or leave them out.",
        )
    if upstream is None:
        upstream = _upstream_of(function, place)
    return Step(
        name=name,
        function=function,
        upstream=upstream,
        code_version=code_version,
        retries=retries,
        window=window,
        target=target,
    )


def _upstream_of(function: Callable[..., Any], place: str) -> tuple[str, ...]:
    if (
        inspect.iscoroutinefunction(function)
        or inspect.isgeneratorfunction(function)
        or inspect.isasyncgenfunction(function)
    ):
        raise InvalidPipeline(
            place=place,
            found="a coroutine or generator function",
            wanted="a plain function that returns its output",
            fix="Collect the output inside the step and return it.",
        )
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        raise InvalidPipeline(
            place=place,
            found=f"an object of type {type(function).__name__} without readable parameters",
            wanted="a function written in Python",
            fix="Wrap it: def step_name(ctx: StepContext, …).",
        ) from None
    plain = {inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.POSITIONAL_ONLY}
    if not parameters or parameters[0].kind not in plain:
        raise InvalidPipeline(
            place=place,
            found="no parameter for the context",
            wanted="the context as first parameter",
            fix="Write def step_name(ctx: StepContext, …).",
        )
    for parameter in parameters[1:]:
        if parameter.kind not in {
            inspect.Parameter.POSITIONAL_OR_KEYWORD,
            inspect.Parameter.KEYWORD_ONLY,
        }:
            raise InvalidPipeline(
                place=place,
                found=f"the parameter {parameter}",
                wanted="parameters that can be passed by name",
                fix="Name each upstream step.",
            )
    return tuple(parameter.name for parameter in parameters[1:])


def _check_targets(steps: list[Step]) -> None:
    """Refuse two loads of one table: a generation of one would replace rows of the other."""
    loads: dict[str, str] = {}
    for entry in steps:
        if entry.target is None:
            continue
        # SQL names a table in any case
        other = loads.setdefault(entry.target.table.casefold(), entry.name)
        if other != entry.name:
            raise InvalidPipeline(
                place="Pipeline",
                found=f"the table {entry.target.table!r} loaded by {other!r} and {entry.name!r}",
                wanted="a table of its own for each load",
                fix="Load one of them into another table.",
            )


class Pipeline:
    """The acyclic graph of steps, in an order in which each comes after its upstream steps.

    Attributes:
        steps: in running order.
        every_name: the steps' names.
        window_step: the step whose window function pins the tenant's window, None without one.
        loads: the steps with a target, in running order.
    """

    def __init__(self, steps: Iterable[Step]) -> None:
        """Check and order the steps.

        Raises:
            InvalidPipeline: no steps, two of one name, an unknown upstream, a cycle, two windows.
        """
        if not isinstance(steps, Iterable):
            raise InvalidPipeline(
                place="Pipeline",
                found=repr(steps)[:200],
                wanted="a list of steps",
                fix="Write Pipeline([extract, load]).",
            )
        given = list(steps)
        for entry in given:
            if not isinstance(entry, Step):
                raise InvalidPipeline(
                    place="Pipeline",
                    found=repr(entry)[:200],
                    wanted="functions marked with @step",
                    fix="Put @step above each function.",
                )
        by_name = {entry.name: entry for entry in given}
        if not given or len(by_name) < len(given):
            raise InvalidPipeline(
                place="Pipeline",
                found=f"the steps {[entry.name for entry in given]}",
                wanted="at least one step, each name once",
                fix="Rename or remove steps.",
            )
        for entry in given:
            for upstream in entry.upstream:
                if upstream not in by_name:
                    raise InvalidPipeline(
                        place=f"step {entry.name!r}",
                        found=f"the parameter {upstream!r}",
                        wanted=f"the name of a step of the pipeline ({', '.join(by_name)})",
                        fix="Rename the parameter or add the step.",
                    )
        _check_targets(given)
        windows = [entry.name for entry in given if entry.window is not None]
        if len(windows) > 1:
            raise InvalidPipeline(
                place="Pipeline",
                found=f"windows on the steps {', '.join(windows)}",
                wanted="at most one: a tenant has one window a cycle",
                fix="Keep the window on the step that reads the source.",
            )
        if windows and by_name[windows[0]].upstream:
            raise InvalidPipeline(
                place=f"step {windows[0]!r}",
                found="a window on a step with upstream steps",
                wanted="the window on a step that reads the source",
                fix="Move it there.",
            )
        sorter = graphlib.TopologicalSorter({entry.name: entry.upstream for entry in given})
        try:
            order = list(sorter.static_order())
        except graphlib.CycleError as error:
            raise InvalidPipeline(
                place="Pipeline",
                found=f"the cycle {' → '.join(error.args[1])}",
                wanted="steps that do not wait for themselves",
                fix="Remove one of the parameters.",
            ) from None
        self.steps: tuple[Step, ...] = tuple(by_name[name] for name in order)
        self._by_name: Mapping[str, Step] = {entry.name: entry for entry in self.steps}
        self.every_name: frozenset[str] = frozenset(self._by_name)
        self.window_step: Step | None = by_name[windows[0]] if windows else None
        self.loads: tuple[Step, ...] = tuple(entry for entry in self.steps if entry.target)
        for load in self.loads:
            has_whole_input = not set(windows) & self.upstream_of(load.name)
            if load.target and load.target.replaces == () and not has_whole_input:
                raise InvalidPipeline(
                    place=f"step {load.name!r}",
                    found=f"replaces=[] below {windows[0]!r}, which reads what is new only",
                    wanted="a group of columns, or an extract that reads everything each time",
                    fix='Write replaces=["day"], or take the cursor column away.',
                )

    @property
    def names(self) -> tuple[str, ...]:
        """The steps' names in running order."""
        return tuple(self._by_name)

    def __getitem__(self, name: str) -> Step:
        try:
            return self._by_name[name]
        except KeyError:
            raise UnknownName(
                kind="step", name=name, known=list(self._by_name), place="pipeline"
            ) from None

    def __repr__(self) -> str:
        return f"Pipeline({' → '.join(self._by_name)})"

    def upstream_of(self, name: str) -> frozenset[str]:
        """Return every step that the step ``name`` depends on, itself left out."""
        reached = {name}
        for entry in reversed(self.steps):
            if entry.name in reached:
                reached.update(entry.upstream)
        return frozenset(reached - {name})

    def downstream_of(self, names: Iterable[str]) -> frozenset[str]:
        """Return every step that depends on one of ``names``, those left out."""
        start = frozenset(names)
        reached = set(start)
        for entry in self.steps:
            if reached.intersection(entry.upstream):
                reached.add(entry.name)
        return frozenset(reached - start)
