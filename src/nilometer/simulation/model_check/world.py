"""A small world: a few processes, a controller, and messages that are delayed, lost and repeated.

Knows what can happen next in a state and what comes of it; :mod:`explorer` walks through all of it.

A state is a tuple of small numbers, one for each part (process…, mail…, metadata, history, luck), and each
number stands for a value in a table. A step changes a few parts. What the *real code* makes of one event in
one process depends on nothing but the two, so it is computed once and remembered; likewise for every other
part. That is what makes millions of states cheap.

*Mail.* Every message may take any time; a new one of its kind replaces an old one that is still on its way,
which is then lost. A *mishap* lets a message arrive and stay to arrive again, or lets an old one stay
beside the new one that should have replaced it. A follower asks again as soon as it can: asking later is
the same as a fetch that takes longer. Metadata entries arrive in order, each broker at its own pace.

*Luck* is what may still happen: values to produce, leader epochs, crashes, lag expiries, mishaps, and which
replicas have lost a tail and are not back in sync; the last are never more than ``min.insync.replicas - 1``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

from nilometer.replication import AlterPartition, FollowerFetch, Registration
from nilometer.simulation.model_check.controller import Controller, SmallController
from nilometer.simulation.model_check.parts import Bounds, History, Luck, Mail, Metadata, Table, View
from nilometer.simulation.model_check.process import (
    LATE,
    Acknowledged,
    AlterReply,
    FetchReply,
    Message,
    Process,
)
from nilometer.simulation.model_check.snapshots import clone, fingerprint

State = tuple[int, ...]
Step = tuple[str, int, int]
"""(what, broker, detail): the detail is the index of a message, another broker, a value or a count."""

FETCHES, REPLIES, REQUESTS, ALTER_REPLIES = range(4)


class _Reaction(NamedTuple):
    """What came of one event in one process."""

    process: int
    sent: tuple[tuple[int, int, int], ...]
    """(whose mail, kind, message)"""
    acknowledged: tuple[int, ...]


class World:
    def __init__(self, bounds: Bounds, controller: Controller[Any] | None = None) -> None:
        self.bounds = bounds
        self.controller = controller or SmallController(bounds.brokers, bounds.min_insync_replicas)
        self.views: list[View] = []
        self._processes: Table[Process] = Table()
        self._images: Table[Any] = Table()
        self._registered: list[tuple[Registration, dict[int, int]]] = []
        """For each image, what a broker learns from it: the registration, and who may be in sync."""
        self._messages: Table[Message] = Table()
        self._mails: Table[Mail] = Table()
        self._metadata: Table[Metadata] = Table()
        self._histories: Table[History] = Table()
        self._lucks: Table[Luck] = Table()
        self._reactions: dict[tuple[int, str, Any], _Reaction] = {}
        self._answers: defaultdict[str, dict[tuple[Any, ...], Any]] = defaultdict(dict)
        self._brokers = range(bounds.brokers)
        self._needed = min(bounds.min_insync_replicas, bounds.brokers)

    # ── reading a state ─────────────────────────────────────────────────────────────────────────
    def views_of(self, state: State) -> list[View]:
        views = self.views
        return [views[state[broker]] for broker in self._brokers]

    def process_of(self, state: State, broker: int) -> Process:
        """For reading only."""
        return self._processes.values[state[broker]]

    def messages_of(self, state: State, broker: int) -> tuple[tuple[Message, ...], ...]:
        """Fetches, replies, requests and their replies, on their way from and to ``broker``."""
        mail = self._mails.values[state[self.bounds.brokers + broker]]
        return tuple(tuple(self._messages.values[number] for number in kind) for kind in mail)

    def image_of(self, state: State) -> Any:
        """The controller's newest."""
        return self._images.values[self._metadata.values[state[-3]].newest]

    def registration_of(self, state: State) -> Registration:
        return self._registered[self._metadata.values[state[-3]].newest][0]

    def eligible_in(self, state: State) -> dict[int, int]:
        return self._registered[self._metadata.values[state[-3]].newest][1]

    def history_of(self, state: State) -> History:
        return self._histories.values[state[-2]]

    # ── walking ─────────────────────────────────────────────────────────────────────────────────
    def first_state(self) -> State:
        """Everybody is up, in sync and empty, and has learned who leads."""
        metadata = Metadata((self._image(self.controller.first_image()),), tuple(0 for _ in self._brokers))
        mail = self._mails.number_of(Mail(), Mail())
        min_isr, rule = self.bounds.min_insync_replicas, self.bounds.rule
        blank = [self._number_of(Process(broker, min_isr, rule)) for broker in self._brokers]
        blank += [mail for _ in self._brokers]
        blank.append(self._metadata.number_of(metadata, metadata))
        blank.append(self._histories.number_of(History(), History()))
        blank.append(self._lucks.number_of(Luck(), Luck()))
        for broker in self._brokers:
            self._happens(blank, broker, "learn", metadata.newest)
        return tuple(blank)

    def steps(self, state: State) -> Iterator[tuple[Step, State]]:
        """Everything that can happen next, and what comes of it."""
        luck, metadata = self._lucks.values[state[-1]], self._metadata.values[state[-3]]
        for broker in self._brokers:
            view = self.views[state[broker]]
            if view.is_up:
                yield from self._steps_of_living(state, broker, view, metadata, luck)
            else:
                yield from self._steps_of_dead(state, broker, view, metadata, luck)
            yield from self._deliveries(state, broker, view, metadata, luck)
            image = self._remember(self._wanted, metadata.newest, broker)
            yield from self._decided(state, ("elect", broker, 0), image)
        yield from self._steps_of_controllers(state, metadata, luck)

    def _steps_of_living(
        self, state: State, broker: int, view: View, metadata: Metadata, luck: Luck
    ) -> Iterator[tuple[Step, State]]:
        bounds = self.bounds
        if metadata.is_behind(broker):
            index = metadata.learned[broker] + 1
            parts = list(state)
            parts[-3] = self._remember(self._learned, state[-3], broker, index)
            asked = self._happens(parts, broker, "learn", metadata.images[index])
            yield from self._settled(state, ("learn", broker, 0), parts, asked)
        if view.is_leader:
            yield from self._steps_of_leader(state, broker, luck)
        elif view.is_follower and luck.mishaps < bounds.mishaps:
            parts = list(state)
            self._happens(parts, broker, "ask", 0)
            for step, after in self._settled(state, ("ask-again", broker, 0), parts, True):
                if step[0] != "ask-again":
                    yield step, after
        is_registered = self._registered[metadata.newest][1].get(broker) == view.broker_epoch
        if luck.crashes < bounds.crashes:
            spent = luck._replace(crashes=luck.crashes + 1)
            parts = list(state)
            parts[-3] = self._remember(self._learned, state[-3], broker, len(metadata.images) - 1)
            parts[-1] = self._lucks.number_of(spent, spent)
            self._happens(parts, broker, "crash", 0)
            yield ("crash", broker, 0), self._tidied(parts)
            if is_registered:
                image = self._remember(self._gone, metadata.newest, broker)
                unlucky = (*state[:-1], parts[-1])
                yield from self._decided(unlucky, ("expire", broker, 0), image)
        if not is_registered and not metadata.is_behind(broker):
            yield from self._rejoins(state, ("rejoin", broker, view.log_end_offset), metadata, luck)

    def _steps_of_leader(self, state: State, broker: int, luck: Luck) -> Iterator[tuple[Step, State]]:
        if luck.values < self.bounds.values:
            spent = luck._replace(values=luck.values + 1)
            parts = list(state)
            self._happens(parts, broker, "produce", spent.values)
            if parts[broker] != state[broker]:
                parts[-1] = self._lucks.number_of(spent, spent)
                yield ("produce", broker, spent.values), self._tidied(parts)
        if luck.lags < self.bounds.lag_expiries:
            spent = luck._replace(lags=luck.lags + 1)
            for follower in self._brokers:
                if follower != broker:
                    parts = list(state)
                    self._happens(parts, broker, "lag", follower)
                    if parts[broker] != state[broker]:
                        parts[-1] = self._lucks.number_of(spent, spent)
                        yield ("lag", broker, follower), self._tidied(parts)

    def _steps_of_dead(
        self, state: State, broker: int, view: View, metadata: Metadata, luck: Luck
    ) -> Iterator[tuple[Step, State]]:
        if self._registered[metadata.newest][1].get(broker) == view.broker_epoch:
            image = self._remember(self._gone, metadata.newest, broker)
            yield from self._decided(state, ("notice", broker, 0), image)
        forgetful = self.bounds.checkpoints_lag and view.high_watermark > 0
        for name in ("restart", "restart-forgetful") if forgetful else ("restart",):
            for kept in range(view.log_end_offset + 1):
                if kept == view.log_end_offset or len(luck.without_tail | {broker}) < self._needed:
                    yield from self._rejoins(state, (name, broker, kept), metadata, luck)

    def _steps_of_controllers(
        self, state: State, metadata: Metadata, luck: Luck
    ) -> Iterator[tuple[Step, State]]:
        """A controller is deposed; a deposed one writes once more what it makes of a request or a death."""
        if luck.controller_changes < self.bounds.controller_changes:
            spent = luck._replace(controller_changes=luck.controller_changes + 1)
            deposed = metadata._replace(deposed=metadata.newest)
            numbers = self._metadata.number_of(deposed, deposed), self._lucks.number_of(spent, spent)
            yield ("depose", 0, 0), (*state[:-3], numbers[0], state[-2], numbers[1])
        if metadata.deposed < 0:
            return
        done = metadata._replace(deposed=-1)
        silent = (*state[:-3], self._metadata.number_of(done, done), *state[-2:])
        for broker in self._brokers:
            requests = self._mails.values[state[self.bounds.brokers + broker]].requests
            decided = [
                self._remember(self._gone, metadata.deposed, broker),
                *(self._remember(self._altered, metadata.deposed, number)[0] for number in requests),
            ]
            for index, image in enumerate(decided):
                after = self._remember(self._stale_append, metadata.newest, image)
                yield from self._decided(
                    silent, ("stale-append", broker, index), after, even_if_unchanged=True
                )

    def _deliveries(
        self, state: State, broker: int, view: View, metadata: Metadata, luck: Luck
    ) -> Iterator[tuple[Step, State]]:
        """What ``broker`` asked for may arrive, and what it was answered."""
        mail = self._mails.values[state[self.bounds.brokers + broker]]
        for index, number in enumerate(mail.fetches):
            leader = self._addressee(number)
            if self.views[state[leader]].is_up:
                for step, parts in self._taken(state, ("serve", broker, index), FETCHES, luck):
                    self._happens(parts, leader, "serve", number)
                    if self.bounds.fetches_are_atomic:
                        for reply in self._mails.values[parts[self.bounds.brokers + broker]].replies:
                            parts[self.bounds.brokers + broker] = self._remember(
                                self._removed, parts[self.bounds.brokers + broker], REPLIES, 0
                            )
                            if view.is_up:
                                self._happens(parts, broker, "take", reply)
                    yield step, self._tidied(parts)
        for index, number in enumerate(mail.requests):
            image, reply = self._remember(self._altered, metadata.newest, number)
            for step, parts in self._taken(state, ("alter", broker, index), REQUESTS, luck):
                self._put(parts, broker, ALTER_REPLIES, reply)
                yield from self._decided(tuple(parts), step, image, even_if_unchanged=True)
        if view.is_up:
            for index, number in enumerate(mail.replies):
                for step, parts in self._taken(state, ("take", broker, index), REPLIES, luck):
                    asked = self._happens(parts, broker, "take", number)
                    yield from self._settled(state, step, parts, asked)
            for index, number in enumerate(mail.alter_replies):
                for step, parts in self._taken(state, ("take-alter", broker, index), ALTER_REPLIES, luck):
                    self._happens(parts, broker, "take-alter", number)
                    yield step, self._tidied(parts)

    def _taken(self, state: State, step: Step, kind: int, luck: Luck) -> Iterator[tuple[Step, list[int]]]:
        """The message arrives; and, as a mishap, stays to arrive again."""
        name, broker, index = step
        at = self.bounds.brokers + broker
        parts = list(state)
        parts[at] = self._remember(self._removed, state[at], kind, index)
        yield step, parts
        if luck.mishaps < self.bounds.mishaps:
            parts = list(state)
            parts[-1] = self._remember(self._after_mishap, state[-1])
            yield (f"{name}-and-keep", broker, index), parts

    def _settled(
        self, before: State, step: Step, parts: list[int], asked: bool
    ) -> Iterator[tuple[Step, State]]:
        """If ``broker`` has asked anew, what it was waiting for is lost; or, as a mishap, merely late."""
        yield step, self._tidied(parts)
        name, broker, detail = step
        at = self.bounds.brokers + broker
        if not asked or self._lucks.values[parts[-1]].mishaps >= self.bounds.mishaps:
            return
        mail = self._remember(self._late_beside, before[at], parts[at])
        if mail != parts[at]:
            parts[at] = mail
            parts[-1] = self._remember(self._after_mishap, parts[-1])
            yield (f"{name}-and-keep-old", broker, detail), self._tidied(parts)

    # ── one process ─────────────────────────────────────────────────────────────────────────────
    def _number_of(self, process: Process) -> int:
        process.normalise()
        number = self._processes.number_of(process, fingerprint(process))
        if number == len(self.views):
            self.views.append(View.of(process))
        return number

    def _happens(self, parts: list[int], broker: int, event: str, detail: Any) -> bool:
        """An event in one process, with all that follows at once. Tells whether it has sent a fetch."""
        reaction = self._reaction_to(parts[broker], event, detail)
        before, parts[broker] = parts[broker], reaction.process
        asked = False
        for owner, kind, message in reaction.sent:
            self._put(parts, owner, kind, message)
            asked = asked or kind == FETCHES
        if reaction.process != before or reaction.acknowledged:
            parts[-2] = self._remember(self._witnessed, parts[-2], reaction.process, reaction.acknowledged)
        return asked

    def _reaction_to(self, process: int, event: str, detail: Any) -> _Reaction:
        key = (process, event, detail)
        reaction = self._reactions.get(key)
        if reaction is None:
            reaction = self._reactions[key] = self._reaction(*key)
        return reaction

    def _reaction(self, number: int, event: str, detail: Any) -> _Reaction:
        process: Process = clone(self._processes.values[number])
        match event:
            case "learn":
                process.learn(*self._registered[detail])
            case "produce":
                process.produce(detail)
            case "ask":
                process.ask()
            case "serve":
                process.serve(self._messages.values[detail])
            case "take":
                process.take(self._messages.values[detail])
            case "take-alter":
                process.take_alter_reply(self._messages.values[detail])
            case "lag":
                process.find_lagging(detail)
            case "crash":
                process.crash()
            case "restart":
                kept, forgets, image = detail
                process.restart(process.broker_epoch + 1, kept, forgets)
                process.learn(*self._registered[image])
            case _:
                raise ValueError(event)
        outputs, process.outbox = process.outbox, []
        sent = tuple(
            self._addressed(process.broker, it) for it in outputs if not isinstance(it, Acknowledged)
        )
        acknowledged = tuple(it.value for it in outputs if isinstance(it, Acknowledged))
        return _Reaction(self._number_of(process), sent, acknowledged)

    def _addressed(self, sender: int, message: Message) -> tuple[int, int, int]:
        number = self._messages.number_of(message, message)
        match message:
            case FollowerFetch():
                return sender, FETCHES, number
            case FetchReply(fetch):
                return fetch.replica, REPLIES, number
            case AlterPartition():
                return sender, REQUESTS, number
            case AlterReply(request):
                return request.leader, ALTER_REPLIES, number

    def _addressee(self, number: int) -> int:
        fetch = self._messages.values[number]
        assert isinstance(fetch, FollowerFetch)
        return fetch.leader

    # ── the controller ──────────────────────────────────────────────────────────────────────────
    def _rejoins(
        self, state: State, step: Step, metadata: Metadata, luck: Luck
    ) -> Iterator[tuple[Step, State]]:
        """A new life begins: registered, and having learned all up to its registration."""
        name, broker, kept = step
        view = self.views[state[broker]]
        lost = kept < view.log_end_offset
        claims = (False,) if lost else (True, False) if self.bounds.unclean_restarts_forfeit else (True,)
        for lost_nothing in claims:
            image = self._remember(self._joined, metadata.newest, broker, view.broker_epoch + 1, lost_nothing)
            if lost:
                spent = luck._replace(without_tail=luck.without_tail | {broker})
                state = (*state[:-1], self._lucks.number_of(spent, spent))
            shown = name if lost_nothing or lost else f"{name}-unproven"
            for decided, after in self._decided(state, (shown, broker, kept), image, tidy=False):
                parts = list(after)
                metadata_after = self._metadata.values[after[-3]]
                parts[-3] = self._remember(self._learned, after[-3], broker, len(metadata_after.images) - 1)
                self._happens(parts, broker, "restart", (kept, "forgetful" in name, image))
                yield decided, self._tidied(parts)

    def _decided(
        self, state: State, step: Step, image: int, *, even_if_unchanged: bool = False, tidy: bool = True
    ) -> Iterator[tuple[Step, State]]:
        """The controller has written ``image``, unless that leads out of this world."""
        if image == self._metadata.values[state[-3]].newest:
            if even_if_unchanged:
                yield step, self._tidied(list(state)) if tidy else state
            return
        registration, eligible = self._registered[image]
        if registration.leader_epoch >= self.bounds.leader_epochs:
            return
        parts = list(state)
        asleep = tuple(broker for broker in self._brokers if not self.views[state[broker]].is_up)
        parts[-3] = self._remember(self._written, state[-3], image, asleep)
        luck = self._lucks.values[state[-1]]
        if luck.without_tail:
            back = {
                broker
                for broker in registration.isr
                if eligible.get(broker) == self.views[state[broker]].broker_epoch
            }
            luck = luck._replace(without_tail=luck.without_tail - back)
            parts[-1] = self._lucks.number_of(luck, luck)
        yield step, self._tidied(parts) if tidy else tuple(parts)

    def _stale_append(self, image: int, decided: int) -> int:
        before, other = self._images.values[image], self._images.values[decided]
        return self._image(self.controller.on_stale_append(before, other))

    def _image(self, image: Any) -> int:
        number = self._images.number_of(image, image)
        if number == len(self._registered):
            self._registered.append((self.controller.registration(image), self.controller.eligible(image)))
        return number

    def _wanted(self, image: int, broker: int) -> int:
        return self._image(self.controller.on_leader_wanted(self._images.values[image], broker))

    def _gone(self, image: int, broker: int) -> int:
        return self._image(self.controller.on_broker_gone(self._images.values[image], broker))

    def _joined(self, image: int, broker: int, broker_epoch: int, lost_nothing: bool) -> int:
        before = self._images.values[image]
        return self._image(self.controller.on_broker_registered(before, broker, broker_epoch, lost_nothing))

    def _altered(self, image: int, number: int) -> tuple[int, int]:
        request = self._messages.values[number]
        assert isinstance(request, AlterPartition)
        after, answer = self.controller.on_alter_partition(self._images.values[image], request)
        reply = AlterReply(request, answer)
        return self._image(after), self._messages.number_of(reply, reply)

    # ── parts, from numbers to numbers; each answer is remembered ───────────────────────────────
    def _remember(self, work: Callable[..., Any], *arguments: Any) -> Any:
        answers = self._answers[work.__name__]
        known = answers.get(arguments)
        if known is None:
            known = answers[arguments] = work(*arguments)
        return known

    def _put(self, parts: list[int], owner: int, kind: int, message: int) -> None:
        at = self.bounds.brokers + owner
        parts[at] = self._remember(self._replaced, parts[at], kind, message)

    def _replaced(self, mail: int, kind: int, message: int) -> int:
        """The newest of its kind takes the place of the one before; a new fetch also that of the reply to it.

        What is late already is beside the point and stays.
        """
        kinds = list(self._mails.values[mail])
        kinds[kind] = (*self._late_ones(kinds[kind]), message)
        if kind == FETCHES:
            kinds[REPLIES] = self._late_ones(kinds[REPLIES])
        return self._mail(*kinds)

    def _late_ones(self, messages: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(number for number in messages if _is_late(self._messages.values[number]))

    def _removed(self, mail: int, kind: int, index: int) -> int:
        kinds = list(self._mails.values[mail])
        kinds[kind] = kinds[kind][:index] + kinds[kind][index + 1 :]
        return self._mail(*kinds)

    def _late_beside(self, old: int, new: int) -> int:
        """The mail ``new``, with the fetches and replies of ``old`` on their way still, but late."""
        before, after = self._mails.values[old], self._mails.values[new]
        fetches = tuple(self._late(number) for number in before.fetches)
        replies = tuple(self._late(number) for number in before.replies)
        return self._mail(
            (*fetches, *after.fetches[-1:]),
            (*replies, *(number for number in after.replies if number not in before.replies)),
            after.requests,
            after.alter_replies,
        )

    def _late(self, number: int) -> int:
        match self._messages.values[number]:
            case FollowerFetch() as fetch:
                message: Message = replace(fetch, number=LATE)
            case FetchReply(fetch) as reply:
                message = replace(reply, fetch=replace(fetch, number=LATE))
            case other:
                message = other
        return self._messages.number_of(message, message)

    def _mail(self, *kinds: tuple[int, ...]) -> int:
        mail = Mail(*kinds)
        return self._mails.number_of(mail, mail)

    def _learned(self, metadata: int, broker: int, index: int) -> int:
        after = self._metadata.values[metadata].with_learned(broker, index)
        return self._metadata.number_of(after, after)

    def _written(self, metadata: int, image: int, asleep: tuple[int, ...]) -> int:
        """One more image. Who is down learns nothing and need not be waited for."""
        before = self._metadata.values[metadata]
        after = before._replace(images=(*before.images, image))
        for broker in asleep:
            after = after.with_learned(broker, len(after.images) - 1)
        return self._metadata.number_of(after, after)

    def _witnessed(self, history: int, process: int, acknowledged: tuple[int, ...]) -> int:
        view, before = self.views[process], self._histories.values[history]
        exposed = before.exposed
        if view.serves and view.high_watermark > len(exposed):
            exposed = exposed + view.values[len(exposed) : view.high_watermark]
        after = History(exposed, before.acknowledged.union(acknowledged))
        return self._histories.number_of(after, after)

    def _after_mishap(self, luck: int) -> int:
        before = self._lucks.values[luck]
        after = before._replace(mishaps=before.mishaps + 1)
        return self._lucks.number_of(after, after)

    # ── late mail ───────────────────────────────────────────────────────────────────────────────
    def _tidied(self, parts: list[int]) -> State:
        """The state; without the messages that are too late, if this world drops them."""
        if not self.bounds.keeps_late_mail:
            processes = tuple(parts[: self.bounds.brokers])
            for broker in self._brokers:
                at = self.bounds.brokers + broker
                parts[at] = self._remember(self._timely, parts[at], broker, processes)
        return tuple(parts)

    def _timely(self, mail: int, broker: int, processes: tuple[int, ...]) -> int:
        fetches, replies, requests, alter_replies = self._mails.values[mail]
        me = processes[broker]
        return self._mail(
            tuple(it for it in fetches if not self._is_refused(it, processes)),
            tuple(it for it in replies if not self._is_ignored(me, "take", it)),
            requests,
            tuple(it for it in alter_replies if not self._is_ignored(me, "take-alter", it)),
        )

    def _is_ignored(self, process: int, event: str, message: int) -> bool:
        """Late by its number or epoch, and the real code does nothing on its arrival."""
        if not self._processes.values[process].is_past(self._messages.values[message]):
            return False
        return self._reaction_to(process, event, message) == _Reaction(process, (), ())

    def _is_refused(self, message: int, processes: tuple[int, ...]) -> bool:
        """Of an older epoch than its addressee leads in, and the real code refuses it unmoved."""
        leader = processes[self._addressee(message)]
        if not self._processes.values[leader].is_past(self._messages.values[message]):
            return False
        reaction = self._reaction_to(leader, "serve", message)
        return reaction.process == leader and not reaction.sent


def _is_late(message: Message) -> bool:
    match message:
        case FollowerFetch(number=number) | FetchReply(FollowerFetch(number=number)):
            return number == LATE
        case _:
            return False
