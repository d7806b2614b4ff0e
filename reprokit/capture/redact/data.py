"""What is not running text: addresses, command lines, variables, configurations."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from reprokit.capture.redact.markers import marker, value_marker
from reprokit.capture.redact.names import is_secret, is_secret_name, is_strong_name, is_variable
from reprokit.capture.redact.rules import Sort
from reprokit.capture.redact.running import is_known, own, text


def url(value: str, place: str = "url") -> tuple[str, list[str]]:
    """An address without its user, password or token. Over ssh the user stays: it is a name (`ssh://git@host`)."""
    try:
        parts = urlsplit(value)
    except ValueError:
        return _own_line(value, place)
    user, at, host = parts.netloc.rpartition("@")
    if not at or is_variable(user) or ("ssh" in parts.scheme and ":" not in user):
        return _own_line(value, place)
    name = user.partition(":")[0] + "@" if "ssh" in parts.scheme else ""
    clean, found = _own_line(urlunsplit(parts._replace(netloc=name + host)), place)
    return clean, [f"{place}: credentials in a URL", *found]


def argv(arguments: Sequence[str], place: str = "argv") -> tuple[list[str], list[str]]:
    """A command line: `--token=x`, `--api-key x`, `model.hub.token=x`, and shapes anywhere. Raises Unscanned."""
    clean: list[str] = []
    found: list[str] = []
    expected = ""  # the option whose value comes next
    for index, argument in enumerate(arguments):
        here = f"{place}[{index}]"
        option, equals, value = argument.partition("=")
        named = equals and re.fullmatch(r"[-+~]{0,2}[\w./@-]+", option)
        if expected and not argument.startswith("-") and is_secret(expected, argument):
            argument, more = marker(argument), [f"{here}: value of {expected}"]
        elif named and is_secret(option, value):
            argument, more = f"{option}={marker(value)}", [f"{here}: value of {option}"]
        elif is_known(value if named else argument):
            argument = f"{option}={marker(value)}" if named else marker(argument)
            more = [f"{here}: known secret"]
        elif named:
            cleaned, more = _line(value, here, option)
            argument = f"{option}={cleaned}"
        else:
            argument, more = _line(argument, here, expected)
        expected = option if option.startswith("-") and not equals else ""
        clean.append(argument)
        found += more
    return clean, found


def environment(variables: Mapping[str, str], place: str = "environment") -> tuple[dict[str, str], list[str]]:
    """Variables that someone chose to keep; which ones those are is not decided here."""
    clean, found = {}, []
    for name, value in variables.items():
        if is_secret(name, value):
            clean[name], more = marker(value), [f"{place}.{name}: value of {name}"]
        else:
            clean[name], more = _own_line(value, f"{place}.{name}")
        found += more
    return clean, found


def config(data: Any, place: str = "config") -> tuple[Any, list[str]]:
    """Nested plain data, copied: all that is under secret-looking keys, and shapes in any string. Types stay.

    Raises Unscanned.
    """
    found: list[str] = []

    def visit(value: Any, key: str, here: str) -> Any:
        if isinstance(value, Mapping):  # all of `credentials: {...}`; but `token: {...}` configures a model
            above = key if is_strong_name(key) else ""
            return {
                name: visit(item, str(name) if is_secret_name(str(name)) else above, f"{here}.{name}")
                for name, item in value.items()
            }
        if isinstance(value, (list, tuple)):
            items = [visit(item, key, f"{here}[{index}]") for index, item in enumerate(value)]
            return items if isinstance(value, list) else tuple(items)
        if is_secret(key, value):
            found.append(f"{here}: value of {key}")
            return value_marker(value)
        if is_known(value):
            found.append(f"{here}: known secret")
            return value_marker(value)
        if isinstance(value, str):
            value, more = _line(value, here, key or here.rpartition(".")[2])
            found.extend(more)
        return value

    return visit(data, "", place), found


def secrets(data: Any, arguments: Sequence[str] = ()) -> list[str]:
    """Values whose name says that they are secrets, of nested plain data and of a command line."""
    options = [argument.partition("=") for argument in arguments]
    pairs = [{name: value} for name, equals, value in options if equals]
    pairs += [{name: value} for name, value in pairwise(arguments) if name.startswith("-")]
    found: list[str] = []

    def visit(value: Any, key: str) -> None:
        if isinstance(value, Mapping):
            for name, item in value.items():
                visit(item, str(name))
        elif isinstance(value, (list, tuple)):
            for item in value:
                visit(item, key)
        elif isinstance(value, str) and is_secret(key, value):
            found.append(value)

    visit([data, pairs], "")
    return found


def _line(value: str, place: str, name: str = "") -> tuple[str, list[str]]:
    """`text` for a single value, beside its name and where a line number would only confuse."""
    before = f"{name}: " if name else ""
    clean, found = text(before + value)
    return clean[len(before) :], list(dict.fromkeys(f"{place}: {finding.partition(': ')[2]}" for finding in found))


def _own_line(value: str, place: str) -> tuple[str, list[str]]:
    clean, found = own(value, Sort.PROSE)
    return clean, list(dict.fromkeys(f"{place}: {name}" for _, name in found))
