"""One check with every category, for all writers."""

from __future__ import annotations

import pytest

from ep_overlap_mcp.results.check import (
    CheckResult,
    ComponentVersion,
    Finding,
    FixOption,
    MegatronJudgement,
    NamedSetting,
    OverlapState,
    Place,
    SettingValue,
    Undecided,
)


def place(line: int | None, file: str | None = "jobs/pretrain moe.sh") -> Place:
    return Place(kind="explicit", file=file, line=line, text="--a-flag 8")


def finding(code: str, name: str, severity: str, message: str, *settings: NamedSetting, **more: object) -> Finding:
    return Finding.model_validate(
        {
            "rule": code,
            "name": name,
            "severity": severity,
            "message": message,
            "settings": settings,
            "expected": "",
            "fix": [],
            "applies_to": "megatron-core >=0.14",
            "enforced_by": ["megatron-core"],
            "source": ["NVIDIA/Megatron-LM@core_v0.16.1:megatron/core/transformer/transformer_config.py:1857"],
            "doc": f"epo://rules/{code}",
            **more,
        }
    )


@pytest.fixture
def everything() -> CheckResult:
    """An invalid configuration: two errors, a warning, an info, undecided rules of both kinds, several origins."""
    pp = NamedSetting(path="model.pipeline_model_parallel_size", value=4, origin=place(12))
    vpp = NamedSetting(
        path="model.virtual_pipeline_model_parallel_size",
        value=None,
        origin=Place(kind="default", note="default of 0.16.1"),
    )
    granularity = NamedSetting(path="model.recompute_granularity", value="full", origin=place(20))
    forced = NamedSetting(path="model.recompute_method", value="block", origin=place(None, "--set"))
    connections = NamedSetting(path="env.CUDA_DEVICE_MAX_CONNECTIONS", value=1, origin=place(3))
    return CheckResult(
        summary="Judged as written. INVALID for megatron-core 0.16.1. 2 errors.",
        verdict="invalid",
        assume="as_written",
        framework="megatron-lm",
        configuration="pretrain <moe> & more\x07",
        stack={
            "megatron-core": ComponentVersion(version="0.16.1", origin="given"),
            "deep_ep": ComponentVersion(version=None, origin="given"),
        },
        overlap=OverlapState(
            requested=True,
            effective=True,
            delay_wgrad_requested=False,
            delay_wgrad_effective=False,
            dispatcher_requested="flex",
            dispatcher_effective="alltoall",
            flex_backend=None,
        ),
        findings=[
            finding(
                "EPO104",
                "pipeline-needs-virtual-stages",
                "error",
                "PP is 4 without virtual stages",
                pp,
                vpp,
                fix=[
                    FixOption(set={"model.virtual_pipeline_model_parallel_size": 2}, safe=True),
                    FixOption(set={"model.pipeline_model_parallel_size": 1}, safe=False, gives_up="the pipeline"),
                ],
                expected="virtual stages",
            ),
            finding("EPO105", "no-full-recompute", "error", "granularity is full <- é", granularity, pp, forced),
            finding("EPO606", "more-than-one-cuda-connection", "warning", "one connection serialises", connections),
            finding("EPO809", "assumed-version-floor", "info", "torch taken as new enough"),
        ],
        undecided=[
            Undecided(
                rule="EPO602",
                name="deepep-needs-supported-gpu",
                severity="error",
                needs=["hardware.gpu"],
                why="hardware.gpu is not known",
            ),
            Undecided(
                rule="EPO507",
                name="too-few-microbatches-to-overlap",
                severity="info",
                needs=["train.global_batch_size"],
                why="train.global_batch_size is not known",
            ),
        ],
        settings={
            pp.path: SettingValue(value=4, origin=place(12), earlier=[place(5)]),
            vpp.path: SettingValue(value=None, origin=vpp.origin),
            "model.moe_token_dispatcher_type": SettingValue(
                value="alltoall", origin=Place(kind="derived", note="CommOverlapConfig.setup"), earlier=[place(9)]
            ),
            "model.overlap_moe_expert_parallel_comm": SettingValue(
                value=True, origin=Place(kind="assumed", note="--assume overlap")
            ),
            "hardware.gpu": SettingValue(value=None, origin=Place(kind="unknown")),
        },
        megatron=MegatronJudgement(
            judged=True, accepted=False, exception="ValueError", at="transformer_config.py:1857", agrees=True
        ),
        rules_checked=97,
    )


@pytest.fixture
def contradicted(everything: CheckResult) -> CheckResult:
    """The same, where the installed Megatron accepts what the rules refuse."""
    return everything.model_copy(
        update={
            "summary": "DISAGREEMENT: the installed Megatron accepts this configuration. " + everything.summary,
            "megatron": MegatronJudgement(judged=True, accepted=True, agrees=False),
        }
    )


@pytest.fixture
def open_only(everything: CheckResult) -> CheckResult:
    """Nothing is wrong as far as can be told, and an error rule is undecided."""
    return everything.model_copy(
        update={
            "summary": "Judged as written. UNDETERMINED for megatron-core 0.16.1.",
            "verdict": "undetermined",
            "configuration": None,
            "findings": [],
            "megatron": None,
        }
    )
