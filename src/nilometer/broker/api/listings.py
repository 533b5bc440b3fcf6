"""Requests about much of what there is: groups, transactional ids, log directories, replicas, ACLs, quotas.

However small such a request is, its response may have hundreds of thousands of elements, which are found
slice by slice and kept until they are encoded. If all that are asked for at once were made side by side, none
would be ready before nearly all are, and each would keep what it has found. So few are made at once: one of
an origin; origins take turns (:class:`~nilometer.broker.rooms.Room`). What was found counts as
memory of its connection until it is encoded.

Brokers do not wait.
"""

from __future__ import annotations

import asyncio

from nilometer.broker.api.spec import LongHandler, PartOfRequest, Request
from nilometer.broker.connection import Response
from nilometer.broker.connection_memory import ResponseMemory
from nilometer.broker.responses import EncodedResponse
from nilometer.broker.rooms import Place, Room
from nilometer.broker.tasks import Tasks
from nilometer.broker.turns import LongWork, Turns
from nilometer.wire.api_keys import api_name

AT_ONCE = 4
FOUND_BYTES = 100
"""What was found counts as so many bytes for each element that was looked at."""


class Listings:
    def __init__(self, tasks: Tasks, turns: Turns, memory: ResponseMemory) -> None:
        self._tasks = tasks
        self._turns = turns
        self._memory = memory
        self._room = Room(AT_ONCE)

    def answer(self, request: Request, make: LongHandler) -> asyncio.Future[Response]:
        """Have ``make`` make the response when it is the turn of ``request``; return its future.

        What may wait for other things than the event loop is waited for by :meth:`LongWork.wait`, or others
        of the same origin wait for it, too. A part of a large request has had its turn.
        """
        has_turn = isinstance(request, PartOfRequest)
        work = make(request, LongWork(self._turns)) if has_turn else self._in_turn(request, make)
        return self._tasks.spawn(work, kind=api_name(request.header.api_key))

    async def _in_turn(self, request: Request, make: LongHandler) -> Response:
        connection = request.connection
        place = Place(self._room, connection.origin)
        await place.enter(0 if connection.context.is_broker else 1, self._memory)
        work = LongWork(self._turns, place.leave)
        try:
            response = await make(request, work)
        finally:
            place.leave()
        if isinstance(response, EncodedResponse):
            response.hold(work.walked * FOUND_BYTES)
        return response
