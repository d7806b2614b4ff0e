"""What a process says of itself: configuration, command line, output, the message of its failure.

All of it is written without secrets, and nothing of it where they cannot be looked for: then a line says so.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from reprokit import failure
from reprokit.capture import environment, redact
from reprokit.capture.logs import stacks
from reprokit.capture.seen import Seen
from reprokit.failure import Signature, Symptom
from reprokit.incident import Draft
from reprokit.step.probe import Probe


class Told:
    """A context: what its process keeps under the name of a secret is one wherever it stands."""

    def __init__(self, config: Any) -> None:
        self.config = config
        self.redacted: list[str] = []
        self.left_out: list[str] = []

    def __enter__(self) -> Self:
        arguments = environment.arguments_of_process()
        self._context = redact.knowing(redact.secrets([self.config, dict(os.environ)], arguments))
        self._context.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._context.__exit__(None, None, None)

    def write_config(self, draft: Draft) -> None:
        with self._or_left_out("config.yaml"):
            clean, found = redact.config(self.config)
            draft.write_yaml("config.yaml", clean)
            self.redacted += found

    def write_command(self, draft: Draft, root: Path) -> None:
        for name, described in {"command": environment.command(root), "environment": environment.describe()}.items():
            draft.write_json(f"{name}.json", described)
            self.redacted += [f"{name}.json: {place}" for place in described["redacted"]]
            self.left_out += [f"{name}.json: {part}" for part in described.get("left_out", ())]

    def failure(self, probe: Probe | Seen, error: BaseException | None) -> tuple[Signature | None, tuple[Symptom, ...]]:
        """As the probe saw it. A message is cleaned first and made comparable then, as a replay of clean code will."""
        signature = probe.signature or failure.first(probe.symptoms)
        symptoms = tuple(replace(one, evidence=self._evidence(one)) for one in probe.symptoms)
        if error is not None and signature is not None and signature.message:
            message = ""
            with self._or_left_out("the message of the failure"):
                message, found = redact.text(_message(error))
                if found:  # in one form, for which any value is as good
                    message = redact.WORD.join(redact.MARKED.split(message))
                self.redacted += [f"the message of the failure: {place}" for place in found]
            signature = replace(signature, message=failure.normalise(message))
        return signature, symptoms

    def write_logs(self, draft: Draft, logs: Mapping[str, str], error: BaseException | None) -> None:
        texts = dict(logs)
        raised = "".join(traceback.format_exception(error)) + "\n" if error else ""
        texts["traceback"] = raised + (texts.get("traceback") or stacks())
        for name, text in texts.items():
            with self._or_left_out(f"logs/{name}.txt"):
                clean, found = redact.text(text)
                draft.write_text(f"logs/{name}.txt", clean)
                self.redacted += [f"logs/{name}.txt:{place}" for place in found]

    def _evidence(self, symptom: Symptom) -> dict[str, Any]:
        clean: dict[str, Any] = {}
        for name, value in symptom.evidence.items():
            with self._or_left_out(f"evidence of {symptom.kind}, {name}"):
                clean[name] = _cleaned(value)
        return clean

    def fallback(self, told: Mapping[str, Any]) -> dict[str, Any]:
        """What was tried: an outcome may be what the step said."""
        try:
            return dict(_cleaned(told))
        except redact.Unscanned as reason:
            return {**told, "tried": [[name, str(reason)] for name, _ in told["tried"]]}

    def lines(self, lines: Sequence[str]) -> list[str]:
        """What was left out, and why: an error's words may be among them."""
        try:
            return [_cleaned(line) for line in lines]
        except redact.Unscanned as reason:
            return [f"{len(lines)} lines on what was left out: {reason}"] if lines else []

    @contextmanager
    def _or_left_out(self, what: str) -> Iterator[None]:
        try:
            yield
        except redact.Unscanned as reason:
            self.left_out.append(f"{what}: {reason}")


def _cleaned(value: Any) -> Any:
    if isinstance(value, str):
        return redact.text(value)[0]
    if isinstance(value, Mapping):
        return {_cleaned(key): _cleaned(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_cleaned(part) for part in value]
    return value


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # a __str__ that fails must not hide the failure that it was to describe
        return ""
