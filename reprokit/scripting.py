"""The verb `replay` for a command in place of a harness: code that has no harness yet.

The attempts, what they support and where they are kept are those of any replay; only what one attempt runs is another
thing, and that is its engine's matter.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from reprokit._scratch import PREFIX
from reprokit.errors import BadInput
from reprokit.incident import Incident
from reprokit.pipeline import Options, Subject, asking_of
from reprokit.progress import Progress
from reprokit.replay import command, draws
from reprokit.replay.choose import open_script
from reprokit.replay.command import Command
from reprokit.replay.criterion import NONZERO, Criterion, parse
from reprokit.replay.engines.script import Script
from reprokit.replay.replay import Origin
from reprokit.replay.replay import replay as run_again
from reprokit.replay.result import Replay
from reprokit.replay.sentence import last_line
from reprokit.replay.stage import Given, Stage
from reprokit.step.case import Case
from reprokit.step.outcome import Outcome, Status

_ENDS = 3  # ways to fail that are told


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """A command, and what of it is the failure."""

    command: Command
    fails_on: tuple[Criterion, ...]
    given: Given
    told: tuple[str, ...]  # what of it is the failure, as it was asked for

    @property
    def headline(self) -> str:
        return f"script {command.shown(self.command.words)}, which fails on {' or '.join(self.told)}"


def asked(text: str, fails_on: Sequence[str] = (), *, config: Path | None = None, batch: Path | None = None) -> Asked:
    """Raises BadInput for what is no command, or no failure of one. fails_on: by default any exit code but 0."""
    told = tuple(fails_on) or (f"exit={NONZERO}",)
    found, criteria = command.parse(text), tuple(parse(one) for one in told)
    for name, file in (("config", config), ("batch", batch)):
        if file is not None and name not in found.places:
            raise BadInput(f"--{name} {file}: the command has no {{{name}}} to be told of it; put it where it belongs")
    return Asked(command=found, fails_on=criteria, given=Given(config=config, batch=batch), told=told)


def replay(
    subject: Subject | None, asked: Asked, options: Options, progress: Progress, *, keep: bool = False
) -> Replay:
    """Run the command `options.n` times in the incident's source, or in the current folder, and judge. See
    `pipeline.replay`."""
    incident = subject.incident if subject else None
    _check(asked, options)
    with Stage(incident, asked.command.places, asked.given, say=progress.say) as stage:
        _check_file(asked.command.words, stage)
        files = stage.digest
        origin = Origin.of(incident) if incident else Origin(id=files)
        more = {"script": list(asked.command.words), "fails_on": list(asked.told), "files": files}
        asking = asking_of(options, keep, more)
        script = Script(command=asked.command, fails_on=asked.fails_on, stage=stage, seed=_seed(incident))
        case = Case(incident=incident.path if incident else Path.cwd())
        foreign = subject is not None and subject.foreign
        engine = open_script(script, incident, options, foreign=foreign, say=progress.say)
        with engine:
            return run_again(origin, case, engine, asking, say=progress.say, show=progress.show)


def ends(found: Replay) -> list[str]:
    """How failing attempts ended, the commonest first: a command that is called wrongly fails each time, too."""
    told = Counter(_end(one) for one in found.usable if one.status is Status.FAIL)
    return [f"{count} x {end}" for end, count in told.most_common(_ENDS)]


def _end(outcome: Outcome) -> str:
    """What was seen, and where that is no more than an exit code, the last that was printed."""
    said, _, rest = outcome.detail.partition("\n")
    told = f"{said}: {last_line(rest)}" if rest.strip() else said
    return _OWN_FOLDER.sub("<attempt>/", told)  # each has another one, which is gone by now


_OWN_FOLDER = re.compile(rf"[^\s'\"]*/{PREFIX}[^/\s'\"]+/")


def _check(asked: Asked, options: Options) -> None:
    """Raises BadInput for what is said of steps, and means nothing to a command."""
    for name, given in (("match", options.match), ("rewind", options.rewind), ("deterministic", options.deterministic)):
        if given:
            raise BadInput(f"--{name}: is about the step of a harness, and --script runs a command; leave it out")
    for name in options.vary:
        if name in draws.NAMES and name not in draws.BEFORE_START:
            those = ", ".join(draws.BEFORE_START)
            raise BadInput(f"--vary {name}: a switch inside of a step; of a command vary {those}, or --rng fresh")
    draws.check(options.vary, engine=options.engine or "process", device="cpu")
    if options.rng == "fresh" and "seed" not in asked.command.places:
        raise BadInput("--rng fresh: the command has no {seed} to be told one; put it where its seed belongs")


def _check_file(words: Sequence[str], stage: Stage) -> None:
    """Raises BadInput where Python would say that there is no such script: each time, which is no failure of it."""
    script = words[1] if len(words) > 1 and Path(words[0]).name.startswith("python") else ""
    if script.endswith(".py") and "{" not in script and not (stage.tree / stage.cwd / script).exists():
        raise BadInput(f"--script: {script}: not in the source that attempts run in; name it from there")


def _seed(incident: Incident | None) -> int:
    """Torch's at capture; 0 where there was none."""
    if incident is None or f"{incident.folder}/rng.json" not in incident.manifest.files:
        return 0
    return int(incident.rng()["initial_seeds"]["torch"])
