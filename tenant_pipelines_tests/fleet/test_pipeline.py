"""Steps and pipelines: the order they run in, and what is no pipeline."""

import pickle
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenant_pipelines import Pipeline, Retries, StepContext, step
from tenant_pipelines.errors import InvalidPipeline, UnknownName
from tenant_pipelines.fleet.pipeline import Step, Target, make_step


def named(name: str, *upstream: str, **rest: Any) -> Step:
    def function(ctx: StepContext, **inputs: Any) -> list[str]:
        return [name, *inputs]

    return make_step(function, name=name, upstream=upstream, **rest)


@st.composite
def graphs(draw: st.DrawFn) -> dict[str, list[str]]:
    """Draw an acyclic graph: upstream names by name, in any order."""
    size = draw(st.integers(1, 9))
    names = [f"s{index}" for index in range(size)]
    graph = {
        name: draw(st.lists(st.sampled_from(names[:index]), unique=True)) if index else []
        for index, name in enumerate(names)
    }
    return {name: graph[name] for name in draw(st.permutations(names))}


@given(graph=graphs())
def test_each_step_comes_after_its_upstream_steps(graph: dict[str, list[str]]) -> None:
    """Any acyclic graph works, in whatever order it is written."""
    pipeline = Pipeline(named(name, *upstream) for name, upstream in graph.items())
    assert sorted(pipeline.names) == sorted(graph)
    for name, upstream in graph.items():
        assert pipeline[name].upstream == tuple(upstream)
        for other in upstream:
            assert pipeline.names.index(other) < pipeline.names.index(name)


@given(graph=graphs(), data=st.data())
def test_downstream_is_what_can_be_reached_without_the_start(
    graph: dict[str, list[str]], data: st.DataObject
) -> None:
    """A failed step blocks these and no others."""
    start = set(data.draw(st.lists(st.sampled_from(sorted(graph)))))

    def reaches(name: str) -> bool:
        return any(other in start or reaches(other) for other in graph[name])

    pipeline = Pipeline(named(name, *upstream) for name, upstream in graph.items())
    assert pipeline.downstream_of(start) == {name for name in graph if reaches(name)} - start


def test_downstream_of_takes_an_iterator() -> None:
    """The names left out are those that went in, even when they can be read only once."""
    pipeline = Pipeline([named("a"), named("b", "a"), named("c", "b")])
    assert pipeline.downstream_of(iter(["a"])) == {"b", "c"}


def test_the_order_is_the_same_in_every_process() -> None:
    """Plans of two processes have to agree."""
    steps = [named("a"), named("b"), named("c", "b", "a"), named("d", "a")]
    assert Pipeline(steps).names == ("a", "b", "d", "c")


def test_a_step_takes_its_name_and_upstream_from_the_function() -> None:
    """Writing the function is all there is to do."""

    @step
    def extract(ctx: StepContext) -> list[int]:
        return [1]

    @step(code_version="2", retries=Retries(attempts=3))
    def transform(ctx: StepContext, extract: list[int], *, other: int) -> list[int]:
        return [*extract, other]

    @step(name="other")
    def written_otherwise(ctx: StepContext) -> int:
        return 2

    assert (extract.name, extract.upstream, extract.code_version) == ("extract", (), None)
    assert (transform.upstream, transform.code_version) == (("extract", "other"), "2")
    assert transform.retries.attempts == 3
    pipeline = Pipeline([transform, written_otherwise, extract])
    assert pipeline.names[-1] == "transform"
    ctx: Any = None
    assert transform(ctx, extract(ctx), other=written_otherwise(ctx)) == [1, 2]


def test_retries_double_their_wait_up_to_an_hour() -> None:
    """A number that grew without end would stop a tenant for good."""
    retries = Retries(attempts=2000, wait_seconds=1.5)
    assert [retries.wait_before(attempt) for attempt in (2, 3, 4, 20)] == [1.5, 3.0, 6.0, 3600.0]
    assert retries.wait_before(2000) == 3600.0
    assert Retries(wait_seconds=0).wait_before(1999) == 0


def coroutine() -> Callable[..., Any]:
    async def extract(ctx: StepContext) -> None: ...

    return extract


def generator() -> Callable[..., Any]:
    def extract(ctx: StepContext) -> Any:
        yield 1

    return extract


def async_generator() -> Callable[..., Any]:
    async def extract(ctx: StepContext) -> Any:
        yield 1

    return extract


def keyword_context() -> Callable[..., Any]:
    def extract(*, ctx: StepContext) -> None: ...

    return extract


def any_number() -> Callable[..., Any]:
    def extract(ctx: StepContext, *rest: Any) -> None: ...

    return extract


def any_name() -> Callable[..., Any]:
    def extract(ctx: StepContext, **rest: Any) -> None: ...

    return extract


def positional_input() -> Callable[..., Any]:
    def load(ctx: StepContext, extract: Any, /) -> None: ...

    return load


def no_parameter() -> Callable[..., Any]:
    def extract() -> None: ...

    return extract


def bad_name() -> Callable[..., Any]:
    def my__step(ctx: StepContext) -> None: ...

    return my__step


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (coroutine, "coroutine"),
        (generator, "generator"),
        (async_generator, "generator"),
        (keyword_context, "no parameter for the context"),
        (no_parameter, "no parameter for the context"),
        (any_number, r"\*rest"),
        (any_name, r"\*\*rest"),
        (positional_input, "passed by name"),
        (bad_name, "my__step"),
    ],
)
def test_a_function_that_is_no_step_is_refused(
    function: Callable[[], Callable[..., Any]], said: str
) -> None:
    """Where it is written is where it has to be mended."""
    with pytest.raises(InvalidPipeline, match=said):
        step(function())


@pytest.mark.parametrize("function", [lambda ctx: None, 5, "extract", int, None.__class__])
def test_what_cannot_be_looked_into_is_refused(function: Any) -> None:
    """Builtins, lambdas and non-functions have no name or no parameters to read."""
    with pytest.raises(InvalidPipeline):
        step(function)


def named_with(**arguments: Any) -> Step:
    def extract(ctx: StepContext) -> None: ...

    return step(**arguments)(extract)


@pytest.mark.parametrize("code_version", [2, 2.0, b"2", True])
def test_a_code_version_is_text(code_version: Any) -> None:
    """2 and "2" would compare unequal to what the journal holds."""
    with pytest.raises(InvalidPipeline, match="code_version"):
        named_with(code_version=code_version)


@pytest.mark.parametrize(
    "arguments",
    [
        {"attempts": 0},
        {"attempts": -1},
        {"attempts": 1.5},
        {"attempts": True},
        {"attempts": "3"},
        {"wait_seconds": -1},
        {"wait_seconds": 3601},
        {"wait_seconds": float("nan")},
        {"wait_seconds": float("inf")},
        {"wait_seconds": "1"},
    ],
)
def test_retries_that_make_no_sense_are_refused(arguments: dict[str, Any]) -> None:
    """A step that is never tried, or waits for ever, looks like one that hangs."""
    with pytest.raises(InvalidPipeline, match="Retries"):
        Retries(**arguments)


@pytest.mark.parametrize("arguments", [{"retries": 3}, {"retries": None}, {"window": 5}])
def test_retries_and_windows_of_another_type_are_refused(arguments: dict[str, Any]) -> None:
    """The first failure would otherwise end in another failure."""
    with pytest.raises(InvalidPipeline, match="Retries and a function"):
        named_with(**arguments)


def window(ctx: StepContext) -> int:
    return 1


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        ([], "at least one step"),
        ([named("a"), named("a")], "each name once"),
        ([window], "functions marked with @step"),
        ([named("a", "b")], "'b'"),
        ([named("a", "a")], "a → a"),
        ([named("a", "c"), named("b", "a"), named("c", "b")], "the cycle"),
        ([named("a", window=window), named("b", window=window)], "windows on the steps a, b"),
        ([named("a"), named("b", "a", window=window)], "upstream"),
        (None, "steps"),
        (named("a"), "steps"),
    ],
)
def test_steps_that_make_no_pipeline_are_refused(steps: Any, said: str) -> None:
    """Before any tenant is touched."""
    with pytest.raises(InvalidPipeline, match=said) as caught:
        Pipeline(steps)
    copy = pickle.loads(pickle.dumps(caught.value))
    assert str(copy) == str(caught.value)


def test_an_unknown_step_is_answered_with_the_known_ones() -> None:
    """``--step extrct`` is a typing error."""
    pipeline = Pipeline([named("extract"), named("load", "extract")])
    with pytest.raises(UnknownName, match="did you mean 'extract'"):
        pipeline["extrct"]


def test_a_pipeline_knows_its_loads_and_its_window() -> None:
    """With a load it needs a warehouse; one window holds for every step that reads."""
    load = named("b", "a", target=Target(table="t", key=("k",)))
    read = named("c", window=lambda ctx: 1)
    assert Pipeline([named("a")]).loads == ()
    assert Pipeline([named("a")]).window_step is None
    pipeline = Pipeline([load, named("a"), read])
    assert pipeline.loads == (load,)
    assert pipeline.window_step == read


def test_two_loads_of_one_table_are_refused() -> None:
    """A generation of one would delete rows of the other; SQL ignores the case of a name."""
    targets = {"b": Target(table="T", key=("k",)), "c": Target(table="t", key=("k",))}
    with pytest.raises(InvalidPipeline, match="'t' loaded by 'b' and 'c'"):
        Pipeline([named("a"), *(named(name, "a", target=targets[name]) for name in targets)])


def test_replacing_everything_by_what_is_new_is_refused() -> None:
    """A cycle without news would empty the table."""
    read = named("read", window=lambda ctx: 1)
    load = named("load", "read", target=Target(table="t", key=("k",), replaces=()))
    with pytest.raises(InvalidPipeline, match=r"replaces=\[\] below 'read'"):
        Pipeline([read, load])
    assert Pipeline([named("read"), load, named("other", window=lambda ctx: 1)]).loads


def test_printing_a_pipeline_shows_its_order() -> None:
    """That is what one wants to see of it."""
    assert repr(Pipeline([named("b", "a"), named("a")])) == "Pipeline(a → b)"
