"""Faults planted on request, to prove that the evidence shows them."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from .collectives import Watch
    from .evidence import Place
    from .request import Fault

EVERYWHERE = ("slow_rank", "nan_loss")  # without a variant named, these strike every variant


@dataclass
class Planted:
    """The fault of the request, on this rank. Without one, every method does nothing."""

    fault: Fault | None
    rank: int
    place: Place
    default_variant: str
    watch: Watch

    def overlap_switch(self, variant: str, *, asked: bool) -> bool:
        """overlap_silently_off builds its variant with the switch off, on all ranks."""
        off = self._is("overlap_silently_off") and self._strikes(variant)
        return asked and not off

    def at_step_start(self) -> None:
        """die, hang, slow_rank and missing_wait strike here."""
        if self._is("slow_rank") and self._here() and self._strikes(self.place.variant):
            time.sleep(self.fault.seconds if self.fault else 0)
        if not self._due():
            return
        if self._is("die"):
            os.kill(os.getpid(), signal.SIGKILL)
        if self._is("hang"):
            while True:
                time.sleep(3600)
        if self._is("missing_wait"):
            self.watch.take_over = self._read_before_it_arrives

    def loss(self, loss: torch.Tensor) -> torch.Tensor:
        """nan_loss strikes here."""
        return loss * float("nan") if self._is("nan_loss") and self._due() else loss

    def before_finalize(self, chunks: list[Any]) -> None:
        """drop_wgrad loses the gradient of this rank's first expert weight."""
        if self._is("drop_wgrad") and self._due():
            experts = (p for c in chunks for n, p in c.named_parameters() if ".experts." in n and p.ndim > 1)
            if (weight := next(experts, None)) is not None:
                weight.main_grad.zero_()

    def _read_before_it_arrives(self, name: str, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """One all-to-all fills another buffer: its receiver sees what the buffer held before, zeros."""
        if name != "all_to_all_single" or not args[0].is_floating_point():
            return original(*args, **kwargs)
        import torch

        output = args[0]
        self.watch.take_over = None
        answer = original(torch.empty_like(output), *args[1:], **kwargs)
        output.zero_()
        return answer

    def _is(self, kind: str) -> bool:
        return self.fault is not None and self.fault.kind == kind

    def _here(self) -> bool:
        return self.fault is not None and self.fault.rank == self.rank

    def _strikes(self, variant: str | None) -> bool:
        if self.fault is None:
            return False
        if self.fault.variant is None:
            return self.fault.kind in EVERYWHERE or variant == self.default_variant
        return variant == self.fault.variant

    def _due(self) -> bool:
        """Now, on this rank, in this variant and parity step."""
        return (
            self.fault is not None
            and self._here()
            and self.place.phase == "parity"
            and self.place.step == self.fault.step
            and self._strikes(self.place.variant)
        )
