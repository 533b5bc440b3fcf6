"""Listings of which each is made at once, however many there are."""

from __future__ import annotations

import asyncio

from nilometer.broker.api.spec import LongHandler, Request
from nilometer.broker.connection import Response
from nilometer.broker.turns import LongWork, Turns


class ListingsAtOnce:
    def __init__(self, turns: Turns) -> None:
        self._turns = turns

    def answer(self, request: Request, make: LongHandler) -> asyncio.Future[Response]:
        return asyncio.ensure_future(make(request, LongWork(self._turns)))
