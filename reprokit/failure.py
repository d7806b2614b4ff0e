"""What failed, and when two failures are the same one.

A training step can fail in several ways at once: one NaN pixel makes the loss, the gradients and then the parameters
non-finite. The kinds are listed in causal order, and the first that holds names the failure; the others are symptoms. A
signature is coarse on purpose: a smaller case has other shapes, other numbers and other parameter names in its
messages, and is still the same failure. So messages are compared without what varies from run to run (`normalise`), and
places as paths from the source root, which are the same on the machine that failed and in a container.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from math import isfinite
from pathlib import Path
from traceback import walk_tb
from typing import Any

from reprokit.errors import BadInput


class Kind(StrEnum):
    """Closed, in causal order: the first that holds is the failure's kind."""

    EXCEPTION = "exception"
    OOM = "oom"
    HANG = "hang"
    CRASH = "crash"
    NONFINITE_LOSS = "nonfinite_loss"
    NONFINITE_GRAD = "nonfinite_grad"
    NONFINITE_PARAM = "nonfinite_param"
    LOSS_SPIKE = "loss_spike"
    GRAD_SPIKE = "grad_spike"
    SCALER_STALL = "scaler_stall"
    COLLAPSE = "collapse"


DEADLY = (Kind.HANG, Kind.CRASH)  # they take their process with them: only a fresh one is worth a try


@dataclass(frozen=True, kw_only=True, slots=True)
class Symptom:
    """One kind that held, where, and what was seen: for people, never compared."""

    kind: Kind
    where: str  # a loss term, or a phase: forward, backward, optimizer
    evidence: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Strict JSON: numbers that JSON lacks become the strings "nan", "inf" and "-inf", other objects their text."""
        return {"kind": str(self.kind), "where": self.where, "evidence": _plain(self.evidence)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Symptom:
        """Raises ValueError or its like for what nobody writes."""
        if not isinstance(data["where"], str) or not isinstance(data["evidence"], dict):
            raise ValueError("not a symptom's values")
        return cls(kind=Kind(data["kind"]), where=data["where"], evidence=data["evidence"])


@dataclass(frozen=True, kw_only=True, slots=True)
class Signature:
    """What makes two failures the same one. Exceptions carry type, function and normalised message too."""

    kind: Kind
    where: str
    exception: str = ""
    function: str = ""  # relative to the source root: "train.py:step"
    message: str = ""  # normalised

    def to_json(self) -> dict[str, Any]:
        return {name: str(getattr(self, name)) for name in self.__slots__}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Signature:
        """Raises ValueError or its like for what nobody writes."""
        if not all(isinstance(data[name], str) for name in cls.__slots__):
            raise ValueError("not a signature's values")
        return cls(**{name: data[name] for name in cls.__slots__} | {"kind": Kind(data["kind"])})


def first(symptoms: Iterable[Symptom], exception: Signature | None = None) -> Signature | None:
    """The signature of what failed: the first kind that holds. An exception brings the signature it was given."""
    found = [Signature(kind=symptom.kind, where=symptom.where) for symptom in symptoms]
    causal = list(Kind)
    return min(([exception] if exception else []) + found, key=lambda one: causal.index(one.kind), default=None)


def same(a: Signature, b: Signature, match: str | None = None) -> bool:
    """Whether two failures are one. A regular expression that both messages match stands in for equal messages."""
    if (a.kind, a.where) != (b.kind, b.where):
        return False
    if a.kind is not Kind.EXCEPTION:
        return True
    if match is None:
        alike = _alike(a.message, b.message) or _alike(b.message, a.message)
    else:
        pattern = matching(match)
        alike = all(pattern.search(signature.message) for signature in (a, b))
    return alike and (a.exception, a.function) == (b.exception, b.function)


def matching(match: str) -> re.Pattern[str]:
    """What `--match` gave, compiled. Raises BadInput."""
    try:
        return re.compile(match)
    except re.error as error:
        raise BadInput(f"--match: {match!r} is no regular expression ({error}); escape it or mend it") from None


def _alike(hidden: str, message: str) -> bool:
    """Whether messages are equal, but for what was taken out of one to keep a secret; the other may still have it."""
    return re.fullmatch(r"\S+".join(map(re.escape, _REDACTED.split(hidden))), message) is not None


_REDACTED = re.compile("REDACTEDx*")  # as capture marks it


def said(error: BaseException) -> str:
    """The message of an exception."""
    try:
        return str(error)
    except Exception:  # a __str__ that fails must not hide the failure that it was to describe
        return ""


def exception_signature(error: BaseException, *, phase: str, roots: Sequence[Path]) -> Signature:
    """Of an exception as it was caught; of groups and chains the outermost. `roots` hold the user's code."""
    message = said(error)
    return Signature(
        kind=Kind.OOM if _out_of_memory(error, message) else Kind.EXCEPTION,
        where=phase,
        exception=_type_name(type(error), roots),
        function=_function(error, roots, inside=phase != "forward"),
        message=normalise(message),
    )


_NO_MEMORY = re.compile(r"out of memory|can't allocate memory|not enough memory|_STATUS_ALLOC_FAILED", re.IGNORECASE)


def _out_of_memory(error: BaseException, message: str) -> bool:
    """By name, so that torch need not be imported: torch's own, the builtin, and what libraries only say in words."""
    named = any(kind.__name__ in ("OutOfMemoryError", "MemoryError") for kind in type(error).__mro__)
    return named or bool(_NO_MEMORY.search(message))


def _type_name(kind: type[BaseException], roots: Sequence[Path]) -> str:
    """Qualified by module; by path where the code is the user's, since a script is `__main__` only while it trains."""
    if kind.__module__ == "builtins":
        return kind.__qualname__
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    own = _own_path(Path(file), roots) if file else None
    module = ".".join(own.with_suffix("").parts) if own else kind.__module__
    return f"{module}.{kind.__qualname__}"


def place(error: BaseException, *, phase: str, roots: Sequence[Path]) -> str:
    """The function of its signature with the line where it stood, "train.py:14 in step"; empty where there is none."""
    file, name, line = _stood(error, roots, inside=phase != "forward")
    return f"{file}:{line} in {name}" if name else ""


def _function(error: BaseException, roots: Sequence[Path], *, inside: bool) -> str:
    file, name, _ = _stood(error, roots, inside=inside)
    return f"{file}:{name}" if name else ""


def _stood(error: BaseException, roots: Sequence[Path], *, inside: bool) -> tuple[str, str, int]:
    """The innermost function of the user's; where there is none, of a library; and last of torch: its file, name, line.

    inside: only from torch's first frame on. In a backward or optimizer step what called it is the loop, which is the
    user's in one run and reprokit's in the next.
    """
    mine = library = torch = ("", "", 0)
    for frame, line in walk_tb(error.__traceback__):
        file, name = Path(frame.f_code.co_filename), frame.f_code.co_name
        if str(file).startswith("<") or _is_machinery(file):
            continue  # generated code; and reprokit, whose callers of a step differ between training and replay
        own = _own_path(file, roots)
        shown = (own or _library_path(file)).as_posix()
        of_torch = shown.startswith("torch/")
        if inside and not torch[1] and not of_torch:
            continue
        if own:
            mine = (shown, name, line)
        elif of_torch:
            torch = (shown, name, line)
        else:
            library = (shown, name, line)
    return next((one for one in (mine, library, torch) if one[1]), torch)


_PACKAGE = Path(__file__).parent
_INSTALLED = ("site-packages", "dist-packages")


def _is_machinery(file: Path) -> bool:
    return file.is_relative_to(_PACKAGE) and not file.is_relative_to(_PACKAGE / "video")


def _own_path(file: Path, roots: Sequence[Path]) -> Path | None:
    """A file of the user's, relative to the root that holds it. What is installed below a root is not the user's."""
    if file.is_relative_to(_PACKAGE):  # the reference model: a user, wherever reprokit is installed or mounted
        return file.relative_to(_PACKAGE.parent)
    for start in (start for root in roots for start in (root, root.resolve())):
        if file.is_relative_to(start):
            own = file.relative_to(start)
            return None if any(part in _INSTALLED for part in own.parts) else own
    return None


def _library_path(file: Path) -> Path:
    """A file as its package knows it, wherever that is installed: "torch/nn/functional.py"."""
    for depth in range(len(file.parts) - 1, 0, -1):
        folder = file.parts[depth - 1]
        if folder in _INSTALLED or re.fullmatch(r"python3\.\d+", folder):
            return Path(*file.parts[depth:])
    return Path(file.name)


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return value if isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    return value if value is None or isinstance(value, bool | int | str) else str(value)


def normalise(message: str) -> str:
    """A message without what varies: numbers, sizes, shapes, addresses and pids become `#`, paths `<path>`; no escapes.

    It is rewritten until nothing changes, so this is idempotent. It ends, since each rewriting leaves fewer digits, or
    as many and fewer slashes, or as many of both and fewer surrogates or characters.
    """
    text = message[:_LONGEST_READ]
    while (rewritten := _rewrite(text)) != text:
        text = rewritten
    return text


_LONGEST_READ = 16_384  # characters: a message can hold a whole tensor
_LONGEST_KEPT = 2_048  # what tells two failures apart comes first

_APART = r"(?<![\w#>)\]}/\\.~@+-])"  # a path is not the rest of a word, nor of what was stripped
_NAME = r"[\w.+@~-]+"
_NUMBER = r"\d+(?:[.,_]\d+)*(?:[eE][+-]?\d+)?(?:\.(?=\s*[,\])]))?"
_SIGN = r"(?:(?<![\w#\])])[+-])?"
_DIGEST = r"(?<![\w.])(?!\d+[eE]?\b)(?=[a-fA-F]*\d)[\da-fA-F]{8,}\b"  # letters and digits, and no number such as 12e-3
_REWRITES = [
    (re.compile(pattern), replacement)
    for pattern, replacement in [
        # terminal escapes (CSI, OSC, the short ones), then any other control character; lone surrogates are no text
        (r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[ -/]*[0-~]", ""),
        (r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", ""),
        (r"[\ud800-\udfff]", "\ufffd"),
        # the stacks of C++ frames that torch appends differ between builds and processes
        (r"(?ms)^(?:Exception raised from [^\n]*\(most recent call first\):|C\+\+ CapturedTraceback:).*", ""),
        # paths: quoted ones to the quote, addresses of the web, then what starts as a path and what can only be one
        (r"""(['"])(?:[A-Za-z]:[\\/]|~?/|\.{1,2}/)[^'"\n]*\1""", r"\1<path>\1"),
        (r"(?<![A-Za-z\d+.-])[A-Za-z][A-Za-z\d+.-]*://[^\s'\"<>|,;()\[\]{}]*", "<path>"),
        (_APART + r"(?:[A-Za-z]:[\\/]|~/|\.{1,2}/|/{1,2}(?=[\w.~]))[^\s'\"<>|:;,()\[\]{}]*", "<path>"),
        (_APART + rf"{_NAME}(?:/+{_NAME})*(?:/+[\w+@~-]{_NAME}?\.[A-Za-z]\w*|(?:/+{_NAME}){{2}})", "<path>"),
        # addresses, identifiers, sizes with their units (which grow with the number), numbers
        (r"\b0[xX][\da-fA-F]+", "#"),
        (r"\b[\da-fA-F]{8}(?:-[\da-fA-F]{4}){3}-[\da-fA-F]{12}\b|" + _DIGEST, "#"),
        (_SIGN + _NUMBER + r"\s?(?:[KMGTPE]i?B|[kKMGT]?[Bb]ytes?|B)\b", "#"),
        (_SIGN + _NUMBER, "#"),
        (_SIGN + r"\b(?i:nan|inf|infinity)\b", "#"),
        # shapes and contents: however many numbers, in however many brackets
        (r"#(?:\s*,\s*(?:#|\.{3}))+", "#"),
        (r"\[\s*#\s*,?\s*\]", "[#]"),
        (r"\(\s*#\s*,?\s*\)", "(#)"),
        (r"(\[#\]|\(#\))(?:\s*,\s*(?:\1|\.{3}))+", r"\1"),
        (r"\[\s*\[#\]\s*\]", "[#]"),
        (r"\(\s*\(#\)\s*\)", "(#)"),
        (r" {2,}", " "),
    ]
]


def _rewrite(text: str) -> str:
    if not text.isascii():
        text = "".join("0" if character.isdigit() else character for character in text)
    for pattern, replacement in _REWRITES:
        text = pattern.sub(replacement, text)
    return text.strip()[:_LONGEST_KEPT]
