"""The picture of a profile, also as a browser draws it."""

from __future__ import annotations

import re
import shutil
import subprocess
from html.parser import HTMLParser
from typing import TYPE_CHECKING

import pytest

from ep_overlap_mcp.reports.profile_page import profile_page
from ep_overlap_mcp.results.profile import (
    ByKind,
    Compare,
    DevicePicture,
    DeviceProfile,
    KindTime,
    Lane,
    PerStep,
    ProfileResult,
    ProfileSource,
    ScheduleEvidence,
    StepPicture,
    Totals,
    Unclassified,
)

if TYPE_CHECKING:
    from pathlib import Path

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def device(*, hidden_pct: float = 50.0) -> DeviceProfile:
    return DeviceProfile(
        device="GPU 0",
        rank=3,
        file="after.json",
        window_ms=1.0,
        steps=1,
        compute_ms=0.5,
        comm_ms=0.4,
        control_ms=0.1,
        idle_ms=0.3,
        hidden_ms=0.2,
        exposed_ms=0.2,
        hidden_pct=hidden_pct,
        hidden_pct_gemm_attention=25.0,
        by_kind=ByKind(dispatch=KindTime(ms=0.3, hidden_ms=0.2, hidden_pct=66.67, activities=2)),
        per_step=PerStep(n=1, median=50.0, min=50.0, max=50.0),
        unclassified=[Unclassified(name="acme<int>&", ms=0.1, pct_of_window=10.0, count=4)],
    )


def result(compare: Compare | None = None) -> ProfileResult:
    return ProfileResult(
        summary="Half is <hidden>.",
        source=[ProfileSource(file="after.json", format="Kineto", side="profile")],
        compat="none",
        devices=[device()],
        schedule_evidence=ScheduleEvidence(combined_1f1b="unknown", ranges=0, example=None, why="no marks"),
        compare=compare,
        caveats=["SendRecv & others"],
    )


def picture(side: str = "profile", window_ns: int = 1_000_000) -> DevicePicture:
    lanes = [
        Lane(name="GEMM and attention", style="gemm", stretches=[(0, 500_000)]),
        Lane(name="dispatch", style="communication", stretches=[(300_000, 600_000)]),
        Lane(name="exposed communication", style="exposed", stretches=[(500_000, 600_000)]),
    ]
    steps = [
        StepPicture(title=title, window_ns=window_ns, resolution_ns=333, lanes=lanes)
        for title in ("whole profile", "step 1")
    ]
    return DevicePicture(device="GPU 0", rank=3, file=f"{side}.json", side=side, steps=steps, left_out=4)


def totals(exposed_ms: float) -> Totals:
    return Totals(
        per="step",
        devices=1,
        window_ms=1.0,
        compute_ms=0.5,
        comm_ms=0.4,
        control_ms=0.1,
        hidden_ms=0.2,
        exposed_ms=exposed_ms,
        idle_ms=0.3,
        hidden_pct=50.0,
    )


COMPARE = Compare(
    before=totals(0.3), after=totals(0.2), critical=None, exposed_ms_range=(0.2, 0.2), reading="Exposed fell."
)


def rows(page: str) -> list[list[str]]:
    """The cells of every table row."""
    return [re.findall(r"<t[hd]>(.*?)</t[hd]>", row) for row in re.findall(r"<tr>(.*?)</tr>", page)]


def test_the_numbers_stand_in_tables():
    """Every number of the result, and the kernels of unknown kind, escaped."""
    assert rows(profile_page(result(), [picture()])) == [
        [
            "device",
            "window ms",
            "steps",
            "computation ms",
            "communication ms",
            "control ms",
            "idle ms",
            "hidden ms",
            "exposed ms",
            "hidden %",
            "hidden under GEMM, attention %",
            "hidden per step, median (min to max) %",
        ],
        [
            "rank 3, GPU 0",
            "1.000",
            "1",
            "0.500",
            "0.400",
            "0.100",
            "0.300",
            "0.200",
            "0.200",
            "50.00",
            "25.00",
            "50.00 (50.00 to 50.00), n = 1",
        ],
        ["device", "kind", "ms", "hidden ms", "hidden %"],
        ["rank 3, GPU 0", "dispatch", "0.300", "0.200", "66.67"],
        ["kernel", "device", "ms", "% of window", "runs"],
        ["acme&lt;int&gt;&amp;", "rank 3, GPU 0", "0.100", "10.00", "4"],
    ]


def test_exposed_stretches_are_marked_across_all_lanes():
    """Their own lane, and a band from the first lane to the last; 20000 units are the window."""
    page = profile_page(result(), [picture()])
    assert '<path class="exposed" d="M10000 2.12h2000v0.76h-2000z"/>' in page
    assert '<path class="band" d="M10000 0h2000v3h-2000z"/>' in page


def test_a_stretch_too_short_to_see_is_still_drawn():
    """At least one unit wide."""
    lane = Lane(name="exposed communication", style="exposed", stretches=[(7, 8)])
    step = StepPicture(title="whole profile", window_ns=1_000_000, resolution_ns=1, lanes=[lane])
    tiny = DevicePicture(device="GPU 0", rank=None, file="a", side="profile", steps=[step], left_out=0)
    assert 'd="M0 0.12h1v0.76h-1z"' in profile_page(result(), [tiny])


def test_before_and_after_share_a_scale():
    """The shorter window takes half the width of the one twice as long, so lengths compare by eye."""
    page = profile_page(result(COMPARE), [picture("before", 2_000_000), picture("after", 1_000_000)])
    assert re.findall(r'viewBox="0 0 (\d+) 3"', page) == ["20000", "20000", "40000", "40000"]
    assert page.index("<h2>before</h2>") < page.index("<h2>after</h2>")
    assert ["before", "step", "1.000", "0.500", "0.400", "0.200", "0.300", "50.00"] in rows(page)
    assert "Exposed fell." in page


def test_nothing_is_fetched_and_no_name_becomes_markup():
    """No address anywhere, a policy that forbids fetching, and text escaped."""
    page = profile_page(result(), [picture()], title="<script>alert(1)</script>")
    assert "default-src 'none'" in page
    assert not re.search(r"(?:https?:)?//[a-z]|src=|@import|url\(", page)
    assert "<script>alert" not in page
    assert "Half is &lt;hidden&gt;." in page
    assert "<li>SendRecv &amp; others</li>" in page


def test_the_markup_is_balanced():
    """Every element that is opened is closed, in order."""
    open_elements: list[str] = []

    class Checker(HTMLParser):
        def handle_starttag(self, tag: str, attrs: object) -> None:
            del attrs
            if tag not in ("meta", "path"):
                open_elements.append(tag)

        def handle_endtag(self, tag: str) -> None:
            if tag != "path":
                assert open_elements.pop() == tag

    Checker().feed(profile_page(result(COMPARE), [picture("before"), picture("after")]))
    assert open_elements == []


@pytest.mark.skipif(not CHROMIUM, reason="no Chromium on PATH")
def test_a_browser_selects_a_step_and_zooms(tmp_path: Path):
    """In real Chromium: one step is shown at a time, a drag narrows the view and its axis."""
    act = """<script>
    document.querySelector('nav button[data-step="1"]').click();
    const svg = document.querySelector('figure[data-step="1"] svg'), box = svg.getBoundingClientRect();
    svg.setPointerCapture = () => {};
    svg.onpointerdown({ clientX: box.left + box.width / 4, pointerId: 1 });
    svg.onpointerup({ clientX: box.left + box.width / 2 });
    </script></body>"""
    page = tmp_path / "page.html"
    page.write_text(profile_page(result(), [picture()]).replace("</body>", act))
    drawn = subprocess.run(
        [
            str(CHROMIUM),
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            f"--user-data-dir={tmp_path / 'browser'}",
            "--window-size=1200,800",
            "--dump-dom",
            page.as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    ).stdout
    assert re.findall(r'<figure data-step="(\d)" style="margin:0"( hidden="")?>', drawn) == [
        ("0", ' hidden=""'),
        ("1", ""),
    ]
    assert re.findall(r'data-step="(\d)" aria-pressed="(\w+)"', drawn) == [("0", "false"), ("1", "true")]
    shown = drawn[drawn.index('<figure data-step="1"') :]
    left, width = map(float, re.findall(r'viewBox="([\d.]+) 0 ([\d.]+) 3"', shown)[0])
    assert (left, width) == (pytest.approx(5000, rel=0.01), pytest.approx(5000, rel=0.01))
    ticks = [float(tick) for tick in re.findall(r"<span>([\d.]+) ms</span>", shown)[:5]]
    assert ticks == pytest.approx([0.25, 0.3125, 0.375, 0.4375, 0.5], abs=0.005)
