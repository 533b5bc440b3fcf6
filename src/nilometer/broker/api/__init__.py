"""One file per API: its key, the versions served, and its handler.

Each module has a constant ``API``; :mod:`nilometer.broker.api.registry` collects them, and the ApiVersions
response is built from that collection.
"""
