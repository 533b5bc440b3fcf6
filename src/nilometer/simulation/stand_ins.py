"""Which bytes that a recorded broker received are secrets, and what stands in their place in a copy.

A stand-in has the length of its secret, and each secret has one only, in all recordings that are copied
together: so the copied brokers do what they did. Where a broker's decisions depend on a secret itself, the
recording has the outcome (:data:`~nilometer.runtime.Runtime.with_secret`).

A secret enters a broker

- in files of the coordination store: the cluster's secret, and the keys of SCRAM users;
- in requests: the salted password of a user that is added, a delegation token's HMAC, a value of a setting
  that is sensitive, and what a client sends to log in, also where no login is possible. A broker that is not
  the controller forwards requests;
- in HTTP requests to the listener of metrics: ``Authorization`` and ``Cookie``;
- in responses of other brokers to its own logins: the signature of SCRAM, by which passwords can be guessed;
- as random bytes, of which a new secret of the cluster is made.

What a broker makes of a login is recorded as well, and has stand-ins too.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import dataclasses
import hashlib
import re
import string
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from nilometer.broker.api.configs import RESOURCE_BROKER_LOGGER
from nilometer.broker.quorum.key_file import KEY_ID_BYTES, SEALED
from nilometer.broker.settings.config import BROKER_CONFIG_DEFINITION, is_sensitive
from nilometer.broker.settings.listener_security import PREFIX
from nilometer.broker.settings.logging_settings import LEVELS
from nilometer.coordination.local import layout
from nilometer.coordination.quorum import commands
from nilometer.coordination.store import StoreDamaged
from nilometer.groups.settings import names_of_settings
from nilometer.raft.recovery import TOPIC_ID
from nilometer.security.scram import ScramMechanism, credential_of
from nilometer.simulation.payloads import (
    Change,
    Payloads,
    changed_batches,
    changed_records,
    malformed,
    with_body,
    without_old_records,
)
from nilometer.storage.directories.log_directory import METADATA_TOPIC
from nilometer.storage.topic_config import TOPIC_CONFIG
from nilometer.wire import messages
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import MalformedMessage, UnsupportedVersion
from nilometer.wire.own_apis import (
    ASK_QUORUM,
    FORWARD_REQUEST,
    ForwardedRequest,
    Propose,
    QuorumQuestion,
)
from nilometer.wire.record_batch import BatchHeader
from nilometer.wire.records import decode_records

_LETTERS = (string.ascii_letters + string.digits + "-_").encode()
_KEYS_IN_JSON = re.compile(
    rb'("(?:current|previous|stored_key|server_key)":")'
    rb"((?:[A-Za-z0-9+/]{4})+(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?)\""
)
"""In the documents of the coordination store. A broker's own names have a quote escaped there."""
_OF_STORE = re.compile(rb"(?:entry|snapshot|secret) ")
_HTTP_REQUEST = re.compile(rb"[A-Z]+ [^ ]+ HTTP/1\.[01]")
_HTTP_UNREAD = re.compile(rb"(?<=//)[^/?# ]+|(?<=[?#])[^ ]+")
_HTTP_HEADER = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+:[ \t]*)(.*)", re.DOTALL)
_HTTP_READ = re.compile(rb"(?i)(?:host|connection|user-agent|accept(?:-encoding)?|content-length):[ \t]*")
_SECRET_OF_LOGIN = re.compile(rb"\Av=|,p=|auth=(?:Bearer )?")
"""What is before a signature, a proof or a token. A password is behind the second zero byte."""
_SIGNATURE = re.compile(
    rb"((?:\0\0\0[\x2e\x5a]|[\x2f\x5b])v=)((?:[A-Za-z0-9+/]{43}=|[A-Za-z0-9+/]{86}==)(?![A-Za-z0-9+/=]))"
)
"""With its length in front, in all versions of the response."""
RESPONSE_START = 8
"""The length of a response and the correlation id."""
RESPONSE_BYTES_MAX = 1_024
"""Of one to a login."""
SHOWN_MIN = 8
"""Shorter secrets are in many files by chance: a copy is not searched for them."""


class SecretsInPieces(Exception):
    """Something is recorded in pieces in which secrets cannot be told; the message says what."""


def _no_snapshot(_batch: bytes, _header: BatchHeader) -> bytes:
    raise SecretsInPieces("a snapshot of the metadata that was read")


SNAPSHOT_SUFFIX = ".checkpoint"


class StandIns:
    def __init__(self, key: bytes) -> None:
        """``key``: random; without it a stand-in tells nothing of its secret."""
        self.payloads: Payloads | None = None
        """Makes stand-ins for records' keys and values; None: they stay."""
        self._key = key
        self.secrets: set[bytes] = set()
        """Those of the cluster that were found."""
        self.sent: set[bytes] = set()
        """What clients sent as secrets; anyone may send anything."""
        self._derived: dict[bytes, bytes] = {}
        """Keys that a broker makes of a salted password → those that it makes of its stand-in."""

    def of_bytes(self, secret: bytes) -> bytes:
        derived = self._derived.get(secret)
        return derived or hashlib.shake_256(self._key + secret).digest(len(secret))

    def _note(self, secret: bytes) -> None:
        if len(secret) >= SHOWN_MIN:
            self.secrets.add(secret)

    def _sent(self, secret: bytes) -> bytes:
        """Note what a client sent as a secret; return letters in its place."""
        if len(secret) >= SHOWN_MIN:
            self.sent.add(secret)
        return self._letters(secret)

    def _letters(self, secret: bytes) -> bytes:
        return bytes(_LETTERS[byte & 63] for byte in self.of_bytes(secret))

    def _found(self, secret: bytes) -> bytes:
        """Note a secret; return letters in its place."""
        self._note(secret)
        return self._letters(secret)

    # --- files

    def file(self, path: str, content: bytes) -> bytes:
        """Return what a copy has of the whole content of a file of the coordination store."""
        try:
            kind, data = layout.unwrap(path, content)
        except StoreDamaged:
            found = _OF_STORE.match(content)  # a damaged one stays so
            return content if found is None else found[0] + self._found(content[found.end() :])
        cleaned = _KEYS_IN_JSON.sub(self._key_in_json, data)
        return content if cleaned == data else layout.wrap(kind, cleaned)

    def _key_in_json(self, found: re.Match[bytes]) -> bytes:
        secret = base64.b64decode(found[2])
        self._note(secret)
        return found[1] + base64.b64encode(self.of_bytes(secret)) + b'"'

    def key_file(self, content: bytes) -> bytes:
        """Return what a copy has of the key file of a quorum's nodes."""
        key = content.strip()
        return content.replace(key, self._found(key))

    def unsealed(self, document: bytes) -> bytes:
        """Return what a copy has of the cluster's secret, as a quorum's node has decrypted it."""
        return _KEYS_IN_JSON.sub(self._key_in_json, document)

    # --- the log of a metadata quorum

    def command(self, command: bytes) -> bytes:
        """Return what a copy has of a record of the metadata log. Raises SecretsInPieces."""
        try:
            found = commands.decode(command)
        except msgspec.DecodeError:
            return command
        if isinstance(found, commands.SnapshotPart) and (found.position or not found.is_last):
            raise SecretsInPieces("a snapshot of the metadata that was written in parts")
        if isinstance(found, commands.PutSecret) and found.data.startswith(SEALED):
            return commands.encode(msgspec.structs.replace(found, data=self.sealed(found.data)))
        return _KEYS_IN_JSON.sub(self._key_in_json, command)

    def sealed(self, data: bytes) -> bytes:
        """Return what a copy has of the cluster's secret, encrypted: people write keys, and some can be
        guessed."""
        if not data.startswith(SEALED):
            return _KEYS_IN_JSON.sub(self._key_in_json, data)
        begin = len(SEALED) + KEY_ID_BYTES
        self._note(data[begin:])
        return data[:begin] + self.of_bytes(data[begin:])

    def metadata(self, data: bytes) -> bytes:
        """Return what a copy has of batches of the metadata log. Raises SecretsInPieces."""
        return changed_batches(data, self._metadata_batch)

    def _metadata_batch(self, batch: bytes, header: BatchHeader) -> bytes:
        if header.is_compressed:
            raise SecretsInPieces("a compressed batch of the metadata log")
        for record in decode_records(batch, 0, header):
            if record.value:
                batch = batch.replace(record.value, self.command(record.value))
        return batch

    def read(self, path: str, data: bytes) -> bytes:
        """Return what a copy has of what was read in a file. Raises SecretsInPieces."""
        folder, _, name = path.rpartition("/")
        if not folder.endswith(f"/{METADATA_TOPIC}-0"):
            return data if self.payloads is None else self.payloads.read(path, data)
        if name.endswith(".log"):
            return self.metadata(data)
        if name.endswith(SNAPSHOT_SUFFIX):
            return changed_batches(data, _no_snapshot)
        return data

    def fetched(self, version: int, frame: bytes) -> bytes:
        """Return what a copy has of the response to a broker's own Fetch request."""
        try:
            number, body = messages.decode_response(int(ApiKey.FETCH), version, frame)
        except MalformedMessage:
            return frame[:4] + bytes(len(frame) - 4)
        changed = changed_records(body, "responses", "partitions", self._change_of)
        encoded = messages.encode_response(number, int(ApiKey.FETCH), version, changed)
        return encoded[LENGTH:].ljust(len(frame), b"\0")

    def _change_of(self, topic: Any) -> Change | None:
        if getattr(topic, "topic", None) == METADATA_TOPIC or (getattr(topic, "topic_id", None) == TOPIC_ID):
            return self.metadata
        payloads = self.payloads
        return None if payloads is None or payloads.is_kept(topic) else payloads.batches

    # --- requests

    def request(self, frame: bytes) -> bytes:
        """Return what a copy has of a request, given without its length. A message of a login that has no
        request around it, or what is no request at all, has letters in its place."""
        key, version = (int.from_bytes(frame[at : at + 2], "big", signed=True) for at in (0, 2))
        try:
            messages.api(key, version)
        except UnsupportedVersion:
            return self._not_served(frame, key, version)
        if key == int(ApiKey.PRODUCE) and self.payloads is not None:
            return self.payloads.produced(frame)
        try:
            header, body = messages.decode_request(frame)
        except MalformedMessage:
            return malformed(frame, self._sent)  # whatever it is
        if key not in _WITH_SECRETS:
            return frame
        if header.api_key == int(FORWARD_REQUEST):
            return self._forwarded(frame, body)
        if header.api_key == int(ASK_QUORUM):
            return self._asked(frame, body.question)
        frame = with_body(frame, header, _WITH_SECRETS[header.api_key](body, self._field))
        if header.api_key == int(ApiKey.ALTER_USER_SCRAM_CREDENTIALS):
            self._derive(body)
        return frame

    def _not_served(self, frame: bytes, key: int, version: int) -> bytes:
        if key in _RETIRED and 0 <= version <= _RETIRED_VERSION_MAX:
            is_produce = key == int(ApiKey.PRODUCE) and self.payloads is not None
            return without_old_records(frame) if is_produce else frame
        kept = _KEY
        if key == int(ApiKey.API_VERSIONS):
            with contextlib.suppress(MalformedMessage):
                kept = messages.decode_request_header(frame).size  # a broker answers it
        return frame[:kept] + self.login(frame, self.sent)[kept:]

    def _field(self, secret: bytes) -> bytes:
        self.login(secret, self.sent)  # parts of it may stand elsewhere
        return self._sent(secret)

    def _derive(self, body: Any) -> None:
        for each in body.upsertions:
            mechanism = ScramMechanism.numbered(each.mechanism)
            if mechanism is not None:
                keys, stand_ins = (
                    credential_of(mechanism, salted, each.salt, each.iterations)
                    for salted in (each.salted_password, self._letters(each.salted_password))
                )
                self._derived[keys.stored_key] = stand_ins.stored_key
                self._derived[keys.server_key] = stand_ins.server_key

    def _forwarded(self, frame: bytes, body: ForwardedRequest) -> bytes:
        inner = body.request
        if int(FORWARD_REQUEST) == int.from_bytes(inner[:2], "big"):
            return frame  # no broker forwards it
        return frame.replace(base64.b64encode(inner), base64.b64encode(self.request(inner)))

    def login(self, message: bytes, found: set[bytes]) -> bytes:
        """Return what a copy has of a message of a login, without a request around it; add to ``found`` what
        in it is secret."""
        parts = message.split(b"\0", 2)[2:] or _SECRET_OF_LOGIN.split(message)[1:]
        found |= {part for part in parts if len(part) >= SHOWN_MIN}
        return self._letters(message)

    def response(self, frame: bytes) -> bytes:
        """Return what a copy has of a response of another broker."""
        return _SIGNATURE.sub(lambda found: found[1] + self._found(found[2]), frame)

    def answer(self, name: str, result: Any) -> Any:
        """Return what a copy has of what a broker made of a login, or of the cluster's secret; of any other
        call its result."""
        match name, result:
            case "log in", [bytes() as message, rejection, shown]:
                return [self.login(message, self.secrets), rejection, shown]
            case "answer login", [[bytes() as message, rejection, shown], *state]:
                return [[self.login(message, self.sent), rejection, shown], *state]
            case "seal", bytes() as data:
                return self.sealed(data)
            case _:
                return result

    def _asked(self, frame: bytes, question: QuorumQuestion) -> bytes:
        if not isinstance(question, Propose):
            return frame
        cleaned = self.command(question.command)
        return frame.replace(base64.b64encode(question.command), base64.b64encode(cleaned))

    def http_line(self, line: bytes) -> bytes:
        """Return what a copy has of a line of an HTTP request: letters for all that has no influence on the
        answer."""
        text = line.rstrip(b"\r\n")
        end = line[len(text) :]
        if _HTTP_REQUEST.fullmatch(text):
            return _HTTP_UNREAD.sub(lambda found: self._unread(found[0]), text) + end
        header = _HTTP_HEADER.fullmatch(text)
        if header is None:
            return self._sent(text) + end
        return line if _HTTP_READ.fullmatch(header[1]) else header[1] + self._unread(header[2]) + end

    def _unread(self, text: bytes) -> bytes:
        """Return letters that make no line well-formed that was not: bytes of each kind stay of it."""
        return bytes(map(_alike, text, self._sent(text)))


def _alike(byte: int, letter: int) -> int:
    if byte in b" \t":
        return byte
    if byte < 0x20 or byte == 0x7F:
        return 1
    return letter | byte & 0x80


_KEY = 2
_RETIRED = {int(ApiKey.PRODUCE), int(ApiKey.FETCH), int(ApiKey.LIST_OFFSETS)}
_RETIRED_VERSION_MAX = 3
"""A broker answers these old versions, and no message of a login begins as they do."""


Field = Callable[[bytes], bytes]


def _replaced(message: Any, name: str, change: Field) -> Any:
    return dataclasses.replace(message, **{name: change(getattr(message, name))})


def _each(message: Any, name: str, change: Callable[[Any], Any]) -> Any:
    return dataclasses.replace(message, **{name: tuple(change(one) for one in getattr(message, name))})


def _settings(message: Any, name: str, change: Field) -> Any:
    def of_resource(resource: Any) -> Any:
        is_logger = getattr(resource, "resource_type", None) == RESOURCE_BROKER_LOGGER

        def setting(config: Any) -> Any:
            is_shown = config.value in LEVELS if is_logger else not _may_be_secret(config.name)
            if config.value is None or is_shown:
                return config
            return dataclasses.replace(config, value=change(config.value.encode()).decode())

        return _each(resource, "configs", setting)

    return _each(message, name, of_resource)


_KNOWN = {*TOPIC_CONFIG.keys, *BROKER_CONFIG_DEFINITION.keys, *names_of_settings()}
_OF_LISTENER = re.compile(re.escape(PREFIX) + r"[^.]+\.")


def _may_be_secret(name: str) -> bool:
    """Whether a setting is sensitive, or is none that there is: its name may be a typing error."""
    rest = _OF_LISTENER.sub("", name, count=1) if name.startswith(PREFIX) else name
    is_known = rest in _KNOWN or (rest != name and rest.partition(".")[2] in _KNOWN)  # of a mechanism
    return is_sensitive(name) or not is_known


_WITH_SECRETS: Mapping[int, Callable[[Any, Field], Any]] = {
    int(ApiKey.SASL_AUTHENTICATE): lambda body, change: _replaced(body, "auth_bytes", change),
    int(ApiKey.RENEW_DELEGATION_TOKEN): lambda body, change: _replaced(body, "hmac", change),
    int(ApiKey.EXPIRE_DELEGATION_TOKEN): lambda body, change: _replaced(body, "hmac", change),
    int(ApiKey.ALTER_CONFIGS): lambda body, change: _settings(body, "resources", change),
    int(ApiKey.INCREMENTAL_ALTER_CONFIGS): lambda body, change: _settings(body, "resources", change),
    int(ApiKey.CREATE_TOPICS): lambda body, change: _settings(body, "topics", change),
    int(ApiKey.ALTER_USER_SCRAM_CREDENTIALS): lambda body, change: _each(
        body, "upsertions", lambda one: _replaced(one, "salted_password", change)
    ),
    int(FORWARD_REQUEST): lambda body, _: body,
    int(ASK_QUORUM): lambda body, _: body,
}
"""The requests that may have secrets, with what is in their place."""


def forms_of(secret: bytes) -> Iterator[bytes]:
    """Yield how a secret may be written: as it is, in hexadecimal digits, in base64."""
    yield secret
    yield binascii.hexlify(secret)
    yield binascii.hexlify(secret).upper()
    yield base64.b64encode(secret).rstrip(b"=")
    yield base64.urlsafe_b64encode(secret).rstrip(b"=")


# The requests of a connection, in the pieces in which they arrived.

FRAME_BYTES_MAX = 1 << 30
LINE_BYTES_MAX = 1 << 16
LENGTH, KEY_END = 4, 6
"""The length of a frame and the API key."""


class RequestStream:
    """What a client sent on a connection."""

    def __init__(self, stand_ins: StandIns) -> None:
        self._stand_ins = stand_ins
        self._at = 0
        """Where in the stream the pending bytes begin."""
        self._pending = bytearray()
        self._is_text: bool | None = None

    def changes(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """Take what arrived; yield what differs in a copy, with its place in the stream."""
        self._pending += data
        while (taken := self._take()) is not None:
            at, found, cleaned = taken
            if cleaned != found:
                yield at, cleaned

    def _take(self) -> tuple[int, bytes, bytes] | None:
        """Return the next part that is there whole, its place and what a copy has of it."""
        pending = self._pending
        if len(pending) < LENGTH:
            return None
        if self._is_text is None:
            is_line_end = pending[0] in b"\r\n"  # browsers may begin with one
            self._is_text = is_line_end or int.from_bytes(pending[:LENGTH], "big") > FRAME_BYTES_MAX
        if self._is_text:
            end = pending.find(b"\n") + 1
            if not end and len(pending) < LINE_BYTES_MAX:
                return None
            return self._taken(end or len(pending), self._stand_ins.http_line)
        size = LENGTH + int.from_bytes(pending[:LENGTH], "big")
        if len(pending) < size:
            return None
        return self._taken(size, lambda frame: frame[:LENGTH] + self._stand_ins.request(frame[LENGTH:]))

    def _taken(self, size: int, clean: Callable[[bytes], bytes]) -> tuple[int, bytes, bytes]:
        at, found = self._at, bytes(self._pending[:size])
        del self._pending[:size]
        self._at += size
        return at, found, clean(found)

    def rest(self) -> Iterator[tuple[int, bytes]]:
        """Yield what a copy has of a request that has not arrived whole."""
        found = bytes(self._pending)
        if self._is_text:
            yield self._at, self._stand_ins.http_line(found)
        elif len(found) > KEY_END:
            yield self._at + KEY_END, self._stand_ins.of_bytes(found[KEY_END:])


class ResponseStream:
    """What another broker answered on a connection."""

    def __init__(self, stand_ins: StandIns, fetches: Mapping[int, int]) -> None:
        """``fetches``: the versions of the Fetch requests there, by their correlation ids."""
        self._stand_ins = stand_ins
        self._fetches = fetches
        self._at = 0
        self._pending = b""
        self._skip = 0

    def changes(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """Take what arrived; yield what differs in a copy, with its place in the stream."""
        passed = min(self._skip, len(data))
        self._skip -= passed
        self._at += passed
        pending, begin = self._pending + data[passed:], 0
        while (left := len(pending) - begin) >= RESPONSE_START:
            size = 4 + int.from_bytes(pending[begin : begin + 4], "big")
            version = self._fetches.get(int.from_bytes(pending[begin + 4 : begin + RESPONSE_START], "big"))
            if version is not None or size <= RESPONSE_BYTES_MAX:
                if left < size:
                    break
                found = pending[begin : begin + size]
                if (cleaned := self._cleaned(found, version)) != found:
                    yield self._at + begin, cleaned
            self._skip = max(0, size - left)
            begin += min(size, left)
        self._at += begin
        self._pending = pending[begin:]

    def _cleaned(self, frame: bytes, version: int | None) -> bytes:
        if version is not None:
            return frame[:4] + self._stand_ins.fetched(version, frame[4:])
        return self._stand_ins.response(frame)

    def rest(self) -> Iterator[tuple[int, bytes]]:
        """Yield what a copy has of a response that has not arrived whole."""
        if len(self._pending) > RESPONSE_START:
            yield self._at + RESPONSE_START, bytes(len(self._pending) - RESPONSE_START)
