"""Resources: short pages that answers point to, and a usable error for what does not exist."""

from __future__ import annotations

import pytest
from mcp import Client, MCPError

from ep_overlap_mcp.evidence import measurements
from ep_overlap_mcp.rules.explain import list_rules
from ep_overlap_mcp.server import build_server
from ep_overlap_mcp.settings.fields import field_table

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["auto", "legacy"])
def client(request: pytest.FixtureRequest) -> Client:
    return Client(build_server(), mode=request.param)


async def page(client: Client, address: str) -> str:
    return str((await client.read_resource(address)).contents[0].text)


async def test_what_is_offered(client: Client) -> None:
    """Two pages and three templates, each with a title and a description."""
    async with client:
        pages = (await client.list_resources()).resources
        templates = (await client.list_resource_templates()).resource_templates
    assert {str(p.uri) for p in pages} == {"epo://rules", "epo://evidence"}
    assert {t.uri_template for t in templates} == {"epo://rules/{code}", "epo://fields/{path}", "epo://runs/{id}"}
    assert all(r.title and r.description and r.mime_type for r in [*pages, *templates])


async def test_every_rule_has_a_page_under_code_and_name(client: Client) -> None:
    """The page names the rule, its enforcers and its sources, and is short."""
    async with client:
        listed = await page(client, "epo://rules")
        for rule in list_rules().rules:
            text = await page(client, f"epo://rules/{rule.rule}")
            assert text.startswith(f"# {rule.rule} {rule.name}\n")
            assert "Enforced by:" in text
            assert "Sources:" in text
            assert len(text.encode()) < 6000, rule.name
            assert f"- {rule.rule} {rule.severity} {rule.name}\n" in listed
        assert await page(client, "epo://rules/pipeline-needs-virtual-stages") == await page(
            client, "epo://rules/EPO104"
        )


async def test_every_setting_has_a_page(client: Client) -> None:
    """The page begins with the path and is short."""
    async with client:
        for path in list(field_table().by_path)[::7]:
            text = await page(client, f"epo://fields/{path}")
            assert path in text.splitlines()[0]
            assert len(text.encode()) < 4000, path


async def test_the_evidence_names_hardware_and_source_of_each_number(client: Client) -> None:
    """One row a publication, with the model, hardware, step time off and on where measured, and where it stands."""
    async with client:
        rows = (await page(client, "epo://evidence")).splitlines()[2:]
    assert len(rows) == len(measurements()) > 0
    for row, m in zip(rows, measurements(), strict=True):
        numbers = ["not measured" if number is None else str(number) for number in (m.off, m.on, m.gain)]
        assert all(value in row for value in (m.model, m.hardware, *numbers, m.source))


@pytest.mark.parametrize(
    ("address", "told"),
    [
        ("epo://rules/needs-expert-paralelism", "needs-expert-parallelism"),
        ("epo://fields/model.moe_token_dispatcher", "moe_token_dispatcher_type"),
        ("epo://runs/absent", "no smoke run `absent`"),
    ],
)
async def test_an_unknown_page_names_what_is_near(client: Client, address: str, told: str) -> None:
    """The error says what was probably meant."""
    async with client:
        with pytest.raises(MCPError, match=told):
            await client.read_resource(address)
