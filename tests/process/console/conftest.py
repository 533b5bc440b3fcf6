"""Three brokers, the console, and Debian's Chromium."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Error, Page, sync_playwright

from support.brokers.nilometer_cluster import NilometerCluster
from support.console.console_process import console

TIMEOUT_MS = 30_000
BAD_ENTRY = "the server responded with a status of 400"
"""Chromium logs the answer to a form with a bad entry."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NilometerCluster]:
    settings = {"offsets.topic.num.partitions": "1", "group.initial.rebalance.delay.ms": "0"}
    with NilometerCluster(tmp_path_factory.mktemp("console"), 3, settings) as running:
        yield running


@pytest.fixture(scope="module")
def url(cluster: NilometerCluster) -> Iterator[str]:
    with console("--bootstrap-server", cluster.bootstrap) as found:
        yield found


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """For one module at a time: Playwright keeps an event loop in this thread until it ends."""
    path = shutil.which("chromium")
    if path is None:
        assert os.environ.get("CI") != "true", "the Makefile installs Chromium: make components"
        pytest.skip("Chromium is not installed: make components")
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(
            executable_path=path, args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        yield started
        started.close()


@pytest.fixture
def page(browser: Browser, url: str) -> Iterator[Page]:
    """A page of the console; the test fails if a script of it does, or if something of it is refused."""
    context = browser.new_context(base_url=url, viewport={"width": 1180, "height": 800})
    context.set_default_timeout(TIMEOUT_MS)
    found = context.new_page()
    errors: list[str] = []

    def on_error(error: Error) -> None:
        errors.append(str(error))

    def on_message(message: ConsoleMessage) -> None:
        if message.type in ("error", "warning") and BAD_ENTRY not in message.text:
            errors.append(message.text)

    found.on("pageerror", on_error)
    found.on("console", on_message)
    yield found
    context.close()
    assert errors == []
