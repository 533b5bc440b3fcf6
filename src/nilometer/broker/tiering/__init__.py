"""Tiered topics on this broker: copying to the object store, giving up what expired, reading back."""
