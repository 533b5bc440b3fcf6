"""Unique ids."""

from __future__ import annotations

import base64

from nilometer.runtime import Entropy


def new_id(entropy: Entropy) -> str:
    """22 characters, as Kafka's cluster ids are."""
    return base64.urlsafe_b64encode(entropy.uuid().bytes).decode().rstrip("=")
