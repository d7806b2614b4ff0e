"""What a user can be told in one line: what is wrong, where, and what to do next."""


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
