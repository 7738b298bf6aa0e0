from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True)
class Judgement:
    """What the installed Megatron says of a configuration; the answer of tools/check_with_megatron.py.

    `accepted` is None, and `cannot_judge` says why, where the library failed for a reason that is not the
    configuration's. `layers` names who judged, `missing_layers` who could not and why. `stand_ins` are values that
    the configuration does not hold and Megatron needs; `emulated` are modules replaced by an empty stand-in.
    """

    judged: bool
    accepted: bool | None
    exception: str | None
    at: str | None
    cannot_judge: str | None
    layers: tuple[str, ...]
    missing_layers: Mapping[str, str]
    versions: Mapping[str, str]
    unknown_fields: tuple[str, ...]
    left_out: Mapping[str, str]
    stand_ins: Mapping[str, Any]
    emulated: tuple[str, ...]
    effective: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, answer: Mapping[str, Any]) -> Judgement:
        """From the program's answer; KeyError when it is not one."""
        return cls(
            judged=answer["judged"],
            accepted=answer["accepted"],
            exception=answer["exception"],
            at=answer["at"],
            cannot_judge=answer["cannot_judge"],
            layers=tuple(answer["layers"]),
            missing_layers={one["layer"]: one["why"] for one in answer["missing_layers"]},
            versions=answer["versions"],
            unknown_fields=tuple(answer["unknown_fields"]),
            left_out={one["path"]: one["why"] for one in answer["left_out"]},
            stand_ins={one["path"]: one["value"] for one in answer["stand_ins"]},
            emulated=tuple(answer["emulated"]),
            effective=answer["effective"],
        )
