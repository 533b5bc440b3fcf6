"""server.properties: Kafka's keys in, one checked value out, refusals by name."""

from __future__ import annotations

import pytest

from nilometer.broker.settings.config import BrokerConfig, notices_at_start
from nilometer.config import ConfigError, parse_properties
from nilometer.security.principal import SecurityProtocol
from nilometer.security.sasl import PLAIN_MODULE, SCRAM_MODULE

HOUR_MS = 3_600_000


def config(**texts: str) -> BrokerConfig:
    keys = {name if "." in name else name.replace("_", "."): text for name, text in texts.items()}
    return BrokerConfig({"node.id": "1"} | keys)


def refusal(**texts: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        config(**texts)
    return caught.value


def test_defaults_are_kafkas():
    defaults = config()
    assert defaults.socket_request_max_bytes == 104_857_600
    assert defaults.replica_lag_time_max_ms == 10_000
    assert defaults.listeners[0].port == 9092
    assert defaults.coordination == "local"
    assert defaults.log_dirs == ("/tmp/kafka-logs",)


def test_an_unknown_key_is_refused_by_name_with_the_nearest_one():
    error = refusal(**{"log.segment.byte": "1"})
    assert error.key == "log.segment.byte"
    assert "did you mean log.segment.bytes" in str(error)


def test_a_bad_value_is_refused_with_what_would_do():
    assert "must be a number" in str(refusal(num_partitions="many"))
    assert "at least 1" in str(refusal(num_partitions="0"))
    assert "true or false" in str(refusal(auto_create_topics_enable="yes"))


def test_the_node_id_must_be_given_once():
    with pytest.raises(ConfigError, match=r"node.id must be given"):
        BrokerConfig({})
    assert BrokerConfig({"broker.id": "7"}).node_id == 7
    assert "give one of them" in str(refusal(broker_id="2"))


def test_listeners_say_where():
    endpoint = config(listeners="PLAINTEXT://[::1]:9999").listeners[0]
    assert (endpoint.host, endpoint.port, str(endpoint)) == ("::1", 9999, "PLAINTEXT://[::1]:9999")
    assert "NAME://host:port" in str(refusal(listeners="localhost:9092"))
    assert "no such port" in str(refusal(listeners="PLAINTEXT://localhost:70000"))
    assert "two listeners with the name PLAINTEXT" in str(
        refusal(listeners="PLAINTEXT://a:1,PLAINTEXT://b:2")
    )
    assert "at least one" in str(refusal(listeners="C://a:1", controller_listener_names="C"))


def test_a_listener_speaks_the_protocol_that_the_map_gives_its_name():
    named = config(
        listeners="INTERNAL://h:1", listener_security_protocol_map="INTERNAL:PLAINTEXT,EXTERNAL:SSL"
    )
    assert str(named.listeners[0]) == "INTERNAL://h:1"
    assert named.listeners[0].protocol is SecurityProtocol.PLAINTEXT
    assert "no protocol for the listener INTERNAL" in str(refusal(listeners="INTERNAL://h:1"))
    assert "use LISTENER:PROTOCOL" in str(refusal(listener_security_protocol_map="PLAINTEXT"))
    assert "the security protocols are" in str(refusal(listener_security_protocol_map="A:KERBEROS"))
    assert refusal(security_inter_broker_protocol="SSL").key == "security.inter.broker.protocol"


TWO = {
    "listeners": "INSIDE://:9092,OUTSIDE://:9094",
    "listener_security_protocol_map": "INSIDE:PLAINTEXT,OUTSIDE:PLAINTEXT,ELSE:PLAINTEXT",
    "inter_broker_listener_name": "INSIDE",
}


def test_several_listeners_are_advertised_each_with_its_address():
    two = config(**TWO, advertised_listeners="OUTSIDE://public:443,INSIDE://inner:9092")
    assert [str(one) for one in two.listeners] == ["INSIDE://:9092", "OUTSIDE://:9094"]
    assert [str(one) for one in two.advertised_listeners] == ["OUTSIDE://public:443", "INSIDE://inner:9092"]
    assert two.inter_broker_listener.name == "INSIDE"
    assert [one.name for one in config(**TWO).advertised_listeners] == ["INSIDE", "OUTSIDE"]
    hidden = config(**TWO, advertised_listeners="INSIDE://inner:9092")
    assert [one.name for one in hidden.advertised_listeners] == ["INSIDE"]


def test_listeners_that_contradict_each_other_are_refused():
    assert "no listener ELSE" in str(refusal(**TWO, advertised_listeners="ELSE://h:1"))
    refused = str(refusal(advertised_listeners="PLAINTEXT://0.0.0.0:9092"))
    assert "cannot connect to this address: use the broker's host name" in refused
    assert "same host and port" in str(refusal(**TWO | {"listeners": "INSIDE://:9092,OUTSIDE://:9092"}))


def test_a_share_group_may_have_no_more_members_than_there_are_sessions():
    assert "group.share.max.size (200) must not be above" in str(
        refusal(group_share_max_share_sessions="199")
    )
    settled = config(group_share_max_share_sessions="199", group_share_max_size="199")
    assert settled.groups.group_share_max_size == 199


def test_brokers_connect_to_each_other_by_one_of_the_listeners():
    assert config(listeners="PLAINTEXT://h:1").inter_broker_listener.name == "PLAINTEXT"
    unnamed = {key: text for key, text in TWO.items() if key != "inter_broker_listener_name"}
    assert "set inter.broker.listener.name to one of: INSIDE, OUTSIDE" in str(refusal(**unnamed))
    by_protocol = refusal(**unnamed, security_inter_broker_protocol="PLAINTEXT")
    assert "PLAINTEXT, which is not advertised" in str(by_protocol)
    assert "give one of them" in str(refusal(**TWO, security_inter_broker_protocol="PLAINTEXT"))
    assert "OTHER, which is not advertised" in str(refusal(**TWO | {"inter_broker_listener_name": "OTHER"}))
    unadvertised = refusal(**TWO, advertised_listeners="OUTSIDE://public:443")
    assert "INSIDE, which is not advertised" in str(unadvertised)


SASL = {
    "listeners": "PLAINTEXT://:9092,SASL_PLAINTEXT://:9094",
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
    "listener.name.sasl_plaintext.plain.sasl.jaas.config": f'{PLAIN_MODULE} required user_alice="secret";',
}


def test_a_sasl_listener_has_its_mechanisms_and_users():
    settings = config(**SASL).sasl["SASL_PLAINTEXT"]
    assert settings.mechanisms == ("PLAIN", "SCRAM-SHA-512")
    assert settings.passwords == {"alice": "secret"}
    assert "secret" not in repr(settings)
    own = {"listener.name.sasl_plaintext.sasl.enabled.mechanisms": "SCRAM-SHA-256"}
    assert config(**SASL | own).sasl["SASL_PLAINTEXT"].mechanisms == ("SCRAM-SHA-256",)
    assert config().sasl == {}


def test_sasl_that_is_not_supported_or_incomplete_is_refused_by_name():
    plain_key = "listener.name.sasl_plaintext.plain.sasl.jaas.config"
    without = {key: text for key, text in SASL.items() if key != plain_key}
    missing = refusal(**without)
    assert missing.key == plain_key
    assert "must be given" in str(missing)
    gssapi = refusal(**{key: text for key, text in SASL.items() if key != "sasl.enabled.mechanisms"})
    assert "GSSAPI of the listener SASL_PLAINTEXT is not supported" in str(gssapi)
    assert "no SASL mechanism" in str(refusal(**SASL | {"sasl.enabled.mechanisms": ""}))
    for text, why in (
        ('org.example.Other required user_alice="secret";', "the login module of PLAIN is"),
        ('org.example.Other user_alice="secret";', "is not valid"),
    ):
        invalid = refusal(**without, **{plain_key: text})
        assert invalid.key == plain_key
        assert why in str(invalid)
        assert "secret" not in str(invalid)


def test_brokers_connect_to_each_other_with_their_user_of_the_mechanism():
    between = SASL | {"inter.broker.listener.name": "SASL_PLAINTEXT"}
    unnamed = refusal(**between)
    assert unnamed.key == "sasl.mechanism.inter.broker.protocol"
    assert "GSSAPI is not supported" in str(unnamed)
    key = "listener.name.sasl_plaintext.scram-sha-512.sasl.jaas.config"
    by_scram = between | {"sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-512"}
    assert refusal(**by_scram).key == key
    assert "username and a password" in str(refusal(**by_scram, **{key: f"{SCRAM_MODULE} required;"}))
    module = f'{SCRAM_MODULE} required username="broker" password="secret";'
    security = config(**by_scram, **{key: module}).inter_broker_security
    assert (security.mechanism, security.user, security.password) == ("SCRAM-SHA-512", "broker", "secret")
    assert "secret" not in repr(security)


SSL = {
    "listeners": "PLAINTEXT://:9092,SSL://:9093",
    "ssl.keystore.location": "/etc/broker.pem",
    "ssl.keystore.type": "PEM",
    "ssl.key.password": "secret",
}


def test_a_tls_listener_has_its_key_and_its_rules():
    settings = config(**SSL, **{"listener.name.ssl.ssl.client.auth": "none"}).tls["SSL"]
    assert settings.server.files.key_file == "/etc/broker.pem"
    assert settings.server.client_auth == "none"
    assert "secret" not in repr(settings)
    trusting = {"ssl.client.auth": "required", "ssl.truststore.certificates": "a certificate"}
    assert config(**SSL | trusting).tls["SSL"].server.client_auth == "required"
    with_sasl = SSL | SASL | {"listeners": "PLAINTEXT://:9092,SASL_SSL://:9094"} | trusting
    with_sasl = {key.replace("sasl_plaintext", "sasl_ssl"): text for key, text in with_sasl.items()}
    assert config(**with_sasl).tls["SASL_SSL"].server.client_auth == "none"
    asking = with_sasl | {"listener.name.sasl_ssl.ssl.client.auth": "requested"}
    assert config(**asking).tls["SASL_SSL"].server.client_auth == "requested"


def test_tls_that_is_not_supported_or_incomplete_is_refused_by_name():
    def without(*keys: str) -> dict[str, str]:
        return {key: text for key, text in SSL.items() if key not in keys}

    assert refusal(**without("ssl.keystore.location")).key == "ssl.keystore.location"
    assert "JKS, the default" in str(refusal(**without("ssl.keystore.type")))
    assert "must be PEM or PKCS12" in str(refusal(**SSL | {"ssl.truststore.type": "BCFKS"}))
    assert "belong together" in str(refusal(**SSL, **{"ssl.keystore.key": "k"}))
    both = {"ssl.keystore.key": "k", "ssl.keystore.certificate.chain": "c"}
    assert "give one" in str(refusal(**SSL | both))
    assert refusal(**SSL, **{"ssl.client.auth": "required"}).key == "ssl.truststore.location"
    assert "TLSv1.2" in str(refusal(**SSL, **{"ssl.enabled.protocols": "TLSv1.1"}))
    assert refusal(**SSL, **{"ssl.principal.mapping.rules": "RULE:("}).key == "ssl.principal.mapping.rules"


def test_a_setting_of_one_listener_names_a_listener_and_a_key_of_listeners():
    other = refusal(**TWO, **{"listener.name.other.ssl.client.auth": "none"})
    assert "there are INSIDE, OUTSIDE" in str(other)
    folders = refusal(**TWO, **{"listener.name.inside.log.dirs": "/x"})
    assert "cannot be set for a single listener" in str(folders)


STOCK = """
process.roles=broker,controller
node.id=1
controller.quorum.bootstrap.servers=localhost:9093
listeners=PLAINTEXT://:9092,CONTROLLER://:9093
inter.broker.listener.name=PLAINTEXT
advertised.listeners=PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL
num.network.threads=3
num.io.threads=8
socket.send.buffer.bytes=102400
socket.receive.buffer.bytes=102400
socket.request.max.bytes=104857600
log.dirs=/tmp/kraft-combined-logs
num.partitions=1
num.recovery.threads.per.data.dir=2
offsets.topic.replication.factor=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
log.retention.hours=168
log.segment.bytes=1073741824
log.retention.check.interval.ms=300000
"""
"""What Kafka 4.3 ships as server.properties, without its comments."""


def test_kafkas_own_server_properties_are_taken():
    stock = BrokerConfig(parse_properties(STOCK, "server.properties"))
    assert [str(one) for one in stock.listeners] == ["PLAINTEXT://:9092"]
    assert [str(one) for one in stock.advertised_listeners] == ["PLAINTEXT://localhost:9092"]
    assert stock.inter_broker_listener.name == "PLAINTEXT"
    (noted,) = notices_at_start(stock)
    assert "num.network.threads" in noted
    for name in ("transaction.state.log.min.isr", "share.coordinator.state.topic.min.isr"):
        assert name not in noted
    assert stock.coordination == "quorum"
    assert stock.quorum is not None
    assert stock.quorum.is_alone
    assert [str(one) for one in stock.quorum.listeners] == ["CONTROLLER://127.0.0.1:9093"]
    assert str(stock.quorum.own) == "1@localhost:9093"


def test_a_listener_of_controllers_is_not_opened_without_a_quorum():
    local = BrokerConfig(parse_properties(STOCK, "server.properties") | {"nilometer.coordination": "local"})
    assert local.quorum is None
    noted, controllers = notices_at_start(local)
    assert "controller.quorum.bootstrap.servers" in noted
    assert "Controller listeners are not opened: CONTROLLER" in controllers


@pytest.mark.parametrize("roles", ["controller", " controller "])
def test_a_process_that_is_only_a_controller_is_refused(roles: str):
    assert "only controllers are not supported" in str(refusal(process_roles=roles))
    assert refusal(process_roles="broker,observer").key == "process.roles"


def test_advertised_listeners_default_to_the_listeners():
    assert config(listeners="PLAINTEXT://h:1").advertised_listeners[0].host == "h"
    assert config(advertised_listeners="PLAINTEXT://public:5").advertised_listeners[0].host == "public"


def test_topic_defaults_come_from_broker_keys_in_any_unit():
    defaults = config(log_retention_hours="2", log_segment_bytes="2097152").topic_defaults()
    assert defaults["retention.ms"] == 2 * HOUR_MS
    assert defaults["segment.bytes"] == 2_097_152
    assert config(log_retention_hours="2", log_retention_ms="5").topic_defaults()["retention.ms"] == 5


def test_coordination_is_local_a_folder_or_zookeeper():
    assert config(nilometer_coordination="local:/srv/x").coordination == "local:/srv/x"
    assert config(zookeeper_connect="z:2181").coordination == "zookeeper://z:2181"
    assert "zookeeper://host:port" in str(refusal(nilometer_coordination="etcd://x"))


def test_keys_that_size_threads_are_accepted_and_named():
    accepted = config(num_io_threads="8", num_network_threads="3")
    assert accepted.without_effect == ("num.io.threads", "num.network.threads")


def test_properties_files_are_read_line_by_line():
    text = "# a comment\n\nnode.id = 3\nlisteners=PLAINTEXT://:9092\n"
    assert parse_properties(text, "f") == {"node.id": "3", "listeners": "PLAINTEXT://:9092"}
    with pytest.raises(ConfigError, match="f, line 2") as error:
        parse_properties("node.id=3\nMIIEvQIBADANBg\n", "f")
    assert "MIIE" not in str(error.value), "the line may be a part of a private key"
