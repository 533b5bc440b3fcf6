"""Asks the brokers for what the pages show, at a bounded rate and once for all browsers."""
