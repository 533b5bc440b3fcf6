"""The APIs by subject: of each its key, the versions served, and its handler.

Each API is a constant; :mod:`nilometer.broker.api.registry` collects them, and the ApiVersions
response is built from that collection.
"""
