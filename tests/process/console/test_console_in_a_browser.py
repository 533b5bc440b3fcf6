"""The console in Chromium: each page shows what the brokers say, live, also while a broker is killed.

With NILOMETER_SCREENSHOTS=FOLDER in the environment the tests write screenshots there.
"""

from __future__ import annotations

import http.client
import json
import os
import re
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import pytest
from axe_playwright_python.sync_playwright import Axe
from confluent_kafka import Consumer, Producer, TopicPartition
from playwright.sync_api import Browser, Page, ViewportSize, expect

import nilometer
from nilometer.client.admin.admin import ResourceType
from support.brokers.nilometer_cluster import NilometerCluster
from support.console.console_process import console

SCRIPT = "<script>window.injected = true</script><img src=x onerror='window.injected = true'>"
TIMEOUT_MS = 30_000
expect.set_options(timeout=TIMEOUT_MS)


def produce(cluster: NilometerCluster, topic: str, count: int, acks: str = "all") -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": acks, "log_level": 0})
    for number in range(count):
        producer.produce(topic, b'{"order": %d}' % number, key=b"k%d" % number, partition=0)
    assert producer.flush(30) == 0


def screenshot(page: Page, name: str) -> None:
    folder = os.environ.get("NILOMETER_SCREENSHOTS")
    if folder:
        page.wait_for_timeout(600)  # until the bars have moved
        page.screenshot(path=Path(folder) / f"console-{name}.png", caret="initial")


def document(page: Page, path: str) -> dict[str, Any]:
    """A page of the console as JSON."""
    return page.request.get(path, headers={"Accept": "application/json"}).json()


def hide(page: Page, hidden: bool) -> None:
    """Have the page's script see what it sees when its tab is hidden, or shown again."""
    page.evaluate(
        """hidden => {
            Object.defineProperty(document, "hidden", { value: hidden, configurable: true });
            document.dispatchEvent(new Event("visibilitychange"));
        }""",
        hidden,
    )


def cells(page: Page, row: str) -> list[str]:
    return [text.strip() for text in page.locator(f"{row} > *").all_inner_texts()]


@pytest.fixture(scope="module")
def filled(cluster: NilometerCluster) -> NilometerCluster:
    """Topics with records, a setting of its own, and a group that has read a part."""
    cluster.create_topic(
        "orders",
        assignments={0: (1, 2, 3), 1: (2, 3, 1)},
        configs={"retention.ms": "123456789", "min.insync.replicas": "3"},
    )
    produce(cluster, "orders", 30)
    cluster.create_topic("hostile", 1)
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    producer.produce("hostile", SCRIPT.encode(), key=SCRIPT.encode(), headers=[(SCRIPT, SCRIPT.encode())])
    assert producer.flush(30) == 0
    for group in ("readers", SCRIPT):
        commit(cluster, group, TopicPartition("orders", 0, 10))
    return cluster


def commit(cluster: NilometerCluster, group: str, offset: TopicPartition) -> None:
    consumer = Consumer(
        {"bootstrap.servers": cluster.bootstrap, "group.id": group, "enable.auto.commit": False}
    )
    consumer.commit(offsets=[offset], asynchronous=False)
    consumer.close()


def test_each_page_shows_what_the_brokers_say(filled: NilometerCluster, page: Page) -> None:
    page.goto("/")
    expect(page.locator("h1")).to_contain_text("healthy")
    for broker in filled.brokers:
        expect(page.locator(f"#broker-{broker}")).to_contain_text("running")
    controller = filled.controller()
    expect(page.locator(f"#broker-{controller} .tag")).to_have_text("controller")
    expect(page.locator("#status")).to_have_text("live")

    page.goto("/topics?internal=1")
    names = page.locator("tbody th a").all_inner_texts()
    assert names == sorted(filled.topics())
    page.fill("#q", "ORD")
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile("q=ORD"))
    assert page.locator("tbody th a").all_inner_texts() == ["orders"]

    page.goto("/topics/orders")
    row = cells(page, "#partition-0")
    assert row[1].split() == ["1", "2", "3"] or row[1] == "123"
    assert row[3:7] == ["0", "30", "30", "30"]

    page.goto("/topics/orders/settings")
    known = filled.operate(lambda admin: admin.describe_configs(ResourceType.TOPIC, "orders"))
    setting = cells(page, '[id="setting-retention.ms"]')
    assert setting[1:] == ["123456789", "topic", "604800000"]
    assert page.locator("tbody tr").count() == len(known)

    page.goto("/topics/orders/0")
    expect(page.locator("#segment-0 td.num")).to_have_count(3)
    for text in page.locator("#segment-0 td.num").all_inner_texts():
        assert re.search(r"\d B\s+active, \d{4}-", text), text

    page.goto("/brokers/2")
    expect(page.locator("main")).to_contain_text(str(filled.folder / "broker-2"))

    page.goto("/groups")
    readers = page.locator("tbody tr").filter(has=page.get_by_role("link", name="readers"))
    expect(readers.locator("td")).to_have_text(["Empty", "0", "20", "orders", "Classic"], ignore_case=True)
    page.get_by_role("link", name="readers").click()
    expect(page.locator("#lag-1")).to_be_visible()
    assert cells(page, "#lag-1")[:7] == ["orders", "0", "10", "30", "30", "20", "20"]
    screenshot(page, "group")


def test_lists_are_sorted_by_what_they_show(filled: NilometerCluster, page: Page) -> None:
    page.goto("/topics")
    page.click("text=Records >> nth=0")
    page.wait_for_url(re.compile("sort=-records"))
    expect(page.locator("th[aria-sort=descending]")).to_contain_text("Records")
    assert page.locator("tbody th a").all_inner_texts() == ["orders", "hostile"]
    row = cells(page, "#topic-orders")
    assert row[1:4] == ["2", "3", "30"]
    assert row[6] == "delete"
    page.goto("/groups?sort=-lag")
    readers = cells(page, "tbody tr:has-text('readers')")
    assert readers[1:5] == ["Empty", "0", "20", "orders"]
    page.goto("/topics/orders")
    assert cells(page, "tr:has(th:has-text('readers'))")[2:] == ["0", "20"]
    page.goto("/")
    expect(page.locator(".chart")).to_have_count(2)
    screenshot(page, "overview")


def test_transactions_and_who_may_do_what(filled: NilometerCluster, page: Page) -> None:
    producer = Producer(
        {"bootstrap.servers": filled.bootstrap, "transactional.id": "payments", "log_level": 0}
    )
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce("hostile", b"open")
    producer.flush(30)
    page.goto("/transactions")
    row = page.locator("tbody tr", has_text="payments")
    expect(row).to_contain_text("Ongoing")
    expect(row).to_contain_text("hostile-0")
    producer.abort_transaction(30)
    expect(row).to_have_count(0)
    page.goto("/transactions?all=1")
    expect(row).to_contain_text("CompleteAbort")
    assert cells(page, "tbody tr:has-text('payments')")[4:7] == ["–", "1 min", "–"]
    screenshot(page, "transactions")
    page.goto("/security/quotas")
    expect(page.locator("tbody")).to_contain_text("None.")
    page.keyboard.press("g")
    page.keyboard.press("x")
    page.wait_for_url(re.compile("/transactions$"))


def test_a_change_is_made_after_it_was_shown(filled: NilometerCluster, browser: Browser) -> None:
    commit(filled, "to-reset", TopicPartition("orders", 0, 10))
    with console("--bootstrap-server", filled.bootstrap, "--changes", "all") as url:
        page = browser.new_context(base_url=url).new_page()
        page.goto("/topics")
        page.click("text=Create a topic")
        page.fill("[name=name]", "made-here")
        page.fill("[name=partitions]", "2")
        page.fill("[name=settings]", "cleanup.policy=compact")
        page.click("text=Show what it does")
        expect(page.locator("main")).to_contain_text(
            "The topic made-here is created (partitions: 2, replicas: the default)."
        )
        assert "made-here" not in filled.topics()
        page.click("text=Confirm >> nth=-1")
        page.wait_for_url(re.compile("/topics/made-here$"))
        configs = filled.operate(lambda admin: admin.describe_configs(ResourceType.TOPIC, "made-here"))
        assert configs["cleanup.policy"].value == "compact"

        page.goto("/topics/made-here/change?key=cleanup.policy&value=delete")
        page.click("text=Show what it does")
        assert cells(page, "tbody tr") == ["cleanup.policy", "compact", "delete"]
        page.click("text=Confirm >> nth=-1")
        page.wait_for_url(re.compile("/topics/made-here/settings$"))
        configs = filled.operate(lambda admin: admin.describe_configs(ResourceType.TOPIC, "made-here"))
        assert configs["cleanup.policy"].value == "delete"

        page.goto("/group?id=to-reset")
        page.click("text=Reset offsets")
        page.fill("[name=topic]", "orders")
        page.select_option("[name=to]", "shift")
        page.fill("[name=at]", "-4")
        page.click("text=Show what it does")
        expect(page.locator("#banner")).to_contain_text("orders-1: there is no committed offset to shift")
        page.select_option("[name=to]", "latest")
        page.click("text=Show what it does")
        assert cells(page, "tbody tr:has-text('orders-0')")[:3] == ["orders-0", "10", "30"]
        page.click("text=Confirm >> nth=-1")
        page.wait_for_url(re.compile("/group.id=to-reset$"))
        expect(page.locator("#lag-1")).to_contain_text("30")

        page.goto("/topics/made-here/delete")
        page.fill("[name=name]", "made-here")
        page.click("text=Show what it does")
        expect(page.locator("main")).to_contain_text("They cannot be restored.")
        assert "made-here" in filled.topics()
        page.click("text=Confirm >> nth=-1")
        page.wait_for_url(re.compile("/topics$"))
        expect(page.locator("tbody")).not_to_contain_text("made-here")
        page.context.close()


def test_what_records_and_groups_hold_never_becomes_markup(filled: NilometerCluster, page: Page) -> None:
    page.goto("/topics/hostile/messages")
    assert page.locator("#record-0-0 .key pre").inner_text() == SCRIPT
    assert page.locator("#record-0-0 .value > pre").inner_text() == SCRIPT
    assert page.locator("#record-0-0 .headers dt").inner_text() == SCRIPT
    page.goto("/groups")
    page.get_by_role("link", name=SCRIPT).click()
    expect(page.locator("h1")).to_have_text(SCRIPT)
    page.goto("/topics/__consumer_offsets/messages")
    expect(page.locator(".decoded").filter(has_text='"group": "readers"').last).to_contain_text(
        '"offset": 10'
    )
    assert page.evaluate("window.injected") is None
    assert page.locator("main script, main img").count() == 0


def test_a_record_is_written_found_and_followed(filled: NilometerCluster, page: Page) -> None:
    filled.create_topic("written", 1)
    page.goto("/topics/written/messages")
    page.locator(".produce summary").click()
    page.fill("#produce [name=key]", "a key")
    page.fill("#produce [name=value]", '{"a": [1, 2]}')
    page.fill("#produce [name=headers]", "trace: 17")
    page.get_by_role("button", name="Write").click()
    expect(page.locator(".done")).to_be_visible()
    record = page.locator("#record-0-0")
    expect(record.locator(".key")).to_have_text("a key")
    assert record.locator(".value > pre").inner_text() == '{ "a": [ 1, 2 ] }'
    expect(record.locator(".headers")).to_contain_text("trace")

    page.goto("/topics/written/messages?partition=0&start=offset&at=x")
    expect(page.locator("#banner")).to_contain_text("The offset must be a whole number")

    page.goto("/topics/written/messages")
    page.get_by_role("button", name="Follow").click()
    expect(page.locator("#status")).to_have_text("live")
    produce(filled, "written", 300)
    expect(page.locator("#record-0-300")).to_be_visible()
    assert page.locator("#records tr").count() <= 200
    page.goto("/topics/written/messages?key=k7&start=oldest")
    assert page.locator("#records tr").count() == 1
    expect(page.locator("#record-0-8 .key")).to_have_text("k7")
    page.fill("#q", "")
    page.fill("#search [name=value]", "$.order >= 298")
    page.keyboard.press("Enter")
    expect(page.locator("#found")).to_contain_text("2 records of 301 read")
    assert page.locator("#records .key").all_inner_texts() == ["k298", "k299"], (
        "the search began at the oldest"
    )
    expect(page.locator("#stop")).to_be_hidden()
    page.go_back()
    expect(page.locator("#q")).to_have_value("k7")
    expect(page.locator("#records tr")).to_have_count(1)
    page.goto("/topics/written/messages?count=100&value=%24.order+%3C+150")
    expect(page.locator("#found")).to_contain_text("100 records of 301 read")
    assert page.locator("#records .key").first.inner_text() == "k149"
    page.get_by_role("link", name="Older").click()
    expect(page.locator("#found")).to_contain_text("50 records")
    assert page.locator("#records .key").all_inner_texts()[-1] == "k0"
    expect(page.get_by_role("link", name="Older")).to_have_count(0)
    screenshot(page, "messages")

    long = {"order": 1, "lines": [{"article": f"pencil {number}", "pieces": number} for number in range(8)]}
    filled.create_topic("long", 1)
    producer = Producer({"bootstrap.servers": filled.bootstrap, "log_level": 0})
    for _ in range(2):
        producer.produce("long", json.dumps(long).encode())
    assert producer.flush(30) == 0
    page.goto("/topics/long/messages")
    value = page.locator("#record-0-1 .value")
    expect(value.locator("pre")).to_be_hidden()
    assert page.locator("#record-0-1").bounding_box()["height"] < 50  # type: ignore[index]
    value.locator("summary").press("Enter")
    assert json.loads(value.locator("pre").inner_text()) == long
    page.locator("#record-0-1 th a").click()
    expect(page.locator("#record-0-1 pre")).to_be_visible()


def test_a_hidden_tab_stops_its_tail_and_later_goes_on_where_it_was(
    filled: NilometerCluster, page: Page
) -> None:
    filled.create_topic("followed", 1)
    page.goto("/topics/followed/messages")
    page.get_by_role("button", name="Follow").click()
    expect(page.locator("#status")).to_have_text("live")
    produce(filled, "followed", 3)
    expect(page.locator("#record-0-2")).to_be_visible()

    hide(page, True)
    produce(filled, "followed", 4)
    assert page.evaluate("tail.source === null && tail.isOn")
    assert page.locator("#records tr").count() == 3
    hide(page, False)
    expect(page.locator("#record-0-6")).to_be_visible()
    assert page.locator("#records tr").count() == 7
    expect(page.locator("#found")).not_to_contain_text("skipped")

    hide(page, True)
    produce(filled, "followed", 2_000)
    hide(page, False)
    expect(page.locator("#record-0-2006")).to_be_visible()
    expect(page.locator("#found")).to_contain_text("1,900 records were skipped")
    page.get_by_role("button", name="Follow").click()
    assert page.evaluate("tail.source === null && !tail.isOn")


def test_it_is_used_by_keys_in_the_dark_and_on_a_phone(filled: NilometerCluster, page: Page) -> None:
    page.goto("/")
    light = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.emulate_media(color_scheme="dark")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != light
    page.keyboard.press("g")
    page.keyboard.press("t")
    page.wait_for_url(re.compile("/topics$"))
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.id") == "q"
    page.locator("h1").click()
    for _ in range(2):
        page.keyboard.press("j")
    chosen = page.evaluate("document.activeElement.textContent")
    assert chosen == page.locator("tbody th a").nth(1).inner_text()
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile(f"/topics/{chosen}$"))
    page.keyboard.press("u")
    page.wait_for_url(re.compile("/topics$"))
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_be_visible()
    page.set_viewport_size({"width": 360, "height": 740})
    places = (
        "/",
        "/topics",
        "/topics/orders",
        "/topics/orders/0",
        "/topics/orders/messages",
        "/group?id=readers",
    )
    for place in places:
        page.goto(place)
        assert page.evaluate("document.documentElement.scrollWidth") <= 360, place


def test_a_queue_shows_who_has_its_jobs(filled: NilometerCluster, page: Page) -> None:
    with nilometer.connect(filled.bootstrap) as kafka:
        kafka.admin.create_queue("invoices", max_deliveries=3, lock="60s", partitions=1)
        queue = kafka.queue("invoices")
        queue.put_many({"invoice": number} for number in range(50))
        with queue.jobs() as jobs:
            taken = jobs.next_batch(8)
            page.goto("/groups")
            row = page.locator("tbody tr").filter(has=page.get_by_role("link", name="invoices"))
            expect(row).to_contain_text("share", ignore_case=True)
            row.get_by_role("link").first.click()
            expect(page.locator("#member-1 td").nth(2)).to_have_text(str(len(taken)))
            member = page.locator("#member-1 code").inner_text()
            held = page.locator("#delivery-1 > *")
            expect(held.nth(5)).to_have_text("1 of 3")
            expect(held.nth(6)).to_have_text(member)
            expect(page.locator("#share-1 td").last).to_contain_text(member)
            expect(page.locator("main")).to_contain_text("dlq.invoices")
            screenshot(page, "queue")
            for job in taken:
                job.accept()
        expect(page.locator("#deliveries")).to_contain_text("No record is being delivered")
        expect(page.locator("#share-1 td").nth(4)).to_have_text(str(50 - len(taken)))


RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"]


@pytest.mark.parametrize(("scheme", "width"), [("light", 1440), ("dark", 1440), ("light", 400)])
def test_no_page_breaks_a_rule_of_accessibility(
    filled: NilometerCluster, browser: Browser, scheme: Literal["light", "dark"], width: int
) -> None:
    """WCAG 2.1, levels A and AA, as far as axe can tell."""
    with console("--bootstrap-server", filled.bootstrap, "--changes", "all") as url:
        viewport: ViewportSize = {"width": width, "height": 900}
        page = browser.new_context(base_url=url, color_scheme=scheme, viewport=viewport).new_page()
        for path in (
            *("/", "/brokers", "/brokers/1", "/topics", "/topics/orders", "/topics/orders/0"),
            *("/topics/orders/settings", "/topics/orders/messages", "/topics/gone", "/groups"),
            *("/group?id=readers", "/transactions?all=1", "/security/acls", "/new-topic"),
            *("/topics/orders/delete", "/topics/orders/change", "/group/reset?id=readers", "/replay"),
        ):
            page.goto(path)
            found = Axe().run(page, options={"runOnly": RULES})
            assert found.violations_count == 0, f"{path}: {found.generate_report()}"
        page.context.close()


def test_a_foreign_name_is_refused(url: str) -> None:
    """DNS rebinding: a page of a foreign name whose address is this machine's."""
    address = urlsplit(url)
    for host, status in ((address.netloc, 200), (f"rebound.example:{address.port}", 421)):
        connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=30)
        connection.request("GET", "/", headers={"Host": host})
        assert connection.getresponse().status == status
        connection.close()


def test_the_partition_page_follows_the_replicas_while_brokers_are_killed(
    filled: NilometerCluster, page: Page
) -> None:
    """The last test of the module: it leaves a broker dead."""
    page.goto("/topics/orders/0")
    loaded = page.evaluate("performance.timeOrigin")
    hold, high_watermark = page.locator("#hold"), page.locator("#offsets .count").nth(2).locator("dd")
    expect(high_watermark).to_have_text("30")
    expect(hold).to_contain_text("Not held")

    produce(filled, "orders", 4)
    expect(page.locator("#offsets .count").nth(3).locator("dd")).to_have_text("34")
    for broker in (1, 2, 3):
        expect(page.locator(f"#replica-{broker} > :nth-child(7)")).to_have_text("34")

    filled.kill(3)
    expect(page.locator("#replica-3")).to_contain_text("unreachable")
    expect(page.locator("#replica-3 .set")).to_have_text("ELR")
    produce(filled, "orders", 3, acks="1")
    expect(hold).to_have_class("hold held")
    expect(hold).to_contain_text("Held at 34: 2 of 3 replicas")
    expect(page.locator("#offsets .count").nth(3).locator("dd")).to_have_text("37")
    expect(high_watermark).to_have_text("34")
    expect(page.locator("rect.uncommitted").first).to_be_attached()

    filled.start(3)
    expect(high_watermark).to_have_text("37")
    expect(hold).to_contain_text("Not held")
    filled.wait_full_isr("orders")
    leader = filled.leader_of("orders")
    assert leader is not None
    filled.kill(leader)
    expect(page.locator("main")).to_contain_text(re.compile(r"broker \d, in epoch \d+ from offset 37"))
    expect(page.locator(f"#replica-{leader}")).to_contain_text("unreachable")
    produce(filled, "orders", 5, acks="1")
    expect(hold).to_contain_text("Held at 37: 2 of 3 replicas")
    others = [broker for broker in (1, 2, 3) if broker != leader]
    for broker in others:
        expect(page.locator(f"#replica-{broker} > :nth-child(7)")).to_have_text("42")
    epoch = document(page, "/topics/orders/0")["leader_epoch"]
    newest = page.locator("figure").first.locator("title").filter(has_text=f"Leader epoch {epoch}:")
    expect(newest).to_have_count(2)
    for broker in others:
        expect(page.locator(f"#replica-{broker} .chain")).to_contain_text(f"{epoch}:37")
    screenshot(page, "partition")
    page.emulate_media(color_scheme="dark")
    screenshot(page, "partition-dark")
    assert page.evaluate("performance.timeOrigin") == loaded, "the page was never loaded again"
