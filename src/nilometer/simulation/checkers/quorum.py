"""Whether the metadata quorum keeps what it has promised. The invariants, from what its nodes do and say:

- *state-machine safety*: every node applies the same command at an offset, with the same outcome, in the
  order of offsets; also after restarts;
- *one leader an epoch*;
- *an acknowledged append is in the log, under its number; a refused one never is* (ONE_WINNER,
  FALSE_IS_FINAL), whatever has been lost meanwhile;
- *one controller an epoch*: no two sessions have entries that count in one epoch of the controllership;
- *a node stops for its disk's errors alone*: never for a broken invariant, or for damage.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from nilometer.coordination.quorum.commands import Append, AppliedState, Command, Outcome, encode
from nilometer.coordination.store import StoreUnavailable
from nilometer.identifiers import LeaderEpoch, Offset
from nilometer.raft.durable import QuorumStopped
from nilometer.storage.errors import LogFenced

VIOLATIONS_MAX = 20


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=12).digest()


class QuorumLedger:
    """Checks a metadata quorum: that all its nodes apply the same commands, and an epoch has one leader.

    ``violations`` are the findings; ``applied`` and ``epochs`` are how much was checked.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._commands: dict[Offset, tuple[bytes, Outcome]] = {}
        self._applied_by: dict[str, Offset] = {}
        """The last offset that a process has applied."""
        self._leaders: dict[LeaderEpoch, int] = {}
        self._entries: dict[int, bytes] = {}
        """The digest of each entry, by its number, as the commands make them."""
        self._appended: dict[int, bytes] = {}
        """Of the acknowledged appends."""
        self._refused: set[tuple[int, bytes]] = set()
        self._unknown: set[tuple[int, bytes]] = set()
        """Those that may be there although the same entry is refused when it is sent again."""
        self._controllers: dict[int, tuple[int, str]] = {}
        """By controller epoch, the broker and the incarnation whose entries were applied."""
        self._stopped: set[tuple[int, str]] = set()
        self.violations: list[str] = []

    @property
    def epochs(self) -> int:
        """How many epochs had a leader that was seen."""
        return len(self._leaders)

    @property
    def applied(self) -> int:
        return len(self._commands)

    def on_applied(self, owner: str, offset: Offset, command: Command, outcome: Outcome) -> None:
        last = self._applied_by.get(owner)
        if last is not None and offset <= last:
            self._note(f"{owner} applies offset {offset} after {last}")
        self._applied_by[owner] = offset
        made = _digest(encode(command)), outcome
        known = self._commands.setdefault(offset, made)
        if known != made:
            self._note(f"{owner} applies another command, or with another outcome, at offset {offset}")
        elif isinstance(command, Append) and outcome is Outcome.DONE:
            self._on_entry(command.number, command.data)

    def _on_entry(self, number: int, data: bytes) -> None:
        digest = _digest(data)
        known = self._entries.setdefault(number, digest)
        if known != digest:
            self._note(f"entry {number} of the metadata was given twice")

    def on_answered(self, number: int, data: bytes, is_appended: bool) -> None:
        """An append was acknowledged, or refused for good."""
        if is_appended:
            known = self._appended.setdefault(number, _digest(data))
            if known != _digest(data):
                self._note(f"entry {number} of the metadata was acknowledged to two writers")
        else:
            self._refused.add((number, _digest(data)))

    def on_unknown(self, number: int, data: bytes) -> None:
        """An append had no outcome that its writer learned."""
        self._unknown.add((number, _digest(data)))

    def on_leader(self, node_id: int, epoch: LeaderEpoch) -> None:
        known = self._leaders.setdefault(epoch, node_id)
        if known != node_id:
            self._note(f"nodes {known} and {node_id} both lead epoch {epoch}")

    def on_controller(self, epoch: int, broker_id: int, incarnation: str) -> None:
        """A broker's image has applied entries of this controller."""
        known = self._controllers.setdefault(epoch, (broker_id, incarnation))
        if known != (broker_id, incarnation):
            self._note(f"entries of brokers {known[0]} and {broker_id} count in controller epoch {epoch}")

    def on_stopped(self, node_id: int, failure: Exception) -> None:
        cause: BaseException = failure.reason if isinstance(failure, QuorumStopped) else failure
        text = f"node {node_id} has stopped: {cause!r}"
        is_expected = isinstance(cause, OSError | LogFenced | StoreUnavailable)
        if not is_expected and (node_id, text) not in self._stopped:
            self._stopped.add((node_id, text))
            self._note(text)

    def judge(self, state: AppliedState) -> list[str]:
        """Compare what was acknowledged with what is there, at rest."""
        found = {
            entry.number: entry.data
            for entry in state.entries(state.first_number, state.next_number, 1 << 40)
        }
        wrong: list[str] = []
        for number, digest in self._appended.items():
            if number >= state.first_number and (number not in found or _digest(found[number]) != digest):
                wrong.append(f"quorum: entry {number} was acknowledged, and is not there")
        for number, digest in sorted(self._refused - self._unknown):
            if number in found and _digest(found[number]) == digest:
                wrong.append(f"quorum: entry {number} was refused, and is there")
        return wrong[:VIOLATIONS_MAX]

    def _note(self, what: str) -> None:
        if len(self.violations) < VIOLATIONS_MAX:
            self.violations.append(f"quorum: at {self._now():.3f} s {what}")
