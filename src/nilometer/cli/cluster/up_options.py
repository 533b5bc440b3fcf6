"""What the options of ``nilometer up`` mean for a folder that has brokers already. Pure.

An option that would have no effect on them is refused, and the message says what to do instead: a person who
asks for three brokers or for another port must not get something else in silence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nilometer.broker.settings.listeners import Endpoint
from nilometer.broker.settings.metrics_listener import LOOPBACK, METRICS_LISTENER, HttpEndpoint
from nilometer.local.broker_process import BrokerProcess
from nilometer.local.replication import REPLICATION_FACTOR_MAX, replication_settings

PORT_MAX = 65_535
RACK = "broker.rack"


@dataclass(frozen=True, slots=True)
class UpOptions:
    """What was given on the command line; None: not given, so existing brokers keep what they have."""

    brokers: int | None = None
    host: str | None = None
    port: int | None = None
    coordination: str | None = None
    metrics_port: int | None = None
    """The port of the first broker's metrics; the next have the next ports. 0: the system chooses all."""
    secure: bool = False
    first_id: int | None = None
    """The lowest id of this machine's brokers, where a cluster has brokers on several."""
    rack: str | None = None
    """The machine's name as ``broker.rack``: no two replicas of a partition are on the machine then."""

    @property
    def moves_endpoints(self) -> bool:
        return self.host is not None or self.port is not None


def ids(existing: Sequence[BrokerProcess], given: UpOptions) -> range:
    """Return the ids of the folder's brokers after the start: those that exist, and those to be added."""
    first = existing[0].id if existing else given.first_id or 1
    return range(first, first + max(given.brokers or 1, len(existing)))


def settings_of_topics(given: UpOptions, last_id: int) -> dict[str, str]:
    """Return the settings of topics for new brokers.

    With a rack the cluster has brokers on other machines, how many is not known here: three replicas then.
    """
    return replication_settings(REPLICATION_FACTOR_MAX if given.rack is not None else last_id)


def metrics_listener(place: int, first_port: int) -> str:
    """Return the ``metrics.listener`` of the broker at this ``place`` from 0 (port 0: the system chooses)."""
    return f"{LOOPBACK}:{first_port + place if first_port else 0}"


def endpoint(
    broker_id: int,
    existing: Sequence[BrokerProcess],
    given: UpOptions,
    default_host: str,
    default_port: int,
    listener: str = "PLAINTEXT",
) -> Endpoint:
    """Return where a broker listens: as given, as configured, or next to the last of the ``existing``.

    ``listener`` is the listener's name.
    """
    known = {one.id: one for one in existing}
    near = known.get(broker_id) or (existing[-1] if existing else None)
    first_id = ids(existing, given)[0]
    first_port = default_port if near is None else near.port - (near.id - first_id)
    host = given.host or (default_host if near is None else near.host)
    return Endpoint(listener, host, (given.port or first_port) + broker_id - first_id)


def settings_of_start(
    broker_id: int,
    existing: Sequence[BrokerProcess],
    given: UpOptions,
    default_host: str,
    default_port: int,
    listener: str = "PLAINTEXT",
) -> dict[str, str]:
    """Return a broker's own settings for this start: those that replace what its folder has."""
    settings: dict[str, str] = {}
    if given.moves_endpoints:
        at = endpoint(broker_id, existing, given, default_host, default_port, listener)
        settings["listeners"] = str(at)
    if given.metrics_port is not None:
        settings[METRICS_LISTENER] = metrics_listener(broker_id - ids(existing, given)[0], given.metrics_port)
    if given.rack is not None:
        settings[RACK] = given.rack
    return settings


def why_refused(
    existing: Sequence[BrokerProcess],
    configured_coordination: str | None,
    given: UpOptions,
    folder: str,
    *,
    is_secure: bool = False,
) -> str | None:
    """Return why the options do not fit the brokers of ``folder``; None if they do.

    ``configured_coordination`` is the setting of the existing brokers, ``is_secure`` whether they were
    created with --secure.
    """
    if given.secure and existing and not is_secure:
        return (
            f"--secure: the brokers in {folder} were created without it. --data-dir names another cluster; "
            "docs/security.md says how a running cluster changes to TLS and SASL."
        )
    if given.brokers is not None and given.brokers < len(existing):
        return (
            f"--brokers {given.brokers}: the cluster in {folder} has {len(existing)} brokers, and `up` "
            "removes none. Without --brokers all of them start; --data-dir names another cluster."
        )
    for one in existing:
        wanted = endpoint(one.id, existing, given, one.host, one.port)
        if one.state != "down" and (wanted.host, wanted.port) != (one.host, one.port):
            option = "--host" if given.port is None else "--port"
            return (
                f"{option}: broker {one.id} of {folder} runs on {one.host}:{one.port} and cannot move to "
                f"{wanted.host}:{wanted.port}. Stop it first: nilometer down --data-dir {folder}"
            )
    if existing and given.coordination not in (None, configured_coordination):
        return (
            f"--coordination {given.coordination}: the brokers in {folder} have {configured_coordination}, "
            "which holds their metadata. --data-dir names another cluster."
        )
    if existing and given.first_id not in (None, existing[0].id):
        return (
            f"--first-id {given.first_id}: the brokers in {folder} have ids from {existing[0].id}, which are "
            "in the cluster's metadata. --data-dir names another folder."
        )
    last = endpoint(ids(existing, given)[-1], existing, given, "", 1)
    if last.port > PORT_MAX:
        return f"--port: the last broker would listen on port {last.port}, and {PORT_MAX} is the highest"
    return _why_no_metrics_ports(existing, given, folder)


def _why_no_metrics_ports(existing: Sequence[BrokerProcess], given: UpOptions, folder: str) -> str | None:
    first = given.metrics_port
    if not first:
        return None
    numbers = ids(existing, given)
    last = first + len(numbers) - 1
    if last > PORT_MAX:
        return f"--metrics-port: the last broker's would be {last}, and {PORT_MAX} is the highest"
    for one in existing:
        wanted = f"{HttpEndpoint(LOOPBACK, first + one.id - numbers[0])}/metrics"
        if one.state != "down" and one.metrics != wanted:
            return (
                f"--metrics-port: broker {one.id} of {folder} runs and cannot move its metrics to {wanted}. "
                f"Stop it first: nilometer down --data-dir {folder}"
            )
    return None
