"""The APIs by subject. A module states in ``Parts`` what its handlers use; ``apis(parts)`` returns its APIs:
of each its key, the versions served, and its handler. :mod:`nilometer.broker.assembly` makes the parts and
collects the APIs of all subjects, and the ApiVersions response is built from them.
"""
