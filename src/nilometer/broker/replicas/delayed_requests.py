"""Requests that wait for partitions, of two kinds; either is answered at a deadline at the latest.

A produce (acks=all, or a group commit), a transaction marker and DeleteRecords are answered when their last
partition has its outcome: :class:`DelayedRequest`, :class:`DelayedResponse`. A fetch is answered when enough
bytes can be read: :class:`DelayedFetch`. Thousands of fetches may wait for one partition, so
:class:`Notifier` and :class:`ReadyFetches` serve a few of them in each iteration of the event loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from nilometer.broker.responses import Response, WaitingResponse
from nilometer.broker.turns import Turns
from nilometer.wire.errors import NONE, ErrorCode
from nilometer.wire.produce import ProducedPartition


class PartitionOutcome(Protocol):
    """The outcome for one partition: a success until ``fail`` is called."""

    def fail(self, error: ErrorCode, message: str | None = None) -> None: ...


class Holder(Protocol):
    """A partition that keeps waits until its high watermark reaches their offsets."""

    def abandon(self, ticket: int, offset: int) -> bool:
        """Forget a wait whose timeout has expired; return false if its release is under way."""
        ...


class MayWait(Protocol):
    """A request that can be made to wait for a partition."""

    def wait_for(self, outcome: PartitionOutcome) -> PartitionWait:
        """Make the request wait for a partition; the wait's end may set an error in ``outcome``."""
        ...


class PartitionWait:
    """One partition's part of a waiting request."""

    __slots__ = ("_request", "done", "outcome", "ticket")

    def __init__(self, request: DelayedRequest, outcome: PartitionOutcome) -> None:
        self._request = request
        self.outcome = outcome
        self.done = False
        self.ticket: tuple[Holder, int, int] | None = None
        """The partition that keeps the wait, its ticket there, and the offset that the high watermark must
        reach. None: nothing is to be undone at the timeout."""

    def release(self, error: ErrorCode = NONE) -> None:
        """End the wait; an ``error`` becomes the outcome. Ignored if the wait has ended already."""
        if self.done:
            return
        self.done = True
        if error is not NONE:
            self.outcome.fail(error)
        self._request.one_released()

    def time_out(self) -> None:
        """End the wait with REQUEST_TIMED_OUT, unless it has ended already, or its release is put off to a
        slice that comes soon."""
        if self.done:
            return
        if self.ticket is not None:
            holder, ticket, offset = self.ticket
            if not holder.abandon(ticket, offset):
                return
        self.release(ErrorCode.request_timed_out)


class DelayedRequest:
    """The waits of one request for its partitions.

    A wait may end while the request is still being processed: the append to its next partition may take a log
    directory offline. So nothing is finished before :meth:`start_timer`.
    """

    __slots__ = ("_finish", "_is_complete", "_timer", "_unreleased", "_waits")

    def __init__(self, finish: Callable[[], None]) -> None:
        """``finish`` is called once, when the last wait has ended; it sends the response."""
        self._finish: Callable[[], None] | None = finish
        self._waits: list[PartitionWait] = []
        self._unreleased = 0
        self._is_complete = False
        """Whether all of the request's waits have begun."""
        self._timer: asyncio.TimerHandle | None = None

    def wait_for(self, outcome: PartitionOutcome) -> PartitionWait:
        """Make the request wait for a partition; the wait's end may set an error in ``outcome``."""
        wait = PartitionWait(self, outcome)
        self._waits.append(wait)
        self._unreleased += 1
        return wait

    def start_timer(self, timeout_ms: int) -> None:
        """End the waits that remain after ``timeout_ms``, with REQUEST_TIMED_OUT. No more waits may begin."""
        self._is_complete = True
        if self._unreleased:
            self._timer = asyncio.get_running_loop().call_later(timeout_ms / 1000, self._on_timeout)

    @property
    def is_waiting(self) -> bool:
        return self._unreleased > 0

    @property
    def waits_left(self) -> int:
        return self._unreleased

    def one_released(self) -> None:
        self._unreleased -= 1
        if self._unreleased == 0 and self._is_complete:
            if self._timer is not None:
                self._timer.cancel()
            finish = self._finish
            self.close()
            if finish is not None:
                finish()

    def close(self) -> None:
        """Forget the callback and the waits, so that no reference cycle keeps the request in memory."""
        self._finish = None
        self._waits = []

    def _on_timeout(self) -> None:
        self._timer = None
        for wait in self._waits:
            wait.time_out()


class CommitWait(Protocol):
    """A request that waits for the high watermark."""

    def release(self, error: ErrorCode = NONE) -> None:
        """End the wait: the high watermark has reached the offset, or (with ``error``) this broker cannot
        tell whether it will."""
        ...


RELEASED_AT_ONCE = 1_024
"""So many waits one step of the high watermark, or the end of a role, ends at once."""
RELEASED_IN_TURN = 256


class Releases:
    """Ends the waits of further requests slice by slice: fifty thousand may wait for one offset."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns

    def add(self, waits: deque[tuple[CommitWait, ErrorCode]]) -> None:
        self._turns.call(lambda: self._release_next(waits))

    def _release_next(self, waits: deque[tuple[CommitWait, ErrorCode]]) -> None:
        try:
            for _ in range(min(RELEASED_IN_TURN, len(waits))):
                wait, outcome = waits.popleft()
                wait.release(outcome)
        finally:
            if waits:
                self.add(waits)  # also if a release has failed: nothing else ends them


class ProduceOutcome(ProducedPartition):
    """The outcome for one partition, as it will be in the response."""

    def fail(self, error: ErrorCode, message: str | None = None) -> None:
        """Set ``error``, and remove the offsets: it is not certain that the records were committed."""
        self.error, self.message = error, message
        self.base_offset = self.log_append_time_ms = self.log_start_offset = -1


ProduceWait = PartitionWait
DelayedProduce = DelayedRequest


NO_LOW_WATERMARK = -1


class DeleteOutcome(msgspec.Struct):
    """The outcome for one partition."""

    index: int
    error: ErrorCode = ErrorCode.none
    low_watermark: int = NO_LOW_WATERMARK

    def fail(self, error: ErrorCode, message: str | None = None) -> None:
        self.error = error
        if error is not ErrorCode.request_timed_out:  # that response has the low watermark reached so far
            self.low_watermark = NO_LOW_WATERMARK


class DeletionWaits:
    """The requests that wait for the low watermark of one partition."""

    __slots__ = ("_waits",)

    def __init__(self) -> None:
        self._waits: list[tuple[int, DeleteOutcome, PartitionWait]] = []

    def __bool__(self) -> bool:
        return bool(self._waits)

    def hold(self, required_offset: int, outcome: DeleteOutcome, request: DelayedRequest) -> None:
        """Make ``request`` wait until the low watermark, which is lower now, reaches ``required_offset``."""
        self._waits.append((required_offset, outcome, request.wait_for(outcome)))

    def on_low_watermark(self, low_watermark: int) -> None:
        waits, self._waits = self._waits, []
        for required_offset, outcome, wait in waits:
            if wait.done:
                continue
            outcome.low_watermark = low_watermark
            if required_offset <= low_watermark:
                wait.release()
            else:
                self._waits.append((required_offset, outcome, wait))

    def fail_all(self, error: ErrorCode) -> None:
        waits, self._waits = self._waits, []
        for _, _, wait in waits:
            wait.release(error)


class FetchWaiter(Protocol):
    """Is notified of a partition's changes: a waiting fetch, or the watch of a fetch session.

    ``source`` is the partition that has changed.
    """

    for_replica: bool
    """Whether the reader is a follower: it waits for appended records, a consumer for committed ones."""

    def on_readable(self, source: FetchWatchable, byte_count: int) -> None:
        """Note that ``byte_count`` more bytes can be read (0: something else has changed)."""
        ...

    def on_watermark_advanced(self, source: FetchWatchable) -> None:
        """Note that the high watermark or log start offset has risen above the one last sent to a
        follower."""
        ...

    def complete(self, source: FetchWatchable) -> None:
        """Send the response at once: the partition's leadership or role has changed."""
        ...


class FetchWaiters:
    """Those who wait on a partition, in order, so that a simulation run is reproducible. Clients may be
    thousands, so the few followers are apart."""

    __slots__ = ("clients", "count", "followers")

    def __init__(self) -> None:
        self.clients: dict[FetchWaiter, None] = {}
        self.followers: dict[FetchWaiter, None] = {}
        self.count = 0

    def add(self, waiter: FetchWaiter) -> None:
        waiters = self.followers if waiter.for_replica else self.clients
        if waiter not in waiters:
            waiters[waiter] = None
            self.count += 1

    def discard(self, waiter: FetchWaiter) -> None:
        waiters = self.followers if waiter.for_replica else self.clients
        if waiter in waiters:
            del waiters[waiter]
            self.count -= 1

    def all(self) -> list[FetchWaiter]:
        return [*self.followers, *self.clients]

    def __len__(self) -> int:
        return self.count


class FetchWatchable(Protocol):
    """A partition that fetches can wait on."""

    fetch_waiters: FetchWaiters


NOTIFIED_AT_ONCE = 1_024
"""So many readers are notified of appends in one iteration of the event loop, or those of one partition."""
ANSWERED_AT_ONCE = 32
"""So many waiting fetches are answered in one iteration of the event loop: one append may end thousands, and
thousands may wait until the same moment."""
READ_AT_ONCE = 512
"""So many partitions they read in it together, or one fetch with more."""
ANSWERED_US = 5_000
"""So long they are read in it, or one fetch: batches may be small."""
WAITING_MAX = 200_000
"""So many partitions are named by all waiting fetches that have no session. A further fetch does not wait."""


class Notifier:
    """Notifies the readers of partitions. Those of a follower are notified at once; of the others, of which
    thousands may wait for each of many partitions, some in each iteration of the event loop."""

    def __init__(self) -> None:
        self._late: dict[FetchWatchable, int] = {}
        """The partitions whose clients' readers are still to be notified, and of how many bytes."""
        self._notified = 0

    def readable(self, partition: FetchWatchable, byte_count: int) -> None:
        """Notify consumers that about ``byte_count`` more bytes can be read (0: the log start offset has
        moved), and followers that there is a newer high watermark or log start offset to send."""
        for waiter in list(partition.fetch_waiters.followers):
            waiter.on_watermark_advanced(partition)
        if self._notified >= NOTIFIED_AT_ONCE or partition in self._late:
            self._late[partition] = self._late.get(partition, 0) + byte_count
        else:
            self._notify(partition, byte_count)

    def _notify(self, partition: FetchWatchable, byte_count: int) -> None:
        readers = list(partition.fetch_waiters.clients)
        if not readers:
            return
        if self._notified < NOTIFIED_AT_ONCE <= self._notified + len(readers):
            asyncio.get_running_loop().call_soon(self._begin_iteration)
        self._notified += len(readers)
        for waiter in readers:
            waiter.on_readable(partition, byte_count)

    def _begin_iteration(self) -> None:
        """Begin to count again: so many have been notified since the last time, most of them long ago."""
        self._notified = 0
        while self._late and self._notified < NOTIFIED_AT_ONCE:
            partition = next(iter(self._late))
            self._notify(partition, self._late.pop(partition))


class ReadyFetches:
    """Holds the fetches that have enough to read, for a moment.

    A producer sends many small requests at once, which arrive in one read. A fetch that were answered after
    the first of them would have one batch in its response, and all others in the next one. And of the many
    fetches that wait for one partition, a few are answered in each iteration of the event loop.
    """

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._iteration = turns.iteration
        self._began_us = 0
        self._is_holding = self._is_scheduled = False
        self._held: dict[DelayedFetch, None] = {}
        self._held_of_followers: dict[DelayedFetch, None] = {}
        self._answered = self._read = 0
        """How many were answered in this iteration of the event loop, and how many partitions they read."""
        self.waiting = 0
        """How many partitions are named by the waiting fetches that have no session."""

    def hold(self) -> None:
        """Hold fetches until :meth:`answer`, at most to the next iteration of the event loop."""
        self._is_holding = True

    def may_answer(self, partitions: int, *, for_replica: bool = False) -> bool:
        """Whether a fetch that reads ``partitions`` may be answered at once; if so, it is counted; if not, it
        has to be added. Followers do not wait for clients."""
        if for_replica:
            return not self._is_holding
        if self._iteration != self._turns.iteration:
            self._begin_iteration()
        if self._is_holding or self._answered >= ANSWERED_AT_ONCE or self._read >= READ_AT_ONCE:
            return False
        if not self._answered:
            self._began_us = self._turns.now_us()
        elif self._turns.now_us() - self._began_us >= ANSWERED_US:
            return False
        self._answered += 1
        self._read += partitions
        return True

    def add(self, fetch: DelayedFetch) -> None:
        held = self._held_of_followers if fetch.for_replica else self._held
        held[fetch] = None
        self._schedule()

    def answer(self) -> None:
        """Answer the fetches that were held, some of them now, and hold none from now on."""
        self._is_holding = False
        if not self._held and not self._held_of_followers:
            return
        followers, self._held_of_followers = self._held_of_followers, {}
        for fetch in followers:
            fetch.read_again()
        while self._held:
            fetch = next(iter(self._held))
            if not self.may_answer(fetch.size):
                self._schedule()
                break
            del self._held[fetch]
            fetch.read_again()

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._answer_on)

    def _answer_on(self) -> None:
        self._is_scheduled = False
        self._begin_iteration()
        self.answer()

    def _begin_iteration(self) -> None:
        self._iteration = self._turns.iteration
        self._answered = self._read = 0


class DelayedFetch:
    __slots__ = (
        "_answer",
        "_bytes_missing",
        "_done",
        "_has_update",
        "_is_final",
        "_is_reading",
        "_partitions",
        "_ready",
        "_timer",
        "_update_wait_ms",
        "_weight",
        "for_replica",
        "size",
    )

    def __init__(
        self,
        partitions: Sequence[FetchWatchable],
        bytes_missing: int,
        max_wait_ms: int,
        answer: Callable[[bool], bool],
        *,
        for_replica: bool,
        update_wait_ms: int = 0,
        has_update: bool = False,
        ready: ReadyFetches | None = None,
        size: int = 1,
        has_session: bool = True,
    ) -> None:
        """Wait on ``partitions``: for ``bytes_missing`` more readable bytes, but at most ``max_wait_ms``.

        ``answer(final)`` reads again, sends the response if there are enough bytes or ``final`` is true, and
        returns whether it did. With an update for a follower (a new high watermark or log start offset;
        ``has_update`` if there is one already) the wait ends after ``update_wait_ms``. ``ready`` may hold the
        response until more records are appended.
        ``size``: how many partitions the fetch names.
        """
        self.size = size
        self._weight = 0 if has_session or ready is None else size
        if ready is not None:
            ready.waiting += self._weight
        self._ready = ready
        self._partitions = partitions
        self._bytes_missing = bytes_missing
        self._answer: Callable[[bool], bool] | None = answer
        self._done = self._is_final = self._is_reading = False
        self._has_update = has_update
        self._update_wait_ms = update_wait_ms
        self.for_replica = for_replica
        for partition in partitions:
            partition.fetch_waiters.add(self)
        wait_ms = min(max_wait_ms, update_wait_ms) if has_update else max_wait_ms
        self._timer = asyncio.get_running_loop().call_later(wait_ms / 1000, self._complete_in_turn)

    def on_readable(self, source: FetchWatchable, byte_count: int) -> None:
        """Count ``byte_count`` more readable bytes; if they are enough, send the response."""
        self._bytes_missing -= byte_count
        if self._bytes_missing > 0 or self._done:
            return
        if self._ready is None or self._ready.may_answer(self.size, for_replica=self.for_replica):
            self.read_again()
        else:
            self._ready.add(self)

    def read_again(self) -> None:
        """Send the response if there are enough bytes, or it must be sent anyway."""
        if self._done or self._is_reading:
            return
        if self._is_final:
            self._complete()
        elif self._answer is None or self._reads_enough(self._answer):
            self._leave()
        elif self._is_final:
            self._complete()
        else:
            self._bytes_missing = 1  # the count was an overestimate: read again at the next change

    def _reads_enough(self, answer: Callable[[bool], bool]) -> bool:
        """Read again. What is read may fail, and its partition then end this wait, too: in the end."""
        self._is_reading = True
        try:
            return answer(False)
        finally:
            self._is_reading = False

    def on_watermark_advanced(self, source: FetchWatchable) -> None:
        """Send the response within ``update_wait_ms``, with a follower's new high watermark or log start."""
        if self._has_update or self._done:
            return
        self._has_update = True
        if self._update_wait_ms <= 0:
            self.complete()
            return
        self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(
            self._update_wait_ms / 1000, self._complete_in_turn
        )

    def complete(self, source: FetchWatchable | None = None) -> None:
        """Send the response with the bytes that are readable: now, but for ``source``, which may end the wait
        of many, perhaps soon."""
        if source is None:
            self._complete()
        else:
            self._complete_in_turn()

    def _complete_in_turn(self) -> None:
        """Send the response, perhaps soon: the waits of many may end now."""
        if self._done:
            return
        ready = self._ready
        if ready is None or ready.may_answer(self.size, for_replica=self.for_replica):
            self._complete()
        else:
            self._is_final = True
            ready.add(self)

    def _complete(self) -> None:
        if self._done:
            return
        if self._is_reading:
            self._is_final = True
            return
        answer = self._answer
        self._leave()
        if answer is not None:
            answer(True)

    def cancel(self) -> None:
        """Stop waiting without a response: the reader has disconnected."""
        self._leave()

    def _leave(self) -> None:
        self._done = True
        if self._ready is not None:
            self._ready.waiting -= self._weight
            self._weight = 0
        self._timer.cancel()
        for partition in self._partitions:
            partition.fetch_waiters.discard(self)
        self._answer = None  # a remaining reference to this object must not keep what was read in memory
        self._partitions = ()


def records_appended(partition: FetchWatchable, byte_count: int) -> None:
    """Notify the followers that ``byte_count`` more bytes can be fetched."""
    for waiter in list(partition.fetch_waiters.followers):
        waiter.on_readable(partition, byte_count)


def fetch_went_back(partition: FetchWatchable) -> None:
    """Make waiting followers fetch again, after a follower's fetch offset went back.

    That fetch may have been delayed: the offset in the follower's fetch session may be newer, and counts with
    the session's next fetch, which proves that the follower still has what it had. The waiting one does not:
    it may be the older of the two.
    """
    records_appended(partition, 0)


def role_changed(partition: FetchWatchable) -> None:
    """Make every waiting fetch send its response at once."""
    for waiter in partition.fetch_waiters.all():
        waiter.complete(partition)


# The response to a request some of whose partitions may have to wait: made when the last one has its
# outcome.


RESPONSE_ELEMENTS = 8
"""A response takes as long as so many elements, beside those that it has."""


class DelayedResponse:
    def __init__(self, turns: Turns, respond: Callable[[], Response]) -> None:
        """``respond`` makes the response from the outcomes, which the caller keeps."""
        self.delayed = DelayedRequest(self._finish)
        self._turns = turns
        self._respond = respond
        self._waiting: WaitingResponse | None = None
        self._elements = RESPONSE_ELEMENTS

    def response(self, timeout_ms: int) -> Response | asyncio.Future[Response]:
        if not self.delayed.is_waiting:
            self.delayed.close()
            return self._respond()
        self._waiting = WaitingResponse()
        self._elements += self.delayed.waits_left
        self.delayed.start_timer(timeout_ms)
        return self._waiting

    def _finish(self) -> None:
        self._turns.answer(self._answer, self._elements)

    def _answer(self) -> None:
        waiting = self._waiting
        if waiting is not None and not waiting.done():
            waiting.set_result(self._respond())
