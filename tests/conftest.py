"""Puts this folder on the path (pytest does, for a conftest): `support` is shared by several test folders."""

import signal

import pytest

# A shell starts what it runs in the background with SIGINT ignored, and every child would inherit that: tests
# that interrupt a command would wait for something that cannot come.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with a test marked ``long`` come first: several workers then end at about the same time."""
    long = {item.path for item in items if item.get_closest_marker("long")}
    items.sort(key=lambda item: item.path not in long)
