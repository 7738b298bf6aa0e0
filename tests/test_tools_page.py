"""`docs/tools.md` is what the server itself offers. EP_OVERLAP_ACCEPT=1 writes it anew."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from mcp import Client

from ep_overlap_mcp.server import build_server

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mcp_types import Tool

PAGE = Path(__file__).parents[1] / "docs" / "tools.md"
HEAD = """\
# Tools, prompts and resources

What an agent sees. Names are `mcp__ep-overlap__…` in most clients. Every answer begins with a summary, is complete as
structured content, and stays near 4 KB unless `detail` is `full`. Findings are answers; an error result says why the
tool could not do its work. Written by `tests/test_tools_page.py` from the server.
"""


@pytest.mark.anyio
async def test_the_page_is_what_the_server_offers() -> None:
    """A change of a tool, a prompt or a resource changes the page with it."""
    async with Client(build_server()) as client:
        tools = (await client.list_tools()).tools
        prompts = (await client.list_prompts()).prompts
        pages = [(str(p.uri), p.description) for p in (await client.list_resources()).resources]
        templates = (await client.list_resource_templates()).resource_templates
    pages += [(t.uri_template, t.description) for t in templates]
    offered = [
        HEAD,
        *(part for tool in tools for part in _tool(tool)),
        "## Prompts\n",
        *(f"- `{p.name}` ({', '.join(a.name for a in p.arguments or [])}): {p.description}" for p in prompts),
        "\n## Resources\n",
        *(f"- `{address}`: {text}" for address, text in pages),
    ]
    written = "\n".join(offered) + "\n"
    if os.environ.get("EP_OVERLAP_ACCEPT"):
        PAGE.write_text(written, encoding="utf-8")
    assert PAGE.read_text(encoding="utf-8") == written


def _tool(tool: Tool) -> Iterator[str]:
    kind = "reads only" if tool.annotations and tool.annotations.read_only_hint else "starts or stops a run"
    yield f"## `{tool.name}`\n\n{tool.description}\n\nIt {kind}.\n\n| argument | type | |\n|---|---|---|"
    required = tool.input_schema.get("required", [])
    for name, schema in tool.input_schema["properties"].items():
        needed = " (required)" if name in required else ""
        yield f"| `{name}`{needed} | {_type(schema)} | {schema.get('description', '')} |"
    yield ""


def _type(schema: dict[str, Any]) -> str:
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    if "anyOf" in schema:
        return " or ".join(_type(arm) for arm in schema["anyOf"])
    return f"list of {_type(schema['items'])}" if schema.get("type") == "array" else str(schema.get("type", "any"))
