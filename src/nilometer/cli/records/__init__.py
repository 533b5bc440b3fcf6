"""Commands that produce and consume records, ingest files, and print log files."""
