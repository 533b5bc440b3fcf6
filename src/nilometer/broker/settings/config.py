"""``server.properties`` as one typed, checked value.

Sources, later ones winning: defaults, the file, ``--override key=value``. Every error names the key.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping

from nilometer.broker.connection_memory import UNLIMITED
from nilometer.broker.settings.access_config_keys import super_users
from nilometer.broker.settings.broker_authentication import (
    AUTHENTICATION,
    BrokerAuthentication,
    check_broker_authentication,
    unverified_peers,
)
from nilometer.broker.settings.config_keys import (
    IGNORED_KEYS,
    KNOWN_KEYS_WITHOUT_EFFECT,
    OWN_KEYS,
    REFUSED_KEYS,
)
from nilometer.broker.settings.coordinators import share_state_config, transaction_config
from nilometer.broker.settings.listener_security import (
    SASL_MECHANISMS,
    SaslSettings,
    TlsSettings,
    overrides_by_listener,
    own_security,
    sasl_settings,
    split_overrides,
    tls_settings,
)
from nilometer.broker.settings.listeners import (
    ADVERTISED,
    INTER_BROKER,
    INTER_BROKER_PROTOCOL,
    LISTENERS,
    METRICS_LISTENER,
    PROTOCOL_MAP,
    Endpoint,
    advertised_listeners,
    check_addresses,
    client_listeners,
    inter_broker_listener,
    metrics_endpoint,
    parse_listeners,
    security_protocols,
)
from nilometer.broker.settings.logging_settings import log_settings
from nilometer.broker.settings.quorum import (
    BOOTSTRAP,
    CONTROLLER_LISTENERS,
    CONTROLLER_MECHANISM,
    QUORUM,
    QUORUM_KEYS,
    ROLES,
    VOTERS,
    QuorumSettings,
    check_mechanisms,
    check_own_mechanism,
    chooses_quorum,
    quorum_settings,
)
from nilometer.broker.settings.recorder import recorder_settings
from nilometer.broker.settings.tiering import tier_config
from nilometer.broker.settings.zookeeper_settings import ZOOKEEPER_CONFIG, zookeeper_security
from nilometer.client.settings import NO_SECURITY
from nilometer.config import ConfigDefinition, ConfigError, ConfigKey, ConfigValue, Settings
from nilometer.coordination.zookeeper.connect import OPEN, ZooKeeperSecurity, parse_connect_string
from nilometer.groups.settings import group_config
from nilometer.security.principal import SecurityProtocol
from nilometer.storage.topic_config import TOPIC_CONFIG, topic_defaults


def _topic_default_keys() -> list[ConfigKey]:
    """Return the broker keys that have defaults for topics, derived from the topic keys."""
    keys: dict[str, ConfigKey] = {}
    for topic_key in TOPIC_CONFIG.keys.values():
        if topic_key.synonym and topic_key.synonym not in keys:
            keys[topic_key.synonym] = ConfigKey(
                name=topic_key.synonym,
                kind=topic_key.kind,
                default=topic_key.default,
                doc=topic_key.doc,
                minimum=topic_key.minimum,
                maximum=topic_key.maximum,
                choices=topic_key.choices,
                validate=topic_key.validate,
                dynamic=True,
            )
    return list(keys.values())


_TOPIC_DEFAULTS = _topic_default_keys()
START_TIMEOUT_MS_MIN = 3_000
BROKER_CONFIG_DEFINITION = ConfigDefinition.of(
    "broker",
    [*OWN_KEYS, *_TOPIC_DEFAULTS],
    missing={
        **dict.fromkeys(IGNORED_KEYS, "of Kafka has no effect here, so it cannot be altered."),
        **dict.fromkeys(REFUSED_KEYS, "of Kafka is not supported: remove it."),
    },
)


def is_sensitive(key: str) -> bool:
    """Whether a setting's value must not be shown; its name may have the prefix of a listener."""
    known = BROKER_CONFIG_DEFINITION.keys.values()
    return any(one.sensitive and key.endswith(one.name) for one in known)


class BrokerConfig(Settings):
    """The settings of one broker. ``texts``: the given ones, by key; all others have their defaults.

    Raises ConfigError on an unknown key, a bad value, or settings that contradict each other.
    """

    def __init__(self, texts: Mapping[str, str]) -> None:
        self.given = {name: text for name, text in texts.items() if name not in IGNORED_KEYS}
        """All settings that were given, also those of single listeners."""
        texts, overrides = split_overrides(texts)
        without_effect = IGNORED_KEYS | KNOWN_KEYS_WITHOUT_EFFECT
        self.without_effect = tuple(sorted(name for name in texts if name in without_effect))
        self.texts = {name: text for name, text in texts.items() if name not in IGNORED_KEYS}
        super().__init__(BROKER_CONFIG_DEFINITION, self.texts)
        self.node_id = self._node_id()
        self._check_roles()
        self._read_listeners()
        self._read_security(overrides)
        self.metrics_endpoint = metrics_endpoint(self.optional_string(METRICS_LISTENER))
        self.log_dirs = self._log_dirs()
        self.rack: str | None = self.optional_string("broker.rack")
        self.socket_request_max_bytes = self.integer("socket.request.max.bytes")
        self.queued_max_request_bytes = self._queued_max_request_bytes()
        self.fetch_max_bytes = self.integer("fetch.max.bytes")
        self.replica_lag_time_max_ms = self.integer("replica.lag.time.max.ms")
        self.coordination = self._coordination()
        self.zookeeper = self._zookeeper_security()
        self.super_users = super_users(self.string("super.users"))
        self.quorum = self._quorum() if self.coordination == QUORUM else None
        """None without a metadata quorum."""
        self.session_timeout_ms = (
            self.integer("zookeeper.session.timeout.ms")
            if self.quorum is None
            else self.quorum.session_timeout_ms
        )
        self.start_timeout_ms = (
            max(START_TIMEOUT_MS_MIN, 2 * self.session_timeout_ms)
            if self.quorum is None
            else self.quorum.registration_timeout_ms
        )
        """How long a broker that starts asks a coordination store that does not answer."""
        self.broker_authentication = self._broker_authentication()
        self.accepts_unproved_brokers = self.broker_authentication.accepts_unproved
        self.groups = group_config(self)
        self.transactions = transaction_config(self)
        self.share_state = share_state_config(self)
        self.log = log_settings(self)
        self.recorder = recorder_settings(
            self,
            self.log_dirs,
            self.coordination,
            has_sasl=bool(self.sasl or self.quorum_sasl),
            has_oauth=any(each.oauth for each in (*self.sasl.values(), *self.quorum_sasl.values()))
            or any(each.oauth for each in (self.inter_broker_security, self.quorum_security)),
            has_tokens=self.is_given("delegation.token.secret.key"),
        )
        """None if this broker is not recorded."""
        defaults = self.topic_defaults()
        self.tier = tier_config(self, TOPIC_CONFIG.judge({}, defaults))
        """The settings of remote storage; None without one."""

    def topic_defaults(self, *dynamic: Mapping[str, str]) -> dict[str, ConfigValue]:
        """Return the settings that topics inherit, by topic key.

        They come from this broker's file and from ``dynamic`` settings of brokers, later ones winning.
        Dynamic texts that this version cannot read are left out.
        """
        given = dict(self._given)
        for texts in dynamic:
            given.update(BROKER_CONFIG_DEFINITION.readable(texts))
        return topic_defaults(given)

    def _log_dirs(self) -> tuple[str, ...]:
        """Return the log directories, normalised so that the parent of a partition's folder equals one of
        them."""
        given = self.strings("log.dirs") or (self.string("log.dir"),)
        paths = tuple(posixpath.normpath(path) for path in given)
        if len(set(paths)) != len(paths):
            raise ConfigError("log.dirs", f"log.dirs names a folder twice: {', '.join(paths)}")
        return paths

    def _queued_max_request_bytes(self) -> int:
        given = self.integer("queued.max.request.bytes")
        if given <= 0:
            return UNLIMITED
        if given < self.socket_request_max_bytes:
            if "queued.max.request.bytes" not in self.texts:
                return self.socket_request_max_bytes
            raise ConfigError(
                "queued.max.request.bytes",
                f"queued.max.request.bytes is {given}, less than socket.request.max.bytes "
                f"({self.socket_request_max_bytes}): raise the one or lower the other",
            )
        return given

    def _node_id(self) -> int:
        node_id, broker_id = self.integer("node.id"), self.integer("broker.id")
        if node_id >= 0 and broker_id >= 0 and node_id != broker_id:
            raise ConfigError(
                "broker.id", f"node.id is {node_id} but broker.id is {broker_id}: give one of them"
            )
        chosen = node_id if node_id >= 0 else broker_id
        if chosen < 0:
            raise ConfigError("node.id", "node.id must be given: a number, unique in the cluster")
        return chosen

    def _read_listeners(self) -> None:
        controllers = {name.upper(): None for name in self.strings(CONTROLLER_LISTENERS)}
        protocols = security_protocols(self.strings(PROTOCOL_MAP))
        if not self.is_given(PROTOCOL_MAP):  # as in Kafka
            protocols = {**dict.fromkeys(controllers, SecurityProtocol.PLAINTEXT), **protocols}
        listeners, advertised = (
            parse_listeners(key, self.strings(key), protocols) for key in (LISTENERS, ADVERTISED)
        )
        check_addresses(listeners)
        self.listeners = client_listeners(listeners, controllers)
        self.controller_listeners = tuple(one for one in listeners if one.name in controllers)
        """Opened with a metadata quorum only."""
        first = next(iter(controllers), None)
        self._to_controllers = next((one for one in listeners if one.name == first), None)
        if self._to_controllers is None and first in protocols:
            self._to_controllers = Endpoint(first, "", 0, protocols[first])  # of the others
        self._advertised_controllers = tuple(one for one in advertised if one.name in controllers)
        self.advertised_listeners = advertised_listeners(
            self.listeners, [one for one in advertised if one.name not in controllers]
        )
        given = INTER_BROKER_PROTOCOL if self.is_given(INTER_BROKER_PROTOCOL) else None
        self.inter_broker_listener = inter_broker_listener(
            self.advertised_listeners,
            self.optional_string(INTER_BROKER),
            self.string(given) if given else None,
        )
        """The advertised listener by which brokers connect to each other."""

    def _read_security(self, overrides: Mapping[str, str]) -> None:
        controllers, to_controllers = self.controller_listeners, self._to_controllers
        names = [each.name for each in (*self.listeners, *controllers)]
        if to_controllers is not None and to_controllers.name not in names:
            names.append(to_controllers.name)
        own = overrides_by_listener(overrides, names, SASL_MECHANISMS)
        self.sasl: dict[str, SaslSettings] = {}
        """The SASL settings, by the name of the listeners for clients that have it; ``quorum_sasl``: of those
        of controllers; ``tls``: the settings of TLS of both."""
        self.quorum_sasl: dict[str, SaslSettings] = {}
        self.connections_max: dict[str, int] = {}
        """The maximum number of open connections on each listener; ``connection_rates``: of new ones per
        second, which has no default from the broker's, as in Kafka."""
        self.connection_rates: dict[str, int] = {}
        self.tls: dict[str, TlsSettings] = {}
        self.inter_broker_security = NO_SECURITY
        """How this broker connects to others; ``quorum_security``: to nodes of its metadata quorum."""
        self.quorum_security = NO_SECURITY
        for listener in (*self.listeners, *(controllers if chooses_quorum(self) else ())):
            name, protocol = listener.name, listener.protocol
            texts = {**self.texts, **own[name]}
            known = {key: text for key, text in texts.items() if key in BROKER_CONFIG_DEFINITION.keys}
            settings = Settings(BROKER_CONFIG_DEFINITION, known)
            self.connections_max[name] = settings.integer("max.connections")
            if "max.connection.creation.rate" in own[name]:
                self.connection_rates[name] = settings.integer("max.connection.creation.rate")
            if protocol.has_sasl:
                if listener in controllers:
                    check_mechanisms(settings, name)
                found = self.quorum_sasl if listener in controllers else self.sasl
                found[name] = sasl_settings(settings, texts, name)
            if protocol.has_tls:
                self.tls[name] = tls_settings(settings, own[name], name, protocol)
            if name == self.inter_broker_listener.name:
                self.inter_broker_security = own_security(settings, texts, listener)
        if to_controllers is not None and chooses_quorum(self):
            texts = {**self.texts, **own[to_controllers.name]}
            known = {key: text for key, text in texts.items() if key in BROKER_CONFIG_DEFINITION.keys}
            settings = Settings(BROKER_CONFIG_DEFINITION, known)
            if to_controllers.protocol.has_sasl:
                check_own_mechanism(settings)
            listens = to_controllers in controllers
            self.quorum_security = own_security(
                settings, texts, to_controllers, CONTROLLER_MECHANISM, listens=listens
            )

    def _broker_authentication(self) -> BrokerAuthentication:
        how = BrokerAuthentication(self.string(AUTHENTICATION))
        check_broker_authentication(
            how,
            self.inter_broker_listener,
            self.tls.get(self.inter_broker_listener.name),
            self.inter_broker_security,
            self.super_users,
            has_authorizer=bool(self.string("authorizer.class.name")),
        )
        return how

    def _check_roles(self) -> None:
        roles = self.strings("process.roles")
        if roles and "broker" not in roles:
            raise ConfigError(
                "process.roles",
                f"process.roles is {','.join(roles)}: processes that are only controllers are not supported. "
                "Use process.roles=broker,controller",
            )

    def _coordination(self) -> str:
        connect = self.optional_string("zookeeper.connect")
        text = self.string("nilometer.coordination")
        if connect:
            self._check_connect_string("zookeeper.connect", connect, connect)
            if self.is_given("nilometer.coordination") and text != f"zookeeper://{connect}":
                raise ConfigError(
                    "zookeeper.connect",
                    f"zookeeper.connect is {connect}, but nilometer.coordination is {text}: give one of them",
                )
            return f"zookeeper://{connect}"
        if text.startswith("zookeeper://"):
            self._check_connect_string("nilometer.coordination", text, text.removeprefix("zookeeper://"))
            return text
        if not self.is_given("nilometer.coordination") and chooses_quorum(self):
            return QUORUM
        if text == QUORUM and not chooses_quorum(self):
            raise ConfigError(
                "nilometer.coordination",
                f"nilometer.coordination is {QUORUM}: set {ROLES}, and {VOTERS} or {BOOTSTRAP}",
            )
        if text in ("local", QUORUM) or (text.startswith("local:") and text != "local:"):
            return text
        raise ConfigError(
            "nilometer.coordination",
            f"Invalid value {text} for configuration nilometer.coordination: "
            "use local, local:/path/of/a/folder, zookeeper://host:port,…, or quorum",
        )

    def _quorum(self) -> QuorumSettings:
        return quorum_settings(
            self,
            node_id=self.node_id,
            log_dirs=self.log_dirs,
            listeners=self.controller_listeners,
            advertised=self._advertised_controllers,
            tls={one.name: self.tls[one.name] for one in self.controller_listeners if one.name in self.tls},
            sasl=self.quorum_sasl,
            security=self.quorum_security,
            super_users=self.super_users,
        )

    def _zookeeper_security(self) -> ZooKeeperSecurity:
        security = zookeeper_security(self)
        if security != OPEN and not self.coordination.startswith("zookeeper://"):
            key = next(key for key in ZOOKEEPER_CONFIG.keys if self.is_given(key))
            raise ConfigError(key, f"{key} is given, but zookeeper.connect is not")
        return security

    def _check_connect_string(self, name: str, value: str, text: str) -> None:
        try:
            parse_connect_string(text)
        except ValueError as error:
            raise ConfigError(name, f"Invalid value {value} for configuration {name}: {error}") from None


def notices_at_start(config: BrokerConfig) -> list[str]:
    """Return log lines about given settings that are accepted but have no effect."""
    notices: list[str] = []
    without_effect = list(config.without_effect)
    if config.quorum is None:
        without_effect += [key.name for key in QUORUM_KEYS if config.is_given(key.name)]
    if without_effect:
        names = ", ".join(sorted(without_effect))
        notices.append(f"Settings that are accepted but have no effect: {names}")
    if config.quorum is None and config.strings("controller.listener.names"):
        names = ", ".join(config.strings("controller.listener.names"))
        notices.append(
            f"Controller listeners are not opened: {names}. Brokers use the coordination store instead"
        )
    return notices


def warnings_at_start(config: BrokerConfig) -> list[str]:
    """Return log lines about given settings that protect less than they seem to."""
    unverified = unverified_peers(
        config.broker_authentication, config.inter_broker_listener, config.inter_broker_security
    )
    return [] if unverified is None else [unverified]
