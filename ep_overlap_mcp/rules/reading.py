"""EPO8xx: what the readers found: values not resolved, duplicates, deprecated and unknown names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ep_overlap_mcp.rules.engine import ERROR, INFO, WARNING, evidence, megatron_lm, rule, undecided, violated
from ep_overlap_mcp.rules.sources import arguments
from ep_overlap_mcp.rules.truth import FALSE, Truth, truth
from ep_overlap_mcp.settings.fields import absent_from, deprecated_in, field_table
from ep_overlap_mcp.stack import CORE_RELEASES
from ep_overlap_mcp.surface import argument

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ep_overlap_mcp.rules.engine import Check
    from ep_overlap_mcp.rules.view import View
    from ep_overlap_mcp.sources.reading import Omission

FIELDS = "ep-overlap-mcp:ep_overlap_mcp/settings/fields.json"
READERS = "ep-overlap-mcp:ep_overlap_mcp/sources"
RELEASES = "ep-overlap-mcp:ep_overlap_mcp/stack.py"


@rule("EPO801", "setting-unknown-to-version", ERROR, enforced=[evidence()], source=FIELDS)
def setting_unknown_to_version(view: View) -> Check:
    """What it checks: a written setting does not exist in the megatron-core release that is run.

    Why: the configuration class raises TypeError (unexpected keyword argument) and Megatron-LM's parser exits with
    "unrecognized arguments". Where the release is not given, such a setting narrows the releases judged instead.

    Example: `--moe-flex-dispatcher-backend hybridep` on 0.15, `--moe-use-legacy-grouped-gemm` on 0.17

    Fix: remove the setting, use its name in that release, or run the release that has it.
    """
    absent = absent_from(view.release.core, command_line=view.framework == "megatron-lm")
    strange = [s for s in view.request.written if s.path in absent]
    if strange and not all(reading.strict for reading in view.request.readings):
        strange = [s for s in strange if not s.path.startswith("args.")]  # launchers may take what Megatron-LM does not
    release = view.release.core.label
    return violated(
        truth(bool(strange)),
        f"not known to megatron-core {release}: {_listed((_with_releases(view, s.path), s.origin) for s in strange)}; "
        "remove what the release lacks",
        expected=f"settings that megatron-core {release} has",
        settings=[s.path for s in strange],
    )


@rule("EPO802", "value-not-resolved", WARNING, enforced=[evidence()], source=READERS)
def value_not_resolved(view: View) -> Check:
    """What it checks: a value hangs on something the text does not hold: an unset variable, a positional parameter, a
    template, or Python that would have to run.

    Why: such a setting is unknown, not default; the rules that need it are undecided.

    Example: `--expert-model-parallel-size ${EP}` where `EP` is set nowhere

    Fix: give the value, on the command line with `--set model.expert_model_parallel_size=8`.
    """
    return _omissions(view, "not resolved", "value not settled by the text", f"give it with {argument('settings')}")


@rule("EPO803", "duplicate-setting-last-wins", INFO, enforced=[evidence()], source=READERS)
def duplicate_setting_last_wins(view: View) -> Check:
    """What it checks: one setting is written more than once with different values.

    Why: the last value counts, in argument parsers as in YAML and overrides; the earlier one misleads readers.

    Example: `--moe-token-dispatcher-type alltoall` in one array and `--moe-token-dispatcher-type flex` in another

    Fix: keep the value that is meant.
    """
    again = [s for s in view.request.written if s.earlier and s.origin.kind == "explicit"]
    twice = [s for s in again if any(e.value != s.value and e.written for e in s.earlier)]
    return violated(
        truth(bool(twice)),
        f"written more than once, the last counts: {_listed((f'{s.path}={s.value}', s.origin) for s in twice)}",
        settings=[s.path for s in twice],
    )


@rule("EPO804", "deprecated-name", INFO, enforced=[evidence()], source=FIELDS)
def deprecated_name(view: View) -> Check:
    """What it checks: a deprecated or renamed spelling was understood.

    Why: Megatron warns, and a later release drops the name.

    Example: `--moe-enable-deepep`, `--external-cuda-graph`, `--cuda-graph-scope` from 0.18 on

    Fix: use the newer name.
    """
    old = [s for s in view.request.written if s.path in deprecated_in(view.release.core)]
    return violated(
        truth(bool(old)),
        "deprecated: " + _listed((f"{s.path} (use {field_table()[s.path].use})", s.origin) for s in old),
        settings=[s.path for s in old],
    )


@rule("EPO805", "look-alike-ignored", INFO, enforced=[evidence()], source=READERS)
def look_alike_ignored(view: View) -> Check:
    """What it checks: a flag or key of another program resembles a Megatron setting and was not taken.

    Why: rollout and serving engines have expert-parallel flags of their own; they do not configure training.

    Example: `--sglang-moe-a2a-backend deepep`, `actor_rollout_ref.rollout.tensor_model_parallel_size`

    Fix: nothing, unless it was meant for the training side.
    """
    return _omissions(view, "look-alike", "belongs to another program", "")


@rule("EPO806", "dead-setting", WARNING, enforced=[evidence()], source=READERS)
def dead_setting(view: View) -> Check:
    """What it checks: an attribute is set that nothing reads.

    Why: Python accepts any attribute on a configuration object; the run behaves as if it were not there.

    Example: `cfg.model.moe_a2a_overlap = True` in a Bridge recipe

    Fix: set the real switch, `cfg.comm_overlap.overlap_moe_expert_parallel_comm = True`.
    """
    return _omissions(view, "dead", "nothing reads it", "use comm_overlap.overlap_moe_expert_parallel_comm")


@rule("EPO807", "unknown-setting-ignored", INFO, enforced=[evidence()], source=READERS)
def unknown_setting_ignored(view: View) -> Check:
    """What it checks: a name in the Megatron part of the text is no known setting.

    Why: it may be an option of the surrounding program, or a misspelling that Megatron would refuse.

    Example: `--expert-model-parallel-sise 8`

    Fix: compare the name with the field table (`epo://fields/…`).
    """
    return _omissions(view, "unknown name", "no known setting", "")


@rule("EPO808", "source-is-partial", INFO, enforced=[evidence()], source=READERS)
def source_is_partial(view: View) -> Check:
    """What it checks: the text is a part of the configuration: it starts from an imported recipe or a sourced file.

    Why: what is not written is then unknown, not default, and rules that need it are undecided.

    Example: `cfg = qwen3_30b_a3b_pretrain_config()` followed by a few assignments

    Fix: check the complete configuration (Bridge saves it as `run_config.yaml`), or add values with `--set`.
    """
    reasons = list(dict.fromkeys(view.request.partial))
    return violated(truth(bool(reasons)), "what is not written is unknown: " + "; ".join(reasons[:4]), settings=[])


@rule("EPO809", "assumed-version-floor", INFO, enforced=[evidence()], source=FIELDS)
def assumed_version_floor(_view: View) -> Check:
    """What it checks: a version floor that every supported stack passes was taken as met, as the version is not given.

    Why: torch 2.6, Transformer Engine 2.3 with delayed weight gradients and 2.1 with permute fusion are older than
    every stack that runs the judged releases; asking for them each time would hide the questions that matter.

    Example: `--overlap-moe-expert-parallel-comm` with no torch version given

    Fix: give the versions: `--stack torch==2.9.0,transformer-engine==2.9.0`.
    """
    return violated(FALSE, "")  # reported by the check itself, which alone sees the floors that were taken as met


@rule("EPO810", "value-not-allowed", ERROR, enforced=[evidence()], source=FIELDS)
def value_not_allowed(view: View) -> Check:
    """What it checks: a value that the stack's own parser or configuration class rejects.

    Why: the run ends at start-up. A shell ends it already at an expression without quotes.

    Example: `--recompute-granularity partial`, `--swiglu True`, `--moe-layer-freq ([0]*3+[1]*45)` without quotes

    Fix: write what the message names; where only one thing can be meant, the patch of `propose` has it.
    """
    return _omissions(view, "not allowed", "", "a value that the field takes")


@rule("EPO811", "part-not-read", INFO, enforced=[evidence()], source=READERS)
def part_not_read(view: View) -> Check:
    """What it checks: a part of the text was left out: a loop over the script's own arguments, a file that it sources,
    flags that no command gets, a runtime environment that a program prints, or text that is no shell.

    Why: what such a part sets is not in the verdict.

    Example: `while [ $# -gt 0 ]; do case "$1" in --full) EXTRA=...` is judged as called without arguments

    Fix: nothing, if the part sets nothing that matters; else write what it sets, or give it with `--set`.
    """
    return _omissions(view, "not read", "left out", f"give what it sets with {argument('settings')}")


@rule("EPO812", "shell-needs-lf-line-ends", ERROR, enforced=[evidence()], source=READERS)
def shell_needs_lf_line_ends(view: View) -> Check:
    r"""What it checks: a shell script has CRLF line ends, as editors on Windows write them, in lines that bash runs.

    Why: to bash a carriage return is a character like any other. A command ends at its first `\`, its other lines are
    "command not found", `then` and `)` are words of their own, and Slurm refuses the script. Everything else is judged
    as if the line ends were LF.

    Example: `torchrun pretrain_gpt.py \` before a carriage return starts the training without any of its options

    Fix: `sed -i 's/\r$//' train.sh` or `dos2unix train.sh`; `*.sh text eol=lf` in git's `.gitattributes` keeps it so.
    The patch of `propose` mends the line ends along with the rest.
    """
    found = [o for o in view.request.omissions if o.kind == "line ends"]
    said = "; ".join(f"{o.file} has CRLF line ends and breaks in line {o.line}, `{o.text}`: {o.why}" for o in found)
    return violated(
        truth(bool(found)),
        f"{said}. Mend it with `sed -i 's/\\r$//'` or `dos2unix`; all else is judged as if the line ends were LF",
        expected="LF line ends",
        settings=[],
    )


@rule("EPO813", "release-known-to-the-rules", ERROR, enforced=[evidence()], source=RELEASES)
def release_known_to_the_rules(view: View) -> Check:
    """What it checks: the release is of a later minor version than any that the rules were written after.

    Why: it is judged like main as these rules know it. What it added, dropped or changed since is not known, so that
    nothing it was judged by is a pass.

    Example: `--stack megatron-core==0.25.0`, where main called itself 0.20 when the rules were written

    Fix: `--python PATH` asks the Megatron that is installed there; a newer version of this tool may know the release.
    """
    newer = view.release.newer_than_known
    return undecided(
        Truth(None) if newer else FALSE,
        f"{newer} is newer than every release that the rules were written after, and is judged like main; the "
        f"installed Megatron decides: {argument('python')}",
    )


@rule("EPO814", "value-unknown-to-version", ERROR, enforced=[megatron_lm()], source=FIELDS)
def value_unknown_to_version(view: View) -> Check:
    """What it checks: a written value that Megatron-LM's parser takes in other releases only.

    Why: the run ends at start-up with "invalid choice". Where the release is not given, such a value narrows the
    releases judged instead.

    Example: `--optimizer lion` on 0.16, `--ckpt-format zarr` from 0.16 on

    Fix: one of the values that the message names, or the release that has it.
    """
    core = view.release.core
    refused = list(view.request.refused_choices(core))
    return violated(
        truth(bool(refused)),
        f"not among the choices of Megatron-LM {core.label}: "
        + _listed(
            (f"{row.name} {item} (takes {', '.join(map(str, row.choices_in(core)))})", s.origin)
            for s, row, item in refused
        ),
        expected=f"values that Megatron-LM {core.label} takes",
        settings=[s.path for s, _, _ in refused],
    )


@rule(
    "EPO815",
    "required-arguments-stated",
    WARNING,
    enforced=[megatron_lm()],
    source=arguments("0.16.1", "495,796-799,824-826"),
)
def required_arguments_stated(view: View) -> Check:
    """What it checks: a command of Megatron-LM's own training script without an argument that has no default.

    Why: `validate_args` asserts each of them, so that this very command ends at start-up. It is a warning, because a
    command is often shown with its interesting part alone; the rules that need the missing value are undecided.

    Example: `torchrun pretrain_gpt.py --num-layers 48 --num-experts 64`, which says no `--hidden-size`

    Fix: give the whole command.
    """
    own = any(reading.strict for reading in view.request.readings)
    whole = own and view.request.complete and not view.states(_SAY_THE_REST)
    missing = [flag for flag, paths in _REQUIRED.items() if not view.states(paths)]
    return violated(
        truth(whole and bool(missing)),
        f"Megatron-LM asserts at start-up what this command does not say: {', '.join(missing)}; give the whole command",
        settings=[],
    )


_REQUIRED: Final = {
    "--num-layers": ("model.num_layers", "args.encoder_num_layers", "model.hybrid_layer_pattern"),
    "--hidden-size": ("model.hidden_size",),
    "--num-attention-heads": ("model.num_attention_heads",),
    "--max-position-embeddings": ("args.max_position_embeddings",),
    "--seq-length": ("model.seq_length", "args.encoder_seq_length"),
    "--micro-batch-size": ("train.micro_batch_size",),
}
_SAY_THE_REST: Final = ("args.use_checkpoint_args", "args.yaml_cfg")  # the checkpoint, or a file


@rule("EPO816", "patch-release-known-to-the-rules", INFO, enforced=[evidence()], source=RELEASES)
def patch_release_known_to_the_rules(view: View) -> Check:
    """What it checks: the release is of a later patch version than any of its minor version that the rules were read
    from, or there is no such release.

    Why: it is judged like the last patch version that was read. Patches seldom change what is checked.

    Example: `--stack megatron-lm==0.16.9`, where 0.16.1 is the last 0.16 that was read

    Fix: write the release that runs; `--python PATH` asks the Megatron that is installed there.
    """
    unread = view.release.unread_patches
    return violated(
        truth(bool(unread)),
        f"no release that the rules were read from: {', '.join(unread)}; see that it exists",
        expected=f"a release that was read, or the installed Megatron's word: {argument('python')}",
        settings=[],
    )


def _omissions(view: View, kind: str, note: str, expected: str) -> Check:
    found = [o for o in view.request.omissions if o.kind == kind]
    current = [o for o in found if o.path is None or not _settled_later(view, o)]
    shown = "; ".join(f"`{o.text.strip()}` ({o.file}:{o.line}){': ' + o.why if o.why else ''}" for o in current[:4])
    more = f" and {len(current) - 4} more" if len(current) > 4 else ""
    return violated(
        truth(bool(current)),
        f"{note + ': ' if note else ''}{shown}{more}",
        expected=expected,
        settings=[],
    )


def _settled_later(view: View, omission: Omission) -> bool:
    """Whether a later assignment replaced what was left out."""
    setting = view.request.settings.get(omission.path or "")
    return (
        setting is not None
        and setting.known
        and (setting.origin.file, setting.origin.line)
        != (
            omission.file,
            omission.line,
        )
    )


def _with_releases(view: View, path: str) -> str:
    """A setting's name with the releases that have it, and its newer name where it has one."""
    field, name = field_table()[path], path.partition(".")[2]
    parsed = view.framework == "megatron-lm"
    known = [release.label for release in CORE_RELEASES if field.exists_in(release, command_line=parsed)]
    spans = f"in {known[0]} to {known[-1]}" if len(known) > 1 else f"in {known[0]} only" if known else "in no release"
    return f"{name}, {spans}" + (f", now {field.use}" if field.use else "")


def _listed(items: Iterable[tuple[str, object]], most: int = 5) -> str:
    listed = [f"{name} ({origin})" for name, origin in items]
    return ", ".join(listed[:most]) + (f" and {len(listed) - most} more" if len(listed) > most else "")
