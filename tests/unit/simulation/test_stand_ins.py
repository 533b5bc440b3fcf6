"""Where secrets are in what a broker receives, however it arrives in pieces."""

from __future__ import annotations

import base64
import dataclasses
import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nilometer.broker.quorum.key_file import SEALED
from nilometer.coordination.local import layout
from nilometer.coordination.quorum.commands import PutSecret, decode, encode
from nilometer.http.server import BadRequest, parse_head
from nilometer.simulation.stand_ins import RequestStream, ResponseStream, StandIns, forms_of
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.messages import Message, api, decode_request, encode_request, encode_response
from nilometer.wire.own_apis import ForwardedRequest
from support.wire.wire_peer import make

PASSWORD = b"\0alice\0a password of alice"
SALTED = bytes(range(32))
SIGNATURE = base64.b64encode(bytes(range(100, 164)))
SECRETS = (PASSWORD, PASSWORD[7:], SALTED, SIGNATURE, b"Basic c2VjcmV0")


def request(key: int, version: int, **fields: object) -> bytes:
    return encode_request(7, "a client", api(key, version).request(**fields))


def upsertions() -> Message:
    user = make(
        ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
        0,
        "ScramCredentialUpsertion",
        name="alice",
        mechanism=1,
        iterations=4096,
        salt=b"salt",
        salted_password=SALTED,
    )
    return api(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0).request(deletions=(), upsertions=(user,))


METADATA = request(ApiKey.METADATA, 9, topics=None)
HANDSHAKE = request(ApiKey.SASL_HANDSHAKE, 0, mechanism="PLAIN")


def framed(message: bytes) -> bytes:
    return len(message).to_bytes(4, "big") + message


BARE = HANDSHAKE + framed(PASSWORD)
ALTERATION = encode_request(7, "a client", upsertions())
FORWARDED = encode_request(
    8,
    "a broker",
    ForwardedRequest(
        principal_type="User",
        principal_name="admin",
        client_address="::1",
        client_port=1,
        listener="PLAINTEXT",
        request=ALTERATION[4:],
    ),
)
LOGINS = [
    request(ApiKey.SASL_HANDSHAKE, 1, mechanism="PLAIN")
    + request(ApiKey.SASL_AUTHENTICATE, version, auth_bytes=PASSWORD)
    for version in (0, 1, 2)
]
STREAMS = [
    METADATA + BARE + METADATA,
    framed(PASSWORD),
    framed(b"\0B\0" + PASSWORD[7:]),  # its first two bytes are the key of an API
    request(ApiKey.SASL_HANDSHAKE, 1, mechanism="PLAIN") + framed(PASSWORD),
    METADATA + ALTERATION + METADATA,
    METADATA + FORWARDED + METADATA,
    *(login + METADATA for login in LOGINS),
    b"GET /metrics HTTP/1.1\r\nHost: here\r\nAuthorization: Basic c2VjcmV0\r\n\r\n",
    LOGINS[0][:-5],  # the end never comes
]


def copied(stream: RequestStream | ResponseStream, pieces: Sequence[bytes]) -> bytes:
    changed = bytearray(b"".join(pieces))
    for piece in pieces:
        for at, found in stream.changes(piece):
            changed[at : at + len(found)] = found
    for at, found in stream.rest():
        changed[at : at + len(found)] = found
    return bytes(changed)


def cut(data: bytes, at: Sequence[int]) -> list[bytes]:
    places = sorted({0, len(data), *(place % len(data) for place in at)})
    return [data[begin:end] for begin, end in itertools.pairwise(places)]


def secrets_in(data: bytes) -> list[bytes]:
    return [secret for secret in SECRETS if any(form in data for form in forms_of(secret))]


@pytest.mark.parametrize("data", STREAMS)
@given(at=st.lists(st.integers(0, 10_000), max_size=8))
def test_no_secret_is_left_in_a_stream_however_it_is_cut(data: bytes, at: list[int]) -> None:
    whole = copied(RequestStream(StandIns(b"key")), [data])
    assert copied(RequestStream(StandIns(b"key")), cut(data, at)) == whole
    assert len(whole) == len(data)
    assert secrets_in(whole) == []


@pytest.mark.parametrize("version", [0, 1, 2])
@pytest.mark.parametrize("message", [b"\0", b"\0a\0b", b"test"])
def test_a_short_message_is_replaced_where_it_is(version: int, message: bytes) -> None:
    frame = request(ApiKey.SASL_AUTHENTICATE, version, auth_bytes=message)
    header, body = decode_request(StandIns(b"key").request(frame[4:]))
    assert (header.client_id, len(body.auth_bytes)) == ("a client", len(message))
    assert body.auth_bytes != message


def test_a_request_behind_a_refused_handshake_is_no_login() -> None:
    data = HANDSHAKE + METADATA + HANDSHAKE + METADATA
    assert copied(RequestStream(StandIns(b"key")), [data]) == data


def test_a_refused_version_keeps_what_a_broker_answers_by() -> None:
    frame = bytearray(request(ApiKey.API_VERSIONS, 0)[4:] + PASSWORD)
    frame[2:4] = b"\0\x63"
    found = StandIns(b"key").request(bytes(frame))
    assert found[: -len(PASSWORD)] == frame[: -len(PASSWORD)]
    assert secrets_in(found) == []


def test_of_a_login_by_plain_the_password_is_the_secret_and_the_name_is_not() -> None:
    found = set[bytes]()
    StandIns(b"key").login(b"\0interbroker\0what it logs in with", found)
    assert found == {b"what it logs in with"}


def alteration(resource: str, name: str, value: str) -> bytes:
    key = ApiKey.INCREMENTAL_ALTER_CONFIGS
    config = make(key, 1, "AlterableConfig", name=name, config_operation=0, value=value)
    of_it = make(key, 1, "AlterConfigsResource", resource_type=4, resource_name=resource, configs=(config,))
    return request(key, 1, resources=(of_it,), validate_only=False)[4:]


def creation(name: str, value: str) -> bytes:
    key = ApiKey.CREATE_TOPICS
    config = make(key, 5, "CreatableTopicConfig", name=name, value=value)
    topic = make(
        key, 5, "CreatableTopic", name="t", num_partitions=1, replication_factor=1, assignments=(),
        configs=(config,),
    )  # fmt: skip
    return request(key, 5, topics=(topic,), timeout_ms=1, validate_only=False)[4:]


def test_a_value_is_replaced_where_it_stands_and_not_where_equal_bytes_do() -> None:
    found = StandIns(b"key").request(alteration("1", "ssl.key.password", "1"))
    _, body = decode_request(found)
    (resource,) = body.resources
    assert resource.resource_name == "1"
    assert resource.configs[0].value != "1"
    assert found == alteration("1", "ssl.key.password", resource.configs[0].value)


@pytest.mark.parametrize(
    "name",
    [
        "ssl.key.password",
        "listener.name.outer.plain.sasl.jaas.config",
        "ldap.bind.pwd",
        "sasl.jass.config",
        "sasl.jaas.config ",
        "passphrase.node.id",
        "no.setting",
    ],
)
def test_a_value_is_a_secret_if_the_setting_is_sensitive_or_there_is_none_of_that_name(name: str) -> None:
    for frame in (alteration("1", name, "what it is"), creation(name, "what it is")):
        assert b"what it is" in frame
        assert b"what it is" not in StandIns(b"key").request(frame)


@pytest.mark.parametrize(
    "name",
    [
        "retention.ms",
        "delegation.token.max.lifetime.ms",
        "consumer.session.timeout.ms",
        "listener.name.outer.ssl.client.auth",
        "listener.name.outer.plain.connections.max.reauth.ms",
    ],
)
def test_other_values_stay(name: str) -> None:
    for frame in (alteration("1", name, "100000"), creation(name, "100000")):
        assert StandIns(b"key").request(frame) == frame


def test_the_level_of_a_logger_is_no_secret_whatever_its_name_is() -> None:
    def levels(*values: str) -> bytes:
        frame = alteration("1", "nilometer.coordination.local.secret", *values)
        _, body = decode_request(frame)
        (resource,) = body.resources
        of_logger = dataclasses.replace(resource, resource_type=8)
        return encode_request(7, "a client", dataclasses.replace(body, resources=(of_logger,)))[4:]

    assert StandIns(b"key").request(levels("DEBUG")) == levels("DEBUG")
    assert b"what it is" not in StandIns(b"key").request(levels("what it is"))


def test_bytes_behind_a_request_are_left_out() -> None:
    frame = request(ApiKey.SASL_AUTHENTICATE, 2, auth_bytes=b"")[4:]
    assert StandIns(b"key").request(frame + PASSWORD) == frame + bytes(len(PASSWORD))


@pytest.mark.parametrize(
    "data",
    [
        b"\r\nGET /metrics HTTP/1.1\r\nAuthorization: Basic c2VjcmV0\r\n\r\n",
        b"GET /metrics?token=c2VjcmV0 HTTP/1.1\r\nHost: here\r\n\r\n",
        b"GET / HTTP/1.1\r\nAuthorization:\r\n Basic c2VjcmV0\r\n\r\n",
        b"GET / HTTP/1.1\r\nX-Api-Key: Basic c2VjcmV0\r\nAccept: text/plain\r\n\r\n",
        b"GET / HTTP/1.1\nHost: here\n\nBasic c2VjcmV0",
        b"GET http://me:c2VjcmV0@here/metrics HTTP/1.1\r\n\r\n",
        b"GET //me:c2VjcmV0@here/metrics HTTP/1.1\r\n\r\n",
    ],
)
def test_of_http_what_no_answer_depends_on_is_letters(data: bytes) -> None:
    found = copied(RequestStream(StandIns(b"key")), [data])
    assert len(found) == len(data)
    assert b"c2VjcmV0" not in found
    assert found.count(b"\n") == data.count(b"\n")
    for kept in (b"GET ", b" HTTP/1.1", b"Host: here", b"Accept: text/plain"):
        assert (kept in found) == (kept in data)


@pytest.mark.parametrize("value", [b"of \x01 it", b"of\tit", b"of \xff it"])
@pytest.mark.parametrize("line", [b"GET /?%s HTTP/1.1\r\n", b"GET / HTTP/1.1\r\nX-Key: %s\r\n"])
def test_http_is_taken_as_before(line: bytes, value: bytes) -> None:
    def outcome(received: bytes) -> object:
        try:
            return parse_head(received)
        except BadRequest as error:
            return error.status, str(error)

    data = line % value + b"\r\n"
    found = copied(RequestStream(StandIns(b"key")), [data])
    assert found != data
    assert outcome(found) == outcome(data)


def test_the_cluster_secret_is_taken_out_encrypted_or_not() -> None:
    encrypted = SEALED + b"12345678" + bytes(range(100, 160))
    command = encode(PutSecret(None, 1, encrypted))
    stand_ins = StandIns(b"key")
    found = stand_ins.command(command)
    assert len(found) == len(command)
    put = decode(found)
    assert isinstance(put, PutSecret)
    assert put.data == stand_ins.answer("seal", encrypted)
    assert put.data[:9] == encrypted[:9]
    assert not any(encrypted[at : at + 8] in put.data for at in range(9, 61))
    assert stand_ins.secrets == {bytes(range(100, 160))}


def test_what_is_no_secret_stays() -> None:
    whole = copied(RequestStream(StandIns(b"key")), [METADATA + ALTERATION + METADATA])
    assert whole.startswith(METADATA)
    assert whole.endswith(METADATA)
    _, body = decode_request(whole[len(METADATA) + 4 : -len(METADATA)])
    (user,) = body.upsertions
    assert (user.name, user.salt, len(user.salted_password)) == ("alice", b"salt", 32)


@given(at=st.lists(st.integers(0, 10_000), max_size=8), version=st.sampled_from((0, 1, 2)))
def test_signatures_are_taken_out_of_responses(at: list[int], version: int) -> None:
    fields = {"error_code": 0, "error_message": None, "auth_bytes": b"v=" + SIGNATURE}
    answer = api(ApiKey.SASL_AUTHENTICATE, version).response(**fields)
    data = b"".join(encode_response(number, 36, version, answer) for number in range(3))
    pieces = cut(data, at)
    found = copied(ResponseStream(StandIns(b"key"), {}), pieces)
    assert secrets_in(found) == []
    assert len(found) == len(data)


def test_a_file_keeps_its_form_and_equal_secrets_have_equal_stand_ins() -> None:
    secret = base64.b64encode(SALTED)
    document = b'{"format":1,"number":0,"current":"' + secret + b'","previous":null}'
    stand_ins = StandIns(b"key")
    one = stand_ins.file("/a", layout.wrap("secret", document))
    kind, data = layout.unwrap("/a", one)
    assert (kind, len(data)) == ("secret", len(document))
    assert secrets_in(data) == []
    assert one == stand_ins.file("/b", layout.wrap("secret", document))
    assert one != StandIns(b"another").file("/a", layout.wrap("secret", document))
    assert stand_ins.secrets == {SALTED}
    escaped = layout.wrap("entry", b'{"topic":"\\"current\\":\\"' + secret + b'\\""}')
    assert stand_ins.file("/c", escaped) == escaped, "a name of a user's own"
    assert stand_ins.file("/d", document) == document, "no file of the store"
    torn = layout.wrap("secret", document)[:70]
    assert secret[:8] in torn
    found = stand_ins.file("/e", torn)
    assert secret[:8] not in found
    assert len(found) == len(torn)
