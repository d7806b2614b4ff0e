"""A script that makes the batch of a synthetic incident from nothing: what people share who may not share data.

It is the generator that made the incident, word for word, with the recipes behind it, so what it makes is equal to the
last bit. It needs torch, NumPy where a batch has arrays, and no file beside it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from reprokit.errors import BadInput
from reprokit.incident import Incident
from reprokit.reduce import generate, recipe
from reprokit.reduce.synthetic import RECIPE
from reprokit.report import templates, texts

SCRIPT = "synthetic.py"


def write(incident: Incident, path: Path) -> Path:
    """Write the script of a synthetic incident. Raises BadInput where it is none, or the path is taken."""
    text = script(incident)
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise BadInput(f"{path}: cannot be written ({error.strerror}); name a file that does not exist yet") from error
    return path


def script(incident: Incident) -> str:
    """Its text."""
    if RECIPE not in incident.manifest.files:
        raise BadInput(f"{incident.path}: its data was not made from a recipe; `reprokit reduce --synthetic` makes one")
    try:
        made = json.loads((incident.path / RECIPE).read_text("utf-8"))
        values = {
            "seed": int(made["seed"]),
            "donor_seed": int(made["donor_seed"]),
            "level": str(made["batch"]["level"]),
            "kept": ", ".join(recipe.kept(made["batch"])) or "none",
            "batch": _literal(made["batch"]),
            "donor": _literal(made["donor"]),
        }
    except (OSError, ValueError, TypeError, LookupError, AttributeError) as error:
        raise BadInput(f"{incident.path / RECIPE}: not a recipe that reprokit wrote; make the twin again") from error
    return templates.render(
        "synthetic/synthetic.py.j2",
        {
            **values,
            "generator": Path(generate.__file__).read_text("utf-8").strip(),
            "headline": texts.headline(incident),
            "incident": incident.manifest.id[:12],
        },
    )


def _literal(made: Mapping[str, Any] | None) -> str:
    """JSON for between three double quotes, raw: it is ASCII, has no three of them in a row and ends in no backslash,
    so whatever a recipe says stays data. One line for each entry of the batch."""
    if made is None:
        return "null"
    parts = [f"{json.dumps(str(key))}: {_lines(value)}" for key, value in made.items()]
    return "{\n" + ",\n".join(parts) + "\n}"


def _lines(value: Any) -> str:
    if not isinstance(value, list) or not value:
        return json.dumps(value, allow_nan=False)
    return "[\n" + ",\n".join(json.dumps(one, allow_nan=False) for one in value) + "\n]"
