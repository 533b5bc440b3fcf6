"""The producer: collects records in batches, numbers the batches and sends them to the leaders."""
