"""What a report says about an incident: plain values, to be put into templates and on screens.

Everything here is either ours (a sentence, a number) or the incident's own text, which whoever shows it must escape.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from typing import Any

from reprokit.errors import BadInput, some
from reprokit.failure import Kind, Signature
from reprokit.incident import Incident, Manifest
from reprokit.layout import Layout
from reprokit.replay.escalated import SUMMARY as ESCALATION
from reprokit.replay.sentence import named
from reprokit.replay.verdict import at_most, percent
from reprokit.smoke.note import Note, read

EXPECTED = {
    Kind.EXCEPTION: "The step finishes without an exception.",
    Kind.OOM: "The step fits into the memory of the device.",
    Kind.HANG: "The step finishes within the deadline.",
    Kind.CRASH: "The process survives the step.",
    Kind.NONFINITE_LOSS: "Every loss term is finite.",
    Kind.NONFINITE_GRAD: "Every gradient is finite before the optimizer's step.",
    Kind.NONFINITE_PARAM: "Every parameter is finite after the optimizer's step.",
    Kind.LOSS_SPIKE: "The loss stays near its moving average.",
    Kind.GRAD_SPIKE: "The norm of the gradients stays within its limit.",
    Kind.SCALER_STALL: "GradScaler skips a step now and then, not every one in a row.",
    Kind.COLLAPSE: "The features of different samples stay different.",
}
TAIL = 40  # lines of a traceback: enough for the frames of a model and the loop around it
STEPS = 10  # lines of metrics before the failure


def where(signature: Signature | None) -> str:
    """What failed and where, in one line: "nonfinite_loss at pred_loss"."""
    if signature is None:
        return "a healthy step"
    if not signature.exception:
        return f"{signature.kind} at {signature.where}"
    function = f" in {signature.function}" if signature.function else ""
    return f"{signature.exception} at {signature.where}{function}"


def headline(incident: Incident) -> str:
    """`where`, and at which step; of a step in which nothing but a gate failed, which one."""
    manifest = incident.manifest
    if manifest.signature is None and (told := smoked(incident)):
        return f"smoke gate {told.gate} failed at step {manifest.step}: {some(told.checks, 2)}"
    return f"{where(manifest.signature)}, step {manifest.step}"


def smoked(incident: Incident) -> Note | None:
    """What a smoke gate said of it; None where none did."""
    return read(log(incident, "reason.txt"))


def sizes(incident: Incident) -> dict[str, int]:
    """Axis -> length in the captured batch; empty where the layout does not fit it."""
    try:
        return Layout.parse(incident.manifest.layout).sizes(incident.batch())
    except BadInput:
        return {}


def samples(incident: Incident) -> list[str]:
    """The texts of the batch that belong to samples, "path: clips/0037.mp4": they say which samples these are."""
    try:
        layout = Layout.parse(incident.manifest.layout)
        leaves = layout.leaves(incident.batch())
    except BadInput:
        return []
    lists = {name: leaf for name, leaf in leaves.items() if layout.axes_of(name) == ("b",) and isinstance(leaf, list)}
    return [f"{name}: {', '.join(leaf)}" for name, leaf in lists.items() if all(isinstance(one, str) for one in leaf)]


def shape(lengths: Mapping[str, int]) -> str:
    """Lengths as people say them: "b 8 x v 4 x t 16"."""
    return " x ".join(f"{axis} {length}" for axis, length in lengths.items()) or "sizes not known"


def precision(incident: Incident) -> str:
    """Of the parameters, and what of it autocast changed: "float32, autocast bf16"."""
    name = "anchor" if incident.rolls_forward else "state"
    try:
        held = json.loads((incident.path / "state" / f"{name}.json").read_text())["data"]["parameters"]
        found = ", ".join(sorted({str(node["dtype"]) for node in held.values()}))
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        found = ""
    return ", ".join([found or "of no parameters", *_autocast(incident.flags())])


def _autocast(flags: Mapping[str, Any]) -> list[str]:
    """The harness's own, or that around the loop."""
    if own := flags.get("harness_autocast"):
        return [f"autocast {own}"]
    around = flags.get("autocast")
    one = around.get("cuda" if has_gpu(flags) else "cpu") if isinstance(around, Mapping) else None
    entered = isinstance(one, Mapping) and one.get("enabled")
    return [f"autocast {str(one.get('dtype')).removeprefix('torch.')}"] if entered and one else ["no autocast"]


def history(incident: Incident) -> str:
    """How far one can go back."""
    most = incident.rewindable()
    return f"{most} step{'s' * (most != 1)} before it: --rewind {most} at most" if most else "none: no --rewind"


def ranks(incident: Incident) -> list[str]:
    """A line on each: what it showed, as the first symptom has it."""
    evidence = incident.manifest.symptoms[0].evidence if incident.manifest.symptoms else {}
    said = evidence.get("ranks") if isinstance(evidence.get("ranks"), dict) else {}
    lines = []
    for rank in range(incident.manifest.world_size):
        first = ", the first" if rank == incident.manifest.origin else ""
        held = "" if rank in incident.ranks else ", not held"
        what = f": {said[str(rank)]}" if said and str(rank) in said else ""
        lines.append(f"{rank}{first}{held}{what}")
    return lines


def code(manifest: Manifest) -> str:
    """Which version, and whether that was all."""
    if not manifest.commit:
        return "no commit: outside a git repository"
    patch = manifest.files.get("source/patch.diff")
    return f"commit {manifest.commit[:12]}" + (", with uncommitted changes" if patch and patch.bytes else "")


def frequency(replay: Mapping[str, Any] | None) -> str | None:
    """The verdict of a replay in one sentence: counts, rate, confidence, engine. None where there is none to read."""
    try:
        return _frequency(replay) if replay and replay["n"] else None
    except (KeyError, TypeError, ValueError):
        return None


def _frequency(replay: Mapping[str, Any]) -> str:
    answer, n, fail = _word(replay["verdict"]), int(replay["n"]), int(replay["fail"])
    if answer == "REPRODUCIBLE":
        supported = f"in at least {percent(float(replay['rate_at_least']))} of attempts"
    else:
        low, high = (float(edge) for edge in replay["interval"])
        supported = f"in {percent(low)} to {at_most(high)} of attempts"
    stable = int(replay["fingerprints"]["stable"])
    sure = f"{100 * float(replay['confidence']):g}% confidence"
    factors = [_word(name) for name in replay.get("depends_on", [])]
    depends = f"; depends on {named(factors)}" if factors else ""
    counts = f"{fail}/{n} attempts failed with engine {_word(replay['engine'])}, bitwise-stable {stable}/{n}"
    return f"{answer}: {counts}{depends}; it fails {supported} ({sure})."


def evidence(found: Mapping[str, Any]) -> str:
    """Of a symptom, as one line."""
    return ", ".join(f"{key} {value if isinstance(value, str) else json.dumps(value)}" for key, value in found.items())


def log(incident: Incident, name: str) -> str:
    """A text of `logs/`, empty where there is none."""
    file = incident.path / "logs" / name
    return file.read_text(encoding="utf-8", errors="replace") if file.is_file() else ""


def escalation(incident: Incident) -> list[str]:
    """What a further round of attempts told, where there was one. Anybody may have written it."""
    if ESCALATION not in incident.manifest.files:
        return []
    try:
        told = json.loads((incident.path / ESCALATION).read_text("utf-8"))["sentences"]
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return []
    return [one for one in told if isinstance(one, str)][:TAIL] if isinstance(told, list) else []


def traceback(incident: Incident) -> str:
    """The end of that of the exception; empty where none was raised."""
    raised = re.split(r"(?m)^Thread ", log(incident, "traceback.txt"), maxsplit=1)[0]
    return "\n".join(raised.rstrip().splitlines()[-TAIL:])


def stack(incident: Incident) -> str:
    """Where the training thread stood when the failure was found; the others follow it in the file."""
    if found := stuck(incident):
        return found
    threads = re.split(r"(?m)^(?=Thread )", log(incident, "traceback.txt"))[1:]
    training = re.split(r'(?m)^  File ".*\breprokit/capture/', threads[0])[0] if threads else ""  # below it: ourselves
    return "\n".join(training.rstrip().splitlines()[-TAIL:])


def stuck(incident: Incident) -> str:
    """Where the thread stood that hung; empty where none did."""
    threads = re.split(r"(?m)^(?=Thread .*\(hangs\):$)", log(incident, "traceback.txt"))[1:]
    return "\n".join(re.split(r"(?m)^(?=Thread )", threads[0])[1].rstrip().splitlines()[-TAIL:]) if threads else ""


def command(described: Mapping[str, Any]) -> str:
    """What a person would type, from `command.json`; empty where that is not known."""
    words = [str(word) for word in described.get("argv") or ()]
    if module := described.get("module"):
        words[:1] = ["-m", str(module)]
    launcher = str(described.get("launcher") or "python").removesuffix(" -m").split()
    return shlex.join([*launcher, *words]) if words else ""


def metrics(incident: Incident) -> str:
    """The last steps before the failure, one a line."""
    return "\n".join(log(incident, "metrics.jsonl").rstrip().splitlines()[-STEPS:])


def size(count: float) -> str:
    """Bytes for people."""
    power = min(len(str(int(count))) - 1, 14) // 3
    value, unit = count / 1000**power, ("bytes", "KB", "MB", "GB", "TB")[power]
    return f"{value:.{int(power > 0 and value < 100)}f} {unit}"


def _word(text: object) -> str:
    """A word of ours that came back in JSON: letters, or nothing."""
    return "".join(c for c in str(text) if c.isalnum() or c in "_-")[:40]


def environment(described: Mapping[str, Any], flags: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Rows of a table: what the machine was, without what takes a page (packages, variables, how torch was built)."""
    device = str(flags.get("device", "cpu"))
    return [("device", device), *_rows(described, skip=("packages", "variables", "redacted", "build"))]


def _rows(described: Mapping[str, Any], prefix: str = "", skip: tuple[str, ...] = ()) -> list[tuple[str, str]]:
    rows: list[tuple[str, str]] = []
    for key, value in described.items():
        if key in skip:
            continue
        if isinstance(value, Mapping):
            rows += _rows(value, f"{prefix}{key}.")
        elif value not in (None, "", []):
            rows.append((f"{prefix}{key}", value if isinstance(value, str) else json.dumps(value)))
    return rows


def host(described: Mapping[str, Any], flags: Mapping[str, Any]) -> str:
    """What the machine was, in one line."""
    rows = dict(environment(described, flags))
    chip = rows.get("gpus" if has_gpu(flags) else "cpu.model", "")
    versions = {"Python": rows.get("python", "").partition(" ")[0], "torch": rows.get("torch", "")}
    named = [f"{what} {version}" for what, version in versions.items() if version]
    return ", ".join(filter(None, [rows.get("os"), *named, chip]))


def python(described: Mapping[str, Any]) -> str:
    """Its major and minor version, as the tag of an image has them."""
    found = re.match(r"3\.\d{1,2}(?=\D|$)", str(described.get("python", "")))
    return found[0] if found else "3.11"


def has_gpu(flags: Mapping[str, Any]) -> bool:
    """Whether the step ran on one."""
    return str(flags.get("device", "")).startswith("cuda")
