"""One self-contained HTML page of a profile: lanes over a step, exposed stretches marked, the numbers below.

It needs no network and no script to be read; the little script in it selects a step and zooms.
"""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from ep_overlap_mcp.reports.html_page import opening

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ep_overlap_mcp.results.profile import (
        DevicePicture,
        DeviceProfile,
        Lane,
        ProfileResult,
        StepPicture,
        Totals,
    )

_UNITS = 20_000  # across a window; whole numbers keep the page small and renderers exact

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"

_STYLE = """
:root { color-scheme: light dark; --ink: #1c2330; --dim: #5f6776; --paper: #fff; --line: #d5dae2; --soft: #f4f6f9;
  --gemm: #1f5fa8; --compute: #86b3dd; --communication: #2f8f6b; --control: #a7a03a; --exposed: #d1362b; }
@media (prefers-color-scheme: dark) { :root {
  --ink: #e4e8ef; --dim: #9aa3b2; --paper: #14181f; --line: #39414f; --soft: #1d232d;
  --gemm: #5b9be0; --compute: #34618f; --communication: #4cc295; --control: #cfc75e; --exposed: #ff6a5e; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); margin: 0 auto;
  max-width: 1500px; padding: 1.5rem; }
h1 { font-size: 1.4rem; margin: 0 0 .3rem; } h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; }
h3 { font-size: .95rem; margin: .8rem 0 .3rem; overflow-wrap: anywhere; }
nav button { font: inherit; color: inherit; background: var(--soft); border: 1px solid var(--line);
  border-radius: 5px; padding: .2rem .7rem; margin: 0 .3rem .3rem 0; cursor: pointer; }
nav button[aria-pressed=true] { background: var(--gemm); color: var(--paper); border-color: var(--gemm); }
.sides { display: grid; gap: 1.5rem; } .sides.two { grid-template-columns: 1fr 1fr; }
.lanes { display: grid; grid-template-columns: 10.5rem 1fr; font-size: .8rem; }
.names { display: grid; } .names span { align-self: center; white-space: nowrap; }
svg { width: 100%; background: var(--soft); border: 1px solid var(--line); box-sizing: border-box;
  cursor: crosshair; touch-action: none; }
.axis { grid-column: 2; display: flex; justify-content: space-between; color: var(--dim); }
.gemm { fill: var(--gemm); } .compute { fill: var(--compute); } .communication { fill: var(--communication); }
.control { fill: var(--control); } .exposed { fill: var(--exposed); } .band { fill: var(--exposed); opacity: .16; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { border-bottom: 1px solid var(--line); padding: .3rem .7rem; text-align: right; }
td { white-space: nowrap; } th { vertical-align: bottom; }
th:first-child, td:first-child { text-align: left; } .note { color: var(--dim); font-size: .85rem; }
@media (max-width: 900px) { .sides.two { grid-template-columns: 1fr; } }
"""

# Buttons show one step of every device; a drag across the lanes zooms, a double click shows all of it again.
_SCRIPT = """
const all = (selector, within = document) => [...within.querySelectorAll(selector)];
function show(step) {
  for (const figure of all('figure')) figure.hidden = figure.dataset.step !== step;
  for (const button of all('nav button')) button.setAttribute('aria-pressed', button.dataset.step === step);
}
for (const button of all('nav button')) button.onclick = () => show(button.dataset.step);
if (all('nav button').length) show('0');
function zoom(svg, from, width) {
  const height = svg.viewBox.baseVal.height, window = +svg.dataset.ms, units = +svg.dataset.units;
  svg.setAttribute('viewBox', `${from} 0 ${width} ${height}`);
  all('.axis span', svg.parentNode).forEach((tick, at, ticks) => {
    const time = (from + width * at / (ticks.length - 1)) * window / units;
    tick.textContent = time.toFixed(3) + ' ms';
  });
}
for (const svg of all('svg')) {
  let start = null;
  const at = event => {
    const box = svg.getBoundingClientRect(), view = svg.viewBox.baseVal;
    return view.x + view.width * Math.min(1, Math.max(0, (event.clientX - box.left) / box.width));
  };
  svg.onpointerdown = event => { start = at(event); svg.setPointerCapture(event.pointerId); };
  svg.onpointerup = event => {
    const end = at(event), from = Math.min(start, end), width = Math.abs(end - start);
    if (width > svg.viewBox.baseVal.width / 100) zoom(svg, from, width);
  };
  svg.ondblclick = () => zoom(svg, 0, +svg.dataset.span);
}
"""


def profile_page(result: ProfileResult, pictures: Sequence[DevicePicture], title: str = "Communication overlap") -> str:
    """The page as text. `pictures` are those of `profiles.draw` for the same files; with a before and an after
    they stand side by side on one scale.
    """
    return f"""{opening(title, _POLICY, _STYLE)}<p>{escape(result.summary)}</p>
{_buttons(pictures)}{_sides(pictures)}
<h2>Devices</h2>{_devices(result.devices)}
<h2>Communication by kind</h2>{_kinds(result.devices)}
{_comparison(result)}{_unclassified(result.devices)}{_notes(result)}
<script>{_SCRIPT}</script></body></html>
"""


def _buttons(pictures: Sequence[DevicePicture]) -> str:
    longest = max((picture.steps for picture in pictures), key=len, default=[])
    buttons = "".join(
        f'<button type="button" data-step="{number}">{escape(step.title)}</button>'
        for number, step in enumerate(longest)
    )
    left_out = max((picture.left_out for picture in pictures), default=0)
    more = f' <span class="note">{left_out} more steps are not drawn</span>' if left_out else ""
    hint = '<p class="note">Drag across the lanes to zoom, double-click to see all of it again.</p>'
    return f"<nav>{buttons}{more}</nav>{hint}" if buttons else ""


def _sides(pictures: Sequence[DevicePicture]) -> str:
    names = [name for name in ("profile", "before", "after") if any(picture.side == name for picture in pictures)]
    columns = "".join(
        f"<section>{f'<h2>{name}</h2>' if len(names) > 1 else ''}"
        + "".join(_device(picture, pictures) for picture in pictures if picture.side == name)
        + "</section>"
        for name in names
    )
    return f'<div class="sides{" two" if len(names) > 1 else ""}">{columns}</div>'


def _device(picture: DevicePicture, pictures: Sequence[DevicePicture]) -> str:
    rank = "" if picture.rank is None else f"rank {picture.rank}, "
    figures = "".join(
        _figure(step, number, max(other.steps[number].window_ns for other in pictures if number < len(other.steps)))
        for number, step in enumerate(picture.steps)
    )
    return f'<h3>{escape(rank + picture.device)} <span class="note">{escape(picture.file)}</span></h3>{figures}'


def _figure(step: StepPicture, number: int, longest_ns: int) -> str:
    """The lanes of a window, as wide as the longest of its number so that lengths compare by eye."""
    span = round(_UNITS * longest_ns / step.window_ns)
    rows = len(step.lanes)
    names = "".join(f"<span>{escape(lane.name)}</span>" for lane in step.lanes)
    drawn = "".join(_lane(lane, row, step.window_ns) for row, lane in enumerate(step.lanes))
    bands = "".join(
        f'<path class="band" d="{_boxes(lane, 0, rows, step.window_ns)}"/>'
        for lane in step.lanes
        if lane.style == "exposed"
    )
    ticks = "".join(f"<span>{longest_ns / 1e6 * part / 4:.3f} ms</span>" for part in range(5))
    label = escape(f"{step.title}, {step.window_ns / 1e6:.3f} ms: {', '.join(lane.name for lane in step.lanes)}")
    return f"""<figure data-step="{number}" style="margin:0"><div class="lanes">
<div class="names" style="grid-template-rows:repeat({max(rows, 1)},1fr)">{names}</div>
<svg role="img" aria-label="{label}" viewBox="0 0 {span} {max(rows, 1)}" preserveAspectRatio="none"
 style="height:{24 * max(rows, 1)}px" data-span="{span}" data-units="{_UNITS}" data-ms="{step.window_ns / 1e6}">
<title>{label}</title>{bands}{drawn}</svg>
<div class="axis">{ticks}</div></div>
<figcaption class="note">{escape(step.title)}: {step.window_ns / 1e6:.3f} ms; gaps below
 {step.resolution_ns / 1e3:.1f} us are closed in the picture, never in the numbers</figcaption></figure>"""


def _lane(lane: Lane, row: int, window_ns: int) -> str:
    return f'<path class="{escape(lane.style)}" d="{_boxes(lane, row + 0.12, 0.76, window_ns)}"/>'


def _boxes(lane: Lane, top: float, height: float, window_ns: int) -> str:
    """A path of boxes, each at least a unit wide so that nothing is lost to rounding."""
    boxes = []
    for start, end in lane.stretches:
        left = round(start * _UNITS / window_ns)
        width = max(1, round(end * _UNITS / window_ns) - left)
        boxes.append(f"M{left} {top:g}h{width}v{height:g}h-{width}z")
    return "".join(boxes)


def _devices(devices: Sequence[DeviceProfile]) -> str:
    head = (
        "device", "window ms", "steps", "computation ms", "communication ms", "control ms", "idle ms", "hidden ms",
        "exposed ms", "hidden %", "hidden under GEMM, attention %", "hidden per step, median (min to max) %",
    )  # fmt: skip
    return _table(head, (_device_row(device) for device in devices)) + (
        '<p class="note">All times are of interval unions. Hidden: any computation ran on the device at the same'
        " time. Control kernels wait rather than transfer; they are part of communication.</p>"
    )


def _device_row(device: DeviceProfile) -> list[str]:
    steps = device.per_step
    times = (
        device.compute_ms,
        device.comm_ms,
        device.control_ms,
        device.idle_ms,
        device.hidden_ms,
        device.exposed_ms,
    )
    return [
        _name(device),
        f"{device.window_ms:.3f}",
        str(device.steps),
        *(f"{time:.3f}" for time in times),
        _share(device.hidden_pct),
        _share(device.hidden_pct_gemm_attention),
        f"{steps.median:.2f} ({steps.min:.2f} to {steps.max:.2f}), n = {steps.n}" if steps else "steps not named",
    ]


def _kinds(devices: Sequence[DeviceProfile]) -> str:
    rows = [
        [_name(device), name.replace("_", " "), f"{kind.ms:.3f}", f"{kind.hidden_ms:.3f}", _share(kind.hidden_pct)]
        for device in devices
        for name, kind in ((name, getattr(device.by_kind, name)) for name in type(device.by_kind).model_fields)
        if kind
    ]
    return _table(("device", "kind", "ms", "hidden ms", "hidden %"), rows)


def _comparison(result: ProfileResult) -> str:
    if result.compare is None:
        return ""
    sides = [("before", result.compare.before), ("after", result.compare.after)]
    rows = [_totals_row(name, totals) for name, totals in sides if totals]
    head = ("", "per", "window ms", "computation ms", "communication ms", "hidden ms", "exposed ms", "hidden %")
    return f"<h2>Comparison</h2>{_table(head, rows)}<p>{escape(result.compare.reading)}</p>"


def _totals_row(name: str, totals: Totals) -> list[str]:
    times = (totals.window_ms, totals.compute_ms, totals.comm_ms, totals.hidden_ms, totals.exposed_ms)
    return [name, totals.per, *(f"{time:.3f}" for time in times), _share(totals.hidden_pct)]


def _unclassified(devices: Sequence[DeviceProfile]) -> str:
    rows = [
        [kernel.name, _name(device), f"{kernel.ms:.3f}", f"{kernel.pct_of_window:.2f}", str(kernel.count)]
        for device in devices
        for kernel in device.unclassified
    ]
    if not rows:
        return ""
    table = _table(("kernel", "device", "ms", "% of window", "runs"), rows)
    return f"<h2>Kernels of unknown kind, counted as computation</h2>{table}"


def _notes(result: ProfileResult) -> str:
    evidence = result.schedule_evidence
    notes = [f"Combined forward-backward schedule: {evidence.combined_1f1b}. {evidence.why}.", *result.caveats]
    return "<h2>Notes</h2><ul>" + "".join(f"<li>{escape(note)}</li>" for note in notes) + "</ul>"


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    heading = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{heading}</tr></thead><tbody>{body}</tbody></table></div>'


def _name(device: DeviceProfile) -> str:
    return device.device if device.rank is None else f"rank {device.rank}, {device.device}"


def _share(value: float | None) -> str:
    return "none" if value is None else f"{value:.2f}"
