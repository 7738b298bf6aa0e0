"""One self-contained HTML page of a sweep: a row a point, its answers as words, its speed drawn on one axis for all.

It needs no network and has no script.
"""

from __future__ import annotations

from html import escape
from math import ceil, floor, log10
from typing import TYPE_CHECKING, NamedTuple

from ep_overlap_mcp.reports.html_page import opening

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ep_overlap_mcp.results.smoke import SweepPoint, SweepResult

_WIDTH, _HEIGHT = 440, 26  # pixels of a drawn row
_LEAST = 0.02  # the axis shows at least this much on both sides of 1, or noise would look like an effect

_GOOD = {"done", "yes", "unchanged", "faster"}
_BAD = {"refused", "failed", "lost", "no", "changed", "slower"}

_ANSWERS = ("status", "overlap ran", "numerics", "speed")

_POLICY = "default-src 'none'; style-src 'unsafe-inline'"

_STYLE = """
:root { color-scheme: light dark; --ink: #1c2330; --dim: #5f6776; --paper: #fff; --line: #d5dae2; --soft: #f4f6f9;
  --good: #1d7a55; --bad: #c0271d; --open: #8a6400; }
@media (prefers-color-scheme: dark) { :root {
  --ink: #e4e8ef; --dim: #9aa3b2; --paper: #14181f; --line: #39414f; --soft: #1d232d;
  --good: #4cc295; --bad: #ff7a6f; --open: #d9b64a; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); margin: 0 auto;
  max-width: 1700px; padding: 1.5rem; }
h1 { font-size: 1.4rem; margin: 0 0 .3rem; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { border-bottom: 1px solid var(--line); padding: .3rem .5rem; text-align: left; vertical-align: middle; }
th { vertical-align: bottom; } td { white-space: nowrap; }
td.setting { white-space: normal; overflow-wrap: anywhere; min-width: 6rem; }
svg { display: block; background: var(--soft); } svg text { font-size: 12px; fill: var(--dim); }
.good { color: var(--good); } .bad { color: var(--bad); } .open { color: var(--open); }
.interval { stroke: currentColor; stroke-width: 3; } circle { fill: currentColor; }
.tick { stroke: var(--line); } .one { stroke: var(--ink); stroke-dasharray: 3 2; }
.note { color: var(--dim); font-size: .85rem; }
td .note { white-space: pre-line; overflow-wrap: anywhere; width: 440px; }
"""


class _Axis(NamedTuple):
    """The ratios at the left and the right edge of every drawn row."""

    low: float
    high: float

    def x(self, ratio: float) -> float:
        """Pixels from the left."""
        return round(_WIDTH * (ratio - self.low) / (self.high - self.low), 1)

    def ticks(self) -> list[float]:
        """1, and ratios in round steps from it within the edges; at most seven."""
        rough = (self.high - self.low) / 6
        power = 10.0 ** floor(log10(rough))
        step = next(power * part for part in (1, 2, 5, 10) if power * part >= rough)
        first, last = ceil((self.low - 1) / step), floor((self.high - 1) / step)
        return [round(1 + step * count, 10) for count in range(first, last + 1)]


def sweep_page(result: SweepResult, title: str = "Smoke sweep") -> str:
    """The page as text, whether all points have ended or not.

    A ratio is the time of a point's own baseline by that of its variant: above 1 overlap is faster.
    """
    names = list(dict.fromkeys(name for point in result.points for name in point.settings))
    axis = _axis(result.points)
    heads = "".join(f'<th scope="col">{_breakable(head)}</th>' for head in (*names, *_ANSWERS))
    rows = "\n".join(_row(point, names, axis) for point in result.points)
    return f"""{opening(title, _POLICY, _STYLE)}<p>{escape(result.summary)}</p>
<div class="scroll"><table><thead><tr>{heads}<th scope="col">{_scale(axis)}</th><th scope="col">hidden</th>
<th scope="col">run</th></tr></thead><tbody>
{rows}
</tbody></table></div>
{_reading(result)}</body></html>
"""


def _axis(points: Sequence[SweepPoint]) -> _Axis | None:
    """One for all points, with room for every interval; None when no speed was measured."""
    measured = [point for point in points if point.ratio is not None]
    if not measured:
        return None
    shown = [ratio for point in measured for ratio in (point.ratio, *(point.ci95 or ())) if ratio is not None]
    low, high = min(1 - _LEAST, *shown), max(1 + _LEAST, *shown)
    room = 0.05 * (high - low)
    return _Axis(max(0.0, low - room), high + room)


def _breakable(name: str) -> str:
    """A long setting or value may break after a dot or an underscore."""
    return escape(name).replace(".", ".<wbr>").replace("_", "_<wbr>")


def _row(point: SweepPoint, names: Sequence[str], axis: _Axis | None) -> str:
    settings = "".join(f'<td class="setting">{_breakable(point.settings.get(name, ""))}</td>' for name in names)
    words = "".join(_word(word) for word in (point.status, point.overlap_ran, point.numerics))
    note = f'<div class="note">{escape(point.note)}</div>' if point.note else ""
    picture = "" if axis is None or point.ratio is None else _picture(point, point.ratio, axis)
    hidden = "" if point.hidden_pct is None else f"{point.hidden_pct:g} %"
    speed = f'<td class="{_speed_tone(point)}">{point.speed.replace("_", " ")}{_numbers(point)}</td>'
    return (
        f"<tr>{settings}{words}{speed}<td>{picture}{note}</td><td>{hidden}</td><td>{escape(point.run or '')}</td></tr>"
    )


def _word(word: str) -> str:
    return f'<td class="{_tone(word)}">{escape(word)}</td>'


def _tone(word: str) -> str:
    return "good" if word in _GOOD else "bad" if word in _BAD else "open"


def _speed_tone(point: SweepPoint) -> str:
    """A speed is never good news where overlap did not run or the numbers changed."""
    sound = (point.status, point.overlap_ran, point.numerics) == ("done", "yes", "unchanged")
    tone = _tone(point.speed)
    return "open" if tone == "good" and not sound else tone


def _numbers(point: SweepPoint) -> str:
    if point.ratio is None:
        return ""
    interval = "interval not known" if point.ci95 is None else "95 % {:.3f} to {:.3f}".format(*point.ci95)
    return f'<br><span class="note">{point.ratio:.3f}, {interval}</span>'


def _picture(point: SweepPoint, ratio: float, axis: _Axis) -> str:
    """The interval as a bar, the median as a dot, over the ticks."""
    middle = _HEIGHT / 2
    bar, said = "", "interval not known"
    if point.ci95 is not None:
        low, high = point.ci95
        bar = f'<path class="interval" d="M{axis.x(low):g} {middle:g}H{axis.x(high):g}"/>'
        said = f"95 % interval {low:.3f} to {high:.3f}"
    label = f"speed ratio {ratio:.3f}, {said}"
    return (
        f'<svg role="img" aria-label="{label}" class="{_speed_tone(point)}" {_box(_HEIGHT)}><title>{label}</title>'
        f'{_lines(axis)}{bar}<circle cx="{axis.x(ratio):g}" cy="{middle:g}" r="5"/></svg>'
    )


def _scale(axis: _Axis | None) -> str:
    """The head of the drawn column: what it shows, and the ratios of the ticks."""
    if axis is None:
        return ""
    labels = "".join(
        f'<text x="{min(max(axis.x(tick), 14), _WIDTH - 14):g}" y="13" text-anchor="middle">{tick:g}</text>'
        for tick in axis.ticks()
    )
    return f'baseline time by variant time<svg aria-hidden="true" {_box(18)}>{labels}</svg>'


def _lines(axis: _Axis) -> str:
    ticks = "".join(f'<path class="tick" d="M{axis.x(tick):g} 0V{_HEIGHT}"/>' for tick in axis.ticks() if tick != 1)
    return f'{ticks}<path class="one" d="M{axis.x(1):g} 0V{_HEIGHT}"/>'


def _box(height: int) -> str:
    return f'width="{_WIDTH}" height="{height}" viewBox="0 0 {_WIDTH} {height}"'


def _reading(result: SweepResult) -> str:
    """How the picture is to be read, and what the speeds are speeds of."""
    notes = [f"next: {result.next}"]
    if any(point.ratio is not None for point in result.points):
        notes = [
            "Dot: median over the timed pairs; bar: its 95 % interval; dashed line: 1, as fast as the baseline.",
            "Right of the line the variant is faster; a bar across it: no difference is shown.",
            "Each ratio is against the baseline of its own point; dots do not tell which point takes less time.",
            *(f"Speeds hold for {scope}" for scope in _scopes(result)),
            *notes,
        ]
    return "<ul>" + "".join(f'<li class="note">{escape(note)}</li>' for note in notes) + "</ul>"


def _scopes(result: SweepResult) -> list[str]:
    """Each kind of machine and model that a drawn speed is a speed of."""
    return list(dict.fromkeys(p.applies_to for p in result.points if p.ratio is not None and p.applies_to))
