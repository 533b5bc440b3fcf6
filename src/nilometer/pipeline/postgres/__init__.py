"""Captures the changes of a PostgreSQL table into a topic.

``pgoutput`` decodes the database's logical decoding output and converts changes to records, and ``capture``
manages the publication and the replication slot and reads from them.
"""
