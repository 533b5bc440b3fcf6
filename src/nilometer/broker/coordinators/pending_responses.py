"""The response to one client request, made when the last of its replies has arrived.

The replies come from one or several shells (:mod:`nilometer.broker.coordinators` describes shells). If the
client's connection closes before, the shells forget its requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Generic

from nilometer.broker.connection import Reply as Frame
from nilometer.broker.coordinators.kind import ReplyT, RequestT
from nilometer.broker.coordinators.shell import CoordinatorShell
from nilometer.coordinators.turn import Token


class PendingResponse(Generic[RequestT, ReplyT]):
    __slots__ = ("_future", "_missing", "_replies", "_respond", "_tokens")

    def __init__(self, count: int, respond: Callable[[Sequence[ReplyT]], Frame]) -> None:
        self._replies: list[ReplyT | None] = [None] * count
        self._missing = count
        self._respond = respond
        self._tokens: list[tuple[CoordinatorShell[RequestT, ReplyT, Any, Any], Token]] = []
        self._future: asyncio.Future[Frame] | None = None

    def submit(
        self, index: int, shell: CoordinatorShell[RequestT, ReplyT, Any, Any], request: RequestT
    ) -> None:
        """Submit ``request`` to ``shell``; its reply gets the given ``index`` among the replies.

        Raises KafkaError if the shell cannot process requests now.
        """
        token = shell.submit(request, lambda reply: self.set_reply(index, reply))
        if token is not None:
            self._tokens.append((shell, token))

    def set_reply(self, index: int, reply: ReplyT) -> None:
        """Set the reply with this ``index``. When all replies are set, the response is made from them."""
        self._replies[index] = reply
        self._missing -= 1
        future = self._future
        if self._missing or future is None or future.done():
            return
        try:
            future.set_result(self._make())
        except Exception as error:
            future.set_exception(error)

    def frame(self) -> Frame | asyncio.Future[Frame]:
        """Return the response if all replies are there, else its future."""
        if not self._missing:
            return self._make()
        self._future = asyncio.get_running_loop().create_future()
        self._future.add_done_callback(self._on_done)
        return self._future

    def _make(self) -> Frame:
        return self._respond([reply for reply in self._replies if reply is not None])

    def _on_done(self, future: asyncio.Future[Frame]) -> None:
        tokens, self._tokens = self._tokens, []
        if future.cancelled():
            for shell, token in tokens:
                shell.forget(token)
