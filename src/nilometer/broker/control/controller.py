"""The broker's code around the controller's pure decisions: makes one decision after the other, and appends
its entries to the metadata log.

The pure ``decide_*`` functions of ``cluster`` return records; this module appends them as entries of the
metadata log. A successful append does not mean that the decision counts: a deposed controller can append an
entry too. Only folding the entry (applying it to the image) shows it, so the response waits for that.

A decision that has begun continues even if its requester has gone: the store could apply an abandoned append
after a later decision that was made without it. If the outcome of an append is unknown, its entry may appear
later; a decision whose entry number is taken by it is made again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from nilometer.broker.control.decision_log import Cause, DecisionLog
from nilometer.broker.control.decision_queue import Client, DecisionQueue
from nilometer.broker.control.metadata_log import MetadataLog, let_others_run
from nilometer.broker.decision_lines import log_decision
from nilometer.broker.tasks import Tasks
from nilometer.broker.turns import LongWork, Turns
from nilometer.cluster.controller.decision import Decision, Steps
from nilometer.cluster.controller.features import check_format
from nilometer.cluster.delta import ImageDelta
from nilometer.cluster.entries import Controllership, Entry, decode_entry, encode_entry, entries_of
from nilometer.cluster.image import ClusterImage
from nilometer.coordination.store import CoordinationError, CoordinationStore, OutcomeUnknown, SessionLost
from nilometer.identifiers import BrokerId, EntryNumber, Incarnation
from nilometer.invariants import InvariantBroken
from nilometer.wire.errors import ErrorCode, KafkaError

R = TypeVar("R")
logger = logging.getLogger("nilometer.broker.controller")

APPEND_ATTEMPTS_MAX = 1000
"""How often other entries may take a decision's entry number before it fails."""
DOUBT_PAUSE_S = 0.05
"""Between an append whose outcome is unknown and the next one: the store may need time to recover."""


class Controller:
    """Makes this broker's decisions as controller."""

    def __init__(
        self,
        broker_id: int,
        store: CoordinationStore,
        metadata: MetadataLog,
        tasks: Tasks,
        turns: Turns,
    ) -> None:
        self._broker_id = BrokerId(broker_id)
        self._store = store
        self._metadata = metadata
        self._tasks = tasks
        self._incarnation = Incarnation("")
        self._queue = DecisionQueue()
        self._turns = turns
        self.decision_began_us = 0
        """When the last decision began."""
        self._decision_log = DecisionLog()
        self._appended = self._active_at = EntryNumber(-1)
        """The last entry that this broker has appended, and the last folded while it was the controller."""
        self._held: Controllership | None = None
        """This broker's controllership, until the log says why it ended."""
        metadata.subscribe(self._on_delta, self._on_reload)

    @property
    def controllership(self) -> Controllership:
        return self._metadata.image.controllership

    @property
    def is_active(self) -> bool:
        return self._is_own(self.controllership)

    def _is_own(self, controllership: Controllership) -> bool:
        return (
            controllership.controller_id == self._broker_id
            and controllership.incarnation == self._incarnation != ""
        )

    async def become_controller(
        self, incarnation: str, decide: Callable[[ClusterImage], Entry], cause: Cause
    ) -> None:
        """Begin a new controller epoch with the entry that ``decide`` returns.

        ``incarnation``: that of this broker's session. Raises KafkaError (NOT_CONTROLLER) if another broker
        became controller meanwhile.
        """
        async with self._queue.turn(None):
            self._incarnation = Incarnation(incarnation)
            await self._metadata.catch_up()
            while not await self._append(decide(self._metadata.image), cause):
                pass  # the previous controller was still deciding
            if not self.is_active:
                raise KafkaError(ErrorCode.not_controller, "another broker became controller")
            self._held = self.controllership

    def note_resigned(self, cause: str) -> None:
        """Log that this broker is no longer the controller, once for each controllership."""
        held, self._held = self._held, None
        if held is not None:
            epoch = held.controller_epoch
            sentence = f"This broker is no longer the controller (it was in epoch {epoch})"
            log_decision(logger, "controller-resigned", sentence, cause, {"controller_epoch": epoch})

    async def decide(
        self,
        decide: Callable[[ClusterImage], Decision[R] | Steps[R]],
        cause: Cause,
        client: Client | None = None,
    ) -> R:
        """Make a decision on the newest image, and return its response once its entries are folded and count.

        ``cause``: why, for the log. ``client``: who asks for it; None: a broker, or the controller itself.
        ``decide`` may be called several times. Cancelling the caller ends no decision that has begun.

        Raises KafkaError: NOT_CONTROLLER when this broker is not, or no longer, the controller.
        """
        return await in_turn(
            self._tasks,
            self._queue,
            client,
            lambda: self._decide(decide, cause),
            "decisions of the controller",
        )

    async def _decide(self, decide: Callable[[ClusterImage], Decision[R] | Steps[R]], cause: Cause) -> R:
        self.decision_began_us = self._turns.now_us()
        for _ in range(APPEND_ATTEMPTS_MAX):
            await self._metadata.catch_up()
            self._check_is_active()
            number = self._metadata.image.number
            try:
                made = decide(self._metadata.image)
                decision = (
                    made if isinstance(made, Decision) else await LongWork(self._turns).go_through(made)
                )
                entries = await self._entries(decision)
            except Exception:
                if self._metadata.image.number == number:
                    raise
                continue
            if self._metadata.image.number != number:
                continue  # it changed between two steps
            if await self._append_all(entries, cause):
                return decision.reply
        raise KafkaError(
            ErrorCode.request_timed_out, "the metadata changed while each attempt was decided; try again"
        )

    async def _entries(self, decision: Decision[object]) -> list[Entry]:
        """Return the entries of ``decision``. Raises KafkaError (UNSUPPORTED_VERSION) if a registered broker
        may be unable to read them."""
        work, entries = LongWork(self._turns), list[Entry]()
        for entry in entries_of(decision.units, self.controllership):
            check_format(self._metadata.image, entry.version)
            entries.append(entry)
            await work.step(len(entry.records))
        return entries

    async def _append_all(self, entries: Sequence[Entry], cause: Cause) -> bool:
        """Append ``entries``, those of one decision.

        Returns false if another entry came before the first one: none was appended then. Raises KafkaError if
        only a part was appended.
        """
        for index, entry in enumerate(entries):
            if not await self._append(entry, cause):
                if index == 0:
                    return False
                raise KafkaError(ErrorCode.request_timed_out, "only a part of the change was applied")
            is_last = index == len(entries) - 1
            if not is_last or self._appended > self._active_at:  # else it counts, though another follows now
                self._check_is_active()
        return True

    async def _append(self, entry: Entry, cause: Cause) -> bool:
        """Append ``entry`` to the log and fold it.

        Returns false if an entry that counts came first: ``entry`` was decided without it, and was not
        appended. Entries of deposed controllers, which have no effect, do not invalidate a decision, as long
        as this broker is the controller.

        An entry that no broker could fold is not appended; KafkaError (UNKNOWN_SERVER_ERROR) is raised, so
        that a bug of this version fails one request, not the cluster.
        """
        data = encode_entry(entry)
        await let_others_run(data)
        controllership = self.controllership
        for _ in range(APPEND_ATTEMPTS_MAX):
            number = self._metadata.image.number + 1
            if await self._check(number, entry, data):
                await let_others_run(data)
                self._decision_log.expect(data, entry, cause)
                try:
                    await self._store.append(number, data)
                except OutcomeUnknown as error:
                    logger.warning("Reading entry %d of the metadata log again: %s", number, error)
                    await asyncio.sleep(DOUBT_PAUSE_S)
                except SessionLost as error:
                    raise KafkaError(ErrorCode.not_controller, str(error)) from None
                await self._metadata.catch_up()
                if self._metadata.entry_bytes.get(number) == data:
                    self._appended = EntryNumber(number)
                    return True
            if self.controllership != controllership:
                raise KafkaError(ErrorCode.not_controller, "another broker became controller")
            if self._has_counting_entries(number, controllership):
                return False
        raise KafkaError(
            ErrorCode.request_timed_out,
            f"the metadata log could not be written in {APPEND_ATTEMPTS_MAX} attempts; try again",
        )

    def _on_delta(self, delta: ImageDelta, image: ClusterImage) -> None:
        if self._is_own(image.controllership):
            self._active_at = delta.number
        self._note_controller(image)
        self._decision_log.on_folded(self._metadata.entry_bytes.get(delta.number), delta, image)

    def _on_reload(self, image: ClusterImage) -> None:
        self._note_controller(image)

    def _note_controller(self, image: ClusterImage) -> None:
        if self._held is not None and image.controllership != self._held:
            other = image.controllership
            self.note_resigned(f"broker {other.controller_id} became it, in epoch {other.controller_epoch}")

    def _has_counting_entries(self, first: int, controllership: Controllership) -> bool:
        """Whether an entry from number ``first`` on may have changed the image under ``controllership``."""
        for number in range(first, self._metadata.image.number + 1):
            data = self._metadata.entry_bytes.get(number)
            if (
                data is None or decode_entry(data).controllership == controllership
            ):  # None: the entry was part of a snapshot
                return True
        return False

    async def _check(self, number: int, entry: Entry, data: bytes) -> bool:
        """Check an entry; return False if another one with its number has been folded meanwhile."""
        try:
            return await self._metadata.check(number, entry, data)
        except InvariantBroken as error:
            logger.critical("A decision is dropped: it would violate a metadata invariant: %s", error)
            raise KafkaError(
                ErrorCode.unknown_server_error,
                "The request changed nothing, since the decision would violate a metadata invariant: "
                f"{error}. This is a defect of the controller, whose log has more.",
            ) from error

    def _check_is_active(self) -> None:
        if not self.is_active:
            raise KafkaError(
                ErrorCode.not_controller, f"the controller is broker {self.controllership.controller_id}"
            )


async def in_turn(
    tasks: Tasks,
    queue: DecisionQueue,
    client: Client | None,
    work: Callable[[], Awaitable[R]],
    kind: str,
) -> R:
    """Return the result of ``work``, which begins when it is the client's turn.

    Cancelling the caller takes back what has not begun; what has begun keeps its turn until it ends, and its
    failure is logged. ``kind``: under what its turns are measured.
    """
    has_begun = False

    async def run() -> R:
        nonlocal has_begun
        async with queue.turn(client):
            has_begun = True
            return await work()

    running = tasks.spawn(run(), kind=kind)
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        if not has_begun:
            running.cancel()
        else:
            running.add_done_callback(_log_abandoned)
        raise
    finally:
        del running  # its exception refers to this frame: both, and the request, would stay as garbage


def _log_abandoned(running: asyncio.Task[object]) -> None:
    """Log the failure of what a client had asked for that has disconnected."""
    if running.cancelled() or (error := running.exception()) is None:
        return
    if isinstance(error, KafkaError | CoordinationError):
        logger.info("A request whose client has disconnected failed: %s", error)
    else:
        logger.error("A request whose client has disconnected failed", exc_info=error)
