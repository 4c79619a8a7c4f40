"""An installed pipeline, which lies beside no fleet file."""

from tenant_pipelines import Pipeline, StepContext, step


@step
def extract(ctx: StepContext) -> list[int]:
    """Give one row."""
    return [1]


pipeline = Pipeline([extract])
