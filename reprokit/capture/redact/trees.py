"""The texts of a batch, as `tree` writes it: addresses of clips, captions, names of samples.

A loader's address may carry its credentials (`https://user:password@`, a signed query, a header in a pipe). All texts
are searched in one pass, a line each, and a marker is as long as what it hides: so each comes back from its place. Keys
stay, since they are what a step asks for, and so do bytes and arrays, which are no text.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from reprokit.capture.redact.running import own

_PARTS = frozenset(("tuple", "set", "frozenset", "namedtuple"))
_PAIRS = frozenset(("dict", "OrderedDict", "Counter", "defaultdict"))
_TEXTS = frozenset(("path", "numpy_str"))


def tree(data: Any, place: str) -> tuple[Any, list[str]]:
    """A copy of `tree.Packed.data`, and where something was found in it; the data itself where nothing was."""
    texts = list(_texts(data))
    clean, found = own("\n".join(texts)) if texts else ("", [])
    if not found:
        return data, []
    return _filled(data, _cut(clean, texts)), [f"{place}: {name}" for name in dict.fromkeys(name for _, name in found)]


def _texts(node: Any) -> Iterator[str]:
    if isinstance(node, str):
        yield node
    elif isinstance(node, list):
        for item in node:
            yield from _texts(item)
    elif isinstance(node, dict):
        for part in _parts(node).values():
            yield from _texts(part)


def _parts(node: dict[str, Any]) -> dict[Any, Any]:
    """What of a node holds texts, by its place in it."""
    tag = node.get("$")
    if tag is None:
        return node
    if tag in _PAIRS:
        return {i: value for i, (_, value) in enumerate(node["items"])}
    return {name: node[name] for name in (("items",) if tag in _PARTS else ("value",) if tag in _TEXTS else ())}


def _cut(clean: str, texts: list[str]) -> Iterator[str]:
    start = 0
    for text in texts:
        yield clean[start : start + len(text)]
        start += len(text) + 1


def _filled(node: Any, clean: Iterator[str]) -> Any:
    """The same with its texts replaced, in their order."""
    if isinstance(node, str):
        return next(clean)
    if isinstance(node, list):
        return [_filled(item, clean) for item in node]
    if not isinstance(node, dict):
        return node
    parts = {place: _filled(part, clean) for place, part in _parts(node).items()}
    if node.get("$") in _PAIRS:
        return {**node, "items": [[key, parts[i]] for i, (key, _) in enumerate(node["items"])]}
    return {**node, **parts}
