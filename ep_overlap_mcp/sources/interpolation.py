"""Interpolation in configuration values: environment names with defaults, references, templates.

The environment of this machine is never read: a variable has the default that the text gives it, or is unknown.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from ep_overlap_mcp.settings.setting import UNKNOWN
from ep_overlap_mcp.sources.tree import Node, plain

if TYPE_CHECKING:
    from omegaconf import DictConfig

# ${NAME}, ${NAME:8} (Primus), ${NAME:-8} (shell), ${oc.env:NAME,8} and ${env:NAME,8} (OmegaConf)
_ENVIRONMENT = re.compile(
    r"\$\{\s*(?:oc\.env:|env:)\s*(?P<env>\w+)\s*(?:,(?P<env_default>[^{}]*))?\}"
    r"|\$\{(?P<name>[A-Z][A-Z0-9_]*)(?::-?(?P<default>[^{}]*))?\}"
)
_BARE_VARIABLE = re.compile(r"\$[A-Za-z_][A-Za-z0-9_]*")


class Interpolation:
    """Resolves the interpolated values of one document."""

    def __init__(self, root: Node) -> None:
        self._root = root
        self._omegaconf: DictConfig | None = None

    def value(self, name: str, raw: Any) -> tuple[Any, str]:
        """The value at a dotted name and, where it is UNKNOWN, the reason."""
        if isinstance(raw, list):
            return self._list(name, raw)
        if raw is UNKNOWN:
            return UNKNOWN, "a template or a tagged value stands in its place"
        if not isinstance(raw, str) or ("$" not in raw and "{{" not in raw):
            return raw, ""
        text, unset = _with_defaults(raw)
        if unset:
            return UNKNOWN, f"`{unset}` has no value in the text"
        if "{{" in text or _BARE_VARIABLE.search(text):
            return UNKNOWN, f"`{text}` is filled in elsewhere"
        if "${" not in text:
            return text, ""
        return self._reference(name, text)

    def _list(self, name: str, raw: list[Any]) -> tuple[Any, str]:
        values = [self.value(name, item) for item in raw]
        why = next((reason for _, reason in values if reason), "")
        return (UNKNOWN, why) if why else ([value for value, _ in values], "")

    def _reference(self, name: str, text: str) -> tuple[Any, str]:
        from omegaconf import OmegaConf
        from omegaconf.errors import OmegaConfBaseException

        try:
            if self._omegaconf is None:
                self._omegaconf = OmegaConf.create(_harmless(plain(self._root)))
            found = OmegaConf.select(self._omegaconf, name)
        except (OmegaConfBaseException, RecursionError, ValueError, TypeError, AttributeError) as failure:
            return UNKNOWN, f"`{text}` cannot be resolved from this text ({type(failure).__name__})"
        if isinstance(found, (bool, int, float)) or (isinstance(found, str) and "${" not in found and found != "???"):
            return found, ""
        return UNKNOWN, f"`{text}` cannot be resolved from this text"


def _with_defaults(text: str) -> tuple[str, str | None]:
    """The text with environment names replaced by their defaults, and the first name that has none."""
    unset: list[str] = []

    def replaced(found: re.Match[str]) -> str:
        default = found["env_default"] if found["env"] else found["default"]
        if default is None:
            unset.append(found["env"] or found["name"])
            return ""
        return default.strip().strip("\"'")

    result = _ENVIRONMENT.sub(replaced, text)
    return result, unset[0] if unset else None


def _harmless(value: Any) -> Any:
    """Plain values for OmegaConf, in which no resolver can look at this machine's environment."""
    if isinstance(value, dict):
        return {str(key): _harmless(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_harmless(part) for part in value]
    if value is UNKNOWN:
        return "???"
    if not isinstance(value, str):
        return value
    text, unset = _with_defaults(value)
    return "???" if unset or "env:" in text else text
