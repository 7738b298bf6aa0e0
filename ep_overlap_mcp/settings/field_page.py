"""A setting's page, from its row in the field table."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ep_overlap_mcp.settings.fields import Field


def field_markdown(field: Field) -> str:
    """Type, allowed values, defaults by release and names in each dialect, as Markdown."""
    rows = [f"# {field.path}", "", field.doc, "", f"- type: {field.type}{', may be null' if field.optional else ''}"]
    if field.cli_choices:
        rows.append(f"- values on the command line: {', '.join(map(str, field.cli_choices))}")
    if field.choices:
        rows.append(f"- values: {', '.join(_with_releases(field, str(choice)) for choice in field.choices)}")
    if field.defaults:
        rows.append("- default: " + _by_release(field.defaults, field.until))
    if field.cli_defaults:
        rows.append("- default on Megatron-LM's command line: " + _by_release(field.cli_defaults, None))
    if field.bridge_defaults:
        rows.append("- default in Megatron-Bridge: " + _by_release(field.bridge_defaults, None))
    if field.flags:
        whose = "Megatron-LM flag" if field.command_line else "flag of launchers (Megatron-LM has none)"
        rows.append(f"- {whose}: {', '.join(f'`{flag}`' for flag in field.flags)}")
    if field.off_flags:
        rows.append(f"- Megatron-LM flag that switches it off: {', '.join(f'`{flag}`' for flag in field.off_flags)}")
    others = (*field.aliases, *field.objects)
    if others:
        rows.append(f"- also spelled: {', '.join(f'`{name}`' for name in others)}")
    if field.deprecated_since:
        rows.append(f"- deprecated since megatron-core {field.deprecated_since}: use `{field.use}`")
    return "\n".join(row for i, row in enumerate(rows) if row or i == 1) + "\n"


def _with_releases(field: Field, choice: str) -> str:
    """A value, and in which releases Megatron-LM's parser takes it where not in all."""
    since, until = field.choices_since.get(choice), field.choices_until.get(choice)
    spans = ([f"from {since}"] if since else []) + ([f"before {until}"] if until else [])
    return f"{choice} ({' and '.join(spans)})" if spans else choice


def _by_release(defaults: tuple[tuple[str, object], ...], until: str | None) -> str:
    parts = [f"{json.dumps(value)} from {since}" for since, value in defaults]
    return "; ".join(parts + ([f"removed in {until}"] if until else []))
