"""Compares a variant with the baseline after a step on equal data."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .model import Variant

    Pair = tuple[str, torch.Tensor, torch.Tensor]


# The two schedules may add the same bf16 numbers in another order, which moves a tensor by about a unit in the
# last place (2**-8 of its size); a lost or stale contribution moves it by its own size
ROUNDING = {"loss": 1e-3, "grads_l2": 2**-6}


@dataclass(frozen=True)
class Numbers:
    """What a step gave: the loss of each microbatch (last stage only) and the gradient norm."""

    losses: list[float]
    grad_norm: float | None


def compare_gradients(baseline: Variant, variant: Variant) -> dict[str, Any]:
    """Every main_grad; before the optimizer's step, which clips them in place."""
    return compare_tensors(_pairs(baseline, variant, _main_grad))


def compare_parameters(baseline: Variant, variant: Variant) -> dict[str, Any]:
    """Every parameter and every buffer that a checkpoint holds (the router's bias), after the optimizer's step."""
    for each in (baseline, variant):
        for chunk in each.chunks:
            if chunk.ddp_config.overlap_param_gather:  # else they arrive with the next forward pass only
                chunk.start_param_sync(force_sync=True)
    return compare_tensors((*_pairs(baseline, variant, _weight), *_persistent_buffers(baseline, variant)))


def compare_step(
    base: Numbers, other: Numbers, grads: dict[str, Any], params: dict[str, Any], *, bitwise: bool
) -> dict[str, Any]:
    """One row of `steps`: losses, gradients, gradient norm and parameters after the step."""
    loss = compare_numbers(base.losses, other.losses)
    norm = compare_numbers(_list(base.grad_norm), _list(other.grad_norm))
    norm.update({side: (norm[side] or [None])[0] for side in ("baseline", "variant")})
    parts = (loss, norm, grads, params)
    equal, finite = (all(part[name] for part in parts) for name in ("equal", "finite"))
    near = finite and _within_rounding(base, other, grads["max_rel_l2"])
    return {
        "equal": equal,
        "within_rounding": near,
        "within_tolerance": equal if bitwise else near,
        "finite": finite,
        "loss": loss,
        "grads": grads,
        "params": params,
        "grad_norm": norm,
    }


def tolerance(*, bitwise: bool) -> dict[str, Any]:
    """What the engine is held to."""
    return {"kind": "bitwise"} if bitwise else {"kind": "rounding", **ROUNDING}


def _within_rounding(base: Numbers, other: Numbers, gradients_apart: float) -> bool:
    """Losses, gradient norm and gradients; not the parameters: Adam turns the sign of a tiny gradient into a step."""
    return (
        _near(base.losses, other.losses, ROUNDING["loss"])
        and _near(_list(base.grad_norm), _list(other.grad_norm), ROUNDING["grads_l2"])
        and gradients_apart <= ROUNDING["grads_l2"]
    )


def compare_numbers(baseline: list[float], variant: list[float]) -> dict[str, Any]:
    """Two lists of numbers; equal means bit for bit and finite."""
    finite = all(map(math.isfinite, (*baseline, *variant)))
    apart = [abs(a - b) for a, b in zip(baseline, variant, strict=False)]
    return {
        "baseline": list(map(_json_number, baseline)),
        "variant": list(map(_json_number, variant)),
        "equal": finite and baseline == variant,
        "finite": finite,
        "max_abs_diff": _json_number(max(apart, default=0.0)),
    }


def compare_tensors(pairs: Iterable[Pair]) -> dict[str, Any]:
    """Named tensors, pair by pair; a tensor that is not finite is different."""
    row: dict[str, Any] = {"tensors": 0, "nonzero": 0, "different": 0, "first_different": None, "finite": True}
    worst_abs = worst_rel = 0.0
    for name, a, b in pairs:
        finite = bool(a.isfinite().all()) and bool(b.isfinite().all())
        same = finite and a.shape == b.shape and torch.equal(a, b)
        row["tensors"] += 1
        row["nonzero"] += bool(a.any())
        row["finite"] &= finite
        if not same:
            row["different"] += 1
            row["first_different"] = row["first_different"] or name
            if finite and a.shape == b.shape:
                absolute, relative = _distance(a, b)
                worst_abs, worst_rel = max(worst_abs, absolute), max(worst_rel, relative)
            else:
                worst_abs = worst_rel = math.inf
    equal = row["tensors"] > 0 and row["different"] == 0
    return {
        **row,
        "equal": equal,
        "max_abs_diff": _json_number(worst_abs),
        "max_rel_l2": worst_rel if math.isfinite(worst_rel) else 1e308,
    }


def _distance(a: torch.Tensor, b: torch.Tensor) -> tuple[float, float]:
    """The largest difference, and the L2 norm of the difference relative to the baseline's."""
    a, b = a.double(), b.double()
    difference = a - b
    norm = float(a.norm())
    return float(difference.abs().max()), float(difference.norm()) / norm if norm else math.inf


def _near(baseline: list[float], variant: list[float], relative: float) -> bool:
    return len(baseline) == len(variant) and all(
        math.isclose(a, b, rel_tol=relative) for a, b in zip(baseline, variant, strict=True)
    )


def _pairs(baseline: Variant, variant: Variant, value: Any) -> Iterable[Pair]:
    for index, (ours, theirs) in enumerate(zip(baseline.chunks, variant.chunks, strict=True)):
        for (name, a), (_, b) in zip(ours.named_parameters(), theirs.named_parameters(), strict=True):
            yield f"chunk{index}.{name}", value(a), value(b)


def _persistent_buffers(baseline: Variant, variant: Variant) -> Iterable[Pair]:
    for index, (ours, theirs) in enumerate(zip(baseline.chunks, variant.chunks, strict=True)):
        for (prefix, a), (_, b) in zip(ours.named_modules(), theirs.named_modules(), strict=True):
            for name, buffer in a.named_buffers(recurse=False):
                if name not in a._non_persistent_buffers_set:  # noqa: SLF001 - torch has no other way to ask
                    yield f"chunk{index}.{prefix}.{name}".replace("..", "."), buffer, b.get_buffer(name)


def _main_grad(parameter: torch.nn.Parameter) -> torch.Tensor:
    grad = getattr(parameter, "main_grad", None)
    return parameter.grad if grad is None else grad  # type: ignore[return-value]


def _weight(parameter: torch.nn.Parameter) -> torch.Tensor:
    return parameter.detach()


def _list(number: float | None) -> list[float]:
    return [] if number is None else [number]


def _json_number(number: float) -> float | str:
    """JSON has no NaN and no infinity: they are said as text."""
    return number if math.isfinite(number) else str(number)
