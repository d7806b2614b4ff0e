"""Secrets out of whatever is written down: arguments, variables, configuration, remotes, source, logs.

Two things give a secret away: the name beside it (`api_key=`, `--password`) and its own shape (`ghp_...`, a private
key). Names are read by their last words, since in this trade most tokens are no secrets: `pad_token`, `max_tokens` and
`token_drop_rate` stay. A finding becomes a marker in its place, and no newline is ever added or removed: a script stays
the same number of lines, each line of a diff keeps its sign. Every rule leaves the marker alone, and the rules run
until none matches, so that cleaning what is clean changes nothing. Each function returns what it made and where it
found something: the place and the sort of secret, never its value. Pure: no I/O.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import translate
from itertools import product
from typing import Any
from urllib.parse import urlsplit, urlunsplit

MARKER = "[redacted]"
SECRET_FILES = (  # nothing but credentials: left out whole rather than cleaned
    *(".env", ".env.*", ".netrc", "_netrc", ".pypirc", ".npmrc", ".git-credentials", ".pgpass", ".htpasswd"),
    *("id_rsa", "id_dsa", "id_ecdsa", "id_ed25519", "*.pem", "*.key", "*.p12", "*.pfx", "*.jks", "*.keystore", "*.ppk"),
    "kubeconfig",
)
TEMPLATES = (".env.example", ".env.sample", ".env.template")  # they show which variables there are, not their values
SHORTEST_TOKEN = 6  # under the name `token`: below it are words such as "cls" and "mean", never a credential


def text(value: str, place: str = "") -> tuple[str, list[str]]:
    """Any text: source, a diff, a log. Findings read `place:line: sort`, or `line: sort` without a place."""
    found: set[tuple[int, str]] = set()
    while True:
        lowered, before = value.lower(), value
        for rule in _RULES:
            if any(needle in lowered for needle in rule.needles):
                value = _apply(rule, value, found)
        if value == before:  # each round leaves fewer characters outside markers, so this ends
            prefix = f"{place}:" if place else ""
            return value, [f"{prefix}{line}: {name}" for line, name in sorted(found)]


def content(data: bytes, place: str = "") -> tuple[bytes, list[str]]:
    """A file's bytes, whatever their encoding. Binary files come back as they are: a marker would break them."""
    if is_binary(data):
        return data, []
    clean, found = text(data.decode("latin-1"), place)  # a character for each byte, so that the rest returns as it was
    return clean.encode("latin-1"), found


def is_binary(data: bytes) -> bool:
    """A NUL near the start, as git has it."""
    return b"\0" in data[:8000]


def url(value: str, place: str = "url") -> tuple[str, list[str]]:
    """An address without its user, password or token. Over ssh the user stays: it is a name (`ssh://git@host`)."""
    try:
        parts = urlsplit(value)
    except ValueError:
        return _line(value, place)
    user, at, host = parts.netloc.rpartition("@")
    if not at or _is_variable(user) or ("ssh" in parts.scheme and ":" not in user):
        return _line(value, place)
    name = user.partition(":")[0] + "@" if "ssh" in parts.scheme else ""
    clean, found = _line(urlunsplit(parts._replace(netloc=name + host)), place)
    return clean, [f"{place}: credentials in a URL", *found]


def argv(arguments: Sequence[str], place: str = "argv") -> tuple[list[str], list[str]]:
    """A command line: `--token=x`, `--api-key x`, `model.hub.token=x`, and shapes anywhere."""
    clean: list[str] = []
    found: list[str] = []
    expected = ""  # the option whose value comes next
    for index, argument in enumerate(arguments):
        here = f"{place}[{index}]"
        option, equals, value = argument.partition("=")
        named = equals and re.fullmatch(r"[-+~]{0,2}[\w./@-]+", option)
        if expected and not argument.startswith("-") and _is_secret(expected, argument):
            argument, more = MARKER, [f"{here}: value of {expected}"]
        elif named and _is_secret(option, value):
            argument, more = f"{option}={MARKER}", [f"{here}: value of {option}"]
        else:
            argument, more = _line(argument, here)
        expected = option if option.startswith("-") and not equals else ""
        clean.append(argument)
        found += more
    return clean, found


def environment(variables: Mapping[str, str], place: str = "environment") -> tuple[dict[str, str], list[str]]:
    """Variables that someone chose to keep; which ones those are is not decided here."""
    clean, found = config(dict(variables), place)
    return clean, found


def config(data: Any, place: str = "config") -> tuple[Any, list[str]]:
    """Nested plain data, copied: all that is under secret-looking keys, and shapes in any string."""
    found: list[str] = []

    def visit(value: Any, key: str, here: str) -> Any:
        if isinstance(value, Mapping):  # all of `credentials: {...}`; but `token: {...}` configures a model
            above = key if _STRONG_NAME.search(_words(key)) else ""
            return {
                name: visit(item, str(name) if is_secret_name(str(name)) else above, f"{here}.{name}")
                for name, item in value.items()
            }
        if isinstance(value, (list, tuple)):
            items = [visit(item, key, f"{here}[{index}]") for index, item in enumerate(value)]
            return items if isinstance(value, list) else tuple(items)
        if _is_secret(key, value):
            found.append(f"{here}: value of {key}")
            return MARKER
        if isinstance(value, str):
            value, more = _line(value, here)
            found.extend(more)
        return value

    return visit(data, "", place), found


def is_secret_name(name: str) -> bool:
    """Whether a key, option or variable is named like a secret."""
    words = _words(name)
    return bool(_STRONG_NAME.search(words) or (_TOKEN_NAME.search(words) and not _VOCABULARY.search(words)))


def is_secret_file(name: str) -> bool:
    """Whether a file's name says that there is nothing but credentials in it."""
    return name not in TEMPLATES and _SECRET_FILE.match(name.lower()) is not None


def _is_secret(name: str, value: object) -> bool:
    """Whether this value under this name is a secret. A number can be a password, but no token."""
    if isinstance(value, bool) or not isinstance(value, (str, int, float)) or not is_secret_name(name):
        return False
    if isinstance(value, str) and (value in ("", MARKER) or _is_variable(value)):
        return False
    if _STRONG_NAME.search(_words(name)):
        return True
    return isinstance(value, str) and len(value) >= SHORTEST_TOKEN and not re.fullmatch(r"[-+\d.,eE]*", value)


def _is_variable(value: str) -> bool:
    """`${NAME}`, `$NAME`, `{name}`, or two of them: where a secret would be put, not the secret."""
    return re.fullmatch(r"(?:(?:\$?\{[^{}]*\}|\$\w+):?){1,2}", value) is not None


def _words(name: str) -> str:
    """`--api-key`, `hub.apiKey` and `API_KEY` as words joined by underscores."""
    return re.sub(r"[^a-z0-9]+", "_", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()).strip("_")


def _line(value: str, place: str) -> tuple[str, list[str]]:
    """`text` for a single value, where a line number would only confuse."""
    clean, found = text(value)
    return clean, list(dict.fromkeys(f"{place}: {finding.partition(': ')[2]}" for finding in found))


@dataclass(frozen=True, kw_only=True, slots=True)
class _Rule:
    """What a secret looks like in running text: the group `secret` of a pattern."""

    name: str
    needles: tuple[str, ...]  # in lower case; a text without any of them is not searched, which keeps large trees cheap
    pattern: re.Pattern[str]
    mask: Callable[[str], str] = lambda secret: MARKER


def _apply(rule: _Rule, value: str, found: set[tuple[int, str]]) -> str:
    def replace(match: re.Match[str]) -> str:
        start, end = match.span("secret")
        found.add((value.count("\n", 0, start) + 1, rule.name))
        return value[match.start() : start] + rule.mask(match["secret"]) + value[end : match.end()]

    return rule.pattern.sub(replace, value)


# A private key fills lines, written as a file, in quotes, or in a diff, of which a hunk may show one end only. What
# stands between two constants that merely name the markers is code, and stays.
_BEGIN, _END = (rf"-----{word} [A-Z0-9 ]{{0,30}}PRIVATE KEY(?: BLOCK)?-----" for word in ("BEGIN", "END"))
_LEFT, _RIGHT = r"(?>(?:(?!-----)[-+ ]|-(?=-----[BE]))?[ \t\"'#>|]*)", r"(?>(?:\\[nr])*[\"'),;\\ \t]*\r?)"
_FULL = rf"(?>{_LEFT}[A-Za-z0-9+/=]{{16,}}{_RIGHT}\n)"
_ANY = rf"(?>{_LEFT}(?:(?:Proc-Type|DEK-Info|Version|Comment|Hash): [^\n]*|[A-Za-z0-9+/=]*){_RIGHT}\n)"
_KEY = re.compile(  # atomic groups: a line matches in one way, or a long file would take for ever
    rf"(?P<secret>{_BEGIN}[A-Za-z0-9+/=\\ ]{{16,}}?{_END}"  # on one line
    rf"|{_BEGIN}{_RIGHT}\n{_ANY}{{0,400}}?{_LEFT}{_END}"
    rf"|{_BEGIN}{_RIGHT}\n{_FULL}+"  # cut off below
    rf"|(?:(?<=\n)|\A){_FULL}+{_ANY}?{_LEFT}{_END})"  # cut off above
)
_KEY_LINE = re.compile(rf"(?P<left>{_LEFT})(?P<key>.*?)(?P<right>{_RIGHT})", re.DOTALL)


def _mask_key(block: str) -> str:
    """Line by line: each keeps its newline, its diff sign, its indentation and its quotes."""
    parts = [match for match in map(_KEY_LINE.fullmatch, block.split("\n")) if match]  # which matches any line
    return "\n".join(part["left"] + (MARKER if part["key"] else "") + part["right"] for part in parts)


def _shape(name: str, pattern: str, *needles: str) -> _Rule:
    return _Rule(name=name, needles=needles, pattern=re.compile(rf"(?<![A-Za-z0-9_])(?P<secret>{pattern})"))


def _around(name: str, pattern: str, *needles: str) -> _Rule:
    return _Rule(name=name, needles=needles, pattern=re.compile(pattern, re.IGNORECASE | re.ASCII))


_SECRET_FILE = re.compile("|".join(map(translate, SECRET_FILES)))
_STRONG = r"passwd|password|passphrase|secrets?|credentials?|(?:api|access|private|secret|auth)_?key(?:_id)?"
_STRONG_NAME = re.compile(rf"(?:^|_)(?:{_STRONG}|cookie|authorization)$|(?:password|passwd|secret|apikey)$|_pwd$")
_TOKEN_NAME = re.compile(r"(?:^|_)token$")
_VOCABULARY = re.compile(  # a model's tokens, and counts of them
    r"(?:^|_)(?:bos|eos|pad|mask|cls|class|unk|sep|special|image|video|audio|start|end|stop|prefix|suffix|decoder|"
    r"additional|max|min|num|n|per|first|last|drop|keep|register|query|dist|distillation|newline|dummy|null)_token$"
)
_STRONG_TEXT = _STRONG.replace("_?", "[_-]?").replace("_id", "[_-]id")
_STRONG_NEEDLES = (
    *("passwd", "password", "passphrase", "secret", "credential"),
    *map("".join, product(("api", "access", "private", "auth"), ("", "_", "-"), ("key",))),
)
_SERVICE = (  # names of tokens that are credentials
    r"(?:(?:auth|access|api|refresh|bearer|bot|hub|hf|gh|github|gitlab|wandb|secret|session|slack|user)[_-]?"
    r"|(?<![a-z0-9_.-])(?:--)?)token"
)
# Between name and value: `=`, `: `, `"] = `, `: str = `, `\": \"`
_IS = r"\\?[\"']?[\])]{0,2}(?:[ \t]{0,4}:[ \t]{0,4}[\w.]{1,30})?[ \t]{0,8}(?::=|=>|[:=])[ \t]{0,8}"
_RANDOM = r"(?=[a-z/+_=-]*[0-9])(?=[0-9/+_=-]*[a-z])"  # digits and letters both, so more than a word
_ALONE = r"(?![\w.(\[/+=-])"  # the value ends here: no call, no attribute, no longer name

_RULES = (
    _Rule(name="private key", needles=("private key",), pattern=_KEY, mask=_mask_key),
    _shape("github token", r"gh[pousr]_[A-Za-z0-9]{20,}", "ghp_", "gho_", "ghu_", "ghs_", "ghr_"),
    _shape("github token", r"github_pat_[A-Za-z0-9_]{20,}", "github_pat_"),
    _shape("gitlab token", r"gl(?:pat|ptt|rt|dt)-[A-Za-z0-9_-]{20,}", "glpat-", "glptt-", "glrt-", "gldt-"),
    _shape("hugging face token", r"(?:hf|api_org)_[A-Za-z0-9]{20,}", "hf_", "api_org_"),
    _shape("wandb key", r"wandb_v1_[A-Za-z0-9_]{20,}", "wandb_v1_"),
    _shape("model provider's key", r"sk-(?:[A-Za-z0-9]{20,}|(?:proj|ant|svcacct|admin|or)-[A-Za-z0-9_-]{16,})", "sk-"),
    _shape("stripe key", r"[sr]k_(?:live|test)_[A-Za-z0-9]{16,}", "k_live_", "k_test_"),
    _shape("aws access key", r"(?:AKIA|ASIA)[0-9A-Z]{16}", "akia", "asia"),
    _shape("google key", r"AIza[A-Za-z0-9_-]{35}|ya29\.[A-Za-z0-9_-]{20,}", "aiza", "ya29."),
    _shape("slack token", r"xox[abeoprs]-[A-Za-z0-9-]{10,}|xapp-[A-Za-z0-9-]{20,}", "xox", "xapp-"),
    _around("slack webhook", r"hooks\.slack\.com/\w{1,20}/(?P<secret>[a-z0-9/_-]{16,})", "hooks.slack.com"),
    _shape("package index token", r"pypi-AgE[A-Za-z0-9_-]{30,}|npm_[A-Za-z0-9]{36}", "pypi-age", "npm_"),
    _shape("jwt", r"eyJ[A-Za-z0-9_-]{8,}\.eyJ[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]*)?", "eyj"),
    _around(
        "authorization header",
        r"(?:authorization[\"']?[ \t]{0,4}[:=,][ \t]{0,4}f?[\"']?(?:basic|token)|\bbearer)"
        r"[ \t]{1,4}(?P<secret>[a-z0-9._~+/=-]{16,})",
        *("authorization", "bearer"),
    ),
    _around(
        "credentials in a URL",
        r"(?<=://)(?P<secret>[^\s/:@\"'<>\[\]{}$\\]{0,128}:[^\s/\"'<>\[\]{}$\\]{1,256})(?=@)",
        "://",
    ),
    _around("credentials in a URL", r"(?:(?<=http://)|(?<=https://))(?P<secret>[\w.~%+-]{16,256})(?=@)", "http"),
    _around(
        "secret in a URL",
        r"://[^\s\"'<>]{1,2000}?[?&][\w.-]{0,40}(?:token|signature|sig|credential|key|password|secret)="
        r"(?P<secret>[^&\s\"'<>#\[\]{}$\\]{8,})",
        "://",
    ),
    _around(
        "named secret",
        rf"(?:{_STRONG_TEXT}){_IS}\\?[\"'](?P<secret>[^\s\"'\\,(){{}}\[\]<>$]{{6,}})(?=\\?[\"'])",
        *_STRONG_NEEDLES,
    ),
    _around(
        "named secret", rf"(?:{_STRONG_TEXT}){_IS}(?P<secret>{_RANDOM}[a-z0-9/+=-]{{8,}}){_ALONE}", *_STRONG_NEEDLES
    ),
    _around("named token", rf"{_SERVICE}{_IS}\\?[\"']?(?P<secret>{_RANDOM}[a-z0-9/+=_-]{{16,}}){_ALONE}", "token"),
)
