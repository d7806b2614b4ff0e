"""Secrets out of whatever is written down: arguments, variables, configuration, remotes, source, logs.

Two things give a secret away: the name beside it (`api_key=`, `--password`) and its own shape (`ghp_...`, a private
key, a random string in quotes). Shapes and names are those of detect-secrets and some of our own, for what this trade
uses. A finding becomes a marker as long as it was, in its place, and no newline is ever added or removed: a script
still parses, each line of a diff keeps its sign, a string stays a string. Each function returns what it made and where
it found something: the place and the sort of secret, never its value. What cannot be searched raises `Unscanned`, and
is not written. Pure: no I/O.
"""

from reprokit.capture.redact.data import argv, config, environment, secrets, url
from reprokit.capture.redact.files import content, is_binary
from reprokit.capture.redact.library import Unscanned, ready
from reprokit.capture.redact.markers import MARKED, WORD, is_marker, marker
from reprokit.capture.redact.names import is_secret_file, is_secret_name
from reprokit.capture.redact.running import knowing, text
from reprokit.capture.redact.trees import tree

__all__ = [
    "MARKED",
    "WORD",
    "Unscanned",
    "argv",
    "config",
    "content",
    "environment",
    "is_binary",
    "is_marker",
    "is_secret_file",
    "is_secret_name",
    "knowing",
    "marker",
    "ready",
    "secrets",
    "text",
    "tree",
    "url",
]
