"""Faults of the brokers of a test cluster: what a test injects, and what each broker gets of it.

The words are those of the simulation (:class:`~nilometer.simulation.fault_kinds.Kind`). A fault lasts until
its ``with`` block or ``end()`` ends it; faults may overlap, and what a broker has is the sum of them. Here is
no I/O: ``faulty_runtime`` applies a :class:`BrokerFaults` in the broker's process.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence

import msgspec

from nilometer.simulation.fault_kinds import Kind

CLIENTS = 0
"""The other end of the links between a broker and all clients."""


class BrokerFaults(msgspec.Struct, frozen=True):
    """The faults of one broker. The other end of a link is a broker's id, or :data:`CLIENTS`."""

    cut_to: tuple[int, ...] = ()
    """To these nothing arrives."""
    cut_from: tuple[int, ...] = ()
    """From these nothing arrives."""
    slow_ms: dict[int, int] = {}
    """By how much each direction of a link takes longer."""
    disk_error: bool = False
    disk_full: bool = False
    stall_ms: int = 0
    """How much longer each read from the disk and each flush takes."""
    is_stalled: bool = False
    """Whether they do not end."""
    store: bool = False
    """Whether the coordination store cannot be reached."""
    clock_ms: int = 0
    """By how much the wall clock is ahead."""


Send = Callable[[int, BrokerFaults, Sequence[int]], None]
"""Gives a broker its faults, and the links to reset."""


class Fault:
    """One fault: ``with cluster.faults.cut(1, 2): …``, or until :meth:`end`."""

    def __init__(
        self, faults: Faults, kind: Kind, broker: int, others: tuple[int, ...], amount: int | None
    ) -> None:
        self._faults = faults
        self.kind = kind
        self.broker = broker
        self.others = others
        self.amount = amount

    def __enter__(self) -> Fault:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def __repr__(self) -> str:
        return f"<{self.kind.value} of {self.broker}{f' {self.others}' if self.others else ''}>"

    def end(self) -> None:
        """End the fault. Ending it again does nothing."""
        self._faults.end(self)


class Faults:
    """``cluster.faults``: injects faults into the brokers of a ``Cluster(faults=True)``.

    A method returns when the brokers have the fault; a broker that is down has it when it is started. The
    other end of a link is a broker's id, or ``CLIENTS`` (0): all that is no broker.
    """

    def __init__(self, brokers: Sequence[int], send: Send) -> None:
        self._brokers = brokers
        self._send = send
        self._active: list[Fault] = []
        self._lock = threading.Lock()

    # --- links

    def cut(self, broker: int, other: int) -> Fault:
        """Hold all that is sent between two ends, in both directions, until the fault ends.

        New connections are not made, and those that exist stay open: neither end is told.
        """
        return self._begin(Kind.CUT, broker, (other,))

    def cut_one_way(self, broker: int, other: int) -> Fault:
        """Hold all that ``broker`` sends to ``other``; what ``other`` sends arrives."""
        return self._begin(Kind.CUT_ONE_WAY, broker, (other,))

    def isolate(self, broker: int) -> Fault:
        """Cut a broker off from all others and from clients; it still reaches the coordination store."""
        others = tuple(one for one in self._brokers if one != broker)
        return self._begin(Kind.ISOLATE, broker, (*others, CLIENTS))

    def slow(self, broker: int, other: int, delay_ms: int) -> Fault:
        """Have all that is sent between two ends arrive ``delay_ms`` later."""
        return self._begin(Kind.SLOW, broker, (other,), delay_ms)

    def reset(self, broker: int, other: int) -> None:
        """Reset the connections between two ends, once."""
        self._check((broker, other))
        self._tell(broker, (other,))
        if other != CLIENTS:
            self._tell(other, (broker,))

    # --- disks

    def disk_error(self, broker: int) -> Fault:
        """Have each write to a broker's log directories fail, with EIO."""
        return self._begin(Kind.DISK_ERROR, broker)

    def disk_full(self, broker: int) -> Fault:
        """Have whatever needs space in a broker's log directories fail, with ENOSPC."""
        return self._begin(Kind.DISK_FULL, broker)

    def stall(self, broker: int, delay_ms: int | None = None) -> Fault:
        """Have each flush, and each read that is not from memory, take ``delay_ms`` longer; None: until the
        fault ends."""
        return self._begin(Kind.STALL, broker, (), delay_ms)

    # --- the rest

    def store(self, broker: int) -> Fault:
        """Have all that a broker does in the coordination store fail: it loses its session in time."""
        return self._begin(Kind.STORE, broker)

    def clock(self, broker: int, jump_ms: int) -> Fault:
        """Have a broker's wall clock jump by ``jump_ms``, and back when the fault ends."""
        return self._begin(Kind.CLOCK, broker, (), jump_ms)

    @property
    def without_store(self) -> frozenset[int]:
        """The brokers that do not reach the coordination store: they do not learn of changes."""
        with self._lock:
            return frozenset(fault.broker for fault in self._active if fault.kind is Kind.STORE)

    def heal(self) -> None:
        """End all faults."""
        with self._lock:
            ended, self._active = self._active, []
        self._tell_all(ended)

    def end(self, fault: Fault) -> None:
        with self._lock:
            if fault not in self._active:
                return
            self._active.remove(fault)
        self._tell_all([fault])

    def _begin(
        self, kind: Kind, broker: int, others: tuple[int, ...] = (), amount: int | None = None
    ) -> Fault:
        """Raises ValueError for ends that do not exist, and negative delays."""
        self._check((broker, *others))
        if kind is not Kind.CLOCK and amount is not None and amount < 0:
            raise ValueError(f"delay_ms must not be negative: {amount}")
        fault = Fault(self, kind, broker, others, amount)
        with self._lock:
            self._active.append(fault)
        try:
            self._tell_all([fault])
        except BaseException:
            self.end(fault)
            raise
        return fault

    def _check(self, ends: tuple[int, ...]) -> None:
        if ends[0] not in self._brokers:
            raise ValueError(f"there is no broker {ends[0]}: the ids are 1 to {len(self._brokers)}")
        for other in ends[1:]:
            if other == ends[0] or (other != CLIENTS and other not in self._brokers):
                raise ValueError(
                    f"{other} is no other end of a link of broker {ends[0]}: it is another broker's id, "
                    f"1 to {len(self._brokers)}, or {CLIENTS} for the clients"
                )

    def _tell_all(self, changed: Iterable[Fault]) -> None:
        ends = {end for fault in changed for end in (fault.broker, *fault.others) if end != CLIENTS}
        for broker in sorted(ends):
            self._tell(broker, ())

    def _tell(self, broker: int, reset: tuple[int, ...]) -> None:
        with self._lock:
            state = faults_of(broker, self._active)
        self._send(broker, state, reset)


def faults_of(broker: int, active: Iterable[Fault]) -> BrokerFaults:
    """Return what one broker has of all faults."""
    cut_to: set[int] = set()
    cut_from: set[int] = set()
    slow_ms: dict[int, int] = {}
    own: dict[Kind, list[int | None]] = {}
    for fault in active:
        is_own = fault.broker == broker
        others = fault.others if is_own else (fault.broker,) if broker in fault.others else ()
        match fault.kind:
            case Kind.CUT | Kind.ISOLATE:
                cut_to.update(others)
                cut_from.update(others)
            case Kind.CUT_ONE_WAY:
                (cut_to if is_own else cut_from).update(others)
            case Kind.SLOW:
                for other in others:
                    slow_ms[other] = slow_ms.get(other, 0) + (fault.amount or 0)
            case kind if is_own:
                own.setdefault(kind, []).append(fault.amount)
            case _:
                pass
    stalls = own.get(Kind.STALL, [])
    return BrokerFaults(
        cut_to=tuple(sorted(cut_to)),
        cut_from=tuple(sorted(cut_from)),
        slow_ms=slow_ms,
        disk_error=Kind.DISK_ERROR in own,
        disk_full=Kind.DISK_FULL in own,
        stall_ms=sum(one or 0 for one in stalls),
        is_stalled=None in stalls,
        store=Kind.STORE in own,
        clock_ms=sum(one or 0 for one in own.get(Kind.CLOCK, [])),
    )
