"""Documents of frameworks that train with Megatron beside other engines: only the part that trains counts.

verl (`actor_rollout_ref`), NeMo-RL (`policy.megatron_cfg`), ROLL (one role a mapping) and Primus (`modules`).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ep_overlap_mcp.settings.setting import UNKNOWN
from ep_overlap_mcp.sources.names import NEMO_RL, PRIMUS, ROLL, VERL
from ep_overlap_mcp.sources.reading import Reading
from ep_overlap_mcp.sources.tree import Entry, Table

if TYPE_CHECKING:
    from ep_overlap_mcp.sources.document import Document

_MEGATRON_ROLES = ("megatron_train", "megatron")
_RECOMPUTE = ("recompute_granularity", "recompute_method", "recompute_num_layers", "recompute_modules")


def is_verl(root: Table) -> bool:
    """An actor beside rollout and reference, or the Megatron engine's own file."""
    return root.table("actor_rollout_ref") is not None or _is_verl_engine(root)


def _is_verl_engine(root: Table) -> bool:
    target = root.scalar("_target_")
    return isinstance(target, str) and re.match(r"verl\..*(Mcore|Megatron)\w*Engine", target) is not None


def read_verl(document: Document) -> Reading:
    """Only the actor trains; reference, rollout, critic and reward models are look-alikes."""
    reading = Reading("verl", document.file, VERL.framework)
    reading.partial += [document.inherits() or VERL.partial or ""]
    document.record(reading, VERL, prefix="engine." if _is_verl_engine(document.root) else "")
    return reading


def is_nemo_rl(root: Table) -> bool:
    """A policy with a Megatron or DTensor part."""
    policy = root.table("policy")
    return policy is not None and ("megatron_cfg" in policy or "dtensor_cfg" in policy)


def read_nemo_rl(document: Document) -> Reading:
    """`policy.megatron_cfg`, and what of the policy reaches Megatron; recomputation hangs on its own switch.

    Source: NVIDIA-NeMo/RL nemo_rl/models/megatron/setup.py:1071-1090.
    """
    reading = Reading("NeMo-RL", document.file, NEMO_RL.framework)
    reading.partial += [document.inherits() or NEMO_RL.partial or ""]
    megatron = document.root.table("policy", "megatron_cfg")
    if megatron is None or megatron.scalar("enabled") is False:
        return reading
    document.record(reading, NEMO_RL, _without_recompute(document.root))
    _recompute(reading, document, megatron)
    return reading


def _without_recompute(root: Table) -> Table:
    """The document without the names whose effect hangs on `activation_checkpointing`."""

    def kept(entry: Entry, path: tuple[str, ...]) -> Entry | None:
        if path == ("policy", "megatron_cfg") and entry.key in _RECOMPUTE:
            return None
        if not isinstance(entry.node, Table) or len(path) > 1 or entry.key not in ("policy", "megatron_cfg"):
            return entry
        return Entry(entry.key, part(entry.node, (*path, entry.key)), entry.line, entry.text)

    def part(table: Table, path: tuple[str, ...]) -> Table:
        entries = tuple(e for e in (kept(entry, path) for entry in table.entries) if e is not None)
        return Table(entries, table.line, table.span)

    return part(root, ())


def _recompute(reading: Reading, document: Document, megatron: Table) -> None:
    at = "policy.megatron_cfg."
    switch = megatron.entry("activation_checkpointing")
    on = document.value(switch, f"{at}{switch.key}")[0] if switch else UNKNOWN
    written = [e for e in megatron.entries if e.key in _RECOMPUTE]
    if on is False:
        for entry in written:
            reading.left_out(
                entry.text,
                entry.line,
                "not applied while activation_checkpointing is false",
                path=f"model.{entry.key}",
            )
        return
    for entry in written:
        if on is True:
            document.record_entry(reading, NEMO_RL, f"{at}{entry.key}", entry, at=f"{at}{entry.key}")
        else:
            why = "it counts only with activation_checkpointing, which a base file sets"
            reading.unresolved(f"model.{entry.key}", line=entry.line, text=entry.text, why=why)
    if on is True and switch:
        _full_recompute(reading, switch, {a.path: a.value for a in reading.assignments})


def _full_recompute(reading: Reading, switch: Entry, values: dict[str, object]) -> None:
    """`activation_checkpointing: true` alone recomputes everything, layer by layer."""
    granularity = values.get("model.recompute_granularity", "full")
    implied = {"recompute_granularity": "full"} if "model.recompute_granularity" not in values else {}
    if granularity == "full":
        implied |= {"recompute_method": "uniform", "recompute_num_layers": "1"}
    for name, value in implied.items():
        reading.add(f"model.{name}", value, line=switch.line, text=switch.text, derived_from="activation_checkpointing")


def is_roles(root: Table) -> bool:
    """Roles with a strategy each."""
    return any(isinstance(e.node, Table) and e.node.table("strategy_args") is not None for e in root.entries)


def read_roles(document: Document) -> Reading:
    """The training role of ROLL: `actor_train`, else the first role that Megatron trains."""
    reading = Reading("ROLL", document.file, ROLL.framework)
    reading.partial += [document.inherits() or ROLL.partial or ""]
    roles = [e for e in document.root.entries if isinstance(e.node, Table) and e.node.table("strategy_args")]
    trained = [e for e in roles if _strategy(e) in _MEGATRON_ROLES]
    chosen = next((e for e in trained if e.key == "actor_train"), trained[0] if trained else None)
    for entry in roles:
        if entry is chosen and isinstance(entry.node, Table):
            document.record(reading, ROLL, entry.node, at=f"{entry.key}.")
            _lora(reading, entry.node)
        elif chosen is not None:
            reading.left_out(
                entry.text, entry.line, f"the role `{entry.key}` does not train the model", kind="look-alike"
            )
    return reading


def _strategy(entry: Entry) -> object:
    arguments = entry.node.table("strategy_args") if isinstance(entry.node, Table) else None
    return arguments.scalar("strategy_name") if arguments else None


def _lora(reading: Reading, role: Table) -> None:
    arguments = role.table("model_args")
    target = arguments.entry("lora_target") if arguments else None
    if target is not None:
        reading.add("peft.scheme", "lora", line=target.line, text=target.text, derived_from="lora_target")


def is_primus(root: Table) -> bool:
    """Modules with overrides for a trainer."""
    modules = root.table("modules")
    return modules is not None and any(
        isinstance(e.node, Table) and e.node.table("overrides") is not None for e in modules.entries
    )


def read_primus(document: Document) -> Reading:
    """The overrides of the trainer that runs Megatron; other frameworks' modules are look-alikes."""
    reading = Reading("Primus", document.file, PRIMUS.framework)
    modules = document.root.table("modules")
    for entry in modules.entries if modules else ():
        module = entry.node if isinstance(entry.node, Table) else None
        overrides = module.table("overrides") if module else None
        if module is None or overrides is None:
            continue
        framework = module.scalar("framework") or "megatron"
        if not str(framework).startswith("megatron"):
            reading.left_out(entry.text, entry.line, f"runs {framework}, not Megatron", kind="look-alike")
            continue
        bases = [str(module.scalar(key)) for key in ("config", "model") if module.scalar(key)]
        reading.partial.append(f"{PRIMUS.partial}: {', '.join(bases)}" if bases else PRIMUS.partial or "")
        document.record(reading, PRIMUS, overrides, at=f"modules.{entry.key}.overrides.")
    return reading
