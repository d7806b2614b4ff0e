"""The `reprokit` command: its verbs, and how errors leave it.

A verb's module is imported when the verb is used, so that `reprokit --help` need not wait for torch. An error that a
user can meet is one line on stderr and an exit code; `--debug` anywhere on the line shows the rest.
"""

from __future__ import annotations

import sys
from contextlib import nullcontext, suppress
from importlib import import_module

import typer

import reprokit
from reprokit.cli import signals, streams
from reprokit.errors import Interrupted, ReprokitError

VERBS = {
    "demo": "Train the reference video model until a step goes NaN, and take that to a bundle.",
    "smoke": "Gates before the expensive run: is the plumbing of a step right?",
    "show": "An incident on one screen.",
    "reduce": "The smallest case that still fails for the same reason.",
    "replay": "Run an incident N times in fresh containers or processes, and judge.",
    "locate": "The operation that makes the first bad value.",
    "triage": "What decides whether it fails: a factor, or what changed experiments make of it.",
    "bundle": "One verified file with an incident and what a person needs to run and read it.",
    "verify": "Check a bundle or an incident: every byte against its hash.",
    "image": "Container images for replays.",
    "run": "Train under supervision: a process that dies in a step leaves an incident.",
}
INTERRUPTED = Interrupted.exit_code


def run(arguments: list[str] | None = None) -> None:
    """Entry point of the command; exits with the code of the verb."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    words, others = _own(words)
    debug = "--debug" in words
    ending = signals.Ending()
    ending.listen()
    streams.whole()
    as_json = "--json" in words
    words = [word for word in words if word != "--debug"] + others
    try:
        with streams.kept_for_answer() if as_json else nullcontext():
            code = _verb(words)
        if code == INTERRUPTED:  # typer's word for it
            raise KeyboardInterrupt
        streams.flush()
    except BaseException as error:  # SystemExit too: it is of somebody's code, and its code is no verdict
        if debug and not isinstance(error, typer.TyperException):
            ending.over()
            raise
        code = _report(error)
    code = 128 + ending.number if code == INTERRUPTED and ending.number else code
    if arguments is None:
        ending.exit(code)
    ending.over()
    sys.exit(code)


def _own(words: list[str]) -> tuple[list[str], list[str]]:
    """The words that are ours, and those of the command that `run` starts, which may have a `--debug` of its own."""
    if words[:1] != ["run"]:
        return words, []
    start = next((i for i, word in enumerate(words[1:], 1) if word == "--" or not word.startswith("-")), len(words))
    return words[:start], words[start:]


def _verb(words: list[str]) -> int:
    first, *rest = words or ["--help"]
    if first in ("--help", "-h"):
        print(_help())
        return 0
    if first == "--version":
        print(f"reprokit {reprokit.__version__}")
        return 0
    if first not in VERBS:
        print(f"reprokit: no verb {first!r}; one of {', '.join(VERBS)}", file=sys.stderr)
        return 2
    app = import_module(f"reprokit.cli.{first}").app
    code = app(rest, prog_name=f"reprokit {first}", standalone_mode=False)
    return code if isinstance(code, int) else 0


def _help() -> str:
    verbs = "\n".join(f"  {name:<8} {what}" for name, what in VERBS.items())
    return (
        "Usage: reprokit VERB ...\n\n"
        "Reproduce and minimise failures of PyTorch video-model training.\n\n"
        f"{verbs}\n\n"
        "reprokit VERB --help tells more. Everywhere: --json for programs, --debug for tracebacks."
    )


def _report(error: BaseException) -> int:
    """One line on stderr; returns the exit code."""
    if isinstance(error, typer.TyperException):
        line, code = str(getattr(error, "format_message", lambda: error)()), 2
        line = f"{line} (see --help)" if line else ""
    elif isinstance(error, ReprokitError):
        line, code = str(error), error.exit_code
    elif isinstance(error, OSError) and error.strerror:
        line, code = f"{error.filename or 'writing'}: {error.strerror}; free or choose another place and run again", 3
    elif isinstance(error, KeyboardInterrupt | typer.Abort):
        line, code = "interrupted", INTERRUPTED
    else:
        line, code = f"unexpected {type(error).__name__}: {error}; --debug shows where, please report it", 3
    if line:
        shown = "".join(one if one.isprintable() else "?" for one in " ".join(line.split()))
        with suppress(OSError):  # the code says it as well
            print(f"reprokit: {shown}", file=sys.stderr, flush=True)
    return code
