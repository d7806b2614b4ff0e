"""An incident made of what a dead process left in its black box."""

from __future__ import annotations

import json
import re
import shutil
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from reprokit import tree
from reprokit.capture import redact
from reprokit.capture.black_box import ABOUT, BASE, BEGUN, CURRENT, DUMP
from reprokit.capture.told import Told
from reprokit.errors import BadInput
from reprokit.failure import Kind, Signature, Symptom
from reprokit.incident import Draft
from reprokit.layout import Layout
from reprokit.step.detectors import inputs

_RANK = "ranks/00"


@dataclass(frozen=True, kw_only=True, slots=True)
class Death:
    """How a process ended. None where that is not known."""

    signal: int | None = None
    code: int | None = None
    out_of_memory: bool = False  # the kernel killed something for memory meanwhile
    core: str = ""  # where the core went, as far as that can be told

    @property
    def kind(self) -> Kind:
        return Kind.OOM if self.out_of_memory and self.signal == signal.SIGKILL else Kind.CRASH

    def words(self) -> str:
        """"died of SIGSEGV", "exited with 3"."""
        if self.signal is not None:
            why = " (the kernel was out of memory)" if self.kind is Kind.OOM else ""
            return f"died of {_name(self.signal)}{why}"
        return "ended" if self.code is None else f"exited with {self.code}"


def in_step(box: Path) -> int | None:
    """The step in which the owner of a box was; None between steps."""
    return int(_read(box / CURRENT)["step"]) if (box / BEGUN).exists() else None


def finish(box: Path, death: Death) -> Path:
    """Publish the incident of the step in which a process died; returns its folder. Whole, or not there at all."""
    about, current, now = _read(box / ABOUT), _read(box / CURRENT), datetime.now(UTC)
    signature = Signature(kind=death.kind, where="step")
    dump = _dump(box)
    with Draft(Path(about["out"])) as draft:
        shutil.copytree(box / BASE, draft.path, dirs_exist_ok=True)
        with Told(yaml.safe_load((box / BASE / "config.yaml").read_text())) as told:
            told.redacted += _write_step(draft, box, current, about["layout"])
            told.write_logs(draft, {"traceback": dump or f"The process {death.words()} and left no stack.\n"}, None)
        draft.write_text("logs/metrics.jsonl", "".join(json.dumps(line) + "\n" for line in current["metrics"]))
        return draft.publish(
            f"{now:%Y-%m-%d}-{signature.kind}-step{current['step']}",
            signature=signature,
            symptoms=(Symptom(kind=signature.kind, where="step", evidence=_evidence(death, dump)),),
            step=current["step"],
            entrypoint=about["entrypoint"],
            layout=about["layout"],
            created=now.isoformat(timespec="seconds"),
            commit=about["commit"],
            redacted=(*about["redacted"], *told.redacted),
            left_out=(*about["left_out"], *told.left_out, *current["left_out"]),
        ).path


def _write_step(draft: Draft, box: Path, current: Mapping[str, Any], layout: Any) -> list[str]:
    """The anchor, the steps from there on, and what the last one began with. Returns where texts were redacted."""
    redacted: list[str] = []
    redacted += _copy(box / f"anchors/{current['anchor']}", "anchor", draft, "state")
    draft.write_json("state/loop.json", current["loop"])
    draft.write_json("flags.json", current["flags"])
    for step in current["steps"]:
        for name in ("start", "batch"):
            redacted += _copy(box / f"steps/{step}", name, draft, f"{_RANK}/history/{step}")
    last = box / f"steps/{current['step']}"
    for name in ("batch", "rng"):
        redacted += _copy(last, name, draft, _RANK)
    if current["donor"] is not None:
        redacted += _copy(box / f"steps/{current['donor']}", "batch", draft, _RANK, "donor")
    draft.write_json(f"{_RANK}/inputs.json", inputs.look(tree.load(last, "batch"), Layout.parse(layout)))
    return redacted


def _copy(folder: Path, name: str, draft: Draft, into: str, called: str = "") -> list[str]:
    """What `tree` wrote, its texts without secrets; where there were some."""
    place, redacted = f"{into}/{called or name}", list[str]()
    for file in folder.glob(f"{name}.*"):
        copy = draft.file(f"{place}{file.suffix}")
        shutil.copyfile(file, copy)
        if file.suffix == ".json":
            try:
                document = _read(file)
                document["data"], redacted = redact.tree(document["data"], place)
            except (ValueError, LookupError, TypeError) as error:
                raise BadInput(f"{file}: not whole, or altered; nothing can be made of this box") from error
            if redacted:
                copy.write_text(json.dumps(document, allow_nan=False, separators=(",", ":")) + "\n")
    return redacted


def _dump(box: Path) -> str:
    """The stacks that faulthandler left; empty where nothing faulted."""
    text = (box / DUMP).read_text(errors="replace") if (box / DUMP).exists() else ""
    return text.partition("\nExtension modules: ")[0]


def _evidence(death: Death, dump: str) -> dict[str, Any]:
    """What is known of it, for people."""
    known: dict[str, Any] = {}
    if death.signal is not None:
        known["signal"] = _name(death.signal)
    if death.code is not None:
        known["exit_code"] = death.code
    if death.core:
        known["core"] = death.core
    if found := re.search(r'(?m)^(?:Current thread|Stack).*\n\s+File "(?:.*/)?(.+)", line (\d+) in (.+)$', dump):
        known["at"] = f"{found[1]}:{found[2]} in {found[3]}"
    return known


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _read(path: Path) -> Any:
    return json.loads(path.read_text())
