"""`reprokit image`: the images that replays run in."""

from __future__ import annotations

from typing import Annotated

import typer

from reprokit import pipeline
from reprokit.cli import common
from reprokit.errors import BadInput
from reprokit.report import escape, texts

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False, no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Container images for replays."""


@app.command()
def build(
    incident: common.Incident,
    image: common.Image = None,
    base_image: common.Base = None,
    wheelhouse: common.Wheels = None,
    compiler: common.Compiler = False,
    socket: common.Socket = None,
    trust: common.Trust = False,
    as_json: common.Json = False,
) -> int:
    """Build the image for INCIDENT from its captured requirements; instant where it is there already."""
    options = pipeline.Options(
        image=image, base=base_image, wheelhouse=wheelhouse, compiler=compiler, trust=trust
    )
    with common.progress() as bars:
        tag = pipeline.image_of(pipeline.opened(incident), options, common.Reporter(bars))
    if as_json:
        common.emit({"image": tag})
        return 0
    common.out().print(tag, markup=False)
    common.next_step("reprokit", "replay", incident, "--image", tag)
    return 0


@app.command("ls")
def list_(socket: common.Socket = None, as_json: common.Json = False) -> int:
    """List the images that were built here, and how much room they and the kept wheels take."""
    from reprokit.replay import inventory  # talks to Docker: not for `--help`

    kept, (folder, bytes) = inventory.listed(), inventory.wheels()
    if as_json:
        common.emit({"images": [one.to_json() for one in kept], "wheels": {"path": str(folder), "bytes": bytes}})
        return 0
    console = common.out()
    for one in kept:
        torch = f"torch {one.torch}, " if one.torch else ""
        made = f"{torch}{one.wheels} wheels on {one.base}" if one.base else ""
        line = "  ".join(filter(None, (one.tag, texts.size(one.bytes), one.created[:16].replace("T", " "), made)))
        console.print(escape.line(line), markup=False, soft_wrap=True)
    console.print(f"{len(kept)} images; kept wheels {texts.size(bytes)} in {folder}", markup=False, soft_wrap=True)
    return 0


@app.command()
def rm(
    tags: Annotated[list[str] | None, typer.Argument(metavar="TAG...", help="As `image ls` shows it.")] = None,
    every: Annotated[bool, typer.Option("--all", help="All that were built here.")] = False,
    wheels: Annotated[bool, typer.Option("--wheels", help="The kept wheels; the next build gathers again.")] = False,
    socket: common.Socket = None,
    as_json: common.Json = False,
) -> int:
    """Remove images that were built here; the next replay that wants one builds it again."""
    from reprokit.replay import inventory

    if not (tags or every or wheels):
        raise BadInput("image rm: nothing to remove; give a TAG of `reprokit image ls`, --all or --wheels")
    removed = inventory.remove(tags or [], every=every) if tags or every else []
    freed = inventory.remove_wheels() if wheels else 0
    if as_json:
        common.emit({"removed": removed, "wheels": freed})
        return 0
    console = common.out()
    for tag in removed:
        console.print(f"removed {tag}", markup=False)
    if wheels:
        console.print(f"removed wheels of {texts.size(freed)}", markup=False)
    return 0
