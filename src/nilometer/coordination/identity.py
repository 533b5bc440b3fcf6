"""Unique ids."""

from __future__ import annotations

import base64

from nilometer.runtime import Entropy


def new_id(entropy: Entropy) -> str:
    """Return a random id of 22 characters, in the form of Kafka's cluster ids."""
    return base64.urlsafe_b64encode(entropy.uuid().bytes).decode().rstrip("=")
