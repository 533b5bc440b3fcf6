"""The *stage*: executes the steps of a replication scenario and records every value as text.

The brokers are the processes of the model check, with the real replication code; the controller is a small
one. A message is delivered when the scenario says so. Each step records its result in one line, and then one
line for each replica:

    A  leader e0      [m1][m2] m3   LEO 3  HW 2  ISR A B  (B has 2)
    B  follower e0    [m1] m2       LEO 2  HW 1

Records in brackets are below that replica's high watermark. In long logs the records of one epoch are shown
as a range, ``e0 0–9``.
"""

from __future__ import annotations

from collections.abc import Sequence

from nilometer.replication.follower import FollowerRole, TruncationRule
from nilometer.replication.isr import AlterPartition
from nilometer.replication.leader import LeaderRole
from nilometer.replication.replica import NoRole
from nilometer.replication.shell_interface import FollowerFetch
from nilometer.simulation.model_check.processes import (
    Acknowledged,
    AlterReply,
    FetchReply,
    ModelLog,
    Process,
    SmallController,
    SmallImage,
)
from nilometer.simulation.recording import Event, Kind, Status
from nilometer.simulation.replay import Difference, ReplicaState, difference, first_state, state_of
from nilometer.wire.errors import ErrorCode

# The events of a scenario, for a recording: messages, what changes in each replica, and the text of steps.
#
# The brokers' numbers in a recording begin at 1. Each event takes one millisecond.

PARTITION = "topic-0"
EVENT_US = 1_000


class StepRecorder:
    """Invariant: after :meth:`look` the events describe the current states of all replicas."""

    def __init__(self, names: str) -> None:
        self._names = names
        self.events: list[Event] = []
        self._states: dict[int, ReplicaState] = {}
        self._is_up = dict.fromkeys(range(len(names)), True)
        self._messages = 0

    def note(self, text: str, kind: Kind = Kind.NOTE) -> None:
        self._add(kind, text)

    def message(self, source: Process, target: Process, text: str, arrives: bool) -> None:
        """Record a message from ``source`` to ``target``, and whether it arrives."""
        self._messages += 1
        for kind in (Kind.SENT, Kind.DELIVERED if arrives else Kind.DROPPED):
            self._add(kind, text, source.broker, to=target.broker, message=self._messages)

    def look(self, processes: Sequence[Process]) -> None:
        """Record what has changed since the last call."""
        for process in processes:
            if process.is_up != self._is_up[process.broker]:
                self._is_up[process.broker] = process.is_up
                status = Status.RUNNING if process.is_up else Status.DOWN
                self._add(Kind.BROKER, f"is {status}", process.broker, status=status)
        for process in processes:
            if process.is_up:
                self._look_at(process)

    def _look_at(self, process: Process) -> None:
        log, before = process.log, self._states.get(process.broker)
        offsets = (log.log_start_offset, log.log_end_offset)
        now = state_of(process.replica.role, offsets, tuple(log.chain), _number)
        found = (
            first_state(PARTITION, now) if before is None else difference(PARTITION, before, now, self._name)
        )
        if found is not None:
            self._states[process.broker] = now
            self._add(found.kind, found.text, process.broker, found=found)

    def _name(self, number: int) -> str:
        return self._names[number - 1]

    def _add(
        self,
        kind: Kind,
        text: str,
        broker: int | None = None,
        *,
        to: int | None = None,
        message: int | None = None,
        found: Difference | None = None,
        status: Status | None = None,
    ) -> None:
        self.events.append(
            Event(
                at_us=len(self.events) * EVENT_US,
                kind=kind,
                text=text,
                broker=None if broker is None else _number(broker),
                to=None if to is None else _number(to),
                message=message,
                partitions=() if message is None and found is None else (PARTITION,),
                change=None if found is None else found.change,
                status=status,
            )
        )


def _number(broker: int) -> int:
    return broker + 1


WIDEST_LOG_DRAWN = 8


class Stage:
    """A scenario's cluster and its output, ``lines`` and ``recorder``. Invariant: every running broker that
    is not in ``_not_reading_metadata`` has the controller's newest image."""

    def __init__(
        self,
        names: str,
        *,
        min_insync_replicas: int = 1,
        rule: TruncationRule = TruncationRule.BY_LEADER_EPOCH,
    ) -> None:
        """``names`` has a letter for each replica, in the order of the assignment; the first one leads."""
        self.names = names
        self.lines: list[str] = []
        self._controller = SmallController(len(names), min_insync_replicas)
        self._image = self._controller.first_image()
        self._processes = [Process(broker, min_insync_replicas, rule) for broker in range(len(names))]
        self._not_reading_metadata: set[int] = set()
        self._values = 0
        self._acknowledged: set[int] = set()
        self.recorder = StepRecorder(names)
        for process in self._processes:
            self._learn(process)
        self.recorder.look(self._processes)

    # ── output ──────────────────────────────────────────────────────────────────────────────────
    def narrate(self, text: str) -> None:
        """Add ``text`` to the scenario's output as a comment line."""
        self.lines += [*([""] if self.lines else []), f"# {text}"]
        self.recorder.note(text)

    def show(self) -> None:
        self.lines += [f"    {line}" for line in self._drawing()]
        self.recorder.look(self._processes)

    def _record(self, text: str) -> None:
        self.lines += ["", text]
        self.recorder.note(text)
        self.recorder.look(self._processes)

    def judge(self) -> None:
        """Record a finding for each acknowledged record that the current leader does not have."""
        leader = next((it for it in self._processes if isinstance(it.replica.role, LeaderRole)), None)
        if leader is not None:
            kept = {value for _, value in leader.log.records}
            for value in sorted(self._acknowledged - kept):
                text = f"m{value} was acknowledged, and the leader {self._name(leader)} does not have it."
                self.recorder.note(text, Kind.FINDING)

    # ── producers ───────────────────────────────────────────────────────────────────────────────
    def produce(self, name: str, count: int = 1, *, acks_all: bool = True) -> None:
        process = self._named(name)
        values = list(range(self._values + 1, self._values + count + 1))
        what = f"m{values[0]}" if count == 1 else f"m{values[0]} to m{values[-1]}"
        acks = "all" if acks_all else "1"
        for value in values:
            refusal = process.produce(value, acks_all=acks_all)
            if refusal is not ErrorCode.none:
                self._record(
                    f"A producer sends {what} to {name} with acks={acks}: rejected, {_code(refusal)}."
                )
                self.show()
                return
        self._values = values[-1]
        self._record(f"A producer sends {what} to {name} with acks={acks}.{self._outputs_of(process)}")
        self.show()

    # ── followers ───────────────────────────────────────────────────────────────────────────────
    def fetch(
        self, name: str, *, max_records: int = 1, may_wait: bool = True, answer_is_lost: bool = False
    ) -> None:
        """Execute one fetch of ``name`` from its leader, with the response unless ``answer_is_lost``.

        ``may_wait``: whether the leader may hold the fetch if there are no records.
        """
        follower = self._named(name)
        request = self._request_of(follower)
        leader = self._processes[request.leader]
        epoch = f", last epoch {request.last_fetched_epoch}" if request.last_fetched_epoch >= 0 else ""
        text = f"{name} fetches from {self._name(leader)} at {request.fetch_offset}{epoch}"
        self.recorder.message(follower, leader, f"Fetch from {request.fetch_offset}{epoch}", leader.is_up)
        if not leader.is_up:
            self.lines += ["", f"{text}: no response."]
        else:
            refusal = leader.serve(request, max_records=max_records, may_wait=may_wait)
            self.recorder.look(self._processes)
            self.lines += ["", f"{text}: {self._answer(leader, follower, refusal, answer_is_lost)}"]
        self.show()

    def _request_of(self, follower: Process) -> FollowerFetch:
        role = follower.replica.role
        assert isinstance(role, FollowerRole), f"{self._name(follower)} does not follow"
        if role.outstanding is None:
            follower.ask()
            follower.outbox.clear()
        assert role.outstanding is not None, f"{self._name(follower)} has no leader to ask"
        return role.outstanding

    def _answer(self, leader: Process, follower: Process, refusal: ErrorCode, is_lost: bool) -> str:
        reply = next((it for it in leader.outbox if isinstance(it, FetchReply)), None)
        outputs = self._outputs_of(leader)
        said = f"rejected, {_code(refusal)}" if reply is None else _describe_reply(reply)
        self.recorder.message(leader, follower, said, not is_lost)
        if outputs:
            self.recorder.note(outputs.strip())
        if reply is None:
            return f"{said}.{outputs}"
        if is_lost:
            return f"{said}, but the response is lost.{outputs}"
        before = follower.log.log_end_offset
        follower.take(reply)
        follower.outbox.clear()
        after = follower.log.log_end_offset
        done = f" {self._name(follower)} truncates to {after}." if after < before else ""
        return f"{said}.{done}{outputs}"

    # ── the controller ──────────────────────────────────────────────────────────────────────────
    def lag(self, leader: str, follower: str) -> None:
        """Let ``replica.lag.time.max.ms`` pass without ``follower`` catching up."""
        process = self._named(leader)
        process.find_lagging(self.names.index(follower))
        text = f"{follower} has not caught up with {leader} for replica.lag.time.max.ms."
        self._record(f"{text}{self._outputs_of(process)}")
        self.show()

    def elect(self, name: str) -> None:
        """Have the controller elect ``name``, a member of the ISR, as leader."""
        image = self._controller.on_leader_wanted(self._image, self.names.index(name))
        self._decided(image, f"The controller moves the leadership to {name}")

    def expire(self, name: str) -> None:
        """Have the session of a broker, dead or alive, expire."""
        image = self._controller.on_broker_gone(self._image, self.names.index(name))
        self._decided(image, f"The session of {name} expires")

    def stops_reading_metadata(self, name: str) -> None:
        """Stop ``name`` from reading the metadata log."""
        self._not_reading_metadata.add(self.names.index(name))

    def learns(self, name: str) -> None:
        """Have ``name`` read the metadata log to its end."""
        process = self._named(name)
        self._not_reading_metadata.discard(process.broker)
        self._learn(process)
        self._record(f"{name} reads the metadata log.{self._outputs_of(process)}")
        self.show()

    # ── crash and restart ────────────────────────────────────────────────────────────────────────
    def crash(self, name: str, *, notice: bool = True) -> None:
        process = self._named(name)
        process.crash()
        if notice:
            self._record(f"{name} crashes.")
            self.expire(name)
        else:
            self._record(f"{name} crashes, and its session has not expired yet.")
            self.show()

    def restart(self, name: str) -> None:
        """Start a new incarnation of the broker, with its log unchanged."""
        process = self._named(name)
        before = process.log.log_end_offset
        process.restart(process.broker_epoch + 1, before, forgets_high_watermark=False)
        self._not_reading_metadata.discard(process.broker)
        self._image = self._controller.on_broker_registered(
            self._image, process.broker, process.broker_epoch, lost_nothing=True
        )
        self._all_brokers_learn()
        after = process.log.log_end_offset
        done = f" It truncates to its high watermark, {after}." if after < before else ""
        self._record(f"{name} restarts with its log unchanged.{done}{self._leadership()}")
        self.show()

    # ── for checks of a scenario ───────────────────────────────────────────────────────────────
    def log_of(self, name: str) -> ModelLog:
        return self._named(name).log

    # ── private helpers ─────────────────────────────────────────────────────────────────────────
    def _named(self, name: str) -> Process:
        return self._processes[self.names.index(name)]

    def _name(self, process: Process) -> str:
        return self.names[process.broker]

    def _names_of(self, brokers: tuple[int, ...]) -> str:
        return " ".join(self.names[broker] for broker in brokers)

    def _learn(self, process: Process) -> None:
        if process.is_up and process.broker not in self._not_reading_metadata:
            process.learn(self._controller.registration(self._image), self._controller.eligible(self._image))
            process.outbox = [it for it in process.outbox if not isinstance(it, FollowerFetch)]

    def _all_brokers_learn(self) -> None:
        for process in self._processes:
            self._learn(process)

    def _decided(self, image: SmallImage, text: str) -> None:
        changed = image != self._image
        self._image = image
        self._all_brokers_learn()
        self._record(f"{text}.{self._leadership() if changed else ''}")
        self.show()

    def _leadership(self) -> str:
        image = self._image
        leader = self.names[image.leader] if image.leader >= 0 else "none"
        elr = f", also eligible: {self._names_of(image.elr)}" if image.elr else ""
        return f" Leader: {leader} in epoch {image.leader_epoch}; ISR {self._names_of(image.isr)}{elr}."

    def _outputs_of(self, process: Process) -> str:
        """Return a text about the acknowledgements and ISR requests of ``process`` and the controller's
        responses."""
        said: list[str] = []
        outputs, process.outbox = process.outbox, []
        safe = [f"m{it.value}" for it in outputs if isinstance(it, Acknowledged)]
        self._acknowledged |= {it.value for it in outputs if isinstance(it, Acknowledged)}
        if safe:
            said.append(f"{', '.join(safe)} acknowledged.")
        said += [self._alter(process, it) for it in outputs if isinstance(it, AlterPartition)]
        return "".join(f" {text}" for text in said)

    def _alter(self, process: Process, request: AlterPartition) -> str:
        wanted = self._names_of(tuple(broker for broker, _ in request.new_isr))
        image, answer = self._controller.on_alter_partition(self._image, request)
        self._image = image
        process.take_alter_reply(AlterReply(request, answer))
        self._all_brokers_learn()
        verdict = "granted" if answer.error is ErrorCode.none else f"rejected, {_code(answer.error)}"
        return f"{self._name(process)} requests the ISR {wanted}: {verdict}.{self._outputs_of(process)}"

    # ── drawing ─────────────────────────────────────────────────────────────────────────────────
    def _drawing(self) -> list[str]:
        logs = [_drawn(process) for process in self._processes]
        width = max(len(log) for log in logs)
        lines: list[str] = []
        for process, log in zip(self._processes, logs, strict=True):
            line = f"{self._name(process)}  {self._part(process):13}  {log:{width}}  {self._numbers(process)}"
            lines.append(line.rstrip())
        return lines

    def _part(self, process: Process) -> str:
        match process.replica.role:
            case LeaderRole() as role:
                return f"leader e{role.leader_epoch}"
            case FollowerRole() as role:
                return f"follower e{role.leader_epoch}"
            case NoRole():
                return "no role" if process.is_up else "down"

    def _numbers(self, process: Process) -> str:
        text = f"LEO {process.log.log_end_offset}  HW {process.replica.high_watermark}"
        role = process.replica.role
        if isinstance(role, LeaderRole):
            known = ", ".join(
                f"{self.names[remote.broker_id]} has {_or_unknown(remote.log_end_offset)}"
                for remote in role.remote_replicas
            )
            text += f"  ISR {self._names_of(role.isr)}  ({known})"
        return text


def _drawn(process: Process) -> str:
    records, high_watermark = process.log.records, process.replica.high_watermark
    if len(records) <= WIDEST_LOG_DRAWN:
        cells = (
            f"[m{value}]" if offset < high_watermark else f" m{value} "
            for offset, (_, value) in enumerate(records)
        )
        return "".join(cells)
    runs: list[str] = []
    for epoch in sorted({epoch for epoch, _ in records}):
        offsets = [offset for offset, (of, _) in enumerate(records) if of == epoch]
        runs.append(f"e{epoch} {offsets[0]}–{offsets[-1]}")
    return ", ".join(runs)


def _describe_reply(reply: FetchReply) -> str:
    answer = reply.answer
    if answer.error is not ErrorCode.none:
        return f"rejected, {_code(answer.error)}"
    if answer.diverging.epoch >= 0:
        return f"the logs diverge, epoch {answer.diverging.epoch} ends at {answer.diverging.end_offset}"
    values = [value for _, value in reply.records]
    if not values:
        return f"no records, HW {answer.high_watermark}"
    what = f"m{values[0]}" if len(values) == 1 else f"m{values[0]} to m{values[-1]}"
    return f"{what}, HW {answer.high_watermark}"


def _code(error: ErrorCode) -> str:
    return error.name.upper()


def _or_unknown(offset: int) -> str:
    return "?" if offset < 0 else str(offset)
