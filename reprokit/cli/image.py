"""`reprokit image`: the images that replays run in."""

from __future__ import annotations

import typer

from reprokit import pipeline
from reprokit.cli import common

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False, no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Container images for replays."""


@app.command()
def build(
    incident: common.Incident,
    base_image: common.Base = None,
    wheelhouse: common.Wheels = None,
    as_json: common.Json = False,
) -> int:
    """Build the image for INCIDENT from its captured requirements; instant where it is there already."""
    from reprokit.replay import image

    requirements = pipeline.opened(incident).incident.requirements()
    with common.progress() as bars:
        tag = image.ensure(requirements, base=base_image, wheelhouse=wheelhouse, progress=common.Reporter(bars).say)
    common.emit({"image": tag}) if as_json else common.out().print(tag, markup=False)
    return 0
