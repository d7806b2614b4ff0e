#!/usr/bin/env python3
"""Replay the incident beside this file: N attempts, each in a fresh process, and the verdict that they support.

Needs Python 3.11 or newer and the packages of requirements.txt; reprokit itself is in the bundle. The incident is code
from elsewhere and runs as whoever calls this: `run.sh` puts a container around it.

exit codes: 0 REPRODUCIBLE, 10 FLAKY, 11 NOT_REPRODUCED, 12 INCONCLUSIVE, 2 bad input, 3 infrastructure
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import json
import re
import sys
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

HERE = Path(__file__).resolve().parent
NEEDED = ("torch", "numpy", "safetensors", "PyYAML")  # what an attempt imports, besides the training code
EXIT = {"REPRODUCIBLE": 0, "FLAKY": 10, "NOT_REPRODUCED": 11, "INCONCLUSIVE": 12}
SPOILED = 3  # attempts that the machinery may spoil before this gives up: then it is broken, and more would not help


def main() -> int:
    options = _options()
    if problem := missing(all_pins=options.check):
        refuse(problem, 2)
    if options.check:
        return 0
    if problem := altered():
        refuse(problem, 2)
    sys.dont_write_bytecode = True  # the incident must stay as it is
    sys.path.insert(0, str(HERE))
    from reprokit.errors import ReprokitError
    from reprokit.incident import Incident

    try:
        incident = Incident.open(HERE / "incident")
    except ReprokitError as error:
        refuse(str(error), error.exit_code)
    say(headline(incident.manifest))
    return report(attempts(incident, options.n, options.timeout), options)


def missing(*, all_pins: bool) -> str | None:
    """What this Python lacks, in one line. Of the pins that no attempt is known to need, only when asked for all."""
    if sys.version_info < (3, 11):  # noqa: UP036  # whoever unpacks a bundle may have any
        return f"{sys.executable} is Python {sys.version.split()[0]}; 3.11 or newer is needed"
    pins = re.findall(r"(?m)^([\w.-]+)==([^\s;+]+)", (HERE / "requirements.txt").read_text(encoding="utf-8"))
    wanted = dict(pins)
    for name in (*NEEDED, *(wanted if all_pins else ())):
        try:
            found = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            return f"{sys.executable} has no {name}; install requirements.txt into a virtual environment"
        if name == "torch" and found.split("+")[0] != wanted.get("torch", found.split("+")[0]):
            return f"{sys.executable} has torch {found}, the incident needs {wanted['torch']}; install requirements.txt"
    return None


def altered() -> str | None:
    """The first file that is not what MANIFEST.sha256 says, in one line."""
    lines = (HERE / "MANIFEST.sha256").read_text(encoding="utf-8", errors="surrogateescape").split("\n")
    for line in lines:
        if not line or line.startswith("#"):
            continue
        digest, _, path = line.partition("  ")
        if digest.startswith("\\"):  # a name that sha256sum escapes: Incident.open looks at those
            continue
        try:
            with (HERE / path).open("rb") as file:
                found = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError:
            return f"{path} is missing; unpack the bundle again"
        if found != digest:
            return f"{path} does not match its hash; unpack the bundle again"
    return None


def headline(manifest: Any) -> str:
    signature = manifest.signature
    what = f"{signature.kind} at {signature.where}" if signature else "a healthy step"
    return f"{what}, step {manifest.step}"


def attempts(incident: Any, n: int, timeout: float) -> list[dict[str, Any]]:
    """At most n usable outcomes; fewer when one FAIL and one other prove it flaky, or the machinery is broken."""
    from reprokit.step import rewind
    from reprokit.step.case import Case
    from reprokit.step.worker import Worker

    case = Case(incident=incident.path, rewind=rewind.needed(incident))
    done: list[dict[str, Any]] = []
    with Worker(incident) as worker:
        while len(usable(done)) < n and len(done) - len(usable(done)) < SPOILED:
            outcome = worker.evaluate(case, "process", timeout=timeout).to_json()
            done.append(outcome)
            say(f"  attempt {len(done):>3}  {describe(outcome)}")
            if len({one["status"] == "FAIL" for one in usable(done)}) == 2:
                break
    return done


def usable(outcomes: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [outcome for outcome in outcomes if not spoiled(outcome)]


def spoiled(outcome: dict[str, Any]) -> bool:
    """Whether the machinery is to blame. For INVALID it is: the captured case did run once. And a process that ends by
    itself before its step has told nothing, unlike one that a signal kills."""
    return outcome["status"] in ("INFRA", "INVALID") or (
        outcome["status"] == "OTHER" and outcome["detail"].startswith("exited with")
    )


def describe(outcome: dict[str, Any]) -> str:
    signature = outcome["signature"]
    where = f"{signature['kind']} at {signature['where']}" if signature else ""
    if spoiled(outcome):
        where = outcome["detail"].strip().rpartition("\n")[2]
    return f"{outcome['status']:<8}{outcome['total_seconds']:6.1f} s  {where}"


def report(outcomes: list[dict[str, Any]], options: argparse.Namespace) -> int:
    from reprokit.replay import verdict

    counted = usable(outcomes)
    fail, n = sum(outcome["status"] == "FAIL" for outcome in counted), len(counted)
    if not n:
        refuse("no attempt ran: see the lines above", 3)
    answer = verdict.judge(verdict.Tally(fail=fail, other=n - fail, asked=options.n))
    low, high = verdict.interval(fail, n)
    prints = [json.dumps(outcome["fingerprint"], sort_keys=True) for outcome in counted]
    most = max(prints.count(one) for one in prints)
    say(f"{answer}  {supports(answer, fail, n, most)}")
    if options.json:
        found = {
            "verdict": str(answer),
            "n": n,
            "fail": fail,
            "pass": sum(outcome["status"] == "PASS" for outcome in counted),
            "other": sum(outcome["status"] == "OTHER" for outcome in counted),
            "infra": len(outcomes) - n,
            "rate_at_least": verdict.rate_at_least(n) if fail == n else low,
            "interval": [low, high],
            "confidence": 1 - verdict.ALPHA,
            "stopped": "asked" if n == options.n else "flaky" if answer == "FLAKY" else "infrastructure",
            "engine": options.engine,
            "strata": [],
            "fingerprints": {"distinct": len(set(prints)), "stable": most},
            "attempts": outcomes,
        }
        print(json.dumps(found, allow_nan=False))
    return EXIT[str(answer)]


def supports(answer: str, fail: int, n: int, stable: int) -> str:
    from reprokit.replay import verdict

    sure = f"({1 - verdict.ALPHA:.0%} confidence)"
    low, high = verdict.interval(fail, n)
    counts = f"{fail}/{n} failed as captured, bitwise-stable {stable}/{n}"
    match str(answer):
        case "REPRODUCIBLE":
            return f"{counts}: fails in at least {verdict.percent(verdict.rate_at_least(n))} of attempts {sure}"
        case "NOT_REPRODUCED":
            return f"{counts}: fails in fewer than {verdict.at_most(verdict.rate_below(n))} of attempts {sure}"
        case "FLAKY":
            return f"{counts}: fails in {verdict.percent(low)} to {verdict.at_most(high)} of attempts {sure}"
        case _:
            return f"{counts}: too few attempts ran"


def say(text: str) -> None:
    """A line for people; text of the incident must not steer their terminal."""
    clean = (c if c == " " or unicodedata.category(c)[0] not in "CZ" else f"\\u{ord(c):04x}" for c in text)
    print("".join(clean), file=sys.stderr, flush=True)


def refuse(why: str, code: int) -> NoReturn:
    say(f"reproduce.py: {why}")
    sys.exit(code)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-n", type=int, default=14, metavar="N", help="attempts (14)")
    parser.add_argument("--timeout", type=float, default=600.0, metavar="S", help="seconds an attempt may take (600)")
    parser.add_argument("--json", action="store_true", help="the verdict as one JSON object on stdout")
    parser.add_argument("--check", action="store_true", help="only say whether this Python has what is needed")
    parser.add_argument("--engine", default="python", help="the word that --json puts for the engine")
    options = parser.parse_args()
    if options.n < 1:
        parser.error(f"-n {options.n}: give at least 1")
    return options


if __name__ == "__main__":
    try:
        sys.exit(main())
    except ImportError as error:
        refuse(f"the reprokit in this bundle does not import: {error}", 3)
    except KeyboardInterrupt:
        refuse("interrupted", 130)
