"""Which verbs work on an incident, from what it holds.

An incident may hold less than a whole step, where that was asked for or where there was no room. It is still evidence,
and what can be done with it follows from its files alone, so nothing that says so can be wrong.
"""

from __future__ import annotations

from collections.abc import Collection

from reprokit import checkpoint
from reprokit.errors import BadInput
from reprokit.incident import Incident, folder_of

READ = ("show", "verify", "bundle")
RUN = ("replay", "reduce", "locate", "triage")


def lacks(files: Collection[str], world_size: int = 1) -> str:
    """Why the step cannot be run from these files of an incident; empty where it can."""
    state = {"state/state.json", "state/anchor.json"} & set(files)
    absent = [*([] if state else ["no state of the model"])]
    folders = [folder_of(rank) for rank in range(world_size)]
    if without := [rank for rank, folder in enumerate(folders) if f"{folder}/batch.json" not in files]:
        of = f" of rank {', '.join(map(str, without))}" if world_size > 1 else ""
        named = any(f"{folder}/pointers.json" in files for folder in folders)
        absent += [f"no batch{of}" + (", but for the names of its samples" if named else "")]
    return f"it holds {' and '.join(absent)}" if absent else ""


def works(incident: Incident) -> dict[str, str | None]:
    """Verb -> None where it works, or the reason why it does not."""
    reason = lacks(incident.manifest.files, incident.manifest.world_size)
    if not reason and (pointers := incident.checkpoint()):
        reason = checkpoint.missing(pointers)
    return {**dict.fromkeys(READ), **dict.fromkeys(RUN, reason or None)}


def check(incident: Incident, verb: str) -> None:
    """Raises BadInput where this verb does not work on the incident."""
    if reason := works(incident).get(verb):
        raise BadInput(f"{incident.path}: {verb} does not work here: {reason}; `reprokit show` tells what was left out")


def sentence(files: Collection[str], world_size: int = 1) -> str:
    """For the manifest of an incident with these files; empty where every verb works."""
    reason = lacks(files, world_size)
    return f"{', '.join(RUN)} do not work here: {reason}; {', '.join(READ)} do" if reason else ""
