"""What was found by a reduction, in words: axes, what is guilty, and what else the case does not need.

All of it is read from a reduction's JSON, which in a certificate may be anybody's: what cannot be read is left out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from reprokit.incident import Manifest

_SIMPLER = {
    "zero": "zeros",
    "constant": "equal ones",
    "special": "NaN, infinities and extremes alone",
    "few": "a few distinct ones",
}
UNKNOWN = "not known"  # what is guilty, where it was not asked
_LONGEST = 120  # characters of a configuration's value: a table stays readable
_ABLATED = {"identity": "not needed: without it the step still fails", "freeze": "needs no gradients"}


def axes(lengths: Mapping[str, int], reduction: Mapping[str, Any] | None) -> list[dict[str, str]]:
    """Per axis: its size before a reduction, what is kept, what is guilty; empty where not known."""
    if reduction is None:
        return [{"name": axis, "size": str(length), "kept": "", "guilty": ""} for axis, length in lengths.items()]
    known: Mapping[str, Any] = reduction.get("axes") or {}
    return [
        {
            "name": axis,
            "size": str(one.get("size", "")),
            "kept": indices(one.get("kept")),
            "guilty": blamed(one),
        }
        for axis, one in known.items()
        if isinstance(one, Mapping)
    ]


def blamed(axis: Mapping[str, Any], unknown: str = UNKNOWN) -> str:
    """Along one axis: "6-7 together", or that none is by itself, or that nobody asked."""
    guilty = axis.get("guilty")
    if not isinstance(guilty, list | tuple):
        return unknown
    return (indices(guilty) or "none alone") + (" together" if axis.get("together") and len(guilty) > 1 else "")


def entry_name(entry: object) -> str:
    """A batch that is a bare tensor is its only entry, and has no name in it."""
    return str(entry) or "batch"


def indices(found: Any) -> str:
    """Sorted runs: "3, 7-9"."""
    if not isinstance(found, list | tuple):
        return ""
    if not all(isinstance(one, int) for one in found):
        return ", ".join(map(entry_name, found))
    runs: list[list[int]] = []
    for one in sorted(set(found)):
        if runs and one == runs[-1][1] + 1:
            runs[-1][1] = one
        else:
            runs.append([one, one])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def notes(reduction: Mapping[str, Any] | None) -> list[str]:
    """Sentences of ours with numbers of the reduction in them."""
    if reduction is None:
        return []
    told = []
    if isinstance(calls := reduction.get("calls"), int):
        told.append(f"Found in {calls} evaluations.")
    if reduction.get("one_minimal") is True:
        told.append("1-minimal: with any one more element dropped or healed, it no longer fails.")
    if reduction.get("batch_guilty") is False:
        told.append("The batch is not to blame: a healthy batch fails from this state too.")
    return told


@dataclass(frozen=True, kw_only=True, slots=True)
class Section:
    """A heading of ours over rows of the reduction's; `columns` are ours, too."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def sections(found: Mapping[str, Any] | None) -> list[Section]:
    """What else a bug report says: values, modules and settings that the case does not need, and what a baseline has
    otherwise. Those alone about which there is something to say."""
    try:
        made = [_values(found or {}), _modules(found or {}), _settings(found or {}), _baseline(found or {})]
    except (KeyError, TypeError, AttributeError, ValueError):
        return []
    return [section for section in made if section.rows]


def _values(found: Mapping[str, Any]) -> Section:
    kinds = found.get("values") or {}
    rows = tuple((entry_name(entry), _SIMPLER.get(kind, str(kind))) for entry, kind in kinds.items())
    return Section(title="Values", columns=("entry", "enough to fail"), rows=rows)


def _modules(found: Mapping[str, Any]) -> Section:
    ablated = (found.get("variant") or {}).get("modules") or {}
    rows = tuple((str(name), _ABLATED.get(how, str(how))) for name, how in ablated.items())
    return Section(title="Modules", columns=("module", "found"), rows=rows)


def _settings(found: Mapping[str, Any]) -> Section:
    variant = found.get("variant") or {}
    changed = [item for part in ("config", "harness", "flags") for item in (variant.get(part) or {}).items()]
    changed += [("dtype", variant["dtype"])] if variant.get("dtype") else []
    rows = tuple((str(key), _shown(value)) for key, value in changed)
    return Section(title="Simpler settings with which it still fails", columns=("setting", "value"), rows=rows)


def _baseline(found: Mapping[str, Any]) -> Section:
    config = found.get("config") or {}
    rows = tuple(
        (str(one["key"]), _side(one, "here"), _side(one, "baseline"), "yes" if one["key"] in config["kept"] else "no")
        for one in config.get("differences") or ()
    )
    columns = ("key", "here", "in the baseline", "needed to fail")
    return Section(title="Differences to a configuration that works", columns=columns, rows=rows)


def _side(one: Mapping[str, Any], name: str) -> str:
    return _shown(one[name]) if name in one else "(absent)"


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def certificate(manifest: Manifest) -> list[str]:
    """`reduction` of an incident that may be anybody's."""
    try:
        return lines(manifest.certificate or {})
    except (KeyError, TypeError, AttributeError, ValueError):
        return ["its certificate cannot be read"]


def lines(found: Mapping[str, Any]) -> list[str]:
    """A reduction's JSON in lines: axes before and after, what is guilty, and what else there is to say."""
    told = []
    for name, axis in found["axes"].items():
        guilty = blamed(axis, UNKNOWN if found.get("complete", True) else f"{UNKNOWN} yet")
        if name == "key":
            untried = found.get("untried", [])
            content = [entry for entry in axis["kept"] if entry not in (*axis["healed"], *untried)]
            text = f" (text, not tried: {indices(untried)})" if untried else ""
            told.append(f"key  content needed of {indices(content) or 'none'}{text}   guilty {guilty}")
        else:
            cut = f"{name}  {axis['size']} -> {len(axis['kept'])}   kept {indices(axis['kept'])}"
            told.append(f"{cut}   guilty {guilty}")
    told += [_region(region) for region in found["regions"]]
    if len(found["groups"]) > 1:
        each = [", ".join(f"{axis} {indices(kept)}" for axis, kept in group.items()) for group in found["groups"]]
        told.append(f"{len(each)} independent causes: " + "; ".join(each))
    for entry, kind in found.get("values", {}).items():
        told.append(f"values of {entry_name(entry)}: {_SIMPLER.get(kind, kind)} are enough")
    if found.get("rate"):
        case, donor = found["rate"]["case"], found["rate"]["donor"]
        of_donor = f", the donor in {donor['fail']} of {donor['n']}" if donor else ""
        why = ", depending on random numbers" if found["depends_on_rng"] else ""
        told.append(f"fails in {case['fail']} of {case['n']} runs{of_donor}{why}")
    if name := (found.get("variant") or {}).get("name"):
        told.append(f"also fails with {name}")
    if unneeded := [name for name, how in (found.get("variant") or {}).get("modules", {}).items() if how == "identity"]:
        told.append(f"also fails without the modules {', '.join(unneeded)}")
    if found.get("config"):
        told.append(f"differences to the baseline that bring it: {', '.join(found['config']['kept'])}")
    noted = list(map(str, found.get("notes", [])))
    if found["batch_guilty"] is False and not any("nothing in the batch" in note for note in noted):
        told.append("no part of the batch is guilty: healthy content fails in the same way")
    return told + noted


def _region(region: Mapping[str, Any]) -> str:
    place = ", ".join(f"{axis} {indices(some)}" for axis, some in region.items() if axis not in ("entry", "guilty"))
    return f"region of {entry_name(region['entry'])}: {place}" + ("   guilty" if region["guilty"] else "")
