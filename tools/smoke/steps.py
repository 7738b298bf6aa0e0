"""One training step of a variant: data, forward and backward through Megatron's own schedule, optimizer."""

from __future__ import annotations

import gc
import time
from dataclasses import dataclass
from inspect import signature
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

    from .engine import Engine
    from .faults import Planted
    from .model import Variant
    from .request import Request


@dataclass(frozen=True)
class Timed:
    """Milliseconds of one step."""

    forward_backward_ms: float
    ms: float


@dataclass(frozen=True)
class Trainer:
    """Runs steps of any variant on the same data."""

    request: Request
    engine: Engine
    planted: Planted

    def forward_backward(self, variant: Variant, step: int) -> list[float]:
        """Forward and backward on the data of that step; the loss of each microbatch (last stage only).

        The gradients stand in main_grad until the next call; ranks start together.
        """
        self._prepare(variant)
        losses = self._forward_backward(variant, step)
        self.engine.synchronize()
        return losses

    def update(self, variant: Variant) -> float | None:
        """The optimizer's step; the gradient norm. Clipping scales main_grad in place."""
        _, grad_norm, _ = variant.optimizer.step()
        self.engine.synchronize()
        return None if grad_norm is None else float(grad_norm)

    def timed_step(self, variant: Variant, step: int) -> Timed:
        """A full step on the data of that step, timed from a common start."""
        self._prepare(variant)
        start = time.perf_counter()
        self._forward_backward(variant, step)
        self.engine.synchronize()
        middle = time.perf_counter()
        self.update(variant)
        end = time.perf_counter()
        return Timed((middle - start) * 1e3, (end - start) * 1e3)

    def any_rank(self, *, flag: bool) -> bool:
        """True when the flag is set on any rank."""
        import torch
        import torch.distributed as dist

        flags = torch.tensor([float(flag)], device=self.engine.device)
        dist.all_reduce(flags)
        return bool(flags.item())

    def _prepare(self, variant: Variant) -> None:
        import torch.distributed as dist

        for chunk in variant.chunks:
            chunk.zero_grad_buffer()
        variant.optimizer.zero_grad()
        gc.collect()  # outside the timed part; steps leave cycles behind
        dist.barrier()
        self.engine.synchronize()
        self.engine.start_clock()

    def _forward_backward(self, variant: Variant, step: int) -> list[float]:
        from megatron.core.pipeline_parallel import get_forward_backward_func

        self.planted.at_step_start()
        train = self.request.train
        chunks = variant.chunks
        data = [self._microbatches(step) for _ in chunks]
        reduced = get_forward_backward_func()(
            forward_step_func=self._forward_step,
            data_iterator=data if len(chunks) > 1 else data[0],
            model=chunks if len(chunks) > 1 else chunks[0],
            num_microbatches=train.num_microbatches,
            seq_length=train.seq_length,
            micro_batch_size=train.micro_batch_size,
            forward_only=False,
        )
        return [float(row["loss"]) for row in reduced]

    def _forward_step(self, data: Iterator[dict[str, Any]], model: Any, return_schedule_plan: bool = False) -> Any:  # noqa: FBT001, FBT002  # Megatron's signature
        batch = next(data)
        run = model.build_schedule_plan if return_schedule_plan else model
        loss = self._loss_per_token if _config(model).calculate_per_token_loss else self._loss
        return run(**batch), loss

    def _loss(self, output: torch.Tensor) -> Any:
        loss = self.planted.loss(output.float().mean())
        return loss, {"loss": loss.detach().clone()}  # a clone: Megatron divides the loss in place

    def _loss_per_token(self, output: torch.Tensor) -> Any:
        import torch

        loss = self.planted.loss(output.float().sum())
        tokens = torch.tensor(output.numel(), dtype=torch.int, device=output.device)
        return loss, tokens, {"loss": loss.detach() / output.numel()}

    def _microbatches(self, step: int) -> Iterator[dict[str, Any]]:
        """The microbatches of a step: the same for all variants and stages, another for each data rank."""
        import torch
        from megatron.core import parallel_state

        train, device = self.request.train, self.engine.device
        data_rank = parallel_state.get_data_parallel_rank()
        generator = torch.Generator().manual_seed(hash((self.request.seed, step, data_rank)) % 2**63)
        shape = (train.micro_batch_size, train.seq_length + 1)
        positions = torch.arange(train.seq_length, device=device).repeat(train.micro_batch_size, 1)
        for _ in range(train.num_microbatches):
            tokens = torch.randint(0, train.vocab_size, shape, generator=generator).to(device)
            batch = {"input_ids": tokens[:, :-1], "labels": tokens[:, 1:], "position_ids": positions}
            batch = _on_this_context_rank({name: row.contiguous() for name, row in batch.items()})
            yield {**batch, "attention_mask": self._causal_mask()}

    def _causal_mask(self) -> torch.Tensor | None:
        """True where attention is forbidden; Transformer Engine makes its own."""
        if self.engine.transformer_engine:
            return None
        import torch

        length = self.request.train.seq_length
        return torch.ones(1, 1, length, length, device=self.engine.device).triu(1).bool()


def _on_this_context_rank(batch: dict[str, Any]) -> dict[str, Any]:
    """The context-parallel rank's part of the sequences."""
    from megatron.core import parallel_state, utils

    if parallel_state.get_context_parallel_world_size() == 1:
        return batch
    split = utils.get_batch_on_this_cp_rank
    hybrid = {"is_hybrid_cp": False} if "is_hybrid_cp" in signature(split).parameters else {}  # from 0.18
    return dict(split(batch, **hybrid))


def _config(model: Any) -> Any:
    while not hasattr(model, "config"):
        model = model.module
    return model.config
