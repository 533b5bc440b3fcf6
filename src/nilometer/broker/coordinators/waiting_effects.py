"""Replies and actions that wait until the records before them are committed.

They are released in the order of the offsets they wait for. A reply waits at most until its deadline; an
action waits until it is released or :meth:`WaitingEffects.clear` drops it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, Protocol

from nilometer.broker.coordinators.kind import ActionT, ReplyT
from nilometer.broker.replicas.hosted_partition import CommitWait
from nilometer.coordinators.turn import Token
from nilometer.wire.errors import ErrorCode


class _Waiting(Generic[ReplyT, ActionT]):
    """The replies and actions that wait for the high watermark to reach ``offset``."""

    __slots__ = ("_on_released", "actions", "deadline_ms", "offset", "replies")

    def __init__(
        self,
        offset: int,
        deadline_ms: int,
        on_released: Callable[[_Waiting[ReplyT, ActionT], ErrorCode], None],
    ) -> None:
        self.offset = offset
        self.deadline_ms = deadline_ms
        """Until when the replies wait (monotonic time); it does not concern the actions."""
        self.replies: list[tuple[Token, ReplyT]] = []
        self.actions: list[ActionT] = []
        self._on_released = on_released

    def release(self, error: ErrorCode = ErrorCode.none) -> None:
        self._on_released(self, error)


class HighWatermark(Protocol):
    @property
    def high_watermark(self) -> int: ...


class WaitingEffects(Generic[ReplyT, ActionT]):
    def __init__(
        self,
        log: HighWatermark,
        wait_for_commit: Callable[[int, CommitWait], None],
        deliver: Callable[[Sequence[tuple[Token, ReplyT]]], None],
        carry_out: Callable[[Sequence[ActionT]], None],
    ) -> None:
        """``wait_for_commit(offset, wait)`` releases ``wait`` when the high watermark reaches ``offset``; it
        raises KafkaError if this broker does not lead.

        ``deliver`` delivers replies and ``carry_out`` carries out actions, once the records before them are
        committed; of one offset the replies come first.
        """
        self._log = log
        self._wait_for_commit = wait_for_commit
        self._deliver = deliver
        self._carry_out = carry_out
        self._waiting: deque[_Waiting[ReplyT, ActionT]] = deque()

    def add(
        self,
        offset: int,
        replies: Sequence[tuple[Token, ReplyT]],
        actions: Sequence[ActionT],
        deadline_ms: int,
    ) -> None:
        """Release ``replies`` and ``actions`` once all records below ``offset`` are committed.

        ``deadline_ms``: until when the replies wait. Raises KafkaError if this broker does not lead.
        """
        if not self._waiting and self._log.high_watermark >= offset:
            self._release(replies, actions)
            return
        last = self._waiting[-1] if self._waiting else None
        if last is None or last.offset != offset:
            last = _Waiting[ReplyT, ActionT](offset, deadline_ms, self._on_released)
            self._wait_for_commit(offset, last)
            self._waiting.append(last)
        elif not last.replies:
            last.deadline_ms = deadline_ms
        last.replies.extend(replies)
        last.actions.extend(actions)

    def next_deadline_ms(self) -> int | None:
        """Return the earliest deadline (monotonic, ms) of a waiting reply; None if no reply waits."""
        return next((each.deadline_ms for each in self._waiting if each.replies), None)

    def take_overdue(self, now_ms: int) -> list[Token]:
        """Remove the replies whose deadline has passed, and return the tokens of their requests.

        Their records may still be committed later.
        """
        overdue: list[Token] = []
        for each in self._waiting:
            if each.deadline_ms > now_ms:
                break
            overdue.extend(token for token, _ in each.replies)
            each.replies.clear()
        while self._waiting and not self._waiting[0].replies and not self._waiting[0].actions:
            self._waiting.popleft()
        return overdue

    def clear(self) -> None:
        self._waiting.clear()

    def _on_released(self, released: _Waiting[ReplyT, ActionT], error: ErrorCode) -> None:
        """Release everything up to the offset of ``released``, which the high watermark has reached.

        NOT_LEADER_OR_FOLLOWER means that this broker no longer leads: nothing is released, and the shell is
        unloaded soon.
        """
        if error is ErrorCode.not_leader_or_follower:
            return
        while self._waiting and self._waiting[0].offset <= released.offset:
            first = self._waiting.popleft()
            self._release(first.replies, first.actions)

    def _release(self, replies: Sequence[tuple[Token, ReplyT]], actions: Sequence[ActionT]) -> None:
        if replies:
            self._deliver(replies)
        if actions:
            self._carry_out(actions)
