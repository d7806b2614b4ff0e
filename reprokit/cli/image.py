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
    trust: common.Trust = False,
    as_json: common.Json = False,
) -> int:
    """Build the image for INCIDENT from its captured requirements; instant where it is there already."""
    options = pipeline.Options(base=base_image, wheelhouse=wheelhouse, trust=trust)
    with common.progress() as bars:
        tag = pipeline.image_of(pipeline.opened(incident), options, common.Reporter(bars))
    if as_json:
        common.emit({"image": tag})
    else:
        common.out().print(tag, markup=False)
    return 0
