"""A CPU stand-in for Transformer Engine's delayed weight gradients on Megatron's local linear layers.

Without Transformer Engine `delay_wgrad_compute` has nobody to delay: ColumnParallelLinear.backward_dw does
nothing and RowParallelLinear has none (megatron-core 0.15.3 to 0.19.0, tensor_parallel/layers.py). Here the
backward pass keeps (input, output gradient) of each layer and `backward_dw` multiplies them when Megatron's
schedule asks, so the real order of backward_dw calls and the moved DDP hooks are exercised.
"""

from __future__ import annotations

from collections import deque
from types import MethodType
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable


def delay_weight_gradients(model: torch.nn.Module) -> int:
    """Delay the weight gradients of all linear layers but the output layer, which nobody asks; their number.

    Call it before DistributedDataParallel wraps the model: DDP reads `skip_backward_post_hook`.
    """
    from megatron.core.tensor_parallel.layers import ColumnParallelLinear, RowParallelLinear

    layers = [
        module
        for name, module in model.named_modules()
        if isinstance(module, (ColumnParallelLinear, RowParallelLinear)) and "output_layer" not in name
    ]
    for layer in layers:
        _delay(layer)
    return len(layers)


def _delay(layer: Any) -> None:
    waiting: deque[tuple[torch.Tensor, torch.Tensor]] = deque()
    hooks: list[Callable[..., Any]] = []

    def forward(_layer: Any, input: torch.Tensor, weight: torch.Tensor, bias: Any = None, **_: Any) -> Any:  # noqa: A002
        apply: Any = _Linear.apply
        output = apply(input, weight, waiting)
        return output if bias is None else output + bias

    def backward_dw(_layer: Any) -> None:
        given, gradient = waiting.popleft()
        with torch.no_grad():
            rows = gradient.reshape(-1, gradient.shape[-1])
            wgrad = rows.t().matmul(given.reshape(-1, given.shape[-1]))
        weight = layer.weight
        weight.grad = wgrad if weight.grad is None else weight.grad + wgrad
        for hook in hooks:
            hook()

    layer.weight.skip_backward_post_hook = True
    layer._forward_impl = MethodType(forward, layer)  # noqa: SLF001
    layer.backward_dw = MethodType(backward_dw, layer)
    layer.register_wgrad_accumulation_and_reduce_hooks = hooks.append


class _Linear(torch.autograd.Function):
    """input x weight^T; backward gives the input gradient and leaves the weight's for later."""

    @staticmethod
    def forward(ctx: Any, given: torch.Tensor, weight: torch.Tensor, waiting: deque[Any]) -> torch.Tensor:
        ctx.save_for_backward(given, weight)
        ctx.waiting = waiting
        return torch.matmul(given, weight.t())

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        given, weight = ctx.saved_tensors
        ctx.waiting.append((given, gradients[0]))
        return gradients[0].matmul(weight), None, None
