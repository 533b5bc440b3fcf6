"""Log directories: their logs, node and cluster ids, clean shutdowns, checkpoints and failures."""
