"""What a person reads in the UI, in a real browser, after one tenant of six failed.

The pictures go to the test's temporary folder, or to the folder that ``$TENANT_PIPELINES_PICTURES``
names: README's was made by ``TENANT_PIPELINES_PICTURES=docs pytest`` of this file.
"""

import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import pytest
from PIL import Image
from playwright.sync_api import FloatRect, Locator, Page, expect, sync_playwright

from tenant_pipelines_tests.e2e.dev import SHARDS, Dev, dev_of

pytestmark = pytest.mark.slow

_CHROMIUM = Path("/usr/bin/chromium")
_SECONDS = 60.0
# every small round mark beside a row's text, as the browser has coloured it
_DOTS = """row => [...row.querySelectorAll("div")]
    .filter(e => e.offsetWidth && e.offsetWidth === e.offsetHeight && e.offsetWidth <= 16)
    .map(e => getComputedStyle(e).backgroundColor)"""


@pytest.fixture(scope="module")
def chromium() -> Path:
    """Return the browser; skip where there is none, but never where a skip would pass for proof."""
    if not _CHROMIUM.exists():
        reason = f"no {_CHROMIUM}: apt-get install chromium"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    return _CHROMIUM


@pytest.fixture
def page(chromium: Path) -> Iterator[Page]:
    """Return a page of Debian's Chromium, which is gone at the end."""
    # its sandbox refuses to run as root, as containers do
    flags = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=flags)
        try:
            page = browser.new_page(viewport={"width": 1900, "height": 1330})
            page.set_default_timeout(1000 * _SECONDS)
            expect.set_options(timeout=1000 * _SECONDS)
            yield page
        finally:
            browser.close()


@dataclass(frozen=True)
class _Failed:
    """A ``dagster dev`` after a backfill of everything, and the one run of it that failed."""

    dev: Dev
    run_id: str

    def open(self, page: Page, path: str) -> None:
        page.goto(f"http://127.0.0.1:{self.dev.port}/{path}")


@pytest.fixture(scope="module")
def failed(chromium: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[_Failed]:
    """Return the fleet after umbrella's transform failed in a backfill."""
    with dev_of(tmp_path_factory.mktemp("browser"), name="story") as dev:
        (dev.rig.folder / "fault.umbrella").touch()
        backfill = dev.backfill()
        assert dev.wait_for_backfill(backfill) in {"FAILED", "COMPLETED_FAILED"}
        (run_id,) = dev.backfill_runs(backfill)["shard_2"]
        yield _Failed(dev, run_id)


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    return Path(os.environ.get("TENANT_PIPELINES_PICTURES") or tmp_path)


def _colour(row: Locator) -> str:
    """Return the colour of the row's mark, as a person would call it."""
    (found,) = row.evaluate(_DOTS)
    red, green, blue = (int(part) for part in re.findall(r"\d+", found)[:3])
    if red > 2 * max(green, blue):
        return "red"
    return "green" if green > 1.2 * max(red, blue) else found


def _rows(page: Page) -> dict[str, str]:
    """Return the tenants in the list of partitions, from the top, with their colours."""
    texts = page.locator("[data-tooltip]:has([title])")
    expect(texts).to_have_count(len(SHARDS["shard_2"]))
    return {
        str(text.get_attribute("data-tooltip")): _colour(text.locator("..")) for text in texts.all()
    }


def _hues(picture: Path) -> tuple[int, int]:
    """Return how many pixels are clearly red and clearly green."""
    with Image.open(picture) as image:
        image.load()
        counts = image.convert("RGB").getcolors(maxcolors=image.width * image.height) or []
    red = green = 0
    for count, colour in counts:
        r, g, b = colour if isinstance(colour, tuple) else (0, 0, 0)
        red += count if r > 2 * max(g, b) else 0
        green += count if g > 1.2 * max(r, b) else 0
    return red, green


def test_the_partitions_page_shows_one_red_tenant_and_the_run_that_failed(
    failed: _Failed, page: Page, pictures: Path
) -> None:
    """Where people look first: who failed, in which run, and that nobody else did."""
    page.set_viewport_size({"width": 1280, "height": 560})
    counts = {
        "extract": {"Failed": 0, "Materialized": 3},
        "transform": {"Failed": 1, "Materialized": 2},
        "load": {"Failed": 1, "Materialized": 2},
    }
    for step, of_step in counts.items():
        failed.open(page, f"assets/story/shard_2/{step}?view=partitions")
        for label, count in {**of_step, "Materializing": 0, "Missing": 0}.items():
            expect(page.get_by_text(f"{label} ({count})", exact=True)).to_be_visible()
        umbrella = "red" if of_step["Failed"] else "green"
        assert _rows(page) == {"initech": "green", "umbrella": umbrella, "hooli": "green"}

    failed.open(page, "assets/story/shard_2/transform?view=partitions")
    failure = page.get_by_text("failed, and did not materialize this asset.")
    page.locator("[data-tooltip=hooli]").click()
    expect(page.get_by_text("generation", exact=True)).to_be_visible()
    expect(failure).to_have_count(0)
    page.locator("[data-tooltip=umbrella]").click()
    expect(failure).to_be_visible()
    expect(page.get_by_text(f"Run {failed.run_id[:8]} failed")).to_be_visible()
    picture = pictures / "partitions.png"
    page.screenshot(path=picture)
    red, green = _hues(picture)
    assert red > 100
    assert green > 100


def test_the_asset_graph_shows_every_shard_green_but_for_the_failed_steps(
    failed: _Failed, page: Page, pictures: Path
) -> None:
    """The fleet on one page: nine assets, two of them red, and the check that says so."""
    groups = ",".join(f"global@global:story__{shard}" for shard in SHARDS)
    failed.open(page, f"asset-groups?expanded={quote(groups, safe='')}")
    expect(page.get_by_text("66% filled (1 failed)")).to_have_count(2)
    expect(page.get_by_text("100% filled")).to_have_count(7)
    expect(page.get_by_text("2 / 2 Passed")).to_have_count(2)
    expect(page.get_by_text("1 / 2 Passed")).to_have_count(1)
    picture = pictures / "asset_graph.png"
    page.screenshot(path=picture, clip=_graph(page))
    red, green = _hues(picture)
    assert red > 20
    assert green > 20


def _graph(page: Page) -> FloatRect:
    """Return the part of the page that the shards fill, once the graph stands still."""
    boxes = """() => [...document.querySelectorAll("foreignObject")]
        .map(e => e.getBoundingClientRect()).filter(b => b.width > 100)
        .map(b => [b.left, b.top, b.right, b.bottom])"""
    until = time.monotonic() + _SECONDS
    before, found = None, page.evaluate(boxes)
    while before != found or not found:
        assert time.monotonic() < until, "the graph moves still"
        page.wait_for_timeout(500)
        before, found = found, page.evaluate(boxes)
    left, top = (min(box[side] for box in found) - 6 for side in (0, 1))
    right, bottom = (max(box[side] for box in found) + 6 for side in (2, 3))
    return {"x": left, "y": top, "width": right - left, "height": bottom - top}
