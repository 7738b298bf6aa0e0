"""The plan in the making: settings of the configuration as effective, and what becomes of each."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ep_overlap_mcp.results.smoke import Reduction
from ep_overlap_mcp.settings.fields import ABSENT, field_table

if TYPE_CHECKING:
    from ep_overlap_mcp.settings.effective import Effective
    from ep_overlap_mcp.smoke.machine import Machine
    from ep_overlap_mcp.smoke.options import SmokeOptions

UNKNOWN_TEXT = "unknown"


@dataclass
class Draft:
    """Collects the request of smoke_train.py (`model`, `ddp`, `optimizer`, `train`) and the lists of the plan."""

    effective: Effective
    machine: Machine
    options: SmokeOptions
    model: dict[str, Any] = field(default_factory=dict)
    ddp: dict[str, Any] = field(default_factory=dict)
    optimizer: dict[str, Any] = field(default_factory=dict)
    train: dict[str, Any] = field(default_factory=dict)
    kept: dict[str, Any] = field(default_factory=dict)
    reduced: list[Reduction] = field(default_factory=list)
    not_tested: list[str] = field(default_factory=list)
    emulated: list[str] = field(default_factory=list)

    def value(self, path: str, otherwise: Any = None) -> Any:
        """The effective value; `otherwise` when it is unknown or null."""
        setting = self.effective[path]
        return otherwise if not setting.known or setting.value is None else setting.value

    def known(self, path: str) -> bool:
        """The text, or the release's default, settles the value."""
        return self.effective[path].known

    def sends(self, name: str) -> bool:
        """The installed core has the field of the model."""
        return self.exists(f"model.{name}")

    def exists(self, path: str) -> bool:
        """The installed core has the setting."""
        row = field_table().get(path)
        return row is not None and row.exists_in(self.machine.core)

    def stated(self, top: str) -> dict[str, Any]:
        """Known settings of one object that the text, the caller or an outer layer states, by name, as effective."""
        paths = {*self.effective.request.settings, *self.effective.writes}
        settings = {path: self.effective[path] for path in sorted(paths) if path.startswith(f"{top}.")}
        return {path.partition(".")[2]: s.value for path, s in settings.items() if s.known and s.value is not None}

    def open_in(self, path: str) -> bool:
        """The text is partial and does not settle the setting, which the installed core has."""
        return self.exists(path) and not self.effective[path].known

    def is_default(self, path: str, value: Any) -> bool:
        """The class itself would have this value."""
        row = field_table().get(path)
        default = row.default(self.machine.core) if row is not None else ABSENT
        return bool(default == value) and isinstance(default, bool) == isinstance(value, bool)

    def set(self, name: str, to: Any, why: str | None = None) -> None:
        """Give a model field a value: kept when that is the configuration's own, else reduced."""
        path = f"model.{name}"
        if self.sends(name):
            self.model[name] = to
        self.note(path, to, why)

    def keep(self, name: str, value: Any) -> None:
        """Send a model field as it is meant, though the text may spell it otherwise."""
        self.model[name] = value
        if self.effective[f"model.{name}"].origin.kind != "default":
            self.kept[f"model.{name}"] = value

    def drop(self, name: str, value: Any, why: str) -> None:
        """A model field that was to be sent, and that the run has to do without after all."""
        self.model.pop(name, None)
        self.kept.pop(f"model.{name}", None)
        self.leave_out(f"model.{name}", value, why)

    def note(self, path: str, to: Any, why: str | None = None) -> None:
        """List what a setting becomes, without sending it as a model field."""
        setting = self.effective[path]
        if not setting.known:
            self.reduced.append(Reduction(setting=path, before=UNKNOWN_TEXT, to=to, why=why or "stand-in"))
        elif setting.value != to:
            self.reduced.append(Reduction(setting=path, before=setting.value, to=to, why=why))
        elif not self.is_default(path, to):
            self.kept[path] = to

    def leave_out(self, path: str, value: Any, why: str) -> None:
        """A setting that the run does without."""
        line = f"{path}={_text(value)}: {why}"
        if line not in self.not_tested:
            self.not_tested.append(line)


def _text(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    return "[" + " ".join(map(str, value)) + "]" if isinstance(value, list) else str(value)
