"""The pages of brokers, topics, partitions, groups and settings."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from nilometer.console.reading.cluster_reader import ClusterReader
from nilometer.console.web.live_page import LivePage, LivePages


class ClusterPages:
    def __init__(self, reader: ClusterReader, live: LivePages) -> None:
        self._reader = reader
        self._live = live

    @property
    def routes(self) -> list[Route]:
        return [
            Route("/", self._overview),
            Route("/brokers", self._brokers),
            Route("/brokers/{broker:int}", self._broker),
            Route("/topics", self._topics),
            Route("/topics/{topic}", self._topic),
            Route("/topics/{topic}/settings", self._topic_settings),
            Route("/topics/{topic}/{partition:int}", self._partition),
            Route("/groups", self._groups),
            Route("/group", self._group),
        ]

    async def _overview(self, request: Request) -> Response:
        page = LivePage("overview", "Overview", "overview.html", self._reader.overview)
        return await self._live.respond(request, page)

    async def _brokers(self, request: Request) -> Response:
        page = LivePage("brokers", "Brokers", "brokers.html", self._reader.overview)
        return await self._live.respond(request, page)

    async def _broker(self, request: Request) -> Response:
        broker: int = request.path_params["broker"]
        page = LivePage("brokers", f"Broker {broker}", "broker.html", lambda: self._reader.broker(broker))
        return await self._live.respond(request, page)

    async def _topics(self, request: Request) -> Response:
        query, number = _search(request)
        internal = request.query_params.get("internal") == "1"

        async def read() -> object:
            return await self._reader.topics(query, number, internal=internal)

        return await self._live.respond(request, LivePage("topics", "Topics", "topics.html", read))

    async def _topic(self, request: Request) -> Response:
        topic: str = request.path_params["topic"]
        page = LivePage("topics", topic, "topic.html", lambda: self._reader.topic(topic))
        return await self._live.respond(request, page)

    async def _topic_settings(self, request: Request) -> Response:
        topic: str = request.path_params["topic"]
        page = LivePage(
            "topics", f"Settings of {topic}", "topic_settings.html", lambda: self._reader.topic_configs(topic)
        )
        return await self._live.respond(request, page)

    async def _partition(self, request: Request) -> Response:
        topic: str = request.path_params["topic"]
        partition: int = request.path_params["partition"]
        page = LivePage(
            "topics",
            f"{topic}-{partition}",
            "partition.html",
            lambda: self._reader.partition(topic, partition),
        )
        return await self._live.respond(request, page)

    async def _groups(self, request: Request) -> Response:
        query, number = _search(request)
        page = LivePage("groups", "Groups", "groups.html", lambda: self._reader.groups(query, number))
        return await self._live.respond(request, page)

    async def _group(self, request: Request) -> Response:
        group = request.query_params.get("id", "")
        page = LivePage("groups", f"Group {group}", "group.html", lambda: self._reader.group(group))
        return await self._live.respond(request, page)


def _search(request: Request) -> tuple[str, int]:
    """Return the words that are searched for and the number of the page."""
    given = request.query_params.get("page", "1")
    number = int(given) if given.isascii() and given.isdigit() and len(given) < 10 else 1
    return request.query_params.get("q", "")[:249], number
