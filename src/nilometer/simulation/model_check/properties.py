"""What must hold in every state of the model of replication (:mod:`world`)?

The properties are named sentences. They are checked on the logs of the processes, on the controller's image
and on the values that clients have seen, not on the internal state of the roles. So they are independent of
the checks inside the roles.
"""

from __future__ import annotations

from nilometer.simulation.model_check.explorer import Violation
from nilometer.simulation.model_check.tables import History, State, View
from nilometer.simulation.model_check.world import World

HW_WITHIN_LOG = "high watermark <= log end offset"
LEADER_IN_ISR = "a leader is in the ISR"
ONE_LEADER = "one leader per epoch"
STRONG_ISR = "records below a leader's high watermark are on every member of the committed ISR"
NEVER_WITHDRAWN = "a record that a reader received is never withdrawn"
NEVER_LOST = "an acknowledged record (acks=all) is never lost"
SAME_RECORD = "an epoch has at most one record at an offset"


def violation(world: World, state: State) -> Violation | None:
    """Return the first property that does not hold in ``state``, or None."""
    views = world.views_of(state)
    return (
        _of_the_processes(views)
        or _of_the_cluster(world, state, views)
        or _of_the_outside(world, state, views, world.history_of(state))
    )


def loss(world: World, state: State) -> Violation | None:
    """Check NEVER_LOST only, for searches in which other properties are violated earlier."""
    return _of_the_acknowledged(world, state, world.views_of(state))


def _of_the_processes(views: list[View]) -> Violation | None:
    leaders: dict[int, int] = {}
    for view in views:
        if view.high_watermark > view.log_end_offset:
            return Violation(
                HW_WITHIN_LOG, f"broker {view.broker}: {view.high_watermark} > {view.log_end_offset}"
            )
        if view.is_leader:
            other = leaders.setdefault(view.leader_epoch, view.broker)
            if other != view.broker:
                return Violation(
                    ONE_LEADER, f"brokers {other} and {view.broker} in epoch {view.leader_epoch}"
                )
    return _differing_record(views)


def _differing_record(views: list[View]) -> Violation | None:
    for index, one in enumerate(views):
        for two in views[index + 1 :]:
            records = zip(one.epochs, two.epochs, one.values, two.values, strict=False)
            for offset, (epoch, other_epoch, value, other_value) in enumerate(records):
                if epoch == other_epoch and value != other_value:
                    where = f"epoch {epoch}, offset {offset}"
                    return Violation(SAME_RECORD, f"{where}: brokers {one.broker} and {two.broker}")
    return None


def _of_the_cluster(world: World, state: State, views: list[View]) -> Violation | None:
    registration, eligible = world.registration_of(state), world.eligible_in(state)
    if registration.leader >= 0 and registration.leader not in registration.isr:
        return Violation(LEADER_IN_ISR, f"leader {registration.leader}, ISR {registration.isr}")
    for leader in views:
        if not leader.is_leader:
            continue
        committed = leader.values[: leader.high_watermark]
        for member in registration.isr:
            view = views[member]
            if view.is_up and eligible.get(member) == view.broker_epoch:
                has = view.values[: leader.high_watermark]
                if has != committed:
                    detail = f"leader {leader.broker} committed {committed}, member {member} has {has}"
                    return Violation(STRONG_ISR, detail)
    return None


def _of_the_outside(world: World, state: State, views: list[View], history: History) -> Violation | None:
    exposed = history.exposed
    for view in views:
        if view.serves and view.values[: view.high_watermark] != exposed[: view.high_watermark]:
            shown = view.values[: view.high_watermark]
            return Violation(
                NEVER_WITHDRAWN, f"readers got {exposed}, broker {view.broker} now shows {shown}"
            )
    for leader in _leaders_of_newest_epoch(world, state, views):
        if leader.values[: len(exposed)] != exposed:
            return Violation(
                NEVER_WITHDRAWN, f"readers got {exposed}, leader {leader.broker} has {leader.values}"
            )
    return _of_the_acknowledged(world, state, views)


def _of_the_acknowledged(world: World, state: State, views: list[View]) -> Violation | None:
    acknowledged = world.history_of(state).acknowledged
    for leader in _leaders_of_newest_epoch(world, state, views):
        if missing := sorted(acknowledged.difference(leader.values)):
            return Violation(NEVER_LOST, f"values {missing} are not in the log of leader {leader.broker}")
    return None


def _leaders_of_newest_epoch(world: World, state: State, views: list[View]) -> list[View]:
    """Return the leaders of the newest epoch: their log decides which records are committed."""
    leader_epoch = world.registration_of(state).leader_epoch
    return [view for view in views if view.is_leader and view.leader_epoch == leader_epoch]
