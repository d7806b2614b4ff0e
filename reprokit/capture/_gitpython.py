"""GitPython as the starter of git, imported without the search for a git that comes with it.

That search runs `git version` with no time limit, and raises where there is no git; a training run must notice neither.
So it is sent to a file that cannot be run, and told to be quiet about it: after that, `git` is looked for at each call.
The process belongs to somebody else, who may want a GitPython that has searched: they get one of their own.

Of GitPython's ways to run a command this is the narrowest. It knows a folder, but expands `~` and `$` in its name and
quietly takes another where it is denied; a time limit, but none on Windows; no bytes for the standard input; and no way
to take a variable away. Hence `git -C`, `env -u`, and a process that its caller feeds and waits for. Its `Repo` is not
used: it reads configuration in its own way, knows SHA-1 alone, and refreshes the index when asked what has changed.
"""

import os
import subprocess
import sys
from collections.abc import Mapping
from unittest.mock import patch

_theirs = "git" in sys.modules
_quiet = {"GIT_PYTHON_GIT_EXECUTABLE": os.devnull, "GIT_PYTHON_REFRESH": "quiet"}
with patch.object(os, "environ", {**os.environ, **_quiet}):  # the mapping alone: C code may be reading the real one
    from git.cmd import Git
    from git.exc import GitCommandNotFound
if not _theirs:
    for _name in [name for name in sys.modules if name.partition(".")[0] == "git"]:
        del sys.modules[_name]


def start(*command: str, without: list[str], variables: Mapping[str, str]) -> Git.AutoInterrupt:
    """Git, ready to be fed, in our environment less some variables; it ends when let go. OSError where it is absent."""
    unset = ["env", *(word for name in without for word in ("-u", name))] if without else []
    try:
        return Git().execute(
            [*unset, "git", *command], istream=subprocess.PIPE, as_process=True, shell=False, env=variables
        )
    except GitCommandNotFound as error:
        raise FileNotFoundError(2, os.strerror(2), "git") from error
