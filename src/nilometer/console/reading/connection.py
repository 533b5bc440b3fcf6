"""How the console connects to its cluster: the settings of its clients, and the clients that it keeps."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager

from nilometer.client.admin.admin import ADMIN_CONFIG_DEFINITION, Admin
from nilometer.client.admin.replica_survey import ReplicaSurvey
from nilometer.client.settings import ClientSettings, client_security
from nilometer.runtime import Runtime
from nilometer.wire.errors import ErrorCode, KafkaError

REQUEST_TIMEOUT_MS = 2_000
API_TIMEOUT_MS = 5_000
SURVEYS_MAX = 4
"""How many surveys run at once."""


class ClusterConnection:
    """``given``: settings of clients under Kafka's keys: ``bootstrap.servers`` and those of security."""

    def __init__(self, runtime: Runtime, given: Mapping[str, str]) -> None:
        """Raises ConfigError."""
        self.runtime = runtime
        self.common = {
            **given,
            "client.id": "nilometer-console",
            "request.timeout.ms": REQUEST_TIMEOUT_MS,
            "socket.connection.setup.timeout.ms": REQUEST_TIMEOUT_MS,
        }
        self._admin_settings = {**self.common, "default.api.timeout.ms": API_TIMEOUT_MS}
        settings = ClientSettings(ADMIN_CONFIG_DEFINITION, self._admin_settings)
        self._bootstrap = given["bootstrap.servers"].split(",")
        self._security = client_security(settings)
        self._admin: Admin | None = None
        self._opening = asyncio.Lock()
        self._slots = asyncio.Semaphore(SURVEYS_MAX)
        self._idle: list[ReplicaSurvey] = []
        self._is_closed = False

    @property
    def bootstrap(self) -> list[str]:
        return self._bootstrap

    async def admin(self) -> Admin:
        """Return the admin client, connected. Raises KafkaError if no broker responds."""
        async with self._opening:
            if self._is_closed:
                raise KafkaError(ErrorCode.network_exception, "this connection to the cluster was closed")
            if self._admin is None:
                admin = Admin(self.runtime, self._admin_settings)
                try:
                    await admin.client.start()
                except BaseException:  # also if the visitor leaves meanwhile
                    await admin.client.close()
                    raise
                self._admin = admin
            return self._admin

    @asynccontextmanager
    async def survey(self) -> AsyncGenerator[ReplicaSurvey]:
        """Lend a survey; its connections are kept for the next one."""
        async with self._slots:
            survey = (
                self._idle.pop()
                if self._idle
                else ReplicaSurvey(self.runtime, self._bootstrap, REQUEST_TIMEOUT_MS, self._security)
            )
            try:
                yield survey
            finally:
                if self._is_closed:
                    survey.close()
                else:
                    self._idle.append(survey)

    async def close(self) -> None:
        """Close the connections; those that are in use close when they are not."""
        self._is_closed = True
        for survey in self._idle:
            survey.close()
        self._idle.clear()
        async with self._opening:
            if self._admin is not None:
                await self._admin.client.close()
                self._admin = None
