"""Why the controller decides something: the causes that more than one caller states."""

from __future__ import annotations

from collections.abc import Sequence

from nilometer.broker.control.decision_log import Cause
from nilometer.broker.request_context import RequestContext
from nilometer.wire.api_keys import AnyApiKey

PREFERRED_LEADERS = Cause("the preferred replica is in sync again (auto.leader.rebalance.enable)")
INTERNAL_TOPIC_GROWTH = Cause("the internal topic has fewer replicas than its replication factor")
CLUSTER_DEFAULTS = Cause("the new controller's server.properties has it")
EXPIRED_TOKENS = Cause("they have expired")
REPAIR = Cause("an earlier controller did not complete its decision")


def client_request(key: AnyApiKey, client_id: str | None, context: RequestContext) -> Cause:
    return Cause(f"{client_name(client_id, context)} requested it ({_api_name(key)})")


def auto_creation(client: str) -> Cause:
    return Cause(f"{client} requested its metadata (auto.create.topics.enable)")


def client_name(client_id: str | None, context: RequestContext) -> str:
    """Return a client as log lines name it: client id, address, and principal if it has authenticated."""
    if context.is_broker:
        return f"broker {context.broker_id}"
    address = f"{context.client_address}:{context.client_port}"
    return f"client {client_id or ''!r} at {address} as {context.principal}"


def isr_request(leader: int) -> Cause:
    return Cause(f"broker {leader}, the leader, requested it", is_isr_request=True)


def forfeited_replicas(broker_id: int, *, offline: bool) -> Cause:
    what = "cannot use its replica any more" if offline else "found damage in its replica"
    return Cause(f"broker {broker_id} {what}; its log has the reason")


def shutdown(broker_id: int) -> Cause:
    return Cause(f"broker {broker_id} is stopped in an orderly way")


def producer_ids(broker_id: int) -> Cause:
    return Cause(f"broker {broker_id} needs producer ids")


def internal_topic(broker_id: int) -> Cause:
    return Cause(f"broker {broker_id} needs the internal topic")


def sessions_ended(broker_ids: Sequence[int]) -> Cause:
    if len(broker_ids) == 1:
        return Cause(f"the session of broker {broker_ids[0]} ended")
    return Cause(f"the sessions of brokers {','.join(map(str, broker_ids))} ended")


def registration(broker_id: int, *, first: bool, lossless: bool) -> Cause:
    """``lossless``: whether its previous incarnation certainly lost no records."""
    if first:
        return Cause(f"broker {broker_id} joined the cluster for the first time")
    how = "lost no records" if lossless else "may have lost records"
    return Cause(f"broker {broker_id} began a session, and its previous incarnation {how}")


def _api_name(key: AnyApiKey) -> str:
    return "".join(word.capitalize() for word in key.name.split("_"))
