"""The broker process: listener, request handlers, partitions, delayed operations, lifecycle."""
