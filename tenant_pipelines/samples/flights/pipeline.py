"""The flights pipeline: an airline's flights become one row per day and route, incrementally.

A day's 95th percentile needs the whole day: the extract reads every day that the window touches, up
to the window's end, and the load replaces those days. So the warehouse always is what a computation
over all reports up to the tenant's cursor gives, late flights and corrections included.
"""

from typing import Any

from tenant_pipelines.fleet.context import StepContext
from tenant_pipelines.fleet.pipeline import Pipeline, step
from tenant_pipelines.samples.flights.source import flights_source
from tenant_pipelines.storage.sql_source import sql_extract
from tenant_pipelines.storage.sql_warehouse import sql_load

# as the US Department of Transportation counts: less than 15 minutes late, here 15 included
_ON_TIME_MINUTES = 15

extract = sql_extract(
    source=flights_source,
    table="flights",
    tenant_column="carrier",
    cursor_column="seq",
    whole=["year", "month", "day"],
    columns=[
        *("flight_id", "year", "month", "day", "origin", "dest"),
        *("dep_time", "dep_delay", "arr_delay"),
    ],
)


@step
def transform(ctx: StepContext, extract: Any) -> Any:
    """Aggregate the newest report of each flight per day, origin and destination.

    Returns:
        Columns day (ISO 8601), origin, dest, flights, cancelled (never departed), mean and 95th
        percentile of the delays in minutes (of flights that departed, that arrived), on_time_share
        (of the flights that arrived, those at most 15 minutes late; NaN when none did).
    """
    import pandas as pd

    # rows come in the order of seq; a flight keeps its day in every report of it
    every = len(extract)
    extract = extract.drop_duplicates("flight_id", keep="last")
    dep_delay = extract["dep_delay"].astype("float64")
    arr_delay = extract["arr_delay"].astype("float64")
    rows = pd.DataFrame(
        {
            "date": extract["year"] * 10_000 + extract["month"] * 100 + extract["day"],
            "origin": extract["origin"].astype("category"),
            "dest": extract["dest"].astype("category"),
            "cancelled": extract["dep_time"].isna(),
            "dep_delay": dep_delay,
            "arr_delay": arr_delay,
            "on_time": (arr_delay <= _ON_TIME_MINUTES).astype("float64").where(arr_delay.notna()),
        }
    )
    groups = rows.groupby(["date", "origin", "dest"], observed=True)
    means = groups[["dep_delay", "arr_delay", "on_time"]].mean()
    high = groups[["dep_delay", "arr_delay"]].quantile(0.95)
    result = pd.DataFrame(
        {
            "flights": groups.size(),
            "cancelled": groups["cancelled"].sum().astype("int64"),
            "dep_delay_mean_minutes": means["dep_delay"],
            "dep_delay_p95_minutes": high["dep_delay"],
            "arr_delay_mean_minutes": means["arr_delay"],
            "arr_delay_p95_minutes": high["arr_delay"],
            "on_time_share": means["on_time"],
        }
    ).reset_index()
    days = pd.to_datetime(result.pop("date").astype("int64").astype(str), format="%Y%m%d")
    result.insert(0, "day", days.dt.strftime("%Y-%m-%d"))
    ctx.account(rows=int(result["flights"].sum()))
    ctx.account(rows=every - len(extract))  # older reports of a flight
    ctx.log.info("flights.aggregated", extra={"flights": len(extract), "rows": len(result)})
    return result.astype({"origin": "str", "dest": "str"})


load = sql_load(table="daily_routes", key=["day", "origin", "dest"], replaces=["day"])

flights = Pipeline([extract, transform, load])
