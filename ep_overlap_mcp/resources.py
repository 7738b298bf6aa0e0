"""Resources: rules, fields, published measurements and smoke runs, each short."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mcp.server.mcpserver.exceptions import ResourceNotFoundError

from ep_overlap_mcp.surface import speaking_to

if TYPE_CHECKING:
    from mcp.server.mcpserver import MCPServer


def add_resources(server: MCPServer[Any]) -> None:
    """Offer `epo://rules`, `epo://rules/{code}`, `epo://fields/{path}`, `epo://evidence` and `epo://runs/{id}`."""

    @server.resource("epo://rules", mime_type="text/markdown", title="All rules")
    def rules() -> str:
        """Code, severity and name of every rule, a line each."""
        from ep_overlap_mcp.rules.explain import list_rules

        return "".join(f"- {rule.rule} {rule.severity} {rule.name}\n" for rule in list_rules().rules)

    @server.resource("epo://evidence", mime_type="text/markdown", title="Published measurements")
    def evidence() -> str:
        """Step time with overlap off and on: model, hardware, EP, dispatcher and source of each published A/B."""
        from ep_overlap_mcp.evidence import evidence_markdown

        return evidence_markdown()

    @server.resource("epo://rules/{code}", mime_type="text/markdown", title="A rule's page")
    @speaking_to("agents")
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

    @server.resource("epo://runs/{id}", mime_type="application/json", title="A smoke run")
    @speaking_to("agents")
    def run(id: str) -> str:  # noqa: A002 - the word of the address
        """Where a smoke run stands and what it showed: the object that get_smoke_run gives."""
        from ep_overlap_mcp import smoke

        try:
            return smoke.get(id).model_dump_json(indent=1)
        except smoke.SmokeError as problem:
            raise ResourceNotFoundError(str(problem)) from problem
