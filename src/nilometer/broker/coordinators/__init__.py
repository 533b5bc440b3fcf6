"""The broker's side of every coordinator: one shell around each shard, in step with leadership.

A request finds its shell by the partition of the internal topic that keeps its key; the shell asks the shard,
appends what it decides, and gives the reply once that is committed. ``kind`` says what makes a coordinator
one of groups, or one of transactions.
"""
