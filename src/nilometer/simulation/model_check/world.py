"""The model of replication: a few processes, a controller, and messages that are delayed, lost and repeated.

Yields the possible next steps of a state and the states they lead to; :mod:`explorer` visits them all.

A state is a tuple of small numbers, one for each part (process…, messages in flight…, metadata, history,
fault budget used), and each number stands for a value in a table (:mod:`tables`). A step changes a few parts.

*Messages in flight.* Every message may take any time. A new message replaces an older one of its kind that is
still in flight; the older one is lost. A *message fault* delivers a message and also keeps it in flight, to
arrive again, or keeps an older message in flight that a new one would have replaced. A follower fetches again
as soon as it can: a later fetch is the same as one that takes longer. Each broker receives all metadata
entries in order, with any delay.

*The fault budget* bounds what may still happen: values to produce, leader epochs, crashes, lag expiries and
message faults. The state holds how much of it is used, and which replicas have lost records at their log's
end and are not back in sync; there are never more than ``min.insync.replicas - 1`` of the latter.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from nilometer.identifiers import BrokerId
from nilometer.replication.shell_interface import EligibleBrokers, Registration
from nilometer.simulation.model_check.explorer import Step
from nilometer.simulation.model_check.processes import Controller, Message, Process, SmallController
from nilometer.simulation.model_check.tables import (
    ALTER_REPLIES,
    FETCHES,
    REPLIES,
    REQUESTS,
    Bounds,
    FaultBudgetUsed,
    History,
    InFlightMessages,
    Metadata,
    State,
    Tables,
    View,
)


class World:
    def __init__(self, bounds: Bounds, controller: Controller[Any] | None = None) -> None:
        self.bounds = bounds
        self.controller = controller or SmallController(bounds.brokers, bounds.min_insync_replicas)
        self._tables = Tables(bounds, self.controller)
        self.views = self._tables.views
        self._brokers = range(bounds.brokers)
        self._needed = min(bounds.min_insync_replicas, bounds.brokers)

    # ── reading a state ─────────────────────────────────────────────────────────────────────────
    def views_of(self, state: State) -> list[View]:
        views = self.views
        return [views[state[broker]] for broker in self._brokers]

    def messages_of(self, state: State, broker: int) -> tuple[tuple[Message, ...], ...]:
        """Return the messages in flight of ``broker``: fetches, replies, requests and replies to these."""
        in_flight = self._tables.in_flight.values[state[self.bounds.brokers + broker]]
        return tuple(tuple(self._tables.messages.values[number] for number in kind) for kind in in_flight)

    def registration_of(self, state: State) -> Registration:
        return self._tables.registered[self._tables.metadata.values[state[-3]].newest][0]

    def eligible_in(self, state: State) -> EligibleBrokers:
        return self._tables.registered[self._tables.metadata.values[state[-3]].newest][1]

    def history_of(self, state: State) -> History:
        return self._tables.histories.values[state[-2]]

    # ── states and steps ────────────────────────────────────────────────────────────────────────
    def first_state(self) -> State:
        """Return the first state: every broker is up, in sync and empty, and knows the leader."""
        metadata = Metadata(
            (self._tables.image(self.controller.first_image()),), tuple(0 for _ in self._brokers)
        )
        in_flight = self._tables.in_flight.number_of(InFlightMessages(), InFlightMessages())
        min_isr, rule = self.bounds.min_insync_replicas, self.bounds.rule
        blank = [self._tables.number_of(Process(broker, min_isr, rule)) for broker in self._brokers]
        blank += [in_flight for _ in self._brokers]
        blank.append(self._tables.metadata.number_of(metadata, metadata))
        blank.append(self._tables.histories.number_of(History(), History()))
        blank.append(self._tables.budgets_used.number_of(FaultBudgetUsed(), FaultBudgetUsed()))
        for broker in self._brokers:
            self._tables.happens(blank, broker, "learn", metadata.newest)
        return tuple(blank)

    def steps(self, state: State) -> Iterator[tuple[Step, State]]:
        """Yield every possible next step with the state it leads to."""
        used, metadata = self._tables.budgets_used.values[state[-1]], self._tables.metadata.values[state[-3]]
        for broker in self._brokers:
            view = self.views[state[broker]]
            if view.is_up:
                yield from self._steps_of_running(state, broker, view, metadata, used)
            else:
                yield from self._steps_of_crashed(state, broker, view, metadata, used)
            yield from self._deliveries(state, broker, view, metadata, used)
            image = self._tables.wanted(metadata.newest, broker)
            yield from self._decided(state, ("elect", broker, 0), image)
        yield from self._steps_of_controllers(state, metadata, used)

    def _steps_of_running(
        self, state: State, broker: int, view: View, metadata: Metadata, used: FaultBudgetUsed
    ) -> Iterator[tuple[Step, State]]:
        bounds = self.bounds
        if metadata.is_behind(broker):
            index = metadata.learned[broker] + 1
            parts = list(state)
            parts[-3] = self._tables.learned(state[-3], broker, index)
            asked = self._tables.happens(parts, broker, "learn", metadata.images[index])
            yield from self._settled(state, ("learn", broker, 0), parts, asked)
        if view.is_leader:
            yield from self._steps_of_leader(state, broker, used)
        elif view.is_follower and used.message_faults < bounds.message_faults:
            parts = list(state)
            self._tables.happens(parts, broker, "ask", 0)
            for step, after in self._settled(state, ("ask-again", broker, 0), parts, True):
                if step[0] != "ask-again":
                    yield step, after
        is_registered = self._tables.registered[metadata.newest][1].get(BrokerId(broker)) == view.broker_epoch
        if used.crashes < bounds.crashes:
            used_after = used._replace(crashes=used.crashes + 1)
            parts = list(state)
            parts[-3] = self._tables.learned(state[-3], broker, len(metadata.images) - 1)
            parts[-1] = self._tables.budgets_used.number_of(used_after, used_after)
            self._tables.happens(parts, broker, "crash", 0)
            yield ("crash", broker, 0), self._tables.without_late_messages(parts)
            if is_registered:
                image = self._tables.gone(metadata.newest, broker)
                with_crash = (*state[:-1], parts[-1])
                yield from self._decided(with_crash, ("expire", broker, 0), image)
        if not is_registered and not metadata.is_behind(broker):
            yield from self._rejoins(state, ("rejoin", broker, view.log_end_offset), metadata, used)

    def _steps_of_leader(
        self, state: State, broker: int, used: FaultBudgetUsed
    ) -> Iterator[tuple[Step, State]]:
        if used.values < self.bounds.values:
            used_after = used._replace(values=used.values + 1)
            parts = list(state)
            self._tables.happens(parts, broker, "produce", used_after.values)
            if parts[broker] != state[broker]:
                parts[-1] = self._tables.budgets_used.number_of(used_after, used_after)
                yield ("produce", broker, used_after.values), self._tables.without_late_messages(parts)
        if used.lags < self.bounds.lag_expiries:
            used_after = used._replace(lags=used.lags + 1)
            for follower in self._brokers:
                if follower != broker:
                    parts = list(state)
                    self._tables.happens(parts, broker, "lag", follower)
                    if parts[broker] != state[broker]:
                        parts[-1] = self._tables.budgets_used.number_of(used_after, used_after)
                        yield ("lag", broker, follower), self._tables.without_late_messages(parts)

    def _steps_of_crashed(
        self, state: State, broker: int, view: View, metadata: Metadata, used: FaultBudgetUsed
    ) -> Iterator[tuple[Step, State]]:
        if self._tables.registered[metadata.newest][1].get(BrokerId(broker)) == view.broker_epoch:
            image = self._tables.gone(metadata.newest, broker)
            yield from self._decided(state, ("notice", broker, 0), image)
        forgetful = self.bounds.checkpoints_lag and view.high_watermark > 0
        for name in ("restart", "restart-forgetful") if forgetful else ("restart",):
            for kept in range(view.log_end_offset + 1):
                if kept == view.log_end_offset or len(used.without_tail | {broker}) < self._needed:
                    yield from self._rejoins(state, (name, broker, kept), metadata, used)

    def _steps_of_controllers(
        self, state: State, metadata: Metadata, used: FaultBudgetUsed
    ) -> Iterator[tuple[Step, State]]:
        """Yield the steps that replace the controller.

        The deposed one may write once more: its decision, on its old image, on a request or a lost broker.
        """
        if used.controller_changes < self.bounds.controller_changes:
            used_after = used._replace(controller_changes=used.controller_changes + 1)
            deposed = metadata._replace(deposed=metadata.newest)
            numbers = (
                self._tables.metadata.number_of(deposed, deposed),
                self._tables.budgets_used.number_of(used_after, used_after),
            )
            yield ("depose", 0, 0), (*state[:-3], numbers[0], state[-2], numbers[1])
        if metadata.deposed < 0:
            return
        done = metadata._replace(deposed=-1)
        silent = (*state[:-3], self._tables.metadata.number_of(done, done), *state[-2:])
        for broker in self._brokers:
            requests = self._tables.in_flight.values[state[self.bounds.brokers + broker]].requests
            decided = [
                self._tables.gone(metadata.deposed, broker),
                *(self._tables.altered(metadata.deposed, number)[0] for number in requests),
            ]
            for index, image in enumerate(decided):
                after = self._tables.stale_append(metadata.newest, image)
                yield from self._decided(
                    silent, ("stale-append", broker, index), after, even_if_unchanged=True
                )

    def _deliveries(
        self, state: State, broker: int, view: View, metadata: Metadata, used: FaultBudgetUsed
    ) -> Iterator[tuple[Step, State]]:
        """Yield the arrivals of the requests that ``broker`` sent, and of the replies to them."""
        in_flight = self._tables.in_flight.values[state[self.bounds.brokers + broker]]
        for index, number in enumerate(in_flight.fetches):
            leader = self._tables.addressee(number)
            if self.views[state[leader]].is_up:
                for step, parts in self._taken(state, ("serve", broker, index), FETCHES, used):
                    self._tables.happens(parts, leader, "serve", number)
                    if self.bounds.fetches_are_atomic:
                        for reply in self._tables.in_flight.values[
                            parts[self.bounds.brokers + broker]
                        ].replies:
                            parts[self.bounds.brokers + broker] = self._tables.removed(
                                parts[self.bounds.brokers + broker], REPLIES, 0
                            )
                            if view.is_up:
                                self._tables.happens(parts, broker, "take", reply)
                    yield step, self._tables.without_late_messages(parts)
        for index, number in enumerate(in_flight.requests):
            image, reply = self._tables.altered(metadata.newest, number)
            for step, parts in self._taken(state, ("alter", broker, index), REQUESTS, used):
                self._tables.put(parts, broker, ALTER_REPLIES, reply)
                yield from self._decided(tuple(parts), step, image, even_if_unchanged=True)
        if view.is_up:
            for index, number in enumerate(in_flight.replies):
                for step, parts in self._taken(state, ("take", broker, index), REPLIES, used):
                    asked = self._tables.happens(parts, broker, "take", number)
                    yield from self._settled(state, step, parts, asked)
            for index, number in enumerate(in_flight.alter_replies):
                for step, parts in self._taken(state, ("take-alter", broker, index), ALTER_REPLIES, used):
                    self._tables.happens(parts, broker, "take-alter", number)
                    yield step, self._tables.without_late_messages(parts)

    def _taken(
        self, state: State, step: Step, kind: int, used: FaultBudgetUsed
    ) -> Iterator[tuple[Step, list[int]]]:
        """Yield ``step`` with the parts from which its message is removed, as it arrives.

        If the budget has a message fault left, also yield a step that keeps the message in flight.
        """
        name, broker, index = step
        at = self.bounds.brokers + broker
        parts = list(state)
        parts[at] = self._tables.removed(state[at], kind, index)
        yield step, parts
        if used.message_faults < self.bounds.message_faults:
            parts = list(state)
            parts[-1] = self._tables.after_message_fault(state[-1])
            yield (f"{name}-and-keep", broker, index), parts

    def _settled(
        self, before: State, step: Step, parts: list[int], asked: bool
    ) -> Iterator[tuple[Step, State]]:
        """Yield ``step`` with the state made of ``parts``.

        ``asked`` says that the broker sent a new fetch, which replaced its older fetch or reply. If the
        budget has a message fault left, also yield a step in which the older one stays in flight, delayed.
        """
        yield step, self._tables.without_late_messages(parts)
        name, broker, detail = step
        at = self.bounds.brokers + broker
        if (
            not asked
            or self._tables.budgets_used.values[parts[-1]].message_faults >= self.bounds.message_faults
        ):
            return
        in_flight = self._tables.delayed_beside(before[at], parts[at])
        if in_flight != parts[at]:
            parts[at] = in_flight
            parts[-1] = self._tables.after_message_fault(parts[-1])
            yield (f"{name}-and-keep-old", broker, detail), self._tables.without_late_messages(parts)

    # ── the controller ──────────────────────────────────────────────────────────────────────────
    def _rejoins(
        self, state: State, step: Step, metadata: Metadata, used: FaultBudgetUsed
    ) -> Iterator[tuple[Step, State]]:
        """Yield the steps with which a broker restarts and registers as a new incarnation.

        It has kept the number of records in ``step``, and has learned the metadata up to its registration.
        """
        name, broker, kept = step
        view = self.views[state[broker]]
        lost = kept < view.log_end_offset
        claims = (False,) if lost else (True, False) if self.bounds.unclean_restarts_forfeit else (True,)
        for lost_nothing in claims:
            image = self._tables.joined(metadata.newest, broker, view.broker_epoch + 1, lost_nothing)
            if lost:
                used_after = used._replace(without_tail=used.without_tail | {broker})
                state = (*state[:-1], self._tables.budgets_used.number_of(used_after, used_after))
            shown = name if lost_nothing or lost else f"{name}-unproven"
            for decided, after in self._decided(state, (shown, broker, kept), image, tidy=False):
                parts = list(after)
                metadata_after = self._tables.metadata.values[after[-3]]
                parts[-3] = self._tables.learned(after[-3], broker, len(metadata_after.images) - 1)
                self._tables.happens(parts, broker, "restart", (kept, "forgetful" in name, image))
                yield decided, self._tables.without_late_messages(parts)

    def _decided(
        self, state: State, step: Step, image: int, *, even_if_unchanged: bool = False, tidy: bool = True
    ) -> Iterator[tuple[Step, State]]:
        """Yield ``step`` with the state after the controller wrote ``image``.

        Yields nothing if the image is the newest already (unless ``even_if_unchanged``), or if it exceeds the
        bound of leader epochs. ``tidy`` removes late messages from the state, if the bounds say so.
        """
        if image == self._tables.metadata.values[state[-3]].newest:
            if even_if_unchanged:
                yield step, self._tables.without_late_messages(list(state)) if tidy else state
            return
        registration, eligible = self._tables.registered[image]
        if registration.leader_epoch >= self.bounds.leader_epochs:
            return
        parts = list(state)
        asleep = tuple(broker for broker in self._brokers if not self.views[state[broker]].is_up)
        parts[-3] = self._tables.written(state[-3], image, asleep)
        used = self._tables.budgets_used.values[state[-1]]
        if used.without_tail:
            back = {
                broker
                for broker in registration.isr
                if eligible.get(broker) == self.views[state[broker]].broker_epoch
            }
            used = used._replace(without_tail=used.without_tail - back)
            parts[-1] = self._tables.budgets_used.number_of(used, used)
        yield step, self._tables.without_late_messages(parts) if tidy else tuple(parts)
