"""This broker as a member of its cluster: its session, and the controller's tasks while it is the controller.

A starting broker repeats its requests to the coordination store while no response comes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TypeVar

import msgspec

from nilometer.broker.control import decision_log
from nilometer.broker.control.controller import Controller
from nilometer.broker.control.decision_log import Cause
from nilometer.broker.control.metadata_log import MetadataLog
from nilometer.broker.tasks import Tasks
from nilometer.cluster.controller.brokers import (
    BrokerRegistration,
    check_registration,
    decide_broker_up,
    decide_brokers_down,
)
from nilometer.cluster.controller.controllership import (
    BrokersDown,
    BrokerUp,
    broker_events,
    controllership_entry,
    decide_cluster_defaults,
    decide_repair,
)
from nilometer.cluster.image import ClusterImage
from nilometer.coordination.store import (
    BrokerIdInUse,
    CoordinationError,
    CoordinationStore,
    OutcomeUnknown,
    Session,
    SessionInfo,
    SessionLost,
    StoreUnavailable,
)
from nilometer.identifiers import BrokerId, Incarnation
from nilometer.runtime import Clock, Entropy
from nilometer.wire.errors import ErrorCode, KafkaError

T = TypeVar("T")
logger = logging.getLogger("nilometer.broker.control")

START_RETRY_S = 0.2


async def retry_while_starting(clock: Clock, timeout_ms: int, ask: Callable[[], Awaitable[T]]) -> T:
    """Await ``ask`` and return its result; repeat it if a server does not respond or a connection is lost.

    Tries for ``timeout_ms``; then raises StoreUnavailable or OutcomeUnknown.
    """
    deadline_ms = clock.monotonic_ms() + timeout_ms
    while True:
        try:
            return await ask()
        except (StoreUnavailable, OutcomeUnknown) as error:
            if clock.monotonic_ms() >= deadline_ms:
                raise
            logger.info("The coordination store did not answer during startup, trying again: %s", error)
            await asyncio.sleep(START_RETRY_S)


class OwnSession:
    """The newest session of this broker; none before it has joined the cluster."""

    def __init__(self) -> None:
        self._session: Session | None = None
        self._registered = asyncio.Event()

    def begin(self, session: Session) -> None:
        """Replace the previous session with ``session``."""
        self._session = session

    def note_registered(self) -> None:
        """Record that the metadata log has this incarnation of the broker."""
        self._registered.set()

    def note_lost(self) -> None:
        """Record that the session has ended: the broker is not registered until its next one is folded."""
        self._registered.clear()

    @property
    def is_registered(self) -> bool:
        """Whether the metadata log has this incarnation of the broker, and its session has not ended."""
        return self._registered.is_set()

    async def wait_registered(self) -> None:
        """Wait until the metadata log has this incarnation of the broker."""
        await self._registered.wait()

    @property
    def current(self) -> Session:
        """The newest session. Only after :meth:`begin`."""
        assert self._session is not None, "the broker has joined the cluster"
        return self._session

    @property
    def incarnation(self) -> Incarnation | None:
        """The incarnation of the current or the next registration; None before the first session."""
        return None if self._session is None else incarnation_of(self._session.name.incarnation)

    def is_live(self) -> bool:
        """Whether this broker may still lead and serve: its session cannot have expired yet."""
        return self._session is not None and self._session.is_live()


def incarnation_of(number: int) -> Incarnation:
    """Return a session's incarnation as the metadata log has it."""
    return Incarnation(str(number))


RETRY_S = 0.25


class RegistrationRejected(Exception):
    """The cluster does not accept this broker, for the reason in the message."""


class Membership:
    def __init__(
        self,
        registration: BrokerRegistration,
        store: CoordinationStore,
        own: OwnSession,
        metadata: MetadataLog,
        controller: Controller,
        entropy: Entropy,
        cluster_defaults: dict[str, str],
        tasks: Tasks,
        on_registered: Callable[[], None],
        with_offline: Callable[[BrokerRegistration], BrokerRegistration] = lambda registration: registration,
    ) -> None:
        """``on_registered`` is called for each registration of this broker once the metadata log has it.
        ``with_offline`` adds the replicas that this broker cannot use to a registration."""
        self._with_offline = with_offline
        self._registration = registration
        self._store = store
        self._metadata = metadata
        self._controller = controller
        self._entropy = entropy
        self._cluster_defaults = cluster_defaults
        self._tasks = tasks
        self._on_registered = on_registered
        self._own = own

    @property
    def incarnation(self) -> Incarnation:
        return incarnation_of(self._own.current.name.incarnation)

    async def join(self) -> None:
        """Begin a session with the coordination store; :meth:`run` must follow.

        Raises RegistrationRejected, CoordinationError. After a StoreUnavailable or an OutcomeUnknown it may
        be called again: the store knows the session that the first call may have begun.
        """
        self._registration = self._with_offline(self._registration)
        refusal = check_registration(self._metadata.image, self._registration)
        if refusal.error in (ErrorCode.inconsistent_cluster_id, ErrorCode.unsupported_version):
            raise RegistrationRejected(refusal.message)
        payload = msgspec.json.encode(self._registration)
        self._own.begin(await self._store.register(self._registration.broker_id, payload))
        self._metadata.subscribe(
            lambda _delta, _image: self._note_registered(), lambda _: self._note_registered()
        )
        self._note_registered()

    async def run(self, on_lost: Callable[[str], None]) -> None:
        """Claim ``/controller`` when it is free, and run the controller's tasks while this broker holds it.

        When the session ends, ``on_lost`` is called at once with the reason, and a new session begins:
        another incarnation of this broker, which has lost no records since the process continued.
        """
        while True:
            session = self._own.current
            watching = self._tasks.service("session watch", self._watch_session(session, on_lost))
            try:
                await self._follow(session)
                if session.lost:
                    await asyncio.wait([watching])  # before another session begins, the loss is noted
            finally:
                watching.cancel()
            await self._rejoin()

    async def _watch_session(self, session: Session, on_lost: Callable[[str], None]) -> None:
        reason = await session.wait_lost()
        logger.warning("Session %s expired: %s", session.name, reason)
        self._own.note_lost()
        self._controller.note_resigned(f"its session expired: {reason}")
        on_lost(reason)

    async def _follow(self, session: Session) -> None:
        """React to changes in the store until ``session`` has ended."""
        seen = -1
        while not session.lost:
            try:
                seen = await self._store.wait_changed(seen)
                await self._metadata.catch_up()
                if await self._is_controller():
                    await self._run_controller_tasks()
            except SessionLost:
                return
            except (StoreUnavailable, OutcomeUnknown) as error:
                logger.warning("The coordination store cannot be reached: %s", error)
                await asyncio.sleep(RETRY_S)
                seen = -1
            except KafkaError as error:
                if error.code is ErrorCode.not_controller:
                    self._controller.note_resigned(error.message)
                elif error.code is ErrorCode.request_timed_out:
                    logger.warning("A task of the controller is tried again: %s", error.message)
                    await asyncio.sleep(RETRY_S)
                    seen = -1
                elif error.code is ErrorCode.unknown_server_error:
                    logger.error(
                        "A task of the controller failed; the next change of the cluster tries it again: %s",
                        error.message,
                    )
                else:
                    raise

    async def _rejoin(self) -> None:
        """Begin a new session, and so register another incarnation of this broker."""
        known = self._metadata.image.broker(BrokerId(self._registration.broker_id))
        if known is not None and known.incarnation == self.incarnation:
            # Only for a registered incarnation is it certain that this process lost no records since.
            self._registration = replace(self._registration, previous_broker_epoch=known.epoch)
        while True:
            self._registration = self._with_offline(self._registration)
            try:
                payload = msgspec.json.encode(self._registration)
                self._own.begin(await self._store.register(self._registration.broker_id, payload))
            except (StoreUnavailable, OutcomeUnknown, BrokerIdInUse) as error:
                logger.warning("Cannot register again: %s", error)
                await asyncio.sleep(RETRY_S)
            else:
                logger.info("Registered again as session %s", self._own.current.name)
                self._note_registered()
                return

    async def _is_controller(self) -> bool:
        holder = await self._store.controller()
        if holder is None:
            return await self._store.claim_controller()
        return holder == self._own.current.name

    async def _run_controller_tasks(self) -> None:
        if not self._controller.is_active or self._controller.controllership.incarnation != self.incarnation:
            await self._become_controller()
        await self._reconcile_sessions()
        await self._metadata.maybe_write_snapshot()

    async def _become_controller(self) -> None:
        logger.debug("Controller, stage 1 of 4: holds /controller")
        await self._metadata.catch_up()
        logger.debug(
            "Controller, stage 2 of 4: has read the metadata log up to entry %d", self._metadata.image.number
        )
        await self._controller.become_controller(
            self.incarnation,
            lambda image: controllership_entry(
                image, self._registration.broker_id, self.incarnation, self._entropy, self._store.cluster_id
            ),
            _why_controller(self._metadata.image),
        )
        logger.debug(
            "Controller, stage 3 of 4: controller epoch %d has begun",
            self._controller.controllership.controller_epoch,
        )
        await self._controller.decide(
            lambda image: decide_cluster_defaults(image, self._cluster_defaults),
            decision_log.CLUSTER_DEFAULTS,
        )
        await self._reconcile_sessions()
        await self._controller.decide(decide_repair, decision_log.REPAIR)
        logger.debug(
            "Controller, stage 4 of 4: the metadata agrees with the live sessions as of entry %d",
            self._metadata.image.number,
        )

    async def _reconcile_sessions(self) -> None:
        registrations = [_registration_of(session) for session in await self._store.sessions()]
        for event in broker_events(self._metadata.image, registrations):
            match event:
                case BrokersDown(broker_ids):
                    await self._controller.decide(
                        lambda image, ids=broker_ids: decide_brokers_down.steps(image, ids),
                        decision_log.sessions_ended(broker_ids),
                    )
                case BrokerUp(registration):
                    outcome = await self._controller.decide(
                        lambda image, new=registration: decide_broker_up.steps(image, new),
                        self._why_registered(registration),
                    )
                    if not outcome.ok:
                        logger.warning(
                            "The registration of broker %d is rejected: %s",
                            registration.broker_id,
                            outcome.message,
                        )

    def _why_registered(self, registration: BrokerRegistration) -> Cause:
        known = self._metadata.image.broker(registration.broker_id)
        lossless = known is not None and registration.previous_broker_epoch == known.epoch
        return decision_log.registration(registration.broker_id, first=known is None, lossless=lossless)

    def _note_registered(self) -> None:
        """Call ``on_registered`` once the metadata log has this incarnation.

        It may have it before the store's response says which incarnation it is: so this is called for each
        change of the metadata, and when a session has begun. An incarnation whose session has ended is noted
        no more, though the log has it until the controller fences it.
        """
        known = self._metadata.image.broker(BrokerId(self._registration.broker_id))
        if self._own.current.lost:
            return
        if known is None or known.fenced or known.incarnation != self.incarnation or self._own.is_registered:
            return
        self._own.note_registered()
        self._on_registered()


def _why_controller(image: ClusterImage) -> Cause:
    former = image.controllership
    if former.controller_id < 0:
        return Cause("the cluster is new")
    return Cause(
        f"it follows broker {former.controller_id}, which was the controller in epoch "
        f"{former.controller_epoch}"
    )


def _registration_of(session: SessionInfo) -> BrokerRegistration:
    """Decode the registration in a session's payload. Raises CoordinationError if it cannot be read."""
    try:
        registration = msgspec.json.decode(session.payload, type=BrokerRegistration)
    except msgspec.MsgspecError as error:
        raise CoordinationError(
            f"the session of broker {session.broker_id} has a payload that cannot be read: {error}"
        ) from error
    return replace(registration, incarnation=incarnation_of(session.incarnation))
