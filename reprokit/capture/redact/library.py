"""detect-secrets, asked one detector at a time.

Its own scan reads global settings, which threads would share, and may ask a service whether a key still works. Here its
detectors only lend their patterns, their limits of randomness and their names; nothing is configured and nothing is
sent. It is imported when something is to be scanned, so that training does not wait for it. Where it cannot be
imported, or breaks, `Unscanned` says so: what was to be scanned is then not written.

Two traits of its detectors are mended: a pattern's groups may be a mere prefix, and a line has only one finding of a
name. And three are left out: addresses of machines, the first line of a private key (the key is found elsewhere,
whole), and users in addresses, where a template would be taken for one.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from itertools import pairwise
from math import log2
from os.path import basename
from typing import Any

from reprokit.capture.redact.names import is_secret_name, is_strong_name, is_variable
from reprokit.capture.redact.rules import Sort
from reprokit.capture.redact.views import Span, View

_ELSEWHERE = ("IPPublicDetector", "PrivateKeyDetector", "BasicAuthDetector", "KeywordDetector",
              "Base64HighEntropyString", "HexHighEntropyString")  # fmt: skip
_PREFIXES = {  # in lower case; they begin a long run of letters and digits
    "GitHubTokenDetector": ("ghp_", "gho_", "ghu_", "ghs_", "ghr_"),
    "GitLabTokenDetector": ("glpat-", "gldt-", "glft-", "glsoat-", "glrt-", "gr1348941", "glcbt-", "glimt-", "glptt-",
                            "glagent-", "gloas-"),
    "JwtTokenDetector": ("eyj",),
    "MailchimpDetector": ("-us",),
    "OpenAIDetector": ("t3blbkfj",),
    "PypiTokenDetector": ("pypi-age",),
    "SquareOAuthDetector": ("sq0csp-",),
    "StripeDetector": ("k_live_",),
    "TwilioKeyDetector": (),
}  # fmt: skip
_WORDS = {  # in lower case; they stand beside. A detector without any is asked about every text
    "ArtifactoryDetector": ("artifactory", "jfrog"),
    "AWSKeyDetector": ("aws", "akia", "asia", "abia", "acca", "a3t"),
    "AzureStorageKeyDetector": ("accountkey=",),
    "CloudantDetector": ("cloudant",),
    "DiscordBotTokenDetector": ("discord", "bot"),
    "IbmCloudIamDetector": ("ibm",),
    "IbmCosHmacDetector": ("secret",),
    "NpmDetector": ("_authtoken",),
    "SendGridDetector": ("sg.",),
    "SlackDetector": ("xox", "hooks.slack"),
    "SoftlayerDetector": ("softlayer",),
    "TelegramBotTokenDetector": ("telegram", "bot"),
}
_KEYWORDS = (  # those of the detector of names
    *("api_key", "apikey", "auth_key", "authkey", "service_key", "servicekey", "account_key", "accountkey", "db_key"),
    *("dbkey", "database_key", "databasekey", "priv_key", "privkey", "private_key", "privatekey", "client_key"),
    *("clientkey", "db_pass", "dbpass", "database_pass", "databasepass", "key_pass", "keypass"),
    *("password", "passwd", "pwd", "secret", "contrase"),
)
_BEFORE = 200  # characters of a line that say what a random string is


class Unscanned(Exception):
    """This could not be searched for secrets, so it must not be written; the message is one line that says why."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Detector:
    name: str
    needles: tuple[str, ...]
    patterns: tuple[re.Pattern[str], ...]
    dense: bool  # whether all of a secret is one run of letters and digits


@dataclass(frozen=True, kw_only=True, slots=True)
class _Library:
    detectors: tuple[_Detector, ...]
    keywords: Any  # its module of the detector of names
    sorts: Any  # which of its patterns fit which file
    heuristics: Any
    base64: Any
    hexadecimal: Any


def ready() -> None:
    """Raises Unscanned where nothing can be scanned at all, so that it is said once and not for every file."""
    try:
        _library()
    except Exception as error:
        what = f"{type(error).__name__}: {error}".splitlines()[0]
        raise Unscanned(f"secrets cannot be looked for ({what}); pip install detect-secrets") from error


@lru_cache(maxsize=1)
def _library() -> _Library:
    found = import_module("detect_secrets.core.plugins.util").get_mapping_from_secret_type_to_class()
    classes = {kind.__name__: kind for kind in found.values()}
    return _Library(
        detectors=tuple(
            _Detector(
                name=_title(kind.secret_type),
                needles=_PREFIXES.get(name, _WORDS.get(name, ())),
                patterns=tuple(kind().denylist),
                dense=name in _PREFIXES,
            )
            for name, kind in sorted(classes.items())
            if name not in _ELSEWHERE and hasattr(kind, "denylist")
        ),
        keywords=import_module("detect_secrets.plugins.keyword"),
        sorts=import_module("detect_secrets.util.filetype"),
        heuristics=import_module("detect_secrets.filters.heuristic"),
        base64=classes["Base64HighEntropyString"](),
        hexadecimal=classes["HexHighEntropyString"](),
    )


def find(view: View, sort: Sort, place: str) -> Iterator[tuple[str, Span]]:
    """What the detectors find, but for what is no secret by the look of it."""
    library, text = _library(), view.text
    for detector in library.detectors:
        for start, end in _worthwhile(detector, view):
            for pattern in detector.patterns:
                for match in pattern.finditer(text, start, end):
                    if (span := _span_of(match)) and _stands_alone(text, span) and _looks_random(text[slice(*span)]):
                        yield detector.name, span
    yield from (("named secret", span) for span in _named(library, view, sort, place))
    if not _is_lock_file(library, place):
        yield from _entropic(library, view, sort)


def _worthwhile(detector: _Detector, view: View) -> list[Span]:
    if detector.needles:
        return view.windows(detector.needles, dense=detector.dense)
    if detector.dense and not any(re.search(form.pattern, view.dense, re.IGNORECASE) for form in detector.patterns):
        return []
    return [(0, len(view.text))]


def _title(kind: str) -> str:
    return kind[0].lower() + kind[1:] if kind[1:2].islower() else kind


def _span_of(match: re.Match[str]) -> Span | None:
    """The secret of a match: a group that reaches its end, or all of it but for its name and what is around it."""
    ends = [match.span(group) for group in range(1, (match.re.groups or 0) + 1) if match.end(group) >= match.end() - 1]
    start, end = max(ends, key=lambda span: span[1] - span[0], default=match.span())
    whole = match.string[start:end]
    named = re.match(r"[\s:=\"']*(?:[\w.-]{1,40}=)?", whole)
    start += named.end() if named else 0
    end -= len(whole) - len(whole.rstrip(" \t\r\n\"'"))
    return (start, end) if end > start else None


def _stands_alone(text: str, span: Span) -> bool:
    """Not in the middle of a longer word."""
    start, end = span
    before, after = text[max(0, start - 1) : start], text[end : end + 1]
    escaped = start > 1 and text[start - 2] == "\\"
    return (escaped or not before.isalnum()) and not after.isalnum()


def _looks_random(secret: str) -> bool:
    return any(c.isdigit() for c in secret) and any(c.isalpha() for c in secret) and entropy(secret) > 3


def entropy(text: str) -> float:
    """Shannon's, in bits a character."""
    return -sum(n / len(text) * log2(n / len(text)) for n in Counter(text).values())


def _named(library: _Library, view: View, sort: Sort, place: str) -> Iterator[Span]:
    """Values beside a name. A detector knows by the file's name whether values stand in quotes."""
    known = library.keywords
    filetype = library.sorts.determine_file_type(place)
    patterns = known.REGEX_BY_FILETYPE.get(filetype, known.QUOTES_REQUIRED_DENYLIST_REGEX_TO_GROUP)
    for start, end in view.windows(_KEYWORDS):
        for begin, line in _split(view.text[start:end]):
            for pattern, group in patterns.items():
                for match in pattern.finditer(line):
                    if span := _value(library, match, group, line, sort):
                        yield start + begin + span[0], start + begin + span[1]


def _split(text: str) -> Iterator[tuple[int, str]]:
    position = 0
    for line in text.splitlines(keepends=True):
        yield position, line.rstrip("\r\n")
        position += len(line)


def _value(library: _Library, match: re.Match[str], group: int, line: str, sort: Sort) -> Span | None:
    """Where the value of a named secret is, if it is one."""
    start, end = match.span(group)
    quoted = line[start - 1 : start] in "\"'`" and start > 0
    if not quoted and (comment := re.search(r"\s+#|\s*$", line[start:end])):
        end = start + comment.start()
    end = start + len(line[start:end].rstrip("\\,;)}] \t\r"))
    value, name = line[start:end], _name(line, match, group)
    if len(value) < 4 or is_variable(value) or value.lower() in _NO_VALUES or not name:
        return None
    if (re.search(r"\s", value) and not sort & Sort.SETTINGS) or (not quoted and re.match(r"[\[{&*!|>@]", value)):
        return None
    if not is_strong_name(name) and not (_looks_random(value) and len(value) >= 8):
        return None
    tests = library.heuristics
    odd = tests.is_templated_secret(value) or tests.is_prefixed_with_dollar_sign(value)
    return None if odd or (not quoted and tests.is_indirect_reference(line)) else (start, end)


_NO_VALUES = ("none", "null", "true", "false", "undefined", "string", "optional", "required")


def _name(line: str, match: re.Match[str], group: int) -> str:
    """The whole of the name that a keyword is in: before the value, or behind it in a comparison."""
    start, end = match.span(group)
    before = re.search(r"([\w.-]+)[\"'\])\\]{0,4}\s*(?::=|=>|[!=]={0,2}|:)\s*@?\\?[\"'`]?$", line[:start])
    after = re.match(r"[\"'`]\s*[!=]=+\s*([\w.]+)", line[end:])
    name = before[1] if before else after[1] if after else ""
    return name if is_secret_name(name) or re.search(r"(?:key|pass|pwd|contrase\w*a)$", name.lower()) else ""


_DIGEST = re.compile(
    r"sha\d*|md5|hash|digest|commit|rev(?:ision)?s?\b|checksum|etag|integrity|fingerprint|blake|crc|uu?id|guid|oid"
    r"|(?:^|[^a-z])(?:id|ref|tag|sum|version|sig|signature)s?(?:[^a-z]|$)|[a-z]Id\b"
    r"|[\"'][\w./-]+\.\w{1,7}[\"']\s*:\s*[\"']$",  # of a file
    re.IGNORECASE,
)
_KEY = re.compile(r"(?:key|auth|pass|pwd|token|secret|credential)s?[\"'\])]{0,3}\s*[:=]\s*[\"']?$", re.IGNORECASE)
_TABLE = 5  # so many hexadecimal strings of one length, which nothing names, are digests
_HEXADECIMAL = "random hexadecimal string"  # where nothing quotes it and nothing names it, it is a commit
_SHORTEST, _LONGEST = 20, 200  # characters of a random secret; what is longer is data
_SHORTEST_FREE = 32  # of one that nothing quotes


def _entropic(library: _Library, view: View, sort: Sort) -> Iterator[tuple[str, Span]]:
    """Random strings in quotes, by the limits of detect-secrets; what is named a digest is none, nor is a table."""
    nameless: dict[int, list[Span]] = {}  # hexadecimal, by length
    for start, end in view.runs:
        if not _SHORTEST <= end - start <= _LONGEST:
            continue
        value = view.text[start:end].lstrip("+-")  # of a diff
        start = end - len(value)
        stop = end + len(view.text[end : end + 2]) - len(view.text[end : end + 2].lstrip("="))
        if _is_bounded(view.text, start, stop, sort) and (name := _randomness(library, value)):
            line = view.text[view.text.rfind("\n", 0, start) + 1 : start][-_BEFORE:]
            if _DIGEST.search(line):
                continue
            if name != _HEXADECIMAL or _KEY.search(line):
                yield name, (start, stop)
            elif line.endswith(("'", '"')):
                nameless.setdefault(len(value), []).append((start, stop))
    for spans in nameless.values():
        if len(spans) < _TABLE:
            yield from ((_HEXADECIMAL, span) for span in spans)


def _is_bounded(text: str, start: int, end: int, sort: Sort) -> bool:
    """Whether a run is in quotes; or in settings and logs, where not all is, no part of a path or a longer word."""
    before, after = text[start - 1 : start], text[end : end + 1].replace("\\", '"')
    if before and before in "\"'" and after and after in "\"'":
        return True
    free = bool(sort & (Sort.SETTINGS | Sort.PROSE)) and end - start >= _SHORTEST_FREE
    return free and not (before and before in ".@:\\~") and not (after and after in "._@:(\\~")


def _randomness(library: _Library, value: str) -> str:
    """What sort of random string this is, if it is one."""
    heuristics = library.heuristics
    if heuristics.is_sequential_string(value) or heuristics.is_potential_uuid(value):
        return ""
    if value.isdigit():  # a number in full
        return ""
    if re.fullmatch(r"[0-9a-fA-F]{32,}", value):
        random = library.hexadecimal.calculate_shannon_entropy(value) > library.hexadecimal.entropy_limit
        return _HEXADECIMAL if random else ""
    if not _is_scattered(value) or (set(value) & set("-_") and set(value) & set("+/")):  # the latter is no base64
        return ""
    random = library.base64.calculate_shannon_entropy(value) > library.base64.entropy_limit
    return "random string" if random else ""


def _is_scattered(value: str) -> bool:
    """Whether letters of both cases and digits are mixed as by chance, 0.6 changes a character; in names it is 0.2."""
    kinds = ["a" if c.islower() else "A" if c.isupper() else "0" if c.isdigit() else "-" for c in value]
    changes = sum(a != b for a, b in pairwise(kinds))
    return {"a", "A", "0"} <= set(kinds) and changes > 0.4 * len(value)


def _is_lock_file(library: _Library, place: str) -> bool:
    """Full of digests."""
    name = basename(place)
    return library.heuristics.is_lock_file(name) or name.endswith((".lock", "-lock.json", "-lock.yml", ".sum"))
