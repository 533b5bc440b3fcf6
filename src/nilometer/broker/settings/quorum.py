"""The settings of a metadata quorum (KRaft): who votes, where its nodes listen, and by what they are let in.

A broker takes part in a quorum if ``process.roles`` is given together with ``controller.quorum.voters`` or
``controller.quorum.bootstrap.servers``, and no other coordination store is named.
"""

from __future__ import annotations

import enum
import posixpath
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import msgspec

from nilometer.broker.settings.broker_authentication import SUPER_USERS
from nilometer.broker.settings.listener_security import ENABLED, PREFIX, SaslSettings, TlsSettings
from nilometer.broker.settings.listeners import LISTENERS, LOOPBACK, PROTOCOL_MAP, Endpoint
from nilometer.client.settings import NO_SECURITY, ClientSecurity, parse_server
from nilometer.config import ConfigError, Settings, key_table
from nilometer.raft.exchange import Timing
from nilometer.runtime.network import is_loopback
from nilometer.security.oauthbearer import OAUTHBEARER
from nilometer.security.principal import USER, Principal
from nilometer.security.sasl import PLAIN

QUORUM = "quorum"
"""The value of ``nilometer.coordination`` for a metadata quorum."""
ROLES = "process.roles"
CONTROLLER = "controller"
VOTERS = "controller.quorum.voters"
BOOTSTRAP = "controller.quorum.bootstrap.servers"
CONTROLLER_LISTENERS = "controller.listener.names"
CONTROLLER_MECHANISM = "sasl.mechanism.controller.protocol"
MECHANISMS = (PLAIN, OAUTHBEARER)
"""Those of listeners of controllers: the users of SCRAM are in the metadata, which the nodes have to agree on
first."""
SECRET_FILE = "nilometer.quorum.secret.file"
PREVIOUS_SECRET_FILE = "nilometer.quorum.secret.previous.file"
METADATA_LOG_DIR = "metadata.log.dir"
SESSION_TIMEOUT = "broker.session.timeout.ms"
HEARTBEAT = "broker.heartbeat.interval.ms"
REGISTRATION_TIMEOUT = "initial.broker.registration.timeout.ms"
AUTO_JOIN = "controller.quorum.auto.join.enable"
WILDCARDS = ("", "0.0.0.0", "::")

QUORUM_KEYS = key_table(
    f"""
{VOTERS}: list =
    The voters of the metadata quorum, as id@host:port,…. They form it when all of them are reached and have
    an empty metadata log; from then on the log says who votes.
{BOOTSTRAP}: list =
    Where nodes of a metadata quorum that has been formed are found, as host:port,….
{AUTO_JOIN}: boolean = false
    A node with process.roles=controller that is no voter of the metadata quorum becomes one by itself, once
    it has fetched the log. A voter of the same node.id with another directory.id is removed before.
{CONTROLLER_MECHANISM}: string = GSSAPI
    The SASL mechanism by which this node logs in to others of the metadata quorum: {" or ".join(MECHANISMS)}.
controller.quorum.election.timeout.ms: int 50.. = 1000
    How long a candidate waits for votes before the next election.
controller.quorum.fetch.timeout.ms: int 100.. = 2000
    How long a voter goes on without a response of the leader before it asks for an election.
{SESSION_TIMEOUT}: int 100.. = 9000
    With a metadata quorum: a broker whose session has no heartbeat for this long is fenced.
{HEARTBEAT}: int 10.. = 2000
    With a metadata quorum: how often a broker renews its session.
{REGISTRATION_TIMEOUT}: int 1.. = 60000
    With a metadata quorum: how long a broker that starts waits for it before it ends.
{METADATA_LOG_DIR}: string
    The directory of the metadata quorum's log; by default the first one of log.dirs.
metadata.log.max.record.bytes.between.snapshots: long 1.. = {20 * 1024 * 1024}
    How many bytes the metadata log grows before a snapshot takes their place.
{SECRET_FILE}: string
    A file with the key by which nodes of the metadata quorum know each other: the same bytes on all, at
    least 32, readable by its owner only. Nodes on other machines need it, certificates, or SASL.
    The cluster's secret is encrypted with it in the metadata log.
{PREVIOUS_SECRET_FILE}: string
    A file with the key before the present one, which counts as well while the key is changed on all nodes.
"""
)


class Admittance(enum.Enum):
    """By what a connection is one of a node of the quorum."""

    KEY = "key"
    """Both sides prove that they have the key of ``nilometer.quorum.secret.file``."""
    CERTIFICATE = "certificate"
    """The subject of its certificate is one of ``super.users``."""
    LOGIN = "login"
    """It has logged in by SASL as one of ``super.users``, or as a user with CLUSTER_ACTION. With a key file
    both sides prove that they have the key as well."""
    LOOPBACK = "loopback"
    """It is on the same machine: all addresses are loopback ones."""


class QuorumAddress(msgspec.Struct, frozen=True):
    host: str
    port: int
    node_id: int = -1
    """-1: not known, of ``controller.quorum.bootstrap.servers``."""

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        prefix = f"{self.node_id}@" if self.node_id >= 0 else ""
        return f"{prefix}{host}:{self.port}"


class QuorumSettings(msgspec.Struct, frozen=True, kw_only=True):
    node_id: int
    is_controller: bool
    """Whether this node may vote, and listens for the others."""
    voters: tuple[QuorumAddress, ...]
    """Of ``controller.quorum.voters``; empty with bootstrap servers."""
    servers: tuple[QuorumAddress, ...]
    """Where other nodes are found: the voters, or the bootstrap servers."""
    listeners: tuple[Endpoint, ...]
    """Empty for a node that only observes."""
    own: QuorumAddress | None
    """Where the others reach this node."""
    is_alone: bool
    """Whether no other node is named: it forms a quorum of one, as after Kafka's ``format --standalone``."""
    joins: bool
    """Whether this node becomes a voter by itself."""
    tls: Mapping[str, TlsSettings]
    """By the name of the listeners that have it; ``sasl`` as well."""
    sasl: Mapping[str, SaslSettings]
    security: ClientSecurity
    """Of connections to the others."""
    admittance: Admittance
    secret_file: str | None
    previous_secret_file: str | None
    accepted_users: frozenset[str]
    """With certificates or logins: the users, as ``User:name``."""
    directory: str
    timing: Timing
    session_timeout_ms: int
    heartbeat_ms: int
    registration_timeout_ms: int
    snapshot_bytes: int


def chooses_quorum(settings: Settings) -> bool:
    """Whether the settings of a broker name a quorum; another store may be named, too."""
    return bool(settings.strings(ROLES)) and bool(settings.strings(VOTERS) or settings.strings(BOOTSTRAP))


def quorum_settings(
    settings: Settings,
    *,
    node_id: int,
    log_dirs: Sequence[str],
    listeners: Sequence[Endpoint],
    advertised: Sequence[Endpoint],
    tls: Mapping[str, TlsSettings],
    sasl: Mapping[str, SaslSettings],
    security: ClientSecurity = NO_SECURITY,
    super_users: Collection[str] = (),
) -> QuorumSettings:
    """``listeners``, ``advertised``: the controllers' among those of the broker. Raises ConfigError."""
    voters, servers = _voters(settings.strings(VOTERS)), _servers(settings.strings(BOOTSTRAP))
    if voters and servers:
        raise ConfigError(
            VOTERS,
            f"{VOTERS} and {BOOTSTRAP} are both given: give the voters of a new quorum, or where nodes of "
            "one are found",
        )
    is_controller = CONTROLLER in settings.strings(ROLES)
    joins = settings.boolean(AUTO_JOIN)
    if joins and not is_controller:
        raise ConfigError(
            AUTO_JOIN, f"{AUTO_JOIN} is only supported when {ROLES} contains the 'controller' role."
        )
    _check_own_id(node_id, voters, is_controller=is_controller)
    _check_listeners(settings, listeners, is_controller=is_controller)
    session_ms, heartbeat_ms = settings.integer(SESSION_TIMEOUT), settings.integer(HEARTBEAT)
    if heartbeat_ms * 2 > session_ms:
        raise ConfigError(
            HEARTBEAT,
            f"{HEARTBEAT} is {heartbeat_ms}, and must be at most half of {SESSION_TIMEOUT} ({session_ms})",
        )
    secret_file = settings.optional_string(SECRET_FILE)
    previous_file = settings.optional_string(PREVIOUS_SECRET_FILE)
    if previous_file is not None and secret_file is None:
        raise ConfigError(
            PREVIOUS_SECRET_FILE,
            f"{PREVIOUS_SECRET_FILE} is given, but {SECRET_FILE}, the present key, is not",
        )
    hosts = [one.host for one in (*voters, *servers, *advertised, *listeners) if one.host not in WILDCARDS]
    if security.mechanism is not None or sasl:
        _check_logins(listeners, security, super_users, hosts, is_controller=is_controller)
    admittance = _admittance(secret_file, listeners, tls, security, super_users, hosts)
    if admittance is Admittance.LOOPBACK or (admittance is Admittance.LOGIN and security.tls is None):
        listeners = [replace(one, host=LOOPBACK) if one.host in WILDCARDS else one for one in listeners]
    return QuorumSettings(
        node_id=node_id,
        is_controller=is_controller,
        voters=voters,
        servers=voters or servers,
        listeners=tuple(listeners) if is_controller else (),
        own=_own_address(node_id, voters, listeners, advertised) if is_controller else None,
        is_alone=_is_alone(node_id, voters or servers, listeners),
        joins=joins,
        tls=tls,
        sasl=sasl,
        security=security,
        admittance=admittance,
        secret_file=secret_file,
        previous_secret_file=previous_file,
        accepted_users=frozenset(super_users),
        directory=posixpath.normpath(settings.optional_string(METADATA_LOG_DIR) or log_dirs[0]),
        timing=Timing(
            election_ms=settings.integer("controller.quorum.election.timeout.ms"),
            fetch_ms=settings.integer("controller.quorum.fetch.timeout.ms"),
        ),
        session_timeout_ms=session_ms,
        heartbeat_ms=heartbeat_ms,
        registration_timeout_ms=settings.integer(REGISTRATION_TIMEOUT),
        snapshot_bytes=settings.integer("metadata.log.max.record.bytes.between.snapshots"),
    )


def _voters(texts: Sequence[str]) -> tuple[QuorumAddress, ...]:
    found: dict[int, QuorumAddress] = {}
    for text in texts:
        number, at, server = text.partition("@")
        if not at or not number.strip().isdecimal():
            raise _invalid(VOTERS, text, "use id@host:port,…, for example 1@localhost:9093")
        node_id = int(number)
        if node_id in found:
            raise _invalid(VOTERS, text, f"voter {node_id} is named twice")
        found[node_id] = _address(VOTERS, text, server, node_id)
    return tuple(found[node_id] for node_id in sorted(found))


def _servers(texts: Sequence[str]) -> tuple[QuorumAddress, ...]:
    return tuple(_address(BOOTSTRAP, text, text) for text in texts)


def _address(key: str, text: str, server: str, node_id: int = -1) -> QuorumAddress:
    try:
        host, port = parse_server(server.strip())
    except ConfigError:
        raise _invalid(key, text, "each address is host:port") from None
    if host in WILDCARDS:
        raise _invalid(
            key,
            text,
            "other nodes cannot connect to this address: use the node's host name or IP address",
        )
    return QuorumAddress(host, port, node_id)


def _check_own_id(node_id: int, voters: Sequence[QuorumAddress], *, is_controller: bool) -> None:
    if not voters:
        return
    is_voter = any(one.node_id == node_id for one in voters)
    if is_controller and not is_voter:
        raise ConfigError(
            VOTERS, f"{ROLES} has controller, but {VOTERS} does not name this node, {node_id}: "
            f"add it, or set {ROLES}=broker"
        )  # fmt: skip
    if is_voter and not is_controller:
        raise ConfigError(
            ROLES, f"{VOTERS} names this node, {node_id}, but {ROLES} has no controller: set "
            f"{ROLES}=broker,controller, or leave it out of {VOTERS}"
        )  # fmt: skip


def _check_listeners(settings: Settings, listeners: Sequence[Endpoint], *, is_controller: bool) -> None:
    names = [name.upper() for name in settings.strings(CONTROLLER_LISTENERS)]
    if not names:
        raise ConfigError(
            CONTROLLER_LISTENERS, f"{CONTROLLER_LISTENERS} must be given with {ROLES}, for example CONTROLLER"
        )
    if is_controller and not any(one.name == names[0] for one in listeners):
        raise ConfigError(
            LISTENERS, f"{LISTENERS} has no listener {names[0]}, which {CONTROLLER_LISTENERS} names: add "
            f"{names[0]}://host:port"
        )  # fmt: skip


def check_mechanisms(settings: Settings, listener: str) -> None:
    """Raise ConfigError if a listener of controllers enables a SASL mechanism that it cannot have.
    ``settings``: the effective ones of the listener."""
    for name in settings.strings(ENABLED):
        if name.upper() not in MECHANISMS:
            raise ConfigError(
                ENABLED,
                f"the listener of controllers {listener} enables {name}: {_WHY_NO_OTHER}. Set "
                f"{PREFIX}{listener.lower()}.{ENABLED} to {' or '.join(MECHANISMS)}",
            )


def check_own_mechanism(settings: Settings) -> None:
    """Raise ConfigError if this node would log in to the others by another mechanism."""
    name = settings.string(CONTROLLER_MECHANISM)
    if name.upper() not in MECHANISMS:
        raise ConfigError(
            CONTROLLER_MECHANISM,
            f"{CONTROLLER_MECHANISM} is {name}: {_WHY_NO_OTHER}. Set it to {' or '.join(MECHANISMS)}",
        )


_WHY_NO_OTHER = (
    f"the nodes of a metadata quorum log in by {' or '.join(MECHANISMS)}; the users of SCRAM are in the "
    "metadata, which the nodes have to agree on first"
)


def _check_logins(
    listeners: Sequence[Endpoint],
    security: ClientSecurity,
    super_users: Collection[str],
    hosts: Sequence[str],
    *,
    is_controller: bool,
) -> None:
    """Raise ConfigError if the nodes cannot log in to each other, or passwords and tokens could be read."""
    without = [one for one in listeners if not one.protocol.has_sasl]
    if without or security.mechanism is None:
        names = ", ".join(f"{one.name} is {one.protocol.value}" for one in without)
        raise ConfigError(
            PROTOCOL_MAP, f"some listeners of controllers have SASL, and {names or 'the first one has not'}: "
            "all must have it, or none"
        )  # fmt: skip
    others = sorted({host for host in hosts if not is_loopback(host)})
    if security.tls is None and others:
        raise ConfigError(
            PROTOCOL_MAP,
            f"the metadata quorum has nodes on other machines ({', '.join(others)}), and its listener is "
            f"SASL_PLAINTEXT: others on the network could read the {security.mechanism} login. Use SASL_SSL",
        )
    own = str(Principal(USER, security.user)) if security.user else None
    if is_controller and (not super_users or (own is not None and own not in super_users)):
        raise ConfigError(
            SUPER_USERS,
            f"{SUPER_USERS} must name the user by which controllers log in to each other"
            f"{f', {own}' if own else ''}: ACLs are in the metadata, which they have to agree on first",
        )


def _admittance(
    secret_file: str | None,
    listeners: Sequence[Endpoint],
    tls: Mapping[str, TlsSettings],
    security: ClientSecurity,
    super_users: Collection[str],
    hosts: Sequence[str],
) -> Admittance:
    if security.mechanism is not None:
        return Admittance.LOGIN
    if secret_file is not None:
        return Admittance.KEY
    asks = [one.name in tls and tls[one.name].server.client_auth == "required" for one in listeners]
    own = security.tls
    has_certificate = own is not None and (own.files.key_file or own.files.key) is not None
    if has_certificate and all(asks) and super_users:
        return Admittance.CERTIFICATE
    others = sorted({host for host in hosts if not is_loopback(host)})
    if others:
        raise ConfigError(
            SECRET_FILE,
            f"the metadata quorum has nodes on other machines ({', '.join(others)}), and nothing says who "
            f"may take part: set {SECRET_FILE}, or use SASL_SSL or SSL with ssl.client.auth=required for the "
            "listener of controllers and name the nodes' users in super.users",
        )
    return Admittance.LOOPBACK


def _own_address(
    node_id: int,
    voters: Sequence[QuorumAddress],
    listeners: Sequence[Endpoint],
    advertised: Sequence[Endpoint],
) -> QuorumAddress:
    for address in voters:
        if address.node_id == node_id:
            return address
    endpoint = next(iter((*advertised, *listeners)))
    return QuorumAddress(LOOPBACK if endpoint.host in WILDCARDS else endpoint.host, endpoint.port, node_id)


def _is_alone(node_id: int, servers: Sequence[QuorumAddress], listeners: Sequence[Endpoint]) -> bool:
    if len(servers) != 1:
        return False
    (only,) = servers
    if only.node_id >= 0:  # the only voter: another node observes it
        return only.node_id == node_id
    return any(
        one.port == only.port
        and (one.host == only.host or (is_loopback(one.host) and is_loopback(only.host)))
        for one in listeners
    )


def _invalid(key: str, text: str, why: str) -> ConfigError:
    return ConfigError(key, f"Invalid value {text} for configuration {key}: {why}")
