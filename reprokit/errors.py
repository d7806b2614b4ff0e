"""What a user can be told in one line: what is wrong, where, and what to do next."""

from collections.abc import Sequence


def some(items: Sequence[str], most: int = 3) -> str:
    """The first of them, for a line: "a, b, c and 12 more"."""
    return ", ".join(items[:most]) + (f" and {len(items) - most} more" if len(items) > most else "")


class ReprokitError(Exception):
    """Anything reprokit refuses or fails to do. The command line prints it as one line and exits with `exit_code`."""

    exit_code = 1


class BadInput(ReprokitError):
    """The user can mend this."""

    exit_code = 2


class Infrastructure(ReprokitError):
    """The machinery broke: an engine, a disk, a build. Nothing is said about the failure under study."""

    exit_code = 3


class Interrupted(ReprokitError):
    """Somebody ended it, and there is something to say about what is left."""

    exit_code = 130  # what shells say of a process that SIGINT ended
