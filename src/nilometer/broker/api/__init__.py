"""One file per API: its key, the versions served, and what it answers.

Each module has a constant ``API``; :mod:`nilometer.broker.api.registry` gathers them, and the ApiVersions
answer is built from that.
"""
