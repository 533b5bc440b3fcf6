"""Nilometer's own APIs: their messages are JSON, with Kafka's framing and headers.

A request has the header of version 1 (API key, version, correlation id, client id), a response that of
version 0 (correlation id); a JSON document fills the rest of the frame. The API keys are far above Kafka's,
so clients ignore them in ApiVersions.

Invariant: decoding any bytes returns a value of the message's type or raises MalformedMessage, with memory
proportional to the frame.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from nilometer.wire.api import Api
from nilometer.wire.api_keys import NilometerApiKey
from nilometer.wire.building import Message
from nilometer.wire.describe_rebalances import DescribeRebalancesRequest, DescribeRebalancesResponse
from nilometer.wire.describe_replicas import DescribeReplicasRequest, DescribeReplicasResponse
from nilometer.wire.errors import MalformedMessage, MalformedRequest, MalformedResponse
from nilometer.wire.forfeit_replicas import ForfeitReplicasRequest, ForfeitReplicasResponse
from nilometer.wire.forward_request import ForwardedRequest, ForwardedResponse
from nilometer.wire.prove_broker import ProveBrokerRequest, ProveBrokerResponse


class OwnApi:
    """One of Nilometer's own APIs. Implements :class:`~nilometer.wire.api.Api`, except for ``make`` and
    ``make_request``: use the classes of the parts."""

    def __init__(self, request_type: type[Any], response_type: type[Any]) -> None:
        """Key and version are those of the request type."""
        self.key = NilometerApiKey(request_type.__api_key__)
        self.version: int = request_type.__version__
        self.request_type = request_type
        self.response_type = response_type
        self.flexible = False
        self.flexible_response_header = False
        self._request_decoder = msgspec.json.Decoder(request_type)
        self._response_decoder = msgspec.json.Decoder(response_type)

    def __repr__(self) -> str:
        return f"OwnApi({self.key.name}, {self.version})"

    def has(self, name: str) -> bool:
        return False

    def response(self, **fields: object) -> Message:
        return self.response_type(**fields)

    def make(self, name: str, /, **fields: object) -> Message:
        raise KeyError(name)

    def request(self, **fields: object) -> Message:
        return self.request_type(**fields)

    def make_request(self, name: str, /, **fields: object) -> Message:
        raise KeyError(name)

    def read_request(self, body: bytes, position: int = 0) -> Message:
        return _decode(MalformedRequest, self._request_decoder, body, position)

    def read_response(self, body: bytes, position: int = 0) -> Message:
        return _decode(MalformedResponse, self._response_decoder, body, position)

    def write_request(self, request: Message) -> bytes:
        return msgspec.json.encode(request)

    def write_response(self, response: Message) -> bytes:
        return msgspec.json.encode(response)

    def response_slices(self, response: Message) -> Iterator[bytes]:
        yield self.write_response(response)


def _decode(
    failure: type[MalformedMessage], decoder: msgspec.json.Decoder[Any], body: bytes, position: int
) -> Message:
    try:
        return decoder.decode(memoryview(body)[position:])
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
        raise failure(f"{decoder.type.__name__}: {error}") from None


_MESSAGES: tuple[tuple[type[Any], type[Any]], ...] = (
    (DescribeReplicasRequest, DescribeReplicasResponse),
    (ForfeitReplicasRequest, ForfeitReplicasResponse),
    (DescribeRebalancesRequest, DescribeRebalancesResponse),
    (ProveBrokerRequest, ProveBrokerResponse),
    (ForwardedRequest, ForwardedResponse),
)

OWN_APIS: Mapping[tuple[int, int], Api] = {
    (int(api.key), api.version): api for api in (OwnApi(request, response) for request, response in _MESSAGES)
}
"""Nilometer's APIs by (API key, version)."""

OWN_VERSIONS: Mapping[int, tuple[int, int]] = {
    int(key): (min(versions), max(versions))
    for key in NilometerApiKey
    for versions in [[version for known, version in OWN_APIS if known == key]]
}
