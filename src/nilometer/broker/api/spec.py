"""The declaration of an API (:class:`ApiSpec`), and the request that its handler gets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any, NamedTuple, TypeVar

import msgspec

from nilometer.broker.connection import Connection, Response
from nilometer.broker.request_context import RequestContext
from nilometer.broker.responses import EncodedResponse, KeptResponse
from nilometer.broker.turns import LongWork
from nilometer.cluster.acl import Operation, ResourceType
from nilometer.wire import messages
from nilometer.wire.api_keys import AnyApiKey
from nilometer.wire.large_requests import Division


class Request(msgspec.Struct, frozen=True):
    """A decoded request, and the methods that make its response."""

    header: messages.RequestHeader
    body: messages.Message
    api: messages.Api
    connection: Connection
    context: RequestContext
    """The context of the connection or, for a forwarded request, of the client that sent it first."""
    began_us: int = 0
    """When the request arrived, on the monotonic clock; 0 if it was forwarded."""

    @property
    def version(self) -> int:
        return self.api.version

    def field(self, name: str, default: Any = None) -> Any:
        """Return a field of the body, or ``default`` in versions that do not have it."""
        return getattr(self.body, name, default)

    def make(self, type_name: str, /, **fields: object) -> messages.Message:
        """Make a part of the response, of the message type ``type_name``."""
        return self.api.make(type_name, **fields)

    def respond(self, **fields: object) -> Response:
        """Make the response. Elements of its arrays may be made when they are encoded (``LazySequence``)."""
        return self.encode(**fields).ready()

    def encode(self, **fields: object) -> EncodedResponse:
        """Begin to encode the response; :meth:`EncodedResponse.ready` returns the response."""
        return EncodedResponse(self.api, self.header.correlation_id, self.api.response(**fields))

    def part(self, body: Any, began_us: int) -> PartOfRequest:
        """Return a part of this request, which is handled by itself from ``began_us`` on."""
        return PartOfRequest(
            self.header, body, self.api, self.connection, self.context, began_us=began_us, made=[]
        )


class PartOfRequest(Request, frozen=True):
    """A part of a large request. Its response is kept as a message, to be merged with those of the others."""

    made: list[Any] = []
    """The message of its response, at most one; an object of the handler's own for Produce."""
    waiting: list[asyncio.Future[Response]] = []
    """Of Produce, at most one: the future of its response if that waits longer than the handler."""

    def encode(self, **fields: object) -> EncodedResponse:
        return KeptResponse(self.made, self.api, self.api.response(**fields))


S = TypeVar("S", bound=msgspec.Struct)


def of_message(kind: type[S], message: messages.Message, /, **others: Any) -> S:
    """Return a ``kind`` with the fields of ``message`` that have the same names, and ``others``.

    A field that the version of the message does not have gets its default.
    """
    names = [name for name in kind.__struct_fields__ if name not in others and hasattr(message, name)]
    return kind(**{name: getattr(message, name) for name in names}, **others)


Handler = Callable[[Request], Response | asyncio.Future[Response]]
LongHandler = Callable[[Request, LongWork], Coroutine[Any, Any, Response]]


class Right(NamedTuple):
    """An operation on resources of one type."""

    operation: Operation
    type: ResourceType


NO_RIGHTS: tuple[Right, ...] = ()
"""Of an API that every client may use: it reads and changes nothing that rights protect."""


class ApiSpec(msgspec.Struct, frozen=True, kw_only=True):
    key: AnyApiKey
    versions: tuple[int, int]
    """Lowest and highest version served."""
    handle: Handler
    rights: tuple[Right, ...] | None = None
    """The rights that requests of this API may need: its handler checks them. None fails a test."""
    decode: Callable[[int, memoryview, int], Any] | None = None
    """Decodes the body in place of the schema's decoder, from (version, frame, end of the header's client
    id). Returns a generator, which decodes the rest slice by slice, if the body has many elements. Raises
    MalformedRequest.
    """
    handle_long: LongHandler | None = None
    """Handles a request of which ``decode`` returned a generator, slice by slice."""
    advertised_min: int | None = None
    """A version below the served ones that is advertised but rejected, for clients that misread a higher
    minimum. None: the lowest served one is advertised."""
    between_brokers: bool = False
    """Served on connections of brokers only, and advertised only to them."""
    hidden: bool = False
    """Served, but not advertised: clients that find the API in ApiVersions would use it to no purpose."""
    forwardable: bool = False
    """Whether a broker may forward a client's request of this API to the controller."""
    pipelined: bool = False
    """Whether a request may be processed while earlier requests of its connection wait."""
    counts_quotas: bool = False
    """Whether the handler itself counts its requests for the quotas of clients."""
    exempt_from_quotas: bool = False
    """Whether clients may send as many of these as they want: a cluster needs them in order to go on."""

    divisions: tuple[Division, ...] = ()
    """How a large request is divided into parts; the first whose path the request's version has counts. With
    none a request is handled as a whole."""
    elements_max: int = 10_000
    """A request that is handled as a whole, and has more elements in all its arrays, is refused."""

    @property
    def advertised(self) -> tuple[int, int]:
        low, high = self.versions
        return (low if self.advertised_min is None else self.advertised_min, high)

    def serves(self, version: int) -> bool:
        return self.versions[0] <= version <= self.versions[1]


def ranges(specs: Iterable[ApiSpec], *, for_brokers: bool) -> Mapping[int, tuple[int, int]]:
    """Return, by API key in its order, the lowest and highest version that is advertised.

    ``for_brokers``: to brokers of this cluster, with the APIs between brokers; else to all other clients.
    """
    return {
        int(spec.key): spec.advertised
        for spec in sorted(specs, key=lambda spec: spec.key)
        if not spec.hidden and (for_brokers or not spec.between_brokers)
    }
