"""The console with a login in Chromium: users of the brokers, over TLS, with the rights of their ACLs."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)
from confluent_kafka.cimpl import NewTopic
from playwright.sync_api import Browser, BrowserContext, Page, expect

from support.authority import Authority
from support.brokers.sasl_broker import PASSWORDS, SaslBroker, sasl_broker
from support.console.console_process import console

TIMEOUT_MS = 30_000
expect.set_options(timeout=TIMEOUT_MS)
FAILED_LOGIN = r"A login from 127\.0\.0\.1 failed: .*\n"
READ = (AclOperation.READ, AclOperation.DESCRIBE)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SaslBroker]:
    """alice may do everything; bob may read the topic shared."""
    settings = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:alice;User:ANONYMOUS",
    }
    with sasl_broker(tmp_path_factory.mktemp("login"), settings) as running:
        client = {"bootstrap.servers": running.open_bootstrap}
        admin = AdminClient(client)
        for outcome in admin.create_topics([NewTopic("shared", 1, 1), NewTopic("secret", 1, 1)]).values():
            outcome.result(30)
        kind, literal, allow = ResourceType.TOPIC, ResourcePatternType.LITERAL, AclPermissionType.ALLOW
        rights = [AclBinding(kind, "shared", literal, "User:bob", "*", one, allow) for one in READ]
        for outcome in admin.create_acls(rights).values():
            outcome.result(30)
        producer = Producer(client)
        for topic in ("shared", "secret"):
            producer.produce(topic, f"a record of {topic}".encode())
        assert producer.flush(30) == 0
        yield running


@pytest.fixture(scope="module")
def url(broker: SaslBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("console")
    Authority(folder).issue("console", "/CN=console")
    config = folder / "console.properties"
    config.write_text("security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-512\n")
    files = ("--tls-certificate", str(folder / "console.crt"), "--tls-key", str(folder / "console.key"))
    at = ("--bootstrap-server", broker.bootstrap, "--command-config", str(config))
    with console(*at, "--login", *files, logs=f"({FAILED_LOGIN})*") as found:
        assert found.startswith("https://")
        yield found


@pytest.fixture
def context(browser: Browser, url: str) -> Iterator[BrowserContext]:
    opened = browser.new_context(base_url=url, ignore_https_errors=True)
    opened.set_default_timeout(TIMEOUT_MS)
    yield opened
    opened.close()


def log_in(page: Page, user: str, password: str) -> None:
    page.get_by_label("User").fill(user)
    page.get_by_label("Password").fill(password)
    page.get_by_role("button", name="Log in").click()


def test_a_user_logs_in_works_and_logs_out(context: BrowserContext) -> None:
    page = context.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto("/topics?q=s")
    expect(page).to_have_url(re.compile(r"/login\?next="))
    log_in(page, "alice", "a wrong password")
    expect(page.get_by_role("alert")).to_have_text("The user or the password is wrong.")
    assert context.cookies() == []
    log_in(page, "alice", PASSWORDS["alice"])
    expect(page).to_have_url(re.compile(r"/topics\?q=s$"))
    assert page.locator("tbody th a").all_inner_texts() == ["secret", "shared"]
    expect(page.locator("#status")).to_have_text("live")
    expect(page.locator(".session")).to_contain_text("alice")
    (cookie,) = context.cookies()
    assert (cookie.get("httpOnly"), cookie.get("secure"), cookie.get("sameSite")) == (True, True, "Strict")
    assert page.evaluate("document.cookie") == ""

    page.goto("/topics/secret/messages")
    expect(page.locator("#record-0-0 .value")).to_contain_text("a record of secret")
    page.locator(".produce summary").click()
    page.fill("#produce [name=value]", "written by alice")
    page.get_by_role("button", name="Write").click()
    expect(page.locator(".done")).to_be_visible()

    other = context.new_page()
    other.goto("/")
    expect(other.locator("#status")).to_have_text("live")
    page.get_by_role("button", name="Log out").click()
    expect(page).to_have_url(re.compile("/login$"))
    assert context.cookies() == []
    expect(other).to_have_url(re.compile("/login"))  # its events have ended with the session
    page.goto("/topics/secret/messages")
    expect(page).to_have_url(re.compile("/login"))
    assert errors == []


def test_a_user_sees_and_does_what_the_acls_allow(context: BrowserContext) -> None:
    page = context.new_page()
    page.goto("/login")
    log_in(page, "bob", PASSWORDS["bob"])
    expect(page.locator(".session")).to_contain_text("bob")
    page.goto("/topics")
    assert page.locator("tbody th a").all_inner_texts() == ["shared"]
    page.goto("/topics/shared/messages")
    expect(page.locator("#record-0-0 .value")).to_contain_text("a record of shared")
    page.locator(".produce summary").click()
    page.fill("#produce [name=value]", "written by bob")
    page.get_by_role("button", name="Write").click()
    expect(page.locator("#banner")).to_contain_text("The record is not written")
    page.goto("/topics/shared/messages")
    assert page.locator("#records tr").count() == 1
    page.goto("/topics/secret/messages")
    expect(page.locator("#banner")).to_be_visible()
    assert page.locator("#records tr").count() == 0


def test_a_link_of_another_site_leads_a_user_with_a_session_to_its_page(
    context: BrowserContext, url: str
) -> None:
    page = context.new_page()
    page.goto("/login")
    log_in(page, "alice", PASSWORDS["alice"])
    expect(page.locator(".session")).to_contain_text("alice")
    page.goto("about:blank")
    page.set_content(f'<a href="{url}/topics/shared">a link</a>')
    page.get_by_role("link").click()
    expect(page).to_have_url(re.compile("/topics/shared$"))
    expect(page.locator("h1")).to_have_text("shared")
