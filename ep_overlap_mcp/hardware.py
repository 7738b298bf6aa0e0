"""GPUs: what a name says about compute capability and NVLink domain.

Names and capabilities: NVIDIA's CUDA GPU table. A name is what `torch.cuda.get_device_name` prints, with or without
`NVIDIA`, or a short name such as `H100`.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from functools import lru_cache

from ep_overlap_mcp.refusal import Refusal
from ep_overlap_mcp.surface import argument

_TABLE: tuple[tuple[str, tuple[int, int], int], ...] = (
    # pattern, compute capability, GPUs in an NVLink domain
    (r"GB300", (10, 3), 72),
    (r"GB200", (10, 0), 72),
    (r"B300", (10, 3), 8),
    (r"B200|B100", (10, 0), 8),
    (r"GH200", (9, 0), 8),
    (r"H[128]00|H20", (9, 0), 8),
    (r"A[18]00|A30", (8, 0), 8),
    (r"A40|A10G?|RTX A\d000|RTX 30\d\d", (8, 6), 8),
    (r"L40S?|L4|RTX 6000 Ada|RTX 40\d\d", (8, 9), 8),
    (r"V100", (7, 0), 8),
    (r"T4", (7, 5), 1),
    (r"RTX PRO \d000|RTX 50\d\d", (12, 0), 1),
)


@dataclass(frozen=True)
class Gpu:
    """A GPU model. `name` is spelled as torch prints it where the short name is all that was given."""

    name: str
    capability: tuple[int, int]
    nvlink_domain: int


class UnknownGpuError(Refusal):
    """A GPU that was asked for and is not in the table; the text names near ones and those that are known."""


def named_gpu(name: str) -> Gpu:
    """The GPU that a caller asks for by name; raises UnknownGpuError."""
    gpu = find_gpu(name)
    if gpu is None:
        near = difflib.get_close_matches(name.strip().upper(), known_gpus().split(", "), n=3, cutoff=0.7)
        meant = f" Did you mean {' or '.join(near)}?" if near else ""
        raise UnknownGpuError(
            f"{argument('gpu')} `{name}` is not known; known: {known_gpus()}.{meant} "
            f"Without {argument('gpu')}, what rests on the GPU stays undecided"
        )
    return gpu


@lru_cache(maxsize=256)
def find_gpu(name: str) -> Gpu | None:
    """The GPU a name means, or None for one not in the table."""
    bare = re.sub(r"^(NVIDIA|DGX|HGX|[\s-])+", "", name.strip(), flags=re.IGNORECASE)  # DGX B200 holds B200s
    for pattern, capability, domain in _TABLE:
        if re.search(rf"(?:^|[^A-Z0-9])(?:{pattern})(?!\d)", bare, re.IGNORECASE):
            spelled = bare if name.strip().upper().startswith("NVIDIA") else bare.upper()
            return Gpu(f"NVIDIA {spelled}", capability, domain)
    return None


def known_gpus() -> str:
    """A few names for an error message."""
    return "A100, H100, H200, B200, B300, GB200, GB300, L40S, V100"
