"""What secrets look like in running text: those that have a shape of their own, and those that a name gives away.

Every pattern is bounded and matches a line in one way, so that no text takes for ever. Each rule has needles: only
lines with one of them are searched, which keeps large trees cheap.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Flag, auto
from os.path import basename, splitext

from reprokit.capture.redact.names import STRONG_NEEDLES, STRONG_TEXT
from reprokit.capture.redact.views import Span, View


class Sort(Flag):
    """What a text is decides what may stand unquoted in it: a name in code, a value in settings."""

    PYTHON = auto()
    SETTINGS = auto()  # YAML, TOML, JSON, INI
    PROSE = auto()  # logs, single values, documentation
    CODE = auto()  # other languages
    DATA = auto()  # binary: only what has a shape of its own
    TEXT = PYTHON | SETTINGS | PROSE | CODE
    ANY = TEXT | DATA


_SORTS = {
    Sort.PYTHON: (".py", ".pyi", ".pyx"),
    Sort.SETTINGS: (
        *(".yaml", ".yml", ".eyaml", ".toml", ".json", ".jsonl", ".ini", ".cfg", ".conf", ".cnf", ".cf", ".properties"),
        *(".env", ".tf", ".example", ".sample", ".template", ".dist"),
    ),
    Sort.PROSE: ("", ".txt", ".log", ".md", ".rst", ".csv", ".tsv", ".out", ".err", ".html", ".xml"),
}


def sort_of(place: str) -> Sort:
    """By a file's name; a text without one is a log."""
    suffix = splitext(basename(place).lower())[1]
    return next((sort for sort, suffixes in _SORTS.items() if suffix in suffixes), Sort.CODE)


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """The group `secret` of a pattern."""

    name: str
    needles: tuple[str, ...]  # in lower case
    pattern: re.Pattern[str]
    where: Sort = Sort.TEXT
    dense: bool = False  # whether the needle begins a long run of letters and digits
    lines: bool = True  # whether all of it is on one line

    def find(self, view: View) -> Iterator[list[Span]]:
        """Each secret as the parts of lines that hold it."""
        windows = view.windows(self.needles, dense=self.dense)
        for start, end in windows if self.lines else [(0, len(view.text))] * bool(windows):
            for match in self.pattern.finditer(view.text, start, end):
                yield self.spans(match)

    def spans(self, match: re.Match[str]) -> list[Span]:
        return [match.span("secret")]


class _KeyRule(Rule):
    def spans(self, match: re.Match[str]) -> list[Span]:
        """Line by line: each keeps its newline, its diff sign, its indentation and its quotes."""
        position, parts = match.start("secret"), []
        for line in match["secret"].split("\n"):
            part = _KEY_LINE.fullmatch(line)
            if part and part["key"]:
                parts.append((position + part.start("key"), position + part.end("key")))
            position += len(line) + 1
        return parts


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

# A token begins where no word goes on: after an escape too (`\nghp_`, `%20ghp_`, `\u0022ghp_`, a terminal's colour)
_HEXES = r"[0-9a-fA-F]"
_APART = (
    rf"(?:(?<![A-Za-z0-9_])|(?<=\\[nrtbf])|(?<=%{_HEXES}{{2}})|(?<=\\x{_HEXES}{{2}})|(?<=\\u00{_HEXES}{{2}})"
    r"|(?<=\[\dm)|(?<=\[\d\dm)|(?<=;\dm)|(?<=;\d\dm))"
)


def _shape(name: str, pattern: str, *needles: str) -> Rule:
    form, dense = re.compile(rf"{_APART}(?P<secret>{pattern})"), not any("." in needle for needle in needles)
    return Rule(name=name, needles=needles, pattern=form, where=Sort.ANY, dense=dense)


def _around(name: str, pattern: str, *needles: str, where: Sort = Sort.TEXT) -> Rule:
    flags = re.IGNORECASE | re.ASCII | re.MULTILINE
    return Rule(name=name, needles=needles, pattern=re.compile(pattern, flags), where=where)


_SERVICE = (  # names of tokens that are credentials
    r"(?:(?:auth|access|api|refresh|bearer|bot|hub|hf|gh|github|gitlab|wandb|secret|session|slack|user)[_-]?"
    r"|(?<![a-z0-9_.-])(?:--)?)token"
)
# Between name and value: `=`, `: `, `"] = `, `: str = `, `\": \"`
_IS = r"\\?[\"']?[\])]{0,2}(?:[ \t]{0,4}:[ \t]{0,4}[\w.]{1,30})?[ \t]{0,8}(?::=|=>|[:=])[ \t]{0,8}"
_RANDOM = r"(?=[a-z/+_=-]*[0-9])(?=[0-9/+_=-]*[a-z])"  # digits and letters both, so more than a word
_ALONE = r"(?![\w.(\[/+=-])"  # the value ends here: no call, no attribute, no longer name
_LOOSE = r"[^\s\"'`\\,;(){}\[\]<>$|&]"  # what a password may be made of where nothing quotes it
_MIXED = rf"(?={_LOOSE}*[0-9])(?={_LOOSE}*[a-z])(?![a-z_]\w*(?:\.[a-z_]\w*)+(?![^\s,;:)]))"  # and no attribute
_QUOTED = r"(?:[^\s\"'\\,(){}\[\]<>$]|\\/|\\u[0-9a-f]{4}){6,}"  # JSON may escape what it need not
_NOT_A_NAME = r"(?-i:(?![A-Z_]+\b))"  # `--password PASSWORD` in a text that explains it

RULES: tuple[Rule, ...] = (
    _KeyRule(name="private key", needles=("private key",), pattern=_KEY, where=Sort.ANY, lines=False),
    _shape("github token", r"gh[pousr]_[A-Za-z0-9]{20,}", "ghp_", "gho_", "ghu_", "ghs_", "ghr_"),
    _shape("github token", r"github_pat_[A-Za-z0-9_]{20,}", "github_pat_"),
    _shape("gitlab token", r"gl(?:pat|ptt|rt|dt|ft|soat|cbt)-[A-Za-z0-9_-]{20,}", "glpat-", "glptt-", "glrt-", "gldt-",
           "glft-", "glsoat-", "glcbt-"),
    _shape("hugging face token", r"(?:hf|api_org)_[A-Za-z0-9]{20,}", "hf_", "api_org_"),
    _shape("wandb key", r"wandb_v1_[A-Za-z0-9_]{20,}", "wandb_v1_"),
    _shape("model provider's key", r"sk-(?:[A-Za-z0-9]{20,}|(?:proj|ant|svcacct|admin|or)-[A-Za-z0-9_-]{16,})", "sk-"),
    _shape("model provider's key", r"(?:gsk|r8|xai|pplx|nvapi)[_-][A-Za-z0-9_-]{32,}", "gsk_", "r8_", "xai-", "pplx-",
           "nvapi-"),
    _shape("stripe key", r"(?:[sr]k_(?:live|test)|whsec)_[A-Za-z0-9]{16,}", "k_live_", "k_test_", "whsec_"),
    _shape("aws access key", r"(?:AKIA|ASIA|ABIA|ACCA)[0-9A-Z]{16}(?![0-9A-Za-z])", "akia", "asia", "abia", "acca"),
    _shape("google key", r"AIza[A-Za-z0-9_-]{35}|GOCSPX-[A-Za-z0-9_-]{20,}", "aiza", "gocspx-"),
    _shape("google token", r"ya29\.[A-Za-z0-9_-]{20,}", "ya29."),
    _shape("slack token", r"xox[abeoprs]-[A-Za-z0-9-]{10,}|xapp-[A-Za-z0-9-]{20,}", "xox", "xapp-"),
    _shape("package index token", r"pypi-AgE[A-Za-z0-9_-]{30,}|npm_[A-Za-z0-9]{36}", "pypi-age", "npm_"),
    _shape("access token", r"(?:dckr_pat|dop_v1|doo_v1|shpat|shpss|lin_api|tskey-[a-z]+-|PMAK-)[A-Za-z0-9_-]{20,}",
           "dckr_pat", "dop_v1", "doo_v1", "shpat", "shpss", "lin_api", "tskey-", "pmak-"),
    _shape("access token", r"(?:hvs|dp\.pt)\.[A-Za-z0-9_-]{20,}", "hvs.", "dp.pt."),
    _shape("databricks token", r"dapi[0-9a-f]{32}", "dapi"),
    _shape("age key", r"AGE-SECRET-KEY-1[0-9A-Z]{40,}", "age-secret-key-1"),
    _shape("jwt", r"eyJ[A-Za-z0-9_-]{8,}\.eyJ[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]*)?", "eyj"),
    _around("slack webhook", r"hooks\.slack\.com/\w{1,20}/(?P<secret>[a-z0-9/_-]{16,})", "hooks.slack.com"),
    _around(
        "azure key",
        r"(?:account|sharedaccess)key=(?P<secret>[a-z0-9+/]{20,}={0,2})", "accountkey=", "sharedaccesskey=",
        where=Sort.ANY,
    ),
    Rule(
        name="aws secret key",
        needles=("akia", "asia"),
        dense=True,
        lines=False,
        pattern=re.compile(
            r"(?:AKIA|ASIA)[0-9A-Z]{16}[^A-Za-z0-9][\s\S]{0,100}?(?<![A-Za-z0-9/+=])"
            r"(?P<secret>(?=[A-Za-z/+]*[0-9])(?=[A-Z0-9/+]*[a-z])[A-Za-z0-9/+]{40})(?![A-Za-z0-9/+=])"
        ),
    ),
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
    _around("named secret", rf"(?:{STRONG_TEXT}){_IS}\\?[\"'](?P<secret>{_QUOTED})(?=\\?[\"'])", *STRONG_NEEDLES),
    _around(
        "named secret", rf"(?:{STRONG_TEXT}){_IS}(?P<secret>{_RANDOM}[a-z0-9/+=-]{{8,}}){_ALONE}", *STRONG_NEEDLES
    ),
    _around(
        "named secret",
        rf"(?:{STRONG_TEXT})\\?[\"']?[ \t]{{0,4}}[:=][ \t]{{0,4}}(?P<secret>{_MIXED}(?>{_LOOSE}{{6,}}))(?![(\[])",
        *STRONG_NEEDLES,
        where=Sort.SETTINGS | Sort.PROSE | Sort.PYTHON,
    ),
    _around(  # `export DB_PASSWORD=correcthorse`
        "named secret",
        rf"^[ \t]*(?:export |env |set |- )?[ \t]*(?-i:[A-Z][A-Z0-9_]*)?(?-i:PASSWORD|PASSWD|SECRET|API_KEY|ACCESS_KEY)="
        rf"(?P<secret>{_LOOSE}{{6,}})",
        *("password", "passwd", "secret", "api_key", "access_key"),
        where=Sort.SETTINGS | Sort.PROSE | Sort.CODE,
    ),
    _around(
        "value of an option",
        rf"(?<![\w-])--?[\w.-]{{0,40}}?(?:{STRONG_TEXT})(?:[ \t]+|=)(?P<secret>{_NOT_A_NAME}{_MIXED}{_LOOSE}{{4,}})",
        *STRONG_NEEDLES,
    ),
    _around("named token", rf"{_SERVICE}{_IS}\\?[\"']?(?P<secret>{_RANDOM}[a-z0-9/+=_-]{{16,}}){_ALONE}", "token"),
    _around(
        "value of an option", rf"--{_SERVICE}(?:[ \t]+|=)(?P<secret>{_RANDOM}[a-z0-9/+=_-]{{16,}}){_ALONE}", "token"
    ),
    _around(  # forty hexadecimal digits alone could be a commit
        "wandb key", r"wandb[^\n@/]{0,60}?(?<![0-9a-f])(?P<secret>[0-9a-f]{40})(?![0-9a-f])", "wandb"
    ),
)
