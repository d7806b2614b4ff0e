"""What a step starts from, taken when it is over.

A full copy at the start of every step would cost more than a recorder may. Most of it is not needed: until the
optimizer's step nothing writes into parameters, moments or a teacher, so a recorder that looks there finds them as they
were when the step began. What it may not assume it checks: a tensor's version tells whether torch wrote into it, and a
tensor is kept by reference only after a step in which it was copied and came out equal bit for bit. All others (the
statistics of BatchNorm, gradients between micro-steps, whatever a user's step does) are copied when the step begins.
Fused optimizers write without a trace in any version, so what an optimizer is about to update is told to `updating`.

Where a value is read late, optimizers have been called since. Their parameters and moments are what they were only if
they were told to skip (`capture.latch`): whoever says `held` vouches for that, and only what others wrote is missing.

What was written into in spite of all this is lost: then the state has to be made again, from an earlier one.

Nearly all of a state lies in the same tensors from step to step. Where those are is worked out once, and again only
when one was replaced; a step then takes a list of versions, and whole copies go into the memory of earlier ones.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

import torch

from reprokit._storage import CODES, PAIRS
from reprokit.errors import some
from reprokit.harness import Harness, State, anatomy, cloned, joined, settled, take_lasting, take_passing
from reprokit.step.between import addresses, moments, version, versions

_NUMBERS = {getattr(torch, name) for name in (*CODES, *PAIRS, "float8_e8m0fnu") if hasattr(torch, name)}
OWN = ("buffers", "gradients", "extra")  # of a state: what ranks that train one model together need not agree about


class Lost(Exception):
    """Something was written into after the step began and is kept nowhere else. `names` are paths in the state."""

    def __init__(self, names: list[str]) -> None:
        super().__init__(some(names, 1))
        self.names = names


class _Lasting:
    """Tensors of a state that stay where they are, by reference, and their places in it."""

    def __init__(self, harness: Harness) -> None:
        self.paths: list[str] = []
        self.live: list[torch.Tensor] = []
        self.sources: list[int] = []  # identities of the tensors themselves
        self.state = take_lasting(harness, self._note)
        self.index = {id(tensor): i for i, tensor in enumerate(self.live)}  # in `state`
        self.moments = {i for i, path in enumerate(self.paths) if path.startswith("optimizers.")}
        self.uncounted = [i for i, one in enumerate(self.live) if version(one) < 0 or not _plain(one)]
        self.known = False  # whether each is steady
        self._spare: list[torch.Tensor] | None = None
        self._anatomy, now = anatomy(harness), moments(harness)
        self._tensors = [*self._anatomy.parameters.values(), *self._anatomy.buffers.values(), *now.tensors]
        self._identities, self._addresses = now.identities, addresses(self._tensors)
        self._numbers = len(now.tensors) < len(now.held)  # an optimizer holds values of the host, which change
        self._copied: tuple[int, list[int]] = (-1, [])
        self._updates: dict[tuple[str, int], set[int]] = {}

    def _note(self, path: str, tensor: torch.Tensor) -> torch.Tensor:
        self.paths.append(path)
        self.live.append(tensor.detach())
        self.sources.append(id(tensor))
        return self.live[-1]

    def holds(self, harness: Harness) -> bool:
        """Whether they are still there, and no others beside them."""
        if self._numbers or anatomy(harness) is not self._anatomy:
            return False
        return moments(harness).identities == self._identities and addresses(self._tensors) == self._addresses

    def unsteady(self, steady: Steady) -> list[int]:
        """Those that are copied at the start of each step."""
        if self._copied[0] != steady.changes:
            found = {i for i, path in enumerate(self.paths) if path not in steady} | set(self.uncounted)
            self._copied = (steady.changes, sorted(found))
        return self._copied[1]

    def updates(self, key: str, optimizer: torch.optim.Optimizer) -> set[int]:
        """Those that an optimizer writes into, as the harness calls it."""
        if (key, id(optimizer)) not in self._updates:
            params = {id(p) for group in optimizer.param_groups for p in group["params"]}
            within = f"optimizers.{key}."
            self._updates[key, id(optimizer)] = {
                i for i, path in enumerate(self.paths) if self.sources[i] in params or path.startswith(within)
            }
        return self._updates[key, id(optimizer)]

    def copied(self) -> list[torch.Tensor]:
        """Copies of all, in memory that was handed back where there is some: to ask for new costs four times as much
        as the copy."""
        spare, self._spare = self._spare, None
        if spare is None:
            return [cloned("", one) for one in self.live]
        torch._foreach_copy_(spare, self.live)
        return spare

    def hand_back(self, copies: list[torch.Tensor]) -> None:
        """Nobody needs these any more."""
        if not self.uncounted and all(type(one) is torch.Tensor for one in copies):
            self._spare = copies


@dataclass(slots=True)
class Steady:
    """What no step wrote into before one could look, by path in the state. Learned, and unlearned at once."""

    changes: int = 0  # of what is known
    _paths: dict[str, bool] = field(default_factory=dict)  # whether it is; unknown until a step has shown it
    _lasting: _Lasting | None = None

    def __contains__(self, path: str) -> bool:
        return self._paths.get(path, False)

    def knows(self, path: str) -> bool:
        return path in self._paths

    def seen(self, path: str, unchanged: bool) -> None:
        now = unchanged and self._paths.get(path, True)
        if self._paths.get(path) is not now:
            self._paths[path] = now
            self.changes += 1

    def lasting(self, harness: Harness) -> _Lasting:
        """As they are now."""
        if self._lasting is None or not self._lasting.holds(harness):
            self._lasting = _Lasting(harness)
        return self._lasting


@dataclass(slots=True)
class _Tensor:
    live: torch.Tensor
    version: int
    copy: torch.Tensor | None


class Start:
    """The state at the start of one step: some of it copied, the rest by reference. full: all of it copied."""

    def __init__(self, harness: Harness, steady: Steady, *, full: bool, loop: dict[str, int]) -> None:
        self._given = True  # copies are in somebody else's hands, or not there yet
        self._steady, self.full, self._loop = steady, full, loop
        self._lasting = lasting = steady.lasting(harness)
        self._versions = versions(lasting.live)
        some = ((i, cloned("", lasting.live[i])) for i in lasting.unsteady(steady))
        self._copies: dict[int, torch.Tensor] = dict(enumerate(lasting.copied()) if full else some)
        self._updated: set[int] = set()  # by an optimizer, or about to be
        self._others: dict[str, _Tensor] = {}  # that come and go
        self._passing = take_passing(harness, self._keep)
        self._frozen: State | None = None
        self._given = False

    def __del__(self) -> None:
        if self.full and not self._given:
            self._lasting.hand_back(list(self._copies.values()))

    def _keep(self, path: str, tensor: torch.Tensor) -> torch.Tensor:
        count = version(tensor)
        steady = path in self._steady and count >= 0 and _plain(tensor)
        copy = None if steady and not self.full else cloned(path, tensor)
        live = tensor.detach()
        self._others[path] = _Tensor(live, count, copy)
        return live if copy is None else copy

    @property
    def nbytes(self) -> int:
        """Of the copies."""
        others = [one.copy for one in self._others.values() if one.copy is not None]
        return sum(copy.nbytes for copy in (*self._copies.values(), *others))

    def learn(self, *, held: bool = False) -> None:
        """A failure would be seen now: what was written into up to here is not steady."""
        lasting, changed = self._lasting, self._changed(held)
        for i in changed if lasting.known else range(len(lasting.paths)):
            self._learn(lasting.paths[i], i not in changed, self._copies.get(i), lasting.live[i])
        lasting.known = True
        for path, one in self._others.items():
            self._learn(path, version(one.live) == one.version, one.copy, one.live)

    def learn_moves(self) -> None:
        """The step is over: what it moved after it was looked at, as a teacher after the optimizer's step, and without
        a trace, is not there any more for who looks later."""
        lasting, now = self._lasting, versions(self._lasting.live)
        quiet = (i for i in self._copies if i not in self._updated and now[i] == self._versions[i])
        pairs = [(lasting.paths[i], self._copies[i], lasting.live[i]) for i in quiet]
        pairs += [(p, one.copy, one.live) for p, one in self._others.items() if one.copy is not None]
        for path, copy, live in pairs:
            if path in self._steady and not _equal(copy, live):
                self._steady.seen(path, False)

    def _learn(self, path: str, unchanged: bool, copy: torch.Tensor | None, live: torch.Tensor) -> None:
        if unchanged and copy is not None and not self._steady.knows(path):
            unchanged = _plain(live) and _equal(copy, live)  # `.data` and NumPy leave no trace in the version
        self._steady.seen(path, unchanged)

    def updating(self, key: str, optimizer: torch.optim.Optimizer) -> None:
        """This optimizer, called so in the harness, is about to update its parameters and its state."""
        self._updated |= self._lasting.updates(key, optimizer)

    def freeze(self, *, held: bool = False) -> State:
        """The state in memory of its own, as it was when the step began. Raises Lost. Taken once: later calls give
        the first."""
        if self._frozen is None:
            self._frozen = self._settled({**joined(self._lasting.state, self._passing), "loop": self._loop}, held)
        return self._frozen

    def parts(self, names: Collection[str]) -> State:
        """So much of the state, in memory of its own: for who needs no more, or after the rest was written into.
        Raises Lost."""
        state = joined(self._lasting.state, self._passing)
        found = self._settled({"scaler": None} | {name: state[name] for name in names}, False, names)
        return {name: found[name] for name in names}

    def _settled(self, state: State, held: bool, names: Collection[str] | None = None) -> State:
        self._given = True
        self._check(held, names)
        live = {id(one.live) for one in self._others.values() if one.copy is None}
        found = settled(state, lambda path, t: cloned(path, t) if id(t) in live else self._own(t))
        self._check(held, names)  # again: of a step that hangs it is another thread that copies, and the step may go on
        return found

    def _own(self, tensor: torch.Tensor) -> torch.Tensor:
        i = self._lasting.index.get(id(tensor))
        if i is None:
            return tensor
        copy = self._copies.get(i)
        return cloned("", tensor) if copy is None else copy

    def _check(self, held: bool, names: Collection[str] | None = None) -> None:
        lost = [self._lasting.paths[i] for i in sorted(self._changed(held)) if i not in self._copies]
        lost += [p for p, one in self._others.items() if one.copy is None and version(one.live) != one.version]
        if lost := [path for path in lost if names is None or path.partition(".")[0] in names]:
            raise Lost(lost)

    def _changed(self, held: bool) -> set[int]:
        """Of what lasts: that which was written into, or may be since an optimizer was called. held: none was let."""
        now = versions(self._lasting.live)
        changed = set() if now == self._versions else {i for i, n in enumerate(now) if n != self._versions[i]}
        # an optimizer that skips counts its step up and down again: versions move, values do not
        return changed - self._lasting.moments if held else changed | self._updated


def _plain(tensor: torch.Tensor) -> bool:
    """Numbers in memory, which can be compared: nothing sparse, nested, quantized, packed or without a device."""
    return tensor.layout is torch.strided and tensor.dtype in _NUMBERS and not (tensor.is_nested or tensor.is_meta)


def _equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Bit for bit, but for which NaN it is."""
    return bool(((one == other) | ((one != one) & (other != other))).all())
