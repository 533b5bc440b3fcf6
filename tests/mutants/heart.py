"""One wrong operator, or one missing check, each: in what keeps acknowledged records."""

from __future__ import annotations

from mutants.mutant import Mutant

ISR = ("unit/replication/test_isr_edge_cases.py", "unit/replication/test_replication_scripts.py")
EPOCHS = (
    "unit/replication/test_truncation_edge_cases.py",
    "unit/replication/test_replication_scripts.py",
    "unit/replication/test_unknown_epoch.py",
)
ROLES = (
    *ISR,
    "unit/replication/test_leader_alone.py",
    "unit/replication/test_truncation_edge_cases.py",
    "unit/replication/test_replication_state_machine.py",
)
ALTER = ("unit/cluster/test_cluster_alter_partition.py",)
ELECT = ("unit/cluster/test_cluster_elections.py", "unit/cluster/test_cluster_forfeits.py")
LOG = ("unit/storage/test_storage_edge_cases.py", "unit/storage/test_log_model.py")
EPOCH_CACHE = ("unit/storage/test_epoch_rebuild.py", *LOG)
END = ("unit/transactions/test_end_transaction.py", "unit/transactions/test_transaction_state_machine.py")
INIT = ("unit/transactions/test_init_producer_id.py",)
ADD = ("unit/transactions/test_add_partitions.py",)
CLASSIC = (
    "unit/groups/test_classic_members.py",
    "unit/groups/test_classic_transitions.py",
    "unit/groups/test_classic_static_members.py",
    "unit/groups/test_offsets_of_groups.py",
)
CONSUMER = (
    "unit/groups/test_consumer_group_members.py",
    "unit/groups/test_consumer_group_commits.py",
    "unit/groups/test_consumer_group_static_members.py",
)
CLEANING = (
    "unit/storage/test_compaction_records.py",
    "unit/storage/test_compaction_parts.py",
    "unit/storage/test_compaction_model.py",
)
STORE = "process/coordination/test_store_conformance.py"

HIGH_WATERMARK = (
    Mutant(
        "commit-above-min-isr",
        "records are committed by fewer in-sync replicas than min.insync.replicas",
        "if self.high_watermark >= self.log_end_offset or self.is_under_min_isr:",
        "if self.high_watermark >= self.log_end_offset:",
        ROLES,
    ),
    Mutant(
        "min-isr-off-by-one",
        "one in-sync replica less than min.insync.replicas is enough",
        "return in_sync < self.min_insync_replicas and in_sync < len(self.replicas)",
        "return in_sync + 1 < self.min_insync_replicas and in_sync < len(self.replicas)",
        ROLES,
    ),
    Mutant(
        "produce-released-early",
        "a produce is acknowledged one record before it is committed",
        "            if required_offset > high_watermark:\n                break",
        "            if required_offset > high_watermark + 1:\n                break",
        ROLES,
    ),
    Mutant(
        "unflushed-counts",
        "records count before they are flushed, although the topic has flush.messages",
        "end = self.flushed_end_offset if self.counts_flushed else log_end_offset",
        "end = log_end_offset",
        ROLES,
    ),
    Mutant(
        "flushed-counts-alone",
        "a leader without followers commits before the flush",
        "if self._has_no_followers and not self.counts_flushed:",
        "if self._has_no_followers:",
        ROLES,
    ),
    Mutant(
        "committed-isr-only",
        "a replica that is being added does not count for the high watermark",
        "        self.state = PendingExpandIsr(committed, added, request, committed.maximal | added)",
        "        self.state = PendingExpandIsr(committed, added, request, committed.maximal)",
        ROLES,
    ),
    Mutant(
        "removed-before-it-is-committed",
        "a replica that is being removed does not count for the high watermark",
        "        self.state = PendingShrinkIsr(committed, removed, request, committed.maximal)",
        "        self.state = PendingShrinkIsr(committed, removed, request, frozenset(members))",
        ROLES,
    ),
    Mutant(
        "acknowledged-under-min-isr",
        "an append is accepted with fewer in-sync replicas than min.insync.replicas",
        "return ErrorCode.not_enough_replicas if self.is_under_min_isr else NONE",
        "return NONE",
        ROLES,
    ),
    Mutant(
        "follower-above-its-end",
        "a follower's high watermark is above its log end offset",
        "        high_watermark = min(response.high_watermark, end_offset)",
        "        high_watermark = response.high_watermark",
        ROLES,
    ),
    Mutant(
        "truncation-keeps-the-high-watermark",
        "a truncation below the high watermark leaves it",
        "        self.high_watermark = min(self.high_watermark, offset)\n",
        "",
        EPOCHS,
    ),
    Mutant(
        "unflushed-is-acknowledged",
        "a follower acknowledges what it has not flushed",
        "        if self.counts_flushed and self.flushed_end_offset < fetch_offset:",
        "        if self.counts_flushed and self.flushed_end_offset > fetch_offset:",
        ROLES,
    ),
)

MEMBERSHIP = (
    Mutant(
        "joins-below-the-high-watermark",
        "a replica joins the ISR without all committed records",
        "            and remote.log_end_offset >= high_watermark\n",
        "",
        ROLES,
    ),
    Mutant(
        "joins-below-the-epoch",
        "a replica joins the ISR below the start of the leader's epoch",
        "            and remote.log_end_offset >= epoch_start_offset\n",
        "",
        ROLES,
    ),
    Mutant(
        "joins-by-an-earlier-fetch",
        "a restarted replica joins the ISR for what it had before",
        "return self.eligible.get(remote.broker_id, NO_BROKER_EPOCH) == remote.broker_epoch != ",
        "return remote.broker_id in self.eligible and remote.broker_epoch != ",
        ROLES,
    ),
    Mutant(
        "silent-joins",
        "a replica that was removed for lagging joins again without a fetch",
        "            and not remote.is_silent\n",
        "",
        ROLES,
    ),
    Mutant(
        "caught-up-too-late",
        "a follower that never has all records stays in the ISR",
        "self.last_caught_up_ms = max(self.last_caught_up_ms, self.last_fetch_ms)",
        "self.last_caught_up_ms = max(self.last_caught_up_ms, now_ms)",
        ROLES,
    ),
    Mutant(
        "stale-fetch-counts",
        "a fetch of an earlier incarnation of a broker counts",
        "        if fetch.broker_epoch < known:\n            return ErrorCode.stale_broker_epoch\n",
        "",
        ROLES,
    ),
    Mutant(
        "late-answer-of-the-controller",
        "an answer to a request that is not pending changes the ISR",
        "if isinstance(state, CommittedIsr) or state.request != request:",
        "if isinstance(state, CommittedIsr):",
        ROLES,
    ),
    Mutant(
        "leader-epoch-of-an-alteration",
        "the controller takes an ISR from a former leader",
        "    if request.leader_epoch < state.leader_epoch:\n        raise Refusal(",
        "    if request.leader_epoch < 0:\n        raise Refusal(",
        ALTER,
    ),
    Mutant(
        "partition-epoch-of-an-alteration",
        "the controller takes an ISR that is based on an earlier state",
        "    if request.partition_epoch < state.partition_epoch:\n",
        "    if request.partition_epoch < 0:\n",
        ALTER,
    ),
    Mutant(
        "member-of-another-incarnation",
        "a member of the ISR has restarted since it caught up",
        "    if member.broker_epoch not in (NO_BROKER_EPOCH, broker.epoch):",
        "    if member.broker_epoch > broker.epoch:",
        ALTER,
    ),
    Mutant(
        "fenced-member",
        "a fenced broker joins the ISR",
        '    if broker.fenced:\n        return "fenced"\n',
        "",
        ALTER,
    ),
    Mutant(
        "alteration-by-another-broker",
        "a broker that does not lead alters the ISR",
        '    if broker_id != state.leader:\n        raise Refusal(ErrorCode.invalid_request, f"The leader is',
        '    if False:\n        raise Refusal(ErrorCode.invalid_request, f"The leader is',
        ALTER,
    ),
    Mutant(
        "earlier-broker-epoch",
        "the controller obeys an earlier incarnation of a broker",
        "    if broker_epoch < broker.epoch or broker.fenced:",
        "    if broker.fenced:",
        ALTER,
    ),
)

ELECTIONS = (
    Mutant(
        "unclean-without-permission",
        "any replica may lead although unclean elections are not allowed",
        "    if requested.allow_unclean:\n        for replica in order:",
        "    if order:\n        for replica in order:",
        ELECT,
    ),
    Mutant(
        "last-known-before-safe",
        "the last known leader leads although a replica is safe",
        "    if not safe and last_known != NO_LEADER and may_lead(last_known):",
        "    if last_known != NO_LEADER and may_lead(last_known):",
        ELECT,
    ),
    Mutant(
        "eligible-without-min-isr",
        "a replica stays eligible while the high watermark advances without it",
        "held_back = certain and len(isr) < min_isr",
        "held_back = certain",
        ELECT,
    ),
    Mutant(
        "forfeited-is-safe",
        "a replica that lost records may lead",
        "for r in order if r in members and r not in requested.forfeited and r not in requested.lost",
        "for r in order if r in members and r not in requested.lost",
        ELECT,
    ),
    Mutant(
        "same-epoch-for-a-new-leader",
        "two leaders have one leader epoch",
        "    new_epoch = wants_epoch or new_leader or any(",
        "    new_epoch = wants_epoch or any(",
        ELECT,
    ),
    Mutant(
        "same-epoch-after-a-forfeit",
        "a leader counts what a follower had before it lost records",
        "RequestedChange(forfeited=(broker_id,), new_epoch=True)",
        "RequestedChange(forfeited=(broker_id,))",
        ELECT,
    ),
    Mutant(
        "reassigned-before-in-sync",
        "a reassignment ends before the new replicas are in sync",
        "    if replicas and all(r in isr for r in replicas):",
        "    if replicas and any(r in isr for r in replicas):",
        ("unit/cluster/test_cluster_reassignment.py",),
    ),
)

LEADER_EPOCHS = (
    Mutant(
        "older-epoch-is-served",
        "a request in an earlier leader epoch is not fenced",
        "    if asked == current:\n        return ErrorCode.none",
        "    if asked <= current:\n        return ErrorCode.none",
        ISR,
    ),
    Mutant(
        "divergence-beyond-the-end",
        "a follower that has more of an epoch than the leader is not told so",
        "    if epoch == last_fetched_epoch and fetch_offset <= end_offset:",
        "    if epoch == last_fetched_epoch:",
        EPOCHS,
    ),
    Mutant(
        "divergence-of-epochs",
        "a follower with an epoch that the leader does not have is not told so",
        "    if epoch == last_fetched_epoch and fetch_offset <= end_offset:",
        "    if fetch_offset <= end_offset:",
        EPOCHS,
    ),
    Mutant(
        "truncation-too-short",
        "a follower keeps what the leader does not have of the epoch",
        "        return min(end_offset, diverging.end_offset)",
        "        return end_offset",
        EPOCHS,
    ),
    Mutant(
        "truncation-of-another-epoch",
        "a follower without the leader's epoch keeps what it has above its own",
        "    return min(end_offset, follower.log_end_offset)",
        "    return min(diverging.end_offset, follower.log_end_offset)",
        EPOCHS,
    ),
    Mutant(
        "late-response-truncates",
        "a response to a fetch that was given up truncates",
        "        if fetch != self.outstanding:\n            return NO_EFFECTS\n",
        "",
        (*EPOCHS, "unit/replication/test_replication_state_machine.py"),
    ),
    Mutant(
        "records-beside-a-divergence",
        "the records beside a diverging epoch are appended",
        "        if response.diverging != NO_DIVERGENCE:\n",
        "        if response.diverging != NO_DIVERGENCE and not response.has_records:\n",
        EPOCHS,
    ),
    Mutant(
        "end-of-the-latest-epoch",
        "the latest epoch ends where it begins",
        "            return entries[-1][0], log_end_offset\n",
        "            return entries[-1]\n",
        EPOCH_CACHE,
    ),
    Mutant(
        "end-of-an-earlier-epoch",
        "an epoch seems to end one epoch later",
        "        above = bisect_right(entries, epoch, key=_epoch)\n",
        "        above = bisect_right(entries, epoch + 1, key=_epoch)\n",
        EPOCH_CACHE,
    ),
    Mutant(
        "epochs-above-a-truncation",
        "epochs that begin where the log was truncated stay",
        "        keep = bisect_left(self._entries, end_offset, key=_start_offset)",
        "        keep = bisect_right(self._entries, end_offset, key=_start_offset)",
        EPOCH_CACHE,
    ),
    Mutant(
        "contradicted-epochs-stay",
        "an epoch that begins where another one did stays beside it",
        "        while entries and (entries[-1][0] >= epoch or entries[-1][1] >= start_offset):",
        "        while entries and (entries[-1][0] >= epoch or entries[-1][1] > start_offset):",
        EPOCH_CACHE,
    ),
)

RECOVERY = (
    Mutant(
        "recovery-without-checksums",
        "recovery takes batches whose checksum is wrong",
        "                check_batch(buffer, at, header)\n                if not segment.can_hold",
        "                if not segment.can_hold",
        (*LOG, "unit/storage/test_generated_logs.py"),
    ),
    Mutant(
        "epochs-of-a-former-log",
        "recovery trusts epochs above the records that it has checked",
        "        loaded.epochs.truncate_from_end(max(start, self._options.cleaned_offset))\n",
        "",
        EPOCH_CACHE,
    ),
    Mutant(
        "epochs-above-the-end",
        "a recovered log has epochs above its end",
        "        loaded.epochs.truncate_from_end(loaded.log_end_offset)\n",
        "",
        EPOCH_CACHE,
    ),
    Mutant(
        "producers-after-recovery",
        "a recovered log knows no producers of the records that were checked",
        "                aborted = loaded.producers.replay(buffer, at, header)\n"
        "                if aborted:\n"
        "                    segment.append_aborted(aborted)\n",
        "",
        LOG,
    ),
    Mutant(
        "gaps-are-no-damage",
        "segments that do not continue each other are served",
        "is_possible_loss = recovery_point <= next_offset < segment.base_offset",
        "is_possible_loss = recovery_point < next_offset < segment.base_offset",
        ("unit/storage/test_segment_gaps.py", *LOG),
    ),
    Mutant(
        "snapshot-above-the-end",
        "a snapshot of producers above the log end offset is loaded",
        "            if not log_start_offset <= offset <= end_offset:\n"
        "                self._remove_snapshot(offset)",
        "            if not log_start_offset <= offset:\n                self._remove_snapshot(offset)",
        LOG,
    ),
    Mutant(
        "append-after-a-failed-write",
        "a log goes on after a write has failed",
        "        log.fence(error)\n        raise LogFenced(log.name, error) from error\n    if keeps:",
        "        raise LogFenced(log.name, error) from error\n    if keeps:",
        LOG,
    ),
    Mutant(
        "follower-appends-anywhere",
        "a follower appends records that do not continue its log",
        "        if header.base_offset < offset and not (not marks and _straddles_start(log, header)):",
        "        if header.base_offset + 1 < offset and not (not marks and _straddles_start(log, header)):",
        LOG,
    ),
)

PRODUCERS = (
    Mutant(
        "sequence-gaps",
        "a batch is taken although one before it is missing",
        "        if first != expected:\n            raise _out_of_order",
        "        if first < expected:\n            raise _out_of_order",
        LOG,
    ),
    Mutant(
        "sequences-do-not-wrap",
        "after sequence 2^31 - 1 nothing is taken",
        "expected = 0 if last in (NO_SEQUENCE, SEQUENCE_MAX) else last + 1",
        "expected = 0 if last == NO_SEQUENCE else last + 1",
        LOG,
    ),
    Mutant(
        "epoch-begins-anywhere",
        "the first batch of a new epoch may have any sequence",
        "            if first != 0:\n                raise _out_of_order",
        "            if first < 0:\n                raise _out_of_order",
        LOG,
    ),
    Mutant(
        "fenced-producer-writes",
        "a producer with an earlier epoch writes",
        "if producer_epoch < entry.producer_epoch and self._origin is not AppendOrigin.REPLICATION:",
        "if producer_epoch < 0 and self._origin is not AppendOrigin.REPLICATION:",
        LOG,
    ),
    Mutant(
        "four-batches",
        "the oldest of five batches in flight is not known as a duplicate",
        "(*self.batches[-(BATCHES_MAX - 1) :], batch)",
        "(*self.batches[-(BATCHES_MAX - 2) :], batch)",
        LOG,
    ),
    Mutant(
        "duplicates-appended",
        "a batch that is sent again is appended again",
        "if origin is _CLIENT and (original := _find_duplicate(log, header)):",
        "if origin is not _CLIENT and (original := _find_duplicate(log, header)):",
        LOG,
    ),
    Mutant(
        "open-transactions-expire",
        "a producer is forgotten while its transaction is open",
        "            entry.current_txn_first_offset == NO_OFFSET\n"
        "            and wall_ms - entry.last_timestamp",
        "            wall_ms - entry.last_timestamp",
        LOG,
    ),
)

TRANSACTIONS = (
    Mutant(
        "marker-of-a-former-coordinator",
        "a coordinator that was replaced writes markers",
        "            marker.coordinator_epoch < entry.coordinator_epoch\n            and",
        "            marker.coordinator_epoch < NO_COORDINATOR_EPOCH\n            and",
        LOG,
    ),
    Mutant(
        "marker-of-an-earlier-transaction",
        "a late marker ends the next transaction of its producer",
        "        and marker.producer_epoch <= known.producer_epoch\n",
        "        and marker.producer_epoch < known.producer_epoch\n",
        ("unit/broker/test_marker_sender.py",),
    ),
    Mutant(
        "last-stable-offset-too-high",
        "read_committed sees a transaction whose marker is not committed",
        "            if last >= high_watermark:\n                return first",
        "            if last > high_watermark:\n                return first",
        LOG,
    ),
    Mutant(
        "latest-open-transaction",
        "the last stable offset is that of the latest open transaction",
        "        earliest = next(iter(self.ongoing), None)\n",
        "        earliest = next(reversed(self.ongoing), None)\n",
        LOG,
    ),
    Mutant(
        "later-end-of-an-earlier-transaction",
        "read_committed sees a transaction that began before another whose marker came first",
        "        while self._completed and self._completed[-1][0] >= completed.first_offset:\n",
        "        while self._completed and self._completed[-1][0] > completed.last_offset:\n",
        LOG,
    ),
    Mutant(
        "commits-are-aborts",
        "a commit marker is an abort marker for readers",
        "aborted = marker.control_type is ControlType.ABORT",
        "aborted = marker.control_type is not ControlType.ABORT",
        LOG,
    ),
    Mutant(
        "batch-outside-of-a-transaction",
        "a producer writes outside of its open transaction",
        "            if self._origin is not AppendOrigin.REPLICATION:\n                raise KafkaError(\n"
        "                    ErrorCode.invalid_txn_state,",
        "            if self._origin is AppendOrigin.REPLICATION:\n                raise KafkaError(\n"
        "                    ErrorCode.invalid_txn_state,",
        LOG,
    ),
    Mutant(
        "end-of-another-epoch",
        "a fenced producer ends the transaction of its successor",
        "    if transaction.producer_epoch != request.producer_epoch:\n"
        "        return _refused(ErrorCode.producer_fenced)\n"
        "    if transaction.state.is_prepared:",
        "    if transaction.state.is_prepared:",
        END,
    ),
    Mutant(
        "end-with-bump-of-another-epoch",
        "a fenced producer ends the transaction of its successor, with transactions v2",
        "if transaction.producer_epoch != request.producer_epoch and not (repeated and is_complete):",
        "if transaction.producer_epoch < request.producer_epoch and not (repeated and is_complete):",
        END,
    ),
    Mutant(
        "decided-twice",
        "a transaction that is being committed is aborted",
        "    if transaction.state.is_prepared:\n"
        "        return _refused(ErrorCode.concurrent_transactions)\n    rotated",
        "    rotated",
        END,
    ),
    Mutant(
        "epoch-not-bumped",
        "the coordinator does not fence the producer whose transaction it aborts",
        "        epoch = self.producer_epoch + (1 if bumps or fences else 0)",
        "        epoch = self.producer_epoch + (1 if bumps else 0)",
        (*INIT, *END),
    ),
    Mutant(
        "markers-of-an-earlier-end",
        "a late report of markers completes the next transaction",
        "not transaction.state.is_prepared or not _is_about(transaction, request):",
        "not transaction.state.is_prepared:",
        (*END, "unit/transactions/test_transaction_periodic_tasks.py"),
    ),
    Mutant(
        "partition-of-another-producer",
        "a fenced producer adds partitions",
        "    if transaction.producer_epoch != producer_epoch:\n        return ErrorCode.producer_fenced",
        "    if transaction.producer_epoch < producer_epoch:\n        return ErrorCode.producer_fenced",
        ADD,
    ),
    Mutant(
        "unverified-partition",
        "a partition that is not part of the transaction takes its records",
        "(each, ErrorCode.none if each in transaction.partitions else ErrorCode.transaction_abortable)",
        "(each, ErrorCode.none)",
        ADD,
    ),
    Mutant(
        "guard-of-an-ended-transaction",
        "a batch is appended after the end of its transaction",
        "        return is_open or (self.adds and now.producer_epoch <= self.producer_epoch)",
        "        return True",
        ("unit/broker/test_verification_guard.py", "unit/broker/test_batches_are_verified.py"),
    ),
)

GROUPS = (
    Mutant(
        "commit-of-a-former-generation",
        "a member of a former generation commits offsets",
        "        if generation != self.generation:\n"
        "            return ErrorCode.illegal_generation\n        # The member",
        "        if generation > self.generation:\n"
        "            return ErrorCode.illegal_generation\n        # The member",
        CLASSIC,
    ),
    Mutant(
        "heartbeat-of-a-former-generation",
        "a member does not hear that its generation has ended",
        "if error is ErrorCode.none and request.generation_id != group.generation:",
        "if error is ErrorCode.none and request.generation_id > group.generation:",
        CLASSIC,
    ),
    Mutant(
        "sync-of-a-former-generation",
        "a member of a former generation gets an assignment",
        "        if request.generation_id != group.generation:\n"
        "            return ErrorCode.illegal_generation",
        "        if request.generation_id > group.generation:\n"
        "            return ErrorCode.illegal_generation",
        CLASSIC,
    ),
    Mutant(
        "fenced-static-member",
        "two clients are one static member",
        "            if known != member_id:\n                return ErrorCode.fenced_instance_id",
        "            if not known:\n                return ErrorCode.fenced_instance_id",
        CLASSIC,
    ),
    Mutant(
        "same-generation-again",
        "a rebalance begins no new generation",
        "        self.generation += 1\n        self.pending_sync.clear()",
        "        self.pending_sync.clear()",
        CLASSIC,
    ),
    Mutant(
        "rebalance-without-all",
        "a join phase ends before all members have joined",
        "        return not self.pending_members and all(\n            member.awaiting_join is not None",
        "        return not self.pending_members and any(\n            member.awaiting_join is not None",
        CLASSIC,
    ),
    Mutant(
        "instance-of-another-member",
        "two clients are one static member of a consumer group",
        "    if holder.member_id != member_id:\n        raise KafkaError(",
        "    if not holder.member_id:\n        raise KafkaError(",
        CONSUMER,
    ),
    Mutant(
        "commit-before-the-assignment",
        "a member commits offsets of partitions that it owned in an earlier epoch only",
        "    return since is not None and since <= epoch",
        "    return since is not None",
        CONSUMER,
    ),
    Mutant(
        "member-with-a-former-epoch",
        "a member that lost more than a reply goes on with its former epoch",
        "    if epoch != member.previous_member_epoch or claimed is None or not claims_only(",
        "    if claimed is None or not claims_only(",
        (*CONSUMER, "unit/groups/test_consumer_group_lost_replies.py"),
    ),
    Mutant(
        "offsets-of-a-former-epoch",
        "a member of a former epoch reads offsets",
        "return ErrorCode.none if request.member_epoch == member.member_epoch else _stale(member)",
        "return ErrorCode.none if request.member_epoch <= member.member_epoch else _stale(member)",
        CONSUMER,
    ),
)

SERVING = (
    Mutant(
        "open-transactions-are-read",
        "read_committed reads above the last stable offset",
        "return outcome.last_stable_offset if self.identity.read_committed else role.high_watermark",
        "return role.high_watermark",
        ("unit/broker/test_fetch_bounds.py",),
    ),
    Mutant(
        "aborted-records-are-read",
        "a response does not say which transactions were aborted",
        "        if self.identity.read_committed:\n            outcome.aborted",
        "        if self._is_replica:\n            outcome.aborted",
        ("process/client/test_transactions_of_our_client.py",),
    ),
    Mutant(
        "uncommitted-records-are-read",
        "a consumer reads above the high watermark",
        "return outcome.last_stable_offset if self.identity.read_committed else role.high_watermark",
        "return outcome.last_stable_offset if self.identity.read_committed else partition.log.log_end_offset",
        ("unit/broker/test_fetch_bounds.py",),
    ),
    Mutant(
        "acknowledged-before-the-flush",
        "acks=1 does not wait for the flush of the last record",
        "        if self.counts_flushed and self.log.flushed_offset <= info.last_offset:",
        "        if self.counts_flushed and self.log.flushed_offset < info.last_offset:",
        ("unit/broker/test_partition_flushing.py",),
    ),
    Mutant(
        "released-before-the-flush",
        "acks=1 is acknowledged by the flush of what came before",
        "        while self._flush_waits and self._flush_waits[0][0] <= flushed:",
        "        while self._flush_waits:",
        ("unit/broker/test_partition_flushing.py",),
    ),
)

COMPACTION = (
    Mutant(
        "newest-value-removed",
        "compaction removes the newest record of a key",
        "bytearray(map(operator.lt, offsets, newest.offsets.newest(keys)))",
        "bytearray(map(operator.le, offsets, newest.offsets.newest(keys)))",
        CLEANING,
    ),
    Mutant(
        "tombstones-removed-early",
        "a tombstone is removed before its delete horizon",
        "drops_tombstones = header.has_delete_horizon and self._rules.wall_ms >= header.base_timestamp",
        "drops_tombstones = header.has_delete_horizon",
        CLEANING,
    ),
    Mutant(
        "tombstones-of-a-full-map",
        "a tombstone gets its delete horizon before all it replaces is removed",
        "        return header.last_offset < self._rules.newest.end_offset",
        "        return header.base_offset < self._rules.newest.end_offset",
        CLEANING,
    ),
    Mutant(
        "records-above-a-full-map",
        "records whose keys were not read are removed",
        "                if offset >= newest.end_offset:\n",
        "                if offset > newest.end_offset:\n",
        CLEANING,
    ),
    Mutant(
        "producers-forgotten-by-compaction",
        "the last batch of a producer is removed with its records",
        "        return header.has_producer_id and self._rules.is_last_of_producer(header)",
        "        return False",
        CLEANING,
    ),
    Mutant(
        "end-of-the-cleaned-part",
        "the last batch of the cleaned part is removed, and the log may end before it",
        "        if header.next_offset == self._rules.round_end:\n            return True\n",
        "",
        CLEANING,
    ),
    Mutant(
        "markers-before-their-batches",
        "a marker is removed although the log has batches of its transaction",
        "        return not is_met, entry if is_met",
        "        return True, entry if is_met",
        CLEANING,
    ),
    Mutant(
        "first-batch-of-an-aborted-transaction",
        "the first batch of an aborted transaction counts as committed",
        "        return entry is not None and entry.first_offset <= header.base_offset",
        "        return entry is not None and entry.first_offset < header.base_offset",
        CLEANING,
    ),
)

CONTROLLERS = (
    Mutant(
        "entries-of-a-former-controller",
        "an entry of a controller that was replaced counts",
        "        return entry.controllership == self.controllership\n",
        "        return True\n",
        ("unit/cluster/test_cluster_controllership.py",),
    ),
    Mutant(
        "controllers-of-an-earlier-epoch",
        "a controller begins with an epoch that others have had",
        "first.controller_epoch == self.controllership.controller_epoch + 1\n",
        "first.controller_epoch <= self.controllership.controller_epoch + 1\n",
        ("unit/cluster/test_cluster_controllership.py",),
    ),
    Mutant(
        "entries-left-out",
        "the image goes on although an entry is missing",
        "        if number != self.number + 1:\n            raise InvariantBroken",
        "        if number <= self.number:\n            raise InvariantBroken",
        ("unit/cluster/test_image_all_or_nothing.py", "unit/cluster/test_cluster_entries.py"),
    ),
    Mutant(
        "half-an-entry",
        "an entry that cannot be applied leaves a part of it",
        "        except Exception as error:\n            self._roll_back()\n",
        "        except Exception as error:\n",
        ("unit/cluster/test_image_all_or_nothing.py",),
    ),
    Mutant(
        "controller-without-a-session",
        "a broker whose session has ended stays controller",
        "return holder if holder is not None and holder in files.live() else None",
        "return holder",
        (f"{STORE}::test_one_controller__claims_race", f"{STORE}::test_dies_with_owner__killed"),
    ),
    Mutant(
        "writes-of-an-ended-session",
        "a broker whose session has ended appends to the metadata",
        "    async def append(self, expected_next: int, entry: bytes) -> bool:\n        self._check_live()\n"
        "        done = await self._entries",
        "    async def append(self, expected_next: int, entry: bytes) -> bool:\n"
        "        done = await self._entries",
        (f"{STORE}::test_dies_with_owner__hung_then_back",),
    ),
    Mutant(
        "pauses-end-others",
        "a broker that was paused ends the sessions of the others",
        "seen.silent_ms += min(now_ms - seen.checked_ms, self._check_ms_max)",
        "seen.silent_ms += now_ms - seen.checked_ms",
        ("unit/coordination/test_local_store.py",),
    ),
)

OFFSETS = (
    Mutant(
        "offsets-of-an-aborted-transaction",
        "the offsets of an aborted transaction are committed",
        "            if committed:\n                self._apply(key, value)",
        "            self._apply(key, value)",
        ("unit/groups/test_pending_offsets.py",),
    ),
    Mutant(
        "transaction-over-a-later-commit",
        "the offsets of a transaction replace those of a later commit",
        "            pending.replaced = self._added\n",
        "            pass\n",
        ("unit/groups/test_pending_offsets.py",),
    ),
    Mutant(
        "unstable-offsets-are-read",
        "a consumer begins at an offset that an open transaction may change",
        "        return request.require_stable and self.pending.is_pending(",
        "        return not request.require_stable and self.pending.is_pending(",
        ("unit/groups/test_pending_offsets.py",),
    ),
    Mutant(
        "offsets-of-an-earlier-topic",
        "a consumer begins at the offset of a deleted topic of the name",
        "            elif value is None or _is_of_another(topic, value):",
        "            elif value is None:",
        ("unit/groups/test_offsets_of_groups.py", "unit/groups/test_consumer_group_commits.py"),
    ),
    Mutant(
        "commit-to-a-group-that-is-gone",
        "a member of a group that does not exist commits",
        "if request.generation_id_or_member_epoch < 0:\n            return ErrorCode.none\n        return",
        "if not request.is_transactional:\n            return ErrorCode.none\n        return",
        ("unit/groups/test_offsets_of_groups.py",),
    ),
)

RAFT = (
    "unit/raft/test_raft_replica.py",
    "unit/raft/test_quorum_histories.py",
    "unit/raft/test_model_check_of_quorums.py",
)
QUORUM_FOLDER = ("unit/raft/test_durable_replicas.py",)
QUORUM = (
    Mutant(
        "quorum-commits-an-earlier-epoch",
        "a leader of the quorum commits a record of an earlier epoch by counting",
        "return found if found > self.epoch_start else 0",
        "return found",
        RAFT,
    ),
    Mutant(
        "quorum-half-is-a-majority",
        "half of an even number of voters is a majority",
        "return len(self.voters) // 2 + 1",
        "return (len(self.voters) + 1) // 2",
        RAFT,
    ),
    Mutant(
        "quorum-votes-for-a-shorter-log",
        "a voter elects a leader that lacks committed records",
        "return is_complete and self.election.leader == NO_LEADER",
        "return self.election.leader == NO_LEADER",
        RAFT,
    ),
    Mutant(
        "quorum-acknowledges-the-unflushed",
        "a fetch acknowledges records that a crash may lose",
        "if not isinstance(role, Following) or self.flushed_end < self._log.log_end_offset:",
        "if not isinstance(role, Following):",
        RAFT,
    ),
    Mutant(
        "quorum-snapshot-of-the-uncommitted",
        "a snapshot has records that are replaced later",
        "is_committed = snapshot.end_offset <= self.high_watermark and self._log.has(*snapshot)",
        "is_committed = self._log.has(*snapshot)",
        RAFT,
    ),
    Mutant(
        "quorum-log-start-without-epoch",
        "a log that differs before the leader's begins is continued",
        "return end_offset < begin or last_epoch < epoch or (end_offset == begin and last_epoch != epoch)",
        "return end_offset < begin",
        RAFT,
    ),
    Mutant(
        "quorum-snapshot-without-epoch",
        "a replica that has only a snapshot votes for an older log",
        "return self.origin.epoch if self._is_empty else self._log.latest_epoch",
        "return self._log.latest_epoch",
        RAFT,
    ),
    Mutant(
        "quorum-reads-before-it-knows",
        "a new leader answers a read before it knows all that was committed",
        "if not isinstance(role, Leading) or self.high_watermark <= role.epoch_start:\n"
        "            return None\n        role",
        "if not isinstance(role, Leading):\n            return None\n        role",
        RAFT,
    ),
    Mutant(
        "quorum-loses-its-leader-for-good",
        "a replica that has lost its leader for a moment never follows it again",
        "if self.leader not in (NO_LEADER, self.key.node_id):",
        "if self.leader == self.key.node_id + 1_000_000:",
        RAFT,
    ),
    Mutant(
        "quorum-changes-voters-too-early",
        "a leader changes the voters before a record of its own epoch is committed",
        "        if self.high_watermark <= self.role.epoch_start:\n            return ChangeRefused",
        "        if False:\n            return ChangeRefused",
        RAFT[:1],
    ),
    Mutant(
        "quorum-counts-the-removed",
        "a voter is counted for the commit of its own removal",
        "committable = role.committable(self.voters.latest, self.flushed_end)",
        "committable = role.committable(self.voters.at(self.high_watermark), self.flushed_end)",
        RAFT[:1],
    ),
    Mutant(
        "quorum-removed-leader-waits",
        "a leader that was removed waits for ever for an election that it is not told of",
        "Resigned(deadline_ms) if self.is_voter else Unattached(deadline_ms)",
        "Resigned(deadline_ms)",
        RAFT[:1],
    ),
    Mutant(
        "quorum-forgets-uncommitted-voters",
        "a restart forgets a change of the voters that is not committed",
        "        records.append(VoterRecord(offset, found.voters))",
        "        if offset < committed:\n            records.append(VoterRecord(offset, found.voters))",
        QUORUM_FOLDER,
    ),
    Mutant(
        "quorum-adds-another-folder",
        "a voter is added whose address is another node's, or whose folder was lost",
        "        if found != entry.key:\n",
        "        if False:\n",
        ("simulation/test_simulated_voter_changes.py",),
    ),
    Mutant(
        "quorum-two-changes-are-awaited",
        "a leader takes a change of the voters while it still looks at another",
        "        if self._is_pending:\n",
        "        if False:\n",
        ("simulation/test_simulated_voter_changes.py",),
    ),
    Mutant(
        "quorum-moved-voter-is-silent",
        "a voter that listens elsewhere does not say so",
        "        if replica.entry_of(own.key).endpoints == own.endpoints:\n",
        "        if True:\n",
        ("process/quorum/test_changed_voters.py",),
    ),
    Mutant(
        "quorum-vote-is-not-stored",
        "a voter that restarts votes again",
        "self._store if self._is_cut or self._unstored is not None else None,",
        "self._store if self._is_cut else None,",
        QUORUM_FOLDER,
    ),
    Mutant(
        "quorum-truncation-is-not-durable",
        "a power cut leaves removed entries of the quorum below those of the new leader",
        "                self._is_cut = True\n",
        "",
        QUORUM_FOLDER,
    ),
    Mutant(
        "quorum-keeps-a-contradicted-log",
        "a log that the snapshot beside it contradicts is kept",
        "if snapshot is not None and not _continues(log, snapshot.id):",
        "if snapshot is not None and snapshot.id.end_offset > log.log_end_offset:",
        QUORUM_FOLDER,
    ),
    Mutant(
        "quorum-opens-a-log-with-a-loss",
        "a voter whose log has lost committed records votes",
        "    if log.log_end_offset < committed:\n        raise QuorumDamaged",
        "    if log.log_end_offset < 0:\n        raise QuorumDamaged",
        QUORUM_FOLDER,
    ),
    Mutant(
        "quorum-takes-any-epoch",
        "records of an epoch that the leader has not reached are appended",
        "if header.base_offset != offset or not epoch <= header.partition_leader_epoch <= response.epoch:",
        "if header.base_offset != offset:",
        QUORUM_FOLDER,
    ),
    Mutant(
        "quorum-takes-half-a-snapshot",
        "a snapshot that was not written completely replaces the log",
        "if end != size or not controls or controls[-1] != SnapshotFooter() or not last_is_control:",
        "if not controls:",
        ("unit/raft/test_quorum_files.py",),
    ),
)

MUTANTS: tuple[Mutant, ...] = (
    *HIGH_WATERMARK,
    *MEMBERSHIP,
    *ELECTIONS,
    *LEADER_EPOCHS,
    *RECOVERY,
    *PRODUCERS,
    *TRANSACTIONS,
    *GROUPS,
    *SERVING,
    *COMPACTION,
    *CONTROLLERS,
    *OFFSETS,
    *QUORUM,
)
