"""Resources: rules and fields, each a short page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mcp.server.mcpserver.exceptions import ResourceNotFoundError

if TYPE_CHECKING:
    from mcp.server.mcpserver import MCPServer


def add_resources(server: MCPServer[Any]) -> None:
    """Offer `epo://rules/{code}` and `epo://fields/{path}`."""

    @server.resource("epo://rules/{code}", mime_type="text/markdown", title="A rule's page")
    def rule_page(code: str) -> str:
        """What a rule checks, why, an example, the fix and its source."""
        from ep_overlap_mcp.rules.explain import UnknownRuleError, rule_markdown

        try:
            return rule_markdown(code)
        except UnknownRuleError as problem:
            raise ResourceNotFoundError(str(problem)) from problem

    @server.resource("epo://fields/{path}", mime_type="text/markdown", title="A setting in every dialect")
    def field_page(path: str) -> str:
        """A setting's type, values, defaults by release and its names in each dialect."""
        from ep_overlap_mcp.settings.field_page import field_markdown
        from ep_overlap_mcp.settings.fields import field_table

        field = field_table().get(path)
        if field is None:
            near = ", ".join(field_table().near(path)) or "none is close"
            raise ResourceNotFoundError(f"no setting `{path}`; near ones: {near}")
        return field_markdown(field)
