"""The broker's side of transactions: their coordinator, and the markers that end them in partitions."""
