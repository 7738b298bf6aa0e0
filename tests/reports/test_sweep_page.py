"""The picture of a sweep."""

from __future__ import annotations

import re
import shutil
import subprocess
from html import unescape
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Any

import pytest

from ep_overlap_mcp.reports.sweep_page import sweep_page
from ep_overlap_mcp.results.smoke import SweepPoint, SweepResult

if TYPE_CHECKING:
    from pathlib import Path

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
EP = "model.expert_model_parallel_size"


def point(ep: str, **changes: Any) -> SweepPoint:
    """Sound, without timing unless changed."""
    sound = {"status": "done", "overlap_ran": "yes", "numerics": "unchanged", "run": f"smoke-{ep}"}
    return SweepPoint.model_validate({"settings": {EP: ep}, **sound, **changes})


def timed(ep: str, verdict: str, ratio: float, low: float, high: float, **changes: Any) -> SweepPoint:
    """With a speed and its interval."""
    return point(ep, speed=verdict, ratio=ratio, ci95=(low, high), applies_to="these GPUs", **changes)


def page_of(*points: SweepPoint) -> str:
    """The page of a sweep of these points."""
    found = SweepResult(summary="S <1>.", id="sweep-1", points=list(points), applies_to="these GPUs", next="read & go")
    return sweep_page(found)


def rows(page: str) -> list[list[str]]:
    """The text of every cell of every row of points; a drawing reads as its label."""
    found = re.findall(r"<tr>(<td.*?)</tr>", page, re.DOTALL)
    return [
        [unescape(re.sub(r"<[^>]*>", " ", cell)).strip() for cell in re.findall(r"<td[^>]*>(.*?)</td>", row, re.DOTALL)]
        for row in found
    ]


FASTER = timed("2", "faster", 1.1, 1.05, 1.15, hidden_pct=40.0)
REFUSED = SweepPoint(settings={EP: "3"}, run=None, status="refused", note="EPO104: 3 does not divide <128>")


def test_every_point_has_its_row():
    """Settings, answers as words, the speed with its interval; the reason where there is no speed."""
    failed = point("8", status="failed", overlap_ran="unknown", numerics="unknown", note="rank 1 ended with signal 9")
    assert rows(page_of(FASTER, REFUSED, failed, point("16"))) == [
        [
            "2", "done", "yes", "unchanged", "faster  1.100, 95 % 1.050 to 1.150",
            "speed ratio 1.100, 95 % interval 1.050 to 1.150", "40 %", "smoke-2",
        ],
        ["3", "refused", "unknown", "unknown", "not measured", "EPO104: 3 does not divide <128>", "", ""],
        ["8", "failed", "unknown", "unknown", "not measured", "rank 1 ended with signal 9", "", "smoke-8"],
        ["16", "done", "yes", "unchanged", "not measured", "", "", "smoke-16"],
    ]  # fmt: skip


def test_speeds_are_drawn_on_one_axis():
    """From 0.8 to 1.2 with a twentieth of room at both ends, on 440 pixels: 1 stands in the middle of each row."""
    page = page_of(timed("2", "slower", 0.9, 0.8, 0.95), timed("4", "faster", 1.1, 1.0, 1.2))
    assert re.findall(r'<path class="interval" d="(.*?)"/><circle cx="(.*?)"', page) == [
        ("M20 13H170", "120"),
        ("M220 13H420", "320"),
    ]
    assert re.findall(r'class="one" d="M([\d.]+) ', page) == ["220", "220"]
    assert re.findall(r">([\d.]+)</text>", page) == ["0.8", "0.9", "1", "1.1", "1.2"]


def test_noise_is_not_drawn_as_an_effect():
    """Intervals of a thousandth leave the axis at two hundredths around 1."""
    page = page_of(timed("2", "no_difference_shown", 1.0, 0.999, 1.001))
    assert re.findall(r">([\d.]+)</text>", page) == ["0.98", "0.99", "1", "1.01", "1.02"]


@pytest.mark.parametrize(("low", "high"), [(0.2, 9.0), (0.97, 1.4), (1.9, 2.0), (0.001, 1.0), (1.0, 250.0)])
def test_every_axis_has_readable_ticks_and_holds_all(low, high):
    """A few, one of them at 1; no interval leaves the picture."""
    page = page_of(timed("2", "no_difference_shown", (low + high) / 2, low, high))
    ticks = [float(tick) for tick in re.findall(r">([\d.]+)</text>", page)]
    assert 3 <= len(ticks) <= 7
    assert 1.0 in ticks
    assert ticks == sorted(ticks)
    assert ticks[0] >= 0
    drawn = re.findall(r'class="interval" d="M([\d.]+) 13H([\d.]+)"', page)[0]
    assert all(0 <= float(x) <= 440 for x in (*drawn, *re.findall(r'class="one" d="M([\d.]+) ', page)))


@pytest.mark.parametrize(
    ("changes", "tone"),
    [
        ({}, "good"),
        ({"numerics": "changed"}, "open"),
        ({"overlap_ran": "unknown"}, "open"),
        ({"speed": "slower"}, "bad"),
        ({"speed": "no_difference_shown"}, "open"),
    ],
)
def test_a_speed_is_good_news_only_of_a_sound_point(changes, tone):
    """Faster with changed numbers is not green, neither as a word nor as a dot."""
    page = page_of(FASTER.model_copy(update=changes))
    assert re.findall(r'<svg role="img" aria-label="[^"]*" class="(\w+)"', page) == [tone]
    assert re.findall(r'<td class="(\w+)">(?:faster|slower|no difference shown)<br>', page) == [tone]


def test_a_ratio_without_interval_is_said_to_have_none():
    """The dot alone."""
    page = page_of(point("2", speed="faster", ratio=1.1))
    assert page.count("<circle ") == 1
    assert 'class="interval"' not in page
    assert page.count("interval not known") == 3


def test_without_any_timing_there_is_no_axis():
    """No drawing, and nothing said of how to read one."""
    page = page_of(point("2"), REFUSED)
    assert "<svg" not in page
    assert "Dot:" not in page
    assert len(rows(page)) == 2


def test_speeds_of_different_machines_are_told_apart():
    """Each scope once."""
    page = page_of(FASTER, FASTER, FASTER.model_copy(update={"applies_to": "this CPU <only>"}))
    assert re.findall(r"Speeds hold for (.*?)</li>", page) == ["these GPUs", "this CPU &lt;only&gt;"]


def test_points_may_vary_different_settings():
    """A column for each; a point without it has an empty cell."""
    page = page_of(point("2"), point("4").model_copy(update={"settings": {"variant": "overlap"}}))
    assert [row[:2] for row in rows(page)] == [["2", ""], ["", "overlap"]]


def test_nothing_is_fetched_and_no_text_becomes_markup():
    """No script, no address, a policy that forbids both; values, paths, reasons and names escaped."""
    evil = '"><script>alert(1)</script>'
    found = SweepPoint(settings={evil: evil}, run=evil, status="failed", note=evil)
    result = SweepResult(summary=evil, id=evil, points=[found, FASTER], applies_to=evil, next=evil)
    page = sweep_page(result, title=evil)
    assert "<script" not in page
    assert page.count("&lt;script&gt;alert(1)&lt;/script&gt;") == 8
    assert "default-src 'none'; style-src 'unsafe-inline'\"" in page
    assert not re.search(r"(?:https?:)?//[a-z]|src=|@import|url\(", page)


def test_the_markup_is_balanced():
    """Every element that is opened is closed, in order."""
    open_elements: list[str] = []

    class Checker(HTMLParser):
        def handle_starttag(self, tag: str, attrs: object) -> None:
            del attrs
            if tag not in ("meta", "path", "circle", "br", "wbr"):
                open_elements.append(tag)

        def handle_endtag(self, tag: str) -> None:
            if tag not in ("path", "circle"):
                assert open_elements.pop() == tag

    page = page_of(FASTER, REFUSED, point("16"))
    Checker().feed(page)
    assert page.count("<tr>") == 4
    assert open_elements == []


@pytest.mark.skipif(not CHROMIUM, reason="no Chromium on PATH")
def test_a_browser_draws_the_rows_on_one_axis(tmp_path: Path):
    """In real Chromium the lines at 1 stand one below the other, and the faster dot right of them."""
    act = """<script>
    const left = mark => [...document.querySelectorAll(mark)].map(m => Math.round(m.getBoundingClientRect().left));
    document.title = JSON.stringify([left('.one'), left('circle')]);
    </script></body>"""
    page = tmp_path / "page.html"
    text = page_of(timed("2", "slower", 0.9, 0.8, 0.95), REFUSED, timed("4", "faster", 1.1, 1.0, 1.2))
    page.write_text(text.replace("style-src", "script-src 'unsafe-inline'; style-src").replace("</body>", act))
    command = [str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'browser'}"]
    drawn = subprocess.run(
        [*command, "--dump-dom", page.as_uri()], capture_output=True, text=True, timeout=120, check=True
    ).stdout
    numbers = [int(n) for n in re.findall(r"\d+", re.findall(r"<title>(\[.*?)</title>", drawn)[0])]
    one, other, slow, fast = numbers
    assert one == other
    assert slow < one < fast
