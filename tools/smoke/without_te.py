"""Repairs of places in Megatron-Core that read Transformer Engine names although it is not installed."""

from __future__ import annotations

from functools import wraps
from typing import Any


def repair_megatron() -> None:
    """Make moe_router_dtype and selective recompute of layernorm, activation and MLA projections work.

    Without the library there is no FP8, so nothing is lost.
    """
    from megatron.core.tensor_parallel import random
    from megatron.core.transformer.moe import moe_utils

    # 0.15.3 and 0.16.1 leave the name undefined and read it with moe_router_dtype
    if not hasattr(moe_utils, "te_general_gemm"):
        moe_utils.te_general_gemm = None
    # its default fp8=False counts as "FP8 is configured" (0.15.3 to 0.19.0) and reads an undefined name
    original = random.CheckpointWithoutOutput.__init__

    @wraps(original)
    def without_fp8(self: Any, fp8: Any = None, **others: Any) -> None:  # noqa: ARG001
        original(self, fp8=None, **others)

    random.CheckpointWithoutOutput.__init__ = without_fp8
