"""One file per API: its key, the versions served, and its handler.

Each module has a constant ``API``; :mod:`nilometer.broker.api.registry` gathers them, and the ApiVersions
answer is built from that.
"""
