"""Each takes out what mended a defect that users or attackers of the first versions had found."""

from __future__ import annotations

from mutants.mutant import Mutant

FOUND = "process/broker/test_found_logs.py"
MOVED = "process/broker/test_moved_folder.py"
ESCAPES = "process/cli/test_terminal_escapes.py"
REFUSED = "process/authorization/test_refused_clients.py"
SUBJECTS = "process/security/test_certificates.py"
DESTRUCTIVE = "process/cli/test_destructive_commands.py"
STREAMS = "process/cli/test_hostile_use.py::TestStreams"
ACLS = "process/authorization/test_acl_command.py"
REPEATED = "unit/cli/test_repeated_options.py"
TRANSACTIONS = "process/cluster_cli/test_transaction_command.py"
USERS = "process/broker/test_secure_up.py::test_the_users_of_the_folder_stay"
INPUT = "unit/cli/test_input_records.py"
MANAGER = "unit/storage/test_log_manager.py"
AHEAD = "unit/broker/test_hosting_ahead.py"
POWER_CUTS = "unit/storage/test_power_cuts_during_changes.py"
MARKER = "unit/broker/test_life_marker.py"  # codespell:ignore
HOW_TO = "docs/how-to/"
BACKUP = "process/cli/test_tutorial.py::test_a_backup_is_restored"
UPGRADE = "process/upgrade/test_upgrade_page.py"
MOVE = "compatibility/applications/test_move_page.py"
SECURE = "process/security/test_secure_page.py"
SYSTEMD = "process/packaging/test_systemd_page.py"
POSITIONS = "process/kafka/test_positions_of_records.py"
THREE = "process/broker/test_three_machines_page.py"
QUORUM_OF_BROKERS = "process/quorum/test_quorum_of_brokers.py"
TIER = "unit/storage/test_tiering.py"
TIERED_LOG = "unit/pipeline/test_tiered_logs.py"
SHARE = "unit/share/test_share_partition.py"
SHARE_MODEL = "unit/share/test_share_partition_model.py"
RESTORE = "unit/pipeline/test_archive_restore.py"
ARCHIVE = "unit/pipeline/test_archive.py"
REFUSALS = "unit/pipeline/test_archive_refusals.py"
EARLIER = "unit/pipeline/test_earlier_archives.py"
FROM_STORE = "unit/pipeline/test_restore_of_tiers.py"
CLAIMS = "unit/broker/test_claims_of_tiers.py"
SIMULATED_QUORUM = "simulation/test_simulated_quorum.py"

# --- the data that a broker finds
FOUND_LOGS = (
    Mutant(
        "found-logs-begin-a-cluster",
        "a broker creates a cluster beside the logs of another one",
        "return await self._open_store(found.cluster_id, create=False)",
        "return await self._open_store(found.cluster_id)",
        (FOUND,),
    ),
    Mutant(
        "found-logs-join-any-cluster",
        "logs of one cluster are served in another one",
        "return await self._open_store(found.cluster_id, create=False)",
        "return await self._open_store(None, create=False)",
        (FOUND,),
    ),
    Mutant(
        "logs-of-an-unknown-cluster",
        "logs without meta.properties are taken for this cluster's",
        "        if found.cluster_id is None:\n            raise StartFailed(",
        "        if False:\n            raise StartFailed(",
        (FOUND,),
    ),
    Mutant(
        "logs-of-kafka",
        "a broker starts in the folder of a Kafka broker in KRaft mode",
        "    if of_kafka and not is_ours:",
        "    if of_kafka and is_ours:",
        (FOUND,),
    ),
    Mutant(
        "strays-deleted",
        "a log that the metadata do not assign to the broker is deleted",
        'self._disposal.make_stray(name, "is not assigned to this broker by the metadata")',
        "self._disposal.delete(name)",
        (FOUND,),
    ),
    Mutant(
        "strays-deleted-without-asking",
        "log delete-strays does not ask",
        'confirm(f"Delete {len(found)} stray logs with their records?", lost, yes=yes)',
        "pass",
        (FOUND,),
    ),
    Mutant(
        "strays-unmentioned",
        "the status shows no stray logs",
        "own = (_quorum, _moves, _compactions, _tiers, _strays, _turns)",
        "own = (_quorum, _moves, _compactions, _tiers, _turns)",
        (FOUND,),
    ),
)

# --- the topic id of a partition's records
TOPIC_IDS = (
    Mutant(
        "topic-id-content-unsynced",
        "partition.metadata may be torn after a power loss, beside records",
        "        file.sync()\n    finally:\n        file.close()\n    disk.sync_directory(posixpath",
        "        pass\n    finally:\n        file.close()\n    disk.sync_directory(posixpath",
        (AHEAD, MANAGER),
    ),
    Mutant(
        "topic-id-name-unsynced",
        "partition.metadata may be missing after a power loss, beside records",
        "        file.close()\n    disk.sync_directory(posixpath.dirname(path))\n\n\ndef _encode",
        "        file.close()\n\n\ndef _encode",
        (AHEAD, MANAGER),
    ),
    Mutant(
        "topic-id-before-the-void-marker",
        "a power cut leaves a new topic's folder with the checkpointed log start offset of a deleted one",
        """            self._mark_void(target, topic_partition, path)
            if new_id is not None:
                checkpoints.write_partition_metadata(self._disk, path, new_id)
                if sync:
                    checkpoints.sync_partition_metadata(self._disk, path)
""",
        """            if new_id is not None:
                checkpoints.write_partition_metadata(self._disk, path, new_id)
                if sync:
                    checkpoints.sync_partition_metadata(self._disk, path)
            self._mark_void(target, topic_partition, path)
""",
        (POWER_CUTS,),
    ),
    Mutant(
        "append-before-the-truncation",
        "a power cut leaves removed records below those that were appended later",
        "log.await_checkpoint(syncs=posixpath.basename(log.segments.active.log_path))",
        "log.await_checkpoint()",
        (POWER_CUTS,),
    ),
    Mutant(
        "segments-removed-after-the-cut",
        "a power cut leaves a hole below the recovery point",
        "        log.files.disk.sync_directory(log.folder)\n    active = log.segments.active",
        "        pass\n    active = log.segments.active",
        (POWER_CUTS,),
    ),
    Mutant(
        "recovered-cut-unsynced",
        "a second power cut brings back what recovery has cut off",
        "            checkpoints.make_durable(self._files.disk, loaded.segments.active.log_path)\n",
        "            pass\n",
        (POWER_CUTS,),
    ),
    Mutant(
        "unsynced-transaction-index-trusted",
        "a power cut makes records of an aborted transaction visible",
        "return min(durable, active.base_offset) if active.has_unsynced_aborted else durable",
        "return durable",
        (POWER_CUTS,),
    ),
    Mutant(
        "copy-with-a-gap-kept",
        "after a power cut the copy of a moved replica that lacks a segment is used, not the former folder",
        "        if log.gap is not None:\n            end, epoch",
        "        if False:\n            end, epoch",
        ("unit/storage/test_duplicate_folders.py",),
    ),
    Mutant(
        "folders-above-a-log-directory-unsynced",
        "a power cut removes a log directory that was made together with the folder above it",
        "        sync_ancestors(self._disk, self.path)\n",
        "",
        (MANAGER,),
    ),
    Mutant(
        "folders-above-a-metadata-log-unsynced",
        "a power cut removes a voter's directory, with its vote",
        "    sync_ancestors(disk, folder)\n    write_owner(",
        "    write_owner(",
        ("unit/raft/test_quorum_files.py",),
    ),
    Mutant(
        "folders-of-an-archive-unsynced",
        "a power cut removes a file of the archive with the folders above it",
        "                    sync_ancestors(self._disk, folder)\n",
        "",
        ("unit/pipeline/test_archive_power_cuts.py",),
    ),
    Mutant(
        "append-before-the-topic-id",
        "a log takes records before its topic id is durable",
        "if new_id is not None and not sync:",
        "if False:",
        (AHEAD,),
    ),
    Mutant(
        "empty-logs-unsynced",
        "an empty log of a killed process takes records before its topic id is durable",
        "            self._sync_topic_ids(directory)\n",
        "",
        (MANAGER,),
    ),
    Mutant(
        "records-without-topic-id",
        "a log without a topic id is opened as if it had one",
        "return logs, logs.take_out_unidentified()",
        "return logs, []",
        (MARKER,),
    ),
    Mutant(
        "records-of-an-earlier-topic",
        "the records of a deleted topic become those of the next one of its name",
        "        if log is not None and log.topic_id != wanted.topic_id:\n            self._disposal",
        "        if log is not None and log.topic_id is None:\n            self._disposal",
        (AHEAD, "simulation/test_reused_names.py"),
    ),
    Mutant(
        "lost-records-unsaid",
        "a broker with records of an unknown topic registers as one that lost none",
        "        if self._unidentified:\n            yield",
        "        if False:\n            yield",
        (MARKER,),
    ),
    Mutant(
        "registration-noted-late",
        "a broker whose registration the log has before the store says so notes it at the next change",
        "                self._note_registered()\n                return",
        "                return",
        ("unit/cluster/test_own_registration.py",),
    ),
    Mutant(
        "ended-session-noted",
        "a broker notes an incarnation whose session has ended, and takes the next one for noted",
        "        if self._own.current.lost:\n            return\n",
        "",
        ("unit/cluster/test_own_registration.py",),
    ),
    Mutant(
        "decision-without-requester-waits",
        "a decision that waits for its turn is kept though its request was answered, or its client has gone",
        "        if not has_begun:\n            running.cancel()",
        "        if False:\n            running.cancel()",
        ("unit/broker/test_decisions_go_on.py",),
    ),
    Mutant(
        "forwarded-first-come",
        "clients whose requests are sent on to the controller keep other clients of their broker waiting",
        "in_turn(self._tasks, self._queue, client, send,",
        "in_turn(self._tasks, self._queue, None, send,",
        ("unit/broker/test_forwarded_context.py",),
    ),
    Mutant(
        "forwarded-one-at-a-time",
        "a request that waits at the controller keeps all other clients of its broker waiting",
        "DecisionQueue(CLIENTS_AT_ONCE, passed_on_max=WAITING_MAX)",
        "DecisionQueue(passed_on_max=0)",
        ("unit/broker/test_forwarded_context.py",),
    ),
    Mutant(
        "forwarded-waits-for-sixteen",
        "sixteen requests that wait at the controller keep all other clients of their broker waiting",
        "DecisionQueue(CLIENTS_AT_ONCE, passed_on_max=WAITING_MAX)",
        "DecisionQueue(CLIENTS_AT_ONCE)",
        ("unit/broker/test_forwarded_context.py",),
    ),
    Mutant(
        "subscriptions-of-any-length",
        "topics that a member of a group names by the million are read in one turn",
        "        if count > self.elements_left:",
        "        if False:",
        ("process/broker/test_turns_of_few_rights.py", "unit/groups/test_offsets_of_groups.py"),
    ),
    Mutant(
        "subscriptions-of-many-groups-at-once",
        "the topics of thousands of members are read for hundreds of groups in one turn",
        "looked_at += group.members_bytes // BYTES_OF_A_TOPIC",
        "looked_at += 0",
        ("unit/groups/test_offsets_of_groups.py",),
    ),
    Mutant(
        "group-records-of-any-size",
        "a request of a hundred bytes writes what the members of a group have sent, 64 MiB",
        "if assigns and group.record_bytes(assignments.values()) > RECORD_BYTES_MAX:",
        "if False:",
        ("unit/groups/test_classic_members.py",),
    ),
    Mutant(
        "share-groups-forget-at-once",
        "what thousands of share groups know of a deleted topic is removed in one turn",
        "        if self._round:\n            self._state.timers.schedule(_TOPICS, turn.now_ms)",
        "        if self._round:\n            self._forget_deleted_topics(turn)",
        ("unit/groups/test_share_group_partitions.py",),
    ),
    Mutant(
        "share-states-deleted-at-once",
        "the states of a deleted topic of thousands of share groups are deleted in one turn",
        "        if self._deleted:\n            self._timers.schedule(_Timer.DELETED, now_ms)\n",
        "        self._delete_more(turn := Turn(now_ms, wall_ms))\n        if turn.records_count:\n"
        "            return turn.effects(self._waiting)\n",
        ("unit/share/test_state_shard.py",),
    ),
    Mutant(
        "protocols-for-nothing",
        "members with thousands of protocols fill the memory with what their names take",
        "return PROTOCOL_BYTES + len(name)",
        "return len(name)",
        ("process/broker/test_hostile_clients.py",),
    ),
    Mutant(
        "classic-members-for-nothing",
        "classic members of a consumer group fill the memory with their metadata",
        "        protocols = () if self.classic is None else self.classic.supported_protocols",
        "        protocols = ()",
        ("unit/groups/test_consumer_group_migration.py",),
    ),
    Mutant(
        "expressions-match-without-bound",
        "a hundred expressions of a group that each match all topics hold the event loop",
        "        matched &= had  # what is new finds no room",
        "        pass",
        ("unit/groups/test_consumer_group_regex_subscriptions.py",),
    ),
    Mutant(
        "protocols-of-classic-members-not-counted-down",
        "classic members of a consumer group that have left keep others from joining",
        "_recount(self._protocols, protocol_names(before), protocol_names(after))",
        "self._protocols.update(protocol_names(after))",
        ("unit/groups/test_consumer_group_migration.py",),
    ),
    Mutant(
        "pages-wait-for-a-registry",
        "four pages of the console that wait for a registry keep those waiting that have no schema",
        "if decoding is None or not any(part is not None and schema_id(part) is not None for part in data):",
        "if decoding is None:",
        ("unit/console/test_console_pages.py",),
    ),
    Mutant(
        "references-on-each-way",
        "schemas that refer to each other twice hold a thread of the console for good",
        "        if key not in found:\n            _collect(one, found)\n            found[key] = name, one",
        "        _collect(one, found)\n        found[key] = name, one",
        ("unit/schema_registry/test_registry_avro.py",),
    ),
    Mutant(
        "decimals-of-any-length",
        "a decimal of some 100 kB holds all threads of the console for seconds",
        "        if len(data) > DECIMAL_BYTES_MAX:\n",
        "        if False:\n",
        ("unit/schema_registry/test_registry_avro.py",),
    ),
    Mutant(
        "logs-rolled-at-once",
        "thousands of compacted logs that are due at once are rolled in one turn",
        "            await slices.step(1)\n            if not may_clean(partition):",
        "            if not may_clean(partition):",
        ("process/broker/test_turns_of_background_work.py",),
    ),
    Mutant(
        "flushes-ended-at-once",
        "the flushes of thousands of logs end in one turn",
        "in zip(plans, outcomes, strict=True):\n                    await slices.step()\n",
        "in zip(plans, outcomes, strict=True):\n",
        ("unit/broker/test_partition_flushing.py",),
    ),
    Mutant(
        "aborted-transactions-walked",
        "each read-committed fetch walks all that was aborted while one transaction was open",
        "if not may_end and self._begins[block] >= upper_bound_offset:",
        "if not may_end and False:",
        ("unit/storage/test_transaction_index.py",),
    ),
    Mutant(
        "aborted-transactions-all-told",
        "a fetch of one batch tells all of thousands of transactions that were open then",
        "if len(found) > ABORTED_MAX:",
        "if False:",
        ("unit/storage/test_storage_edge_cases.py",),
    ),
    Mutant(
        "prepared-transactions-at-once",
        "a coordinator that takes over requests the markers of all transactions in one turn",
        "while self._prepared and partitions < PARTITIONS_PER_CALL_MAX:",
        "while self._prepared:",
        ("unit/transactions/test_transaction_periodic_tasks.py",),
    ),
    Mutant(
        "committed-effects-wait-again",
        "what follows from committed records waits for a further append while releases are put off",
        "last.offset != offset and not is_committed",
        "last.offset != offset",
        ("unit/broker/test_waiting_effects.py", "unit/broker/test_partition_flushing.py"),
    ),
    Mutant(
        "committed-effects-time-out",
        "a request is told a time-out though its record is committed, since its release is put off",
        "if self._waiting and self._waiting[0].offset <= self._log.high_watermark:",
        "if False:",
        ("unit/broker/test_waiting_effects.py",),
    ),
    Mutant(
        "ended-tasks-stay-as-garbage",
        "a task that an exception ended, such as of a client that has gone, stays in memory with all it held",
        "            del typ, val, tb  # its traceback refers to this frame: both would stay as garbage\n",
        "",
        ("unit/broker/test_turns.py",),
    ),
    Mutant(
        "transactional-ids-loaded-at-once",
        "a coordinator that takes over looks at all transactional ids in one turn",
        "                self._prepared.append(name)\n            yield 1\n",
        "                self._prepared.append(name)\n        yield 1\n",
        ("unit/transactions/test_transaction_periodic_tasks.py",),
    ),
    Mutant(
        "releases-end-with-a-failure",
        "of thousands of waits that end together, those behind one whose release fails never end",
        "                wait.release(outcome)\n        finally:\n",
        "                wait.release(outcome)\n        except SystemExit:\n",
        ("unit/broker/test_delayed_request.py",),
    ),
    Mutant(
        "committed-produces-time-out",
        "a producer is told a time-out though its records are committed, since its release is put off",
        "            if not holder.abandon(ticket, offset):\n                return\n",
        "            holder.abandon(ticket, offset)\n",
        ("unit/broker/test_partition_flushing.py",),
    ),
    Mutant(
        "deleted-groups-are-listed",
        "a group that was deleted while a listing was made is in it, or the one before a conversion",
        "states, types, groups = request.states_filter, request.types_filter, self._state.groups",
        "states, types, groups = request.states_filter, request.types_filter, dict(self._state.groups)",
        ("unit/groups/test_classic_group_reports.py",),
    ),
    Mutant(
        "leaderless-markers-polled",
        "each marker of each transaction that waits for a leader is looked at every 100 ms",
        "if state is not None and not state.has_leader and entries[-1].end.is_current:",
        "if False:",
        ("unit/broker/test_marker_sender.py",),
    ),
    Mutant(
        "throttled-replicas-polled",
        "each throttled replica is looked at for each fetch of its follower",
        "heapq.heappush(self._held, (until_ms, followed.key))",
        "self._due[followed.key] = None",
        ("unit/broker/test_brokers_do_not_wait.py",),
    ),
    Mutant(
        "deleted-topics-looked-for-at-once",
        "the topics of all offsets are looked for in one turn after each change of a topic",
        "self._is_image_new = True\n            self._state.timers.schedule(_PURGE, turn.now_ms)\n",
        "self._find_deleted()\n            self.on_purge(turn)\n",
        ("unit/groups/test_offsets_of_groups.py",),
    ),
    Mutant(
        "setting-without-end",
        "a list that is appended to becomes as long as an entry of the metadata log",
        "if len(new) > VALUE_CHARACTERS_MAX and",
        "if False and",
        ("unit/cluster/test_cluster_configs.py",),
    ),
    Mutant(
        "deleted-topics-stay",
        "a client that creates and deletes topics says for how long their folders stay on the disk",
        "min(log.config.file_delete_delay_ms, delay_max_ms)",
        "log.config.file_delete_delay_ms",
        ("unit/broker/test_log_disposal.py",),
    ),
    Mutant(
        "records-made-readable-on-the-event-loop",
        "a page of records of an internal topic keeps all other browsers waiting",
        "return await self._in_thread(partial(_view, topic, found, entered, limit, by_schema))",
        "return _view(topic, found, entered, limit, by_schema)",
        ("unit/console/test_console_pages.py",),
    ),
    Mutant(
        "own-requests-behind-clients",
        "a broker's changes of ISRs wait for requests that clients had it send on",
        "connection = await self._own.get()",
        "connection = await self._of_clients[0].get()",
        ("unit/broker/test_forwarded_context.py",),
    ),
    Mutant(
        "automatic-creation-first",
        "topics that clients have created automatically keep elections waiting",
        "asks = Client.of(client.context, client.client_id)",
        "asks = None",
        ("unit/broker/test_decision_queue.py",),
    ),
    Mutant(
        "one-client-has-all-the-room",
        "large requests of one client that are slowed down keep those of all others waiting",
        "return not held or held + size <= self._bytes_max // SHARES",
        "return not held or held + size <= self._bytes_max",
        ("unit/broker/test_rooms_of_large_requests.py",),
    ),
    Mutant(
        "gone-clients-ids-kept",
        "client ids of requests that have timed out stay in memory while a long decision is made",
        "                self._forget(client, waiter)\n",
        "                pass\n",
        ("unit/broker/test_decision_queue.py",),
    ),
    Mutant(
        "decisions-first-come",
        "clients that ask for a thousand decisions keep brokers and other clients waiting",
        "        if client is None:\n            return self._first\n",
        "        if client or not client:\n            return self._first\n",
        ("unit/broker/test_decision_queue.py",),
    ),
    Mutant(
        "large-change-sent-on-whole",
        "a change of many megabytes is encoded for the controller in one turn",
        "if acting_broker is None and is_larger_than(request.body, CHANGE_BYTES_MAX):",
        "if False and is_larger_than(request.body, CHANGE_BYTES_MAX):",
        ("process/broker/test_turns_of_few_rights.py",),
    ),
    Mutant(
        "snapshot-of-the-last-batch",
        "a snapshot of the producers has the last batch of each alone",
        "for batch in self.batches[:-1]:",
        "for batch in self.batches[:0]:",
        ("unit/storage/test_batches_in_snapshots.py",),
    ),
    Mutant(
        "controller-that-cannot-write-ends",
        "a broker ends because it cannot write the metadata log when it is to begin as controller",
        "elif error.code is ErrorCode.request_timed_out:\n",
        "elif error.code is ErrorCode.request_timed_out and False:\n",
        ("unit/cluster/test_own_registration.py",),
    ),
    Mutant(
        "refused-proposal-in-doubt",
        "a proposal that was never sent is taken for one that the metadata log may have",
        "except PeerRefused as error:  # it was not sent\n            raise StoreUnavailable(",
        "except PeerRefused as error:  # it was not sent\n            raise OutcomeUnknown(",
        ("process/coordination/test_quorum_faults.py",),
    ),
    Mutant(
        "simulation-blind-to-topic-ids",
        "the simulation lets brokers append beside a topic id that is not durable",
        "isinstance(found, FolderNode) and not _has_durable_topic_id(found)",
        "False",
        ("simulation/test_checkpoint_file_checker.py",),
    ),
)

# --- a data folder that was moved, copied or restored
FOLDERS = (
    Mutant(
        "copy-serves-the-original",
        "the settings of a copied folder name the original's data",
        "return text if former is None else corrected(text, former, self.data_dir)",
        "return text",
        (MOVED,),
    ),
    Mutant(
        "paths-not-corrected",
        "up does not correct the files of a copied folder",
        "            correct_paths(self.data_dir, former, self.broker_ids())\n",
        "",
        (MOVED,),
    ),
    Mutant(
        "processes-of-the-original",
        "the original's brokers count as those of the copy",
        "record = None if is_copy else self._read_record(broker_id)",
        "record = self._read_record(broker_id)",
        (MOVED,),
    ),
    Mutant(
        "part-of-a-folder",
        "up begins an empty store in a copy that has none",
        "    missing = list(_missing(data_dir, former, broker_ids))\n",
        "    missing: list[str] = []\n",
        (MOVED,),
    ),
    Mutant(
        "moved-while-it-runs",
        "up starts a second cluster in a folder that was moved while its brokers ran",
        "if running := [str(one.id) for one in self.brokers() if one.pid is not None]:",
        "if running := [str(one.id) for one in self.brokers() if one.pid == 0]:",
        (MOVED,),
    ),
    Mutant(
        "broker-of-a-copy",
        "a broker that is started by itself serves the original's data",
        "    if ids and (former := cluster.former_place()) is not None:",
        "    if ids and (former := None) is not None:",
        (MOVED,),
    ),
    Mutant(
        "backup-of-aborted-records",
        "the backup of a topic has what was aborted",
        "--isolation-level read_committed --json | gzip",
        "--json | gzip",
        (BACKUP,),
        HOW_TO + "backup.md",
    ),
    Mutant(
        "backup-that-retention-deletes",
        "restored records vanish by retention",
        "orders-restored --partitions 1 --config retention.ms=-1",
        "orders-restored --partitions 1",
        (BACKUP,),
        HOW_TO + "backup.md",
    ),
)

# --- a batch with invalid records
INVALID_RECORDS = (
    Mutant(
        "record-errors-empty",
        "a Produce response does not say which records are invalid",
        "outcome.record_errors = [RecordError(index, message) for index, message in error.records]",
        "outcome.record_errors = []",
        ("process/broker/test_refused_batches.py",),
    ),
    Mutant(
        "one-invalid-record",
        "only the first invalid record is named",
        "        if len(self._invalid) < RECORD_ERRORS_MAX:",
        "        if not self._invalid:",
        ("unit/storage/test_record_validation.py",),
    ),
    Mutant(
        "endless-record-errors",
        "every invalid record is named, however many",
        "        if len(self._invalid) < RECORD_ERRORS_MAX:",
        "        if len(self._invalid) < self._invalid_count:",
        ("unit/storage/test_record_validation.py",),
    ),
)

# --- the audit of a compacted log
AUDIT = (
    Mutant(
        "audit-of-cleaned-epochs",
        "the audit reports an epoch whose first records were compacted away",
        "if not self._first <= start < self._end or _is_in(gaps, start):",
        "if not self._first <= start < self._end:",
        ("unit/pipeline/test_audit_checks.py",),
    ),
    Mutant(
        "audit-of-gaps-between-segments",
        "the audit knows only gaps within a segment",
        "return sorted([*inner, *(gap for gap in between if gap[0] < gap[1])])",
        "return sorted(inner)",
        ("unit/pipeline/test_audit_checks.py",),
    ),
)

# --- what clients of the cluster chose, on a terminal
TERMINALS = (
    Mutant(
        "escapes-in-lines",
        "control characters in a line reach the terminal",
        "        self.rich_proxied_file.write(printable(text))",
        "        self.rich_proxied_file.write(text)",
        (ESCAPES,),
    ),
    Mutant(
        "escapes-in-tables",
        "control characters in a table reach the terminal",
        "text = segment.text if segment.control else printable(segment.text)",
        "text = segment.text",
        (ESCAPES,),
    ),
    Mutant(
        "markup-in-tables",
        "brackets in a group id are markup",
        "stderr=stderr, markup=False, emoji=False,",
        "stderr=stderr, markup=True, emoji=False,",
        (ESCAPES,),
    ),
    Mutant(
        "eight-bit-escapes",
        "the control characters above 0x7f reach the terminal",
        r"\x0b-\x1f\x7f-\x9f\u2028",
        r"\x0b-\x1f\u2028",
        (ESCAPES,),
    ),
)

# --- malformed requests
MALFORMED = (
    Mutant(
        "unknown-state-filters",
        "ListTransactions does not say that a state is unknown where it coordinates nothing",
        "results = [list_transactions({}, asked, wall_ms=0)]",
        "results = [list_transactions({}, ListTransactions(), wall_ms=0)]",
        ("process/wire/test_malformed_requests.py",),
    ),
    Mutant(
        "rights-before-form",
        "who may not alter a setting is not told that the request is malformed",
        "            _check_form(request)\n"
        "            if denied is not None and request.resource in denied:\n"
        "                reply.append((request.resource, denied[request.resource]))\n"
        "                continue\n",
        "            if denied is not None and request.resource in denied:\n"
        "                reply.append((request.resource, denied[request.resource]))\n"
        "                continue\n"
        "            _check_form(request)\n",
        ("process/wire/test_malformed_requests.py",),
    ),
    Mutant(
        "brokers-known-to-all",
        "who may alter nothing is told which brokers there are",
        "            _check_form(request)\n",
        "            _check_form(request)\n            _check_broker(image, request.resource)\n",
        ("process/wire/test_malformed_requests.py",),
    ),
    Mutant(
        "broker-that-does-not-exist",
        "the settings of a broker that is not registered are altered",
        "            _check_broker(image, request.resource)\n",
        "",
        ("process/wire/test_malformed_requests.py",),
    ),
    Mutant(
        "metadata-of-invalid-names",
        "Metadata 0 says that a topic with an invalid name is unknown",
        "    elif why_invalid_name(name) is not None:\n        error = ErrorCode.invalid_topic_exception",
        "    elif why_invalid_name(name) is not None:\n        error = ErrorCode.unknown_topic_or_partition",
        ("process/wire/test_malformed_requests.py",),
    ),
    Mutant(
        "metadata-of-names-that-may-not-be-created",
        "who may not create a topic is told that its name is invalid",
        "    elif name in errors:\n",
        "    elif name in errors and why_invalid_name(name) is None:\n",
        ("process/wire/test_malformed_requests.py",),
    ),
    Mutant(
        "metadata-without-names",
        "Metadata 10 and 11 take a topic without a name",
        "    if _is_malformed(request):\n        return _reject(request)\n",
        "",
        ("process/wire/test_malformed_requests.py",),
    ),
    Mutant(
        "metadata-by-name-and-id",
        "Metadata 12 answers names beside ids",
        '        return tuple((None, topic_id) for topic_id in ids)  # Java\'s clients put "" beside an id',
        "        return (*((None, topic_id) for topic_id in ids), *((topic.name, None) for topic in "
        "request.body.topics if topic.name))",
        ("process/wire/test_malformed_requests.py",),
    ),
    Mutant(
        "refused-key-unknown",
        "a documented key of Kafka is called unknown",
        "            if name in self.missing:",
        "            if name in ():",
        ("test_reference_pages.py",),
    ),
)

# --- a client with few rights, wrong ones or none
FEW_RIGHTS = (
    Mutant(
        "refusal-is-a-lost-connection",
        "a user without DESCRIBE reads that the brokers are down",
        "                refuses=True,\n",
        "",
        (REFUSED,),
    ),
    Mutant(
        "not-served-is-lost",
        "a client without a user reads that the brokers are down",
        "self._fail(NotServed(",
        "self._fail(ConnectionLost(",
        (REFUSED, "unit/client/test_connection.py"),
    ),
    Mutant(
        "wrong-password-is-down",
        "a client with a wrong password reads that the brokers are down",
        "return isinstance(error, NotServed) or error.code in REFUSALS",
        "return isinstance(error, NotServed)",
        (REFUSED,),
    ),
    Mutant(
        "unknown-is-unavailable",
        "the exit code of status does not tell a refusal from an outage",
        "        if self.refused is not None and not self.offline:\n            return Grade.UNKNOWN\n",
        "",
        (REFUSED,),
    ),
    Mutant(
        "empty-lists-unexplained",
        "an empty list does not say that rights may be missing",
        "    if not await admin.may(Operation.ALTER):",
        "    if await admin.may(Operation.ALTER):",
        (REFUSED,),
    ),
    Mutant(
        "hidden-topic-is-missing",
        "replicas of a topic that may not be described are unknown ones",
        'is ErrorCode.topic_authorization_failed:\n            raise KafkaError(code, f"topic',
        'is ErrorCode.none:\n            raise KafkaError(code, f"topic',
        (REFUSED,),
    ),
)

# --- certificates, and browsers
CERTIFICATES = (
    Mutant(
        "nul-in-subjects",
        "NUL in a subject is printed as it is, unlike by Java",
        ', "\\0": "\\\\00"}',
        "}",
        (SUBJECTS,),
    ),
    Mutant(
        "bmp-subjects",
        "a BMPString is decoded as it was meant, unlike by Java",
        '\\xbd", value).decode("utf-8", "replace")',
        '\\xbd", value).decode("utf-16-be" if tag == 0x1E else "utf-8", "replace")',
        (SUBJECTS,),
    ),
    Mutant(
        "t61-subjects",
        "a T61String is decoded as it was meant, unlike by Java",
        '\\xbd", value).decode("utf-8", "replace")',
        '\\xbd", value).decode("latin-1" if tag == 0x14 else "utf-8", "replace")',
        (SUBJECTS,),
    ),
    Mutant(
        "console-without-hsts",
        "browsers are not told to keep to the console's TLS",
        '{**SECURITY_HEADERS, **(TLS_HEADERS if served.scheme == "https" else {})}',
        "{**SECURITY_HEADERS}",
        ("unit/console/test_console_guard.py",),
    ),
    Mutant(
        "hsts-without-tls",
        "browsers are told to keep to TLS by a console that has none",
        '{**SECURITY_HEADERS, **(TLS_HEADERS if served.scheme == "https" else {})}',
        "{**SECURITY_HEADERS, **TLS_HEADERS}",
        ("unit/console/test_console_guard.py",),
    ),
)

# --- the pages that are typed word for word
PAGES = (
    Mutant(
        "mirrormaker-with-three-replicas",
        "MirrorMaker's own topics have more replicas than there are brokers",
        "config.storage.replication.factor = 1\n",
        "",
        (MOVE,),
        HOW_TO + "move-from-kafka.md",
    ),
    Mutant(
        "upgrade-from-an-index",
        "the page about upgrades installs by name, which does nothing",
        "   git -C /opt/nilometer-source pull --quiet\n   /opt/nilometer/bin/pip install --quiet "
        "/opt/nilometer-source\n",
        "   git -C /opt/nilometer-source pull --quiet\n   /opt/nilometer/bin/pip install --quiet --upgrade "
        "nilometer\n",
        (UPGRADE,),
        HOW_TO + "upgrade.md",
    ),
    Mutant(
        "acls-of-no-broker",
        "an ACL command of the page about securing names no broker",
        "--operation read --group billing --bootstrap-server broker1.example.org:9094 ",
        "--operation read --group billing ",
        (SECURE,),
        HOW_TO + "secure.md",
    ),
    Mutant(
        "no-pem",
        "the page about securing does not make the broker's PEM file",
        "cat broker1.key broker1.crt > broker1.pem\n",
        "",
        (SECURE,),
        HOW_TO + "secure.md",
    ),
    Mutant(
        "check-of-an-open-port",
        "the check at the end of the page does not fail, since it is that of a user",
        "nilometer topic list --bootstrap-server broker1.example.org:9094\n```\n\nBoth",
        "nilometer topic list --bootstrap-server broker1.example.org:9094 --command-config "
        "client.properties\n```\n\nBoth",
        (SECURE,),
        HOW_TO + "secure.md",
    ),
    Mutant(
        "no-folder-of-settings",
        "the page about systemd copies into a folder that nothing makes",
        "install -D -m 640 -g nilometer 1.properties",
        "install -m 640 -g nilometer 1.properties",
        (SYSTEMD,),
        HOW_TO + "systemd.md",
    ),
    Mutant(
        "unavailable-is-not-degraded",
        "the replication of the three machines survives no loss",
        "\ndefault.replication.factor=3\n",
        "\ndefault.replication.factor=1\n",
        (THREE,),
        HOW_TO + "three-machines.md",
    ),
    Mutant(
        "zkcli-not-on-the-path",
        "the page about ZooKeeper takes zkCli.sh to be on the PATH",
        "/usr/share/zookeeper/bin/zkCli.sh",
        "zkCli.sh",
        ("process/coordination/test_zookeeper_security.py",),
        "docs/zookeeper.md",
    ),
)

# --- examples that a run draws
EXAMPLES = (
    Mutant(
        "random-examples",
        "each run draws other examples",
        "derandomize=_times == 1,",
        "derandomize=False,",
        ("test_properties.py",),
        "tests/support",
    ),
    Mutant(
        "a-value-does-not-fit-its-own-columns",
        "a field that holds nothing has no column, and its row is refused",
        "        elif not _holds_nothing(inner):\n",
        "        else:\n",
        ("unit/pipeline/tables/test_table_schemas.py",),
    ),
    Mutant(
        "a-fail-over-undoes-nothing",
        "the model of groups takes a generation that a fail-over undid for one that goes back",
        "        self._newest = self.world.written_generation()\n",
        "",
        ("unit/groups/test_classic_state_machine.py",),
        "tests/unit/groups",
    ),
)

# --- the Python client
CLIENT = (
    Mutant(
        "cancelled-poll-takes-records",
        "a poll that is cancelled loses the records that it had taken",
        "            first = {TopicPartition(one.topic, one.partition): one for one in reversed(records)}\n",
        "            first = dict[TopicPartition, ConsumerRecord]()\n",
        (POSITIONS,),
    ),
    Mutant(
        "commit-of-what-was-taken-away",
        "commit() moves the offset of a partition that another member reads since a rebalance",
        "        await _done(self._listener.on_partitions_revoked(partitions))\n"
        "        self._forget(partitions)\n",
        "        await _done(self._listener.on_partitions_revoked(partitions))\n",
        (POSITIONS,),
    ),
)

# --- what a command does is what was said
COMMANDS = (
    Mutant(
        "one-topic-of-the-audit",
        "audit takes one topic of several",
        "lambda part: not topics or part.topic in topics, on_round)",
        "lambda part: not topics or part.topic == [*topics][-1], on_round)",
        ("pipeline/jobs/test_audit.py",),
    ),
    Mutant(
        "one-header-of-a-name",
        "produce takes the last of several headers of one name",
        "tuple((name, os.fsencode(value)) for name, value in pairs)",
        "tuple((name, os.fsencode(value)) for name, value in dict(pairs).items())",
        ("process/cli/test_cluster_commands.py",),
    ),
    Mutant(
        "bytes-left-out-of-records",
        "produce leaves out what belongs to no line of a log",
        "    splitter = LineSplitter(is_exact=True)",
        "    splitter = LineSplitter()",
        ("unit/client/test_ingest_lines.py", f"{STREAMS}::test_full_and_closed_streams"),
    ),
    Mutant(
        "joins-again-after-it-left",
        "Ctrl-C ends a consumer of a group after a minute",
        "        self._left = True\n",
        "",
        ("process/cli/test_cluster_commands.py",),
    ),
    Mutant(
        "one-acl-of-eight",
        "acl add takes the last principal only",
        "_chosen(resources), principals, _each_once(hosts) or [WILDCARD], operations",
        "_chosen(resources), principals[-1:], _each_once(hosts) or [WILDCARD], operations",
        (ACLS,),
    ),
    Mutant(
        "options-given-twice",
        "of an option that is given twice the last one wins",
        "            _refuse_repeated(self, ctx, args)\n",
        "            pass\n",
        (REPEATED,),
    ),
    Mutant(
        "keys-given-twice",
        "of a key that is given twice the last value wins",
        "        if key in pairs:\n            raise",
        "        if not key:\n            raise",
        (REPEATED,),
    ),
    Mutant(
        "quotas-given-twice",
        "of a quota that is given twice the last value wins",
        '        if key in values:\n            raise click.UsageError(f"{key} is given twice',
        '        if not key:\n            raise click.UsageError(f"{key} is given twice',
        (REPEATED,),
    ),
    Mutant(
        "prefixed-acls-removed",
        "acl remove of a name removes the ACLs of a prefix, too",
        "named = PatternType.LITERAL if chosen else PatternType.ANY",
        "named = PatternType.ANY",
        (ACLS,),
    ),
    Mutant(
        "live-transaction-aborted",
        "a live transaction is aborted in one partition, and then committed",
        "    if not force and not run_with_admin(",
        "    if not force and not yes and not run_with_admin(",
        (TRANSACTIONS,),
    ),
    Mutant(
        "idle-producer-fenced",
        "a producer that has nothing open is fenced",
        "    if not force:\n        state = (",
        "    if not force and is_open:\n        state = (",
        (TRANSACTIONS,),
    ),
    Mutant(
        "open-producer-fenced",
        "a producer in a live transaction is fenced",
        "    if not force:\n        state = (",
        "    if not force and not is_open:\n        state = (",
        (TRANSACTIONS,),
    ),
    Mutant(
        "internal-topics-deleted",
        "topic delete __consumer_offsets deletes the offsets of all groups",
        "    if not internal and (refused := ",
        "    if internal and (refused := ",
        (DESTRUCTIVE,),
    ),
    Mutant(
        "way-back-overwritten",
        "reassign execute --rollback overwrites the way back",
        '        with path.open("x", encoding="utf-8") as file:',
        '        with path.open("w", encoding="utf-8") as file:',
        ("process/cluster_cli/test_reassign_command.py",),
    ),
    Mutant(
        "admin-removed",
        "user remove admin locks up and status out",
        "        if name != DEMO:\n",
        "        if name == BROKER:\n",
        (USERS,),
    ),
    Mutant(
        "admin-with-another-password",
        "user add admin leaves the old password in admin.properties",
        "        folder.change_password(name, password)\n",
        "",
        (USERS,),
    ),
    Mutant(
        "brokers-password-changed",
        "user add broker locks the brokers out",
        "    if file is not None and name == BROKER:\n",
        "    if file is None and name == BROKER:\n",
        (USERS,),
    ),
    Mutant(
        "deleted-settings-that-do-not-exist",
        "--delete-config takes any name",
        "    if missing := [key for key in deleted if key not in known]:",
        "    if missing := [key for key in deleted if key in ()]:",
        (DESTRUCTIVE,),
    ),
    Mutant(
        "down-of-no-cluster",
        "down in a folder without a cluster says that it stopped 0 brokers",
        '    if not cluster.broker_ids():\n        raise click.ClickException(\n            f"there',
        '    if False:\n        raise click.ClickException(\n            f"there',
        (DESTRUCTIVE,),
    ),
    Mutant(
        "states-that-do-not-exist",
        "group list --state bogus prints an empty list",
        '    _check_each("--state", _comma_separated(states), STATES)\n',
        "",
        (DESTRUCTIVE,),
    ),
    Mutant(
        "archives-that-do-not-exist",
        "archive list --topic nosuch prints an empty list",
        'raise SourceError("\\n".join((absent, *problems)))',
        'SourceError("\\n".join((absent, *problems)))',
        (DESTRUCTIVE,),
    ),
    Mutant(
        "shared-settings-hidden",
        "broker config ID hides the settings that all brokers share",
        "changed = (ConfigSource.DYNAMIC_BROKER_CONFIG, ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG)",
        "changed = (ConfigSource.DYNAMIC_BROKER_CONFIG,)",
        ("process/cli/test_topic_and_broker_settings.py",),
    ),
    Mutant(
        "commits-of-what-was-not-shown",
        "consume without standard output commits",
        "    if output_is_closed():\n",
        "    if False:\n",
        (f"{STREAMS}::test_what_is_not_shown_is_not_committed",),
    ),
    Mutant(
        "numbers-through-floats",
        "produce --json-lines turns 1.10 into 1.1",
        "text = value if isinstance(value, str) else _text_at(line, path)",
        "text = value if isinstance(value, str) else json.dumps(value)",
        (INPUT,),
    ),
    Mutant(
        "json-names-given-twice",
        "of a name that a JSON line repeats the last value wins",
        "        if self.repeated is not None:\n            raise BadInput",
        '        if self.repeated == "":\n            raise BadInput',
        (INPUT,),
    ),
    Mutant(
        "asked-nowhere",
        "without a terminal what cannot be undone is done",
        'raise click.UsageError(f"{question} There is no terminal',
        'return click.echo(f"{question} There is no terminal',
        (DESTRUCTIVE,),
    ),
    Mutant(
        "no-is-yes",
        "the answer on the terminal does not count",
        "    if not click.confirm(question, err=True):",
        "    if click.confirm(question, err=True) is None:",
        (DESTRUCTIVE,),
    ),
    Mutant(
        "unnamed-losses",
        "what is lost is not named",
        '        click.echo(f"  {one}", err=True)\n    if not sys.stdin.isatty():',
        "        pass\n    if not sys.stdin.isatty():",
        (DESTRUCTIVE,),
    ),
    Mutant(
        "traceback-at-the-start",
        "Ctrl-C while the program is imported leaves a traceback",
        "        signal.signal(signal.SIGINT, signal.SIG_DFL)\n    from nilometer.cli.main import main",
        "        pass\n    from nilometer.cli.main import main",
        (f"{STREAMS}::test_interrupted_at_its_start_and_at_its_end",),
    ),
    Mutant(
        "traceback-at-the-end",
        "Ctrl-C while the process ends leaves a traceback",
        "            signal.signal(signal.SIGINT, signal.SIG_DFL)",
        "            pass",
        (f"{STREAMS}::test_interrupted_at_its_start_and_at_its_end",),
    ),
)

# --- what cannot be undone is named and asked for
NOT_ASKED = tuple(
    Mutant(f"{name}-not-asked", f"{what} without being named and asked for", old, "pass", tests)
    for name, what, old, tests in (
        (
            "acls",
            "ACLs are removed",
            'confirm("Remove these ACLs?", [" ".join(_row(each)) for each in found], yes=yes)',
            (ACLS,),
        ),
        ("topics", "topics are deleted", 'confirm("Delete these topics?", lost, yes=yes)', (DESTRUCTIVE,)),
        ("records", "records are deleted", 'confirm("Delete these records?", lost, yes=yes)', (DESTRUCTIVE,)),
        ("offsets", "offsets are deleted", 'confirm("Delete these offsets?", lost, yes=yes)', (DESTRUCTIVE,)),
        (
            "groups",
            "groups are deleted",
            'confirm("Delete these groups?", [f"group {name} with its offsets" for name in chosen], yes=yes)',
            (DESTRUCTIVE,),
        ),
        (
            "abort",
            "a hanging transaction is aborted",
            'confirm("Abort this transaction?", [lost], yes=yes)',
            (TRANSACTIONS,),
        ),
        (
            "fence",
            "a producer is fenced",
            'confirm("Fence this producer?", [fenced, *lost], yes=yes)',
            (TRANSACTIONS,),
        ),
        (
            "users",
            "a user is removed",
            'confirm("Remove it?", lost, yes=yes)',
            ("process/client/test_user_command.py", USERS),
        ),
        (
            "tokens",
            "a token is removed",
            'confirm("Remove this token now?", [f"token {token_id} of {found.owner}"], yes=yes)',
            ("process/broker/test_delegation_tokens.py",),
        ),
        (
            "unclean-elections",
            "replicas that may lack records are elected",
            'confirm(\n            "Elect replicas that may lack records?",\n            '
            '[f"records of {one} can be lost" for one in lost],\n            yes=yes,\n        )',
            ("process/cluster_cli/test_elect_leaders_command.py",),
        ),
        (
            "slots",
            "a slot of PostgreSQL is removed",
            'confirm("Remove the slot, its publication and its topics?", [lost], yes=yes)',
            ("pipeline/jobs/test_capture.py",),
        ),
        (
            "tables",
            "the tables of declared pipelines are dropped",
            'confirm("Drop them?", [f"the tables and checkpoints of {spec}"], yes=yes)',
            (DESTRUCTIVE,),
        ),
    )
)

# --- records of pipelines
PIPELINES = tuple(
    Mutant(f"pipeline-{name}", what, old, new, tests)
    for name, what, old, new, tests in (
        (
            "captured-topics",
            "a capture goes on into a topic that was deleted and created again",
            "if before.get(TOPIC_ID, connector[TOPIC_ID]) != connector[TOPIC_ID]:",
            "if False:",
            ("pipeline/jobs/test_capture.py",),
        ),
        (
            "aborted-messages",
            "messages of aborted transactions are delivered",
            '        "isolation.level": "read_committed",\n        "auto.offset.reset"',
            '        "auto.offset.reset"',
            ("pipeline/jobs/test_delivery.py",),
        ),
        (
            "aborted-records",
            "records of aborted transactions are in results",
            '            "kafka.isolation.level": "read_committed",\n            **self.options',
            "            **self.options",
            ("pipeline/jobs/test_data_as_it_is.py",),
        ),
        (
            "ids-at-once",
            "an id in two partitions is delivered by both",
            "        self._sending.add(key)\n",
            "",
            ("pipeline/jobs/test_delivery.py",),
        ),
        (
            "numbers-in-messages",
            "a message with a number of thousands of digits is refused",
            'value or b"", parse_int=len, parse_float=len)',
            'value or b"")',
            ("pipeline/jobs/test_delivery.py",),
        ),
        (
            "damaged-notes",
            "damaged notes of what was delivered are a bug of Nilometer",
            "    except sqlite3.Error as error:\n        raise _unusable(path, error) from None\n    if",
            "    if",
            ("pipeline/jobs/test_delivery.py",),
        ),
        (
            "large-positions",
            "one change whose position has more than 64 bits ends each run",
            "if lsn not in _POSITIONS or seq not in _POSITIONS:",
            "if False:",
            ("unit/pipeline/test_change_events.py",),
        ),
        (
            "end-of-a-line",
            "a line that was sent with its end is of no format",
            '.removesuffix("\\n").removesuffix("\\r")',
            '.removesuffix("\\r")',
            ("unit/pipeline/test_formats.py",),
        ),
        (
            "first-day",
            "one record with a time in the first day of the year 1 ends each run, and the report of all",
            "(frame.withColumns(times) if times else frame).collect()",
            "frame.collect()",
            ("pipeline/jobs/test_data_as_it_is.py",),
        ),
        (
            "last-day-in-a-plot",
            "a time in the first or the last years ends each report",
            "        _bound_times(axes)\n",
            "",
            ("unit/pipeline/test_report.py",),
        ),
        (
            "byte-order-mark-of-an-event",
            "a change event after a byte order mark is rejected, as no other pipeline does",
            "_decode_event(value.removeprefix(BOM))",
            "_decode_event(value)",
            ("unit/pipeline/test_change_events.py",),
        ),
        (
            "names-without-a-column",
            "one record with a quotation mark in a name ends each run of a table",
            "if kind is not None and not NO_NAME.search(name):",
            "if kind is not None and name:",
            ("unit/pipeline/tables/test_values_as_they_are.py",),
        ),
        (
            "null-lists",
            "pyiceberg makes null lists of structs empty ones",
            "    _keep_null_lists()\n",
            "",
            ("unit/pipeline/tables/test_values_as_they_are.py",),
        ),
        (
            "quotes-in-tables",
            "a doubled quote ends a value of a table in CSV",
            "header=True, quote='\"', escape='\"', multiLine=True",
            "header=True",
            ("pipeline/jobs/test_data_as_it_is.py",),
        ),
        (
            "names-with-braces",
            "what a user's name has in braces is replaced in messages",
            '        "count": F.col("count").cast("string"),\n',
            '        "name": F.coalesce("name", "user"),\n        "count": F.col("count").cast("string"),\n',
            ("pipeline/jobs/test_data_as_it_is.py",),
        ),
        (
            "names-with-dots",
            "one record with a name like the path of another column ends each run of a table",
            'without_collisions(infer_part(one.column("value").to_pylist()))',
            'infer_part(one.column("value").to_pylist())',
            ("pipeline/jobs/test_data_as_it_is.py",),
        ),
        (
            "whole-seconds",
            "windows are of whole seconds, and what ends them is not",
            'F.window("at", f"{microseconds(settings.window)} microseconds")',
            'F.window("at", f"{settings.window.total_seconds():.0f} seconds")',
            ("pipeline/jobs/test_data_as_it_is.py",),
        ),
        (
            "sums-without-end",
            "two large measurements have an infinite mean, and cause alerts",
            "NUMBER_MAX: Final = 1e290",
            "NUMBER_MAX: Final = 1e309",
            ("pipeline/jobs/test_data_as_it_is.py",),
        ),
        (
            "ids-of-short-windows",
            "alerts of two windows within a second have one id",
            ".otherwise(with_fraction)",
            ".otherwise(F.date_format(start, \"yyyy-MM-dd'T'HH:mm:ssXXX\"))",
            ("pipeline/jobs/test_data_as_it_is.py",),
        ),
        (
            "retry-after-no-date",
            "one impossible date in Retry-After ends each delivery",
            "    except (ValueError, OverflowError):\n        return None\n    return min(max(left_s",
            "    except ValueError:\n        return None\n    return min(max(left_s",
            ("pipeline/jobs/test_delivery.py",),
        ),
        (
            "captured-empty-table",
            "the rows of a table that is empty when it is captured again stay",
            "if not has_begun and has_records and (emptied := source.if_empty()) is not None:",
            "if (emptied := None) is not None:",
            ("pipeline/jobs/test_capture.py",),
        ),
        (
            "captured-unsigned-integers",
            "unsigned integers of MySQL are texts, and their keys are others than before",
            'if re.fullmatch(UNSIGNED, schema.parameters.get("__debezium.source.column.type", "")):',
            "if False:",
            ("unit/pipeline/test_change_events.py",),
        ),
        (
            "captured-generated-columns",
            "generated columns are in the first rows, and lost with their first update",
            '            **({"column.exclude.list": excluded} if excluded else {}),\n',
            "",
            ("pipeline/jobs/test_capture.py",),
        ),
        (
            "captured-deferrable-key",
            "updates of a table fail from its capture on, as its key is deferrable",
            "c.relreplident = 'f' OR (c.relreplident = 'd' AND i.indimmediate)",
            "c.relreplident IN ('d', 'f')",
            ("pipeline/jobs/test_capture.py",),
        ),
        (
            "captured-children",
            "the first rows have those of inheriting tables, whose changes are not captured",
            "        if has_children and not has_begun:\n",
            "        if False:\n",
            ("pipeline/jobs/test_capture.py",),
        ),
        (
            "captured-hidden-rows",
            "the first rows lack those that row security hides",
            "        if is_filtered and not has_begun:  # its first rows have been read\n",
            "        if False:\n",
            ("pipeline/jobs/test_capture.py",),
        ),
    )
)

# --- share partitions
SHARE_PARTITION = tuple(
    Mutant(f"share-{name}", what, old, new, tests)
    for name, what, old, new, tests in (
        (
            "lost-rollback",
            "an acknowledgement that was not written takes effect",
            "        if written:\n            self.move(span, becomes",
            "        if True:\n            self.move(span, becomes",
            (f"{SHARE}::TestUntilItIsWritten", SHARE_MODEL),
        ),
        (
            "one-delivery-more",
            "a record is delivered once more than the limit says",
            "if span.delivery_count < self.settings.delivery_count_limit:",
            "if span.delivery_count <= self.settings.delivery_count_limit:",
            (f"{SHARE}::TestDeliveries", SHARE_MODEL),
        ),
        (
            "start-passes-acquired",
            "the start offset passes records that a member holds",
            "and is_final(self._spans[done].state)",
            "and self._spans[done].state is not AVAILABLE",
            (f"{SHARE}::TestAcknowledging", SHARE_MODEL),
        ),
        (
            "acknowledged-twice",
            "a record is acknowledged again before its first acknowledgement is written",
            "return self.state is ACQUIRED and self.change == NO_CHANGE",
            "return self.state is ACQUIRED",
            (f"{SHARE}::TestUntilItIsWritten", SHARE_MODEL),
        ),
        (
            "any-member",
            "a member acknowledges what another one holds",
            "if not span.is_locked or span.member_id != member_id:",
            "if not span.is_locked:",
            (f"{SHARE}::TestAcknowledging", SHARE_MODEL),
        ),
        (
            "lock-without-end",
            "a lock that ended before the write failed never ends",
            "                    if not ok:  # its lock",
            "                    if False:  # its lock",
            (f"{SHARE}::TestUntilItIsWritten", SHARE_MODEL),
        ),
        (
            "unreadable-delivered",
            "records of aborted transactions are delivered",
            "        if not unreadable:\n            return acquired",
            "        if True:\n            return acquired",
            (f"{SHARE}::TestWhatCannotBeRead", SHARE_MODEL),
        ),
    )
)

# --- the requests of members of share groups
SHARE_ANSWERS = "compatibility/as_kafka/test_share_fetch_as_kafka.py"
SHARE_SLICES = "unit/broker/test_share_work_in_slices.py"
SHARE_REQUESTS = tuple(
    Mutant(f"share-{name}", what, old, new, tests)
    for name, what, old, new, tests in (
        (
            "late-error-takes-effect",
            "of an acknowledgement in steps the first ones stay, though a later one failed",
            "                    self._take_back(change, pending)\n                    return Ack",
            "                    return Ack",
            (f"{SHARE}::TestInSteps",),
        ),
        (
            "written-in-one-piece",
            "all batches of a share partition are written at once",
            "tuple(batches[first : first + BATCHES_AT_ONCE])",
            "tuple(batches)",
            (SHARE_SLICES,),
        ),
        (
            "released-late",
            "a member's next session begins while what the former one held is still released",
            "        while (releasing := self._releasing.get(member)) is not None:",
            "        while False and (releasing := self._releasing.get(member)) is not None:",
            (SHARE_SLICES,),
        ),
        (
            "renewed-without-the-flag",
            "a renewal is taken from a request that does not say that it has one",
            "if not self.renews and any(",
            "if False and any(",
            (f"{SHARE_ANSWERS}::test_renewals", f"{SHARE_ANSWERS}::test_refused_acknowledgements"),
        ),
        (
            "lock-time-of-a-refusal",
            "a refused fetch names the time of locks",
            "        lock_ms = self._settings.record_lock_duration_ms if error is None else 0",
            "        lock_ms = self._settings.record_lock_duration_ms",
            (f"{SHARE_ANSWERS}::test_sessions",),
        ),
        (
            "records-of-no-bytes",
            "a fetch of no bytes gets a batch",
            "self._left and body.max_bytes > 0:",
            "self._left:",
            (f"{SHARE_ANSWERS}::test_what_is_asked",),
        ),
    )
)

# --- the state of share partitions
STATE = "unit/share/test_state_shard.py"
SHARE_STATE = (
    Mutant(
        "share-state-of-a-former-leader",
        "a leader that another has followed writes the state of a share partition",
        "            if request.leader_epoch < kept.leader_fence:\n",
        "            if request.leader_epoch < kept.leader_fence and isinstance(request, ReadState):\n",
        (STATE,),
    ),
    Mutant(
        "share-state-read-by-a-former-leader",
        "a leader that another has followed reads the state, and fences the one after it",
        "            if request.leader_epoch < kept.leader_fence:\n",
        "            if request.leader_epoch < kept.leader_fence and isinstance(request, WriteState):\n",
        (STATE,),
    ),
    Mutant(
        "share-state-fence-begins-again",
        "a state that begins again forgets who has led its partition",
        "fence = max(record.state.leader_epoch, DEFAULT_EPOCH if kept is None else kept.leader_fence)",
        "fence = record.state.leader_epoch",
        (STATE,),
    ),
    Mutant(
        "share-state-of-a-former-epoch",
        "who knows an earlier state epoch writes, or begins the state again",
        "            and request.state_epoch < kept.state.state_epoch\n",
        "            and request.state_epoch < kept.state.state_epoch - 5\n",
        (STATE,),
    ),
    Mutant(
        "share-state-start-goes-back",
        "a write lowers the start offset",
        "start_offset = max(request.start_offset, state.start_offset)",
        "start_offset = state.start_offset if request.start_offset < 0 else request.start_offset",
        (STATE,),
    ),
    Mutant(
        "share-state-of-an-unknown-topic",
        "a coordinator whose metadata is behind deletes the state of a new topic",
        "            elif topic_id in self._seen:\n",
        "            else:\n",
        (STATE,),
    ),
    Mutant(
        "share-state-pruned-too-far",
        "records are deleted that a share partition's state needs",
        "redundant = self._position if oldest is None else oldest.position",
        "redundant = self._position if oldest is None else oldest.position + 1",
        (STATE,),
    ),
    Mutant(
        "share-state-for-clients",
        "a client without CLUSTER_ACTION writes the state of share partitions",
        "if not parts.rights.access(request).on_cluster(Operation.CLUSTER_ACTION):\n            denied",
        "if False:\n            denied",
        ("unit/broker/test_share_state_api.py",),
    ),
)

# --- streams groups
STREAMS_MODEL = "unit/groups/test_streams_group_state_machine.py"
STREAMS_TASKS = "unit/groups/test_streams_tasks.py"
STREAMS_MEMBERS = "unit/groups/test_streams_group_members.py"
STREAMS_GROUPS = tuple(
    Mutant(f"streams-{name}", what, old, new, tests)
    for name, what, old, new, tests in (
        (
            "active-twice",
            "a task becomes active while another member runs it",
            "if others.run(task) or others.have_replica_here(task)",
            "if others.have_replica_here(task)",
            (STREAMS_MODEL, STREAMS_TASKS),
        ),
        (
            "standby-beside-active",
            "a process gets a standby task that another of its members runs",
            "if others.run_here(task) or others.have_replica_here(task)",
            "if others.have_replica_here(task)",
            (STREAMS_TASKS,),
        ),
        (
            "not-revoked",
            "a member counts as having revoked a task that it still claims",
            "revokes = bool(excess) and (claimed is None or excess.shares(claimed))",
            "revokes = bool(excess) and claimed is None",
            (STREAMS_MODEL, STREAMS_TASKS),
        ),
        (
            "revoking-is-forgotten",
            "what a member has still to revoke counts as free",
            "    yield from member.pending_revocation.active\n",
            "",
            (STREAMS_MODEL, STREAMS_MEMBERS),
        ),
        (
            "topics-unseen",
            "a group does not notice that its topics have changed",
            "if group.configured is not None and group.configured.metadata_hash == metadata_hash:",
            "if group.configured is not None:",
            (STREAMS_MODEL, STREAMS_MEMBERS),
        ),
        (
            "replaced-forgets",
            "a static member that comes back has lost its tasks",
            'assignment and tasks."""\n    target = draft.group.target_of(old.member_id)',
            'assignment and tasks."""\n    target = Tasks()',
            (STREAMS_MEMBERS,),
        ),
        (
            "ghost-group",
            "an invalid topology leaves a group behind",
            "            return StreamsGroup(request.group_id)\n",
            "            self._state.groups[request.group_id] = StreamsGroup(request.group_id)\n",
            (STREAMS_MEMBERS,),
        ),
        (
            "stale-commit",
            "a member commits with an epoch before it had the task",
            "if since is None or since > epoch:",
            "if since is None:",
            (STREAMS_MEMBERS,),
        ),
        (
            "same-process",
            "a standby task is given to the process that runs the task",
            "            found = task not in process.tasks\n",
            "            found = True\n",
            ("unit/groups/test_streams_group_assignor.py",),
        ),
        (
            "copartition-ignored",
            "joined topics may have different numbers of partitions",
            "        counts |= _copartitioned(group, names, fixed, counts, count_of)\n",
            "        _copartitioned(group, names, fixed, {}, count_of)\n",
            ("unit/groups/test_streams_topology.py",),
        ),
        (
            "topics-without-right",
            "internal topics are created for a client without the right",
            "    if not access.on_cluster(Operation.CREATE, report=False):\n"
            "        may_create = access.allowed(Operation.CREATE, ResourceType.TOPIC, names)\n",
            "",
            ("process/authorization/test_streams_requests.py",),
        ),
        (
            "shutdown-when-away",
            "a static member that leaves for a while cannot have the application shut down",
            "        if request.shutdown_application and group.shutdown_requested_by is None:\n"
            "            group.shutdown_requested_by = member.member_id\n",
            "",
            (STREAMS_MEMBERS,),
        ),
        (
            "described-raises",
            "the description of a group whose topology can never run fails the shard",
            "                configured = None  # with",
            "                raise  # with",
            (STREAMS_MEMBERS,),
        ),
        (
            "tasks-without-bound",
            "a short topology has a group hand out millions of tasks",
            "    if tasks + len(found) > TASKS_MAX:\n",
            "    if False:\n",
            ("unit/groups/test_streams_topology.py",),
        ),
        (
            "sink-is-no-repartition-topic",
            "a joined source topic may have any number of partitions if the application writes to it",
            "others = {name: count_of(name) for name in sorted(group) if name not in names}",
            "others = {name: count_of(name) for name in sorted(group) if name not in counts}",
            ("unit/groups/test_streams_topology.py",),
        ),
        (
            "uncounted-heartbeat",
            "what a member says in a later heartbeat is not counted for the memory of members",
            "endpoint, request.rack_id, request.process_id, request.client_tags)",
            "request.client_tags)",
            (STREAMS_MEMBERS,),
        ),
        (
            "one-replica",
            "an internal topic of an application without replication.factor has one replica",
            "DEFAULT_REPLICATION_FACTORS: Final = (0, -1)",
            "DEFAULT_REPLICATION_FACTORS: Final = (0,)",
            ("unit/broker/test_streams_topics.py",),
        ),
        (
            "in-creation-for-ever",
            "a topic whose creation fails unforeseen is never created",
            "        finally:  # whatever has failed\n            self._note(topics, errors)\n",
            "        self._note(topics, errors)\n",
            ("unit/broker/test_streams_topics.py",),
        ),
        (
            "all-denied-topics-are-named",
            "a member without the right to create many topics gets a response that it cannot read",
            "Unauthorized to CREATE on topics {listed(denied)}.",
            "Unauthorized to CREATE on topics {', '.join(denied)}.",
            ("process/authorization/test_streams_requests.py",),
        ),
        (
            "topics-without-quota",
            "internal topics that the controller itself creates do not count for the quota of their client",
            "create(missing, RequestingClient(client_id, context, quota))",
            "create(missing, RequestingClient(client_id, context))",
            ("process/authorization/test_streams_requests.py",),
        ),
        (
            "another-brokers-client",
            "a client that means another broker is served",
            "if cluster_id is not None and (cluster_id, node_id) != meant:",
            "if cluster_id is not None and cluster_id != meant[0]:",
            ("compatibility/as_kafka/test_api_versions_as_kafka.py",),
        ),
    )
)

# --- dead letters of share groups
LETTERS = "unit/broker/test_dead_letter_writer.py"
DEAD_LETTERS = (
    Mutant(
        "letters-lost-with-their-leader",
        "a new leader does not write the dead letters that a lost one has left",
        "            if span.state is ARCHIVING\n        )",
        "            if False\n        )",
        (SHARE, SHARE_MODEL),
    ),
    Mutant(
        "letters-of-archived-records",
        "a rejected record is archived before its dead letter is written",
        "return ARCHIVING if has_letters else ARCHIVED",
        "return ARCHIVED",
        (SHARE, SHARE_MODEL),
    ),
    Mutant(
        "letters-not-tried-again",
        "a dead letter is given up when its partition changes its leader",
        "if isinstance(error, KafkaError) and not is_retriable(error.code):",
        "if isinstance(error, KafkaError):",
        (LETTERS,),
    ),
    Mutant(
        "letters-of-two-leaders",
        "a leader goes on writing dead letters after it was replaced",
        "            if archiving.is_dropped:\n                return 0",
        "            if False:\n                return 0",
        (LETTERS,),
    ),
    Mutant(
        "letters-for-closed-topics",
        "dead letters are written to topics whose owners have not allowed it",
        "if not self._topic_value(name, TOPIC_ENABLE):",
        "if False:",
        (LETTERS,),
    ),
    Mutant(
        "letters-at-level-1",
        "records are archiving while brokers of earlier versions may have to read that",
        'mine.errors_deadletterqueue_topic_name if may_have_dead_letters else ""',
        "mine.errors_deadletterqueue_topic_name",
        ("unit/groups/test_group_settings.py", "unit/broker/test_share_group_requests.py"),
    ),
    Mutant(
        "letters-in-the-order-of-death",
        "a letter has its record's contents, although a record of a higher offset died before it",
        "return sorted(letters, key=lambda letter: letter.offset)",
        "return letters",
        ("unit/broker/test_dead_letter_writer.py",),
    ),
    Mutant(
        "letters-below-the-high-watermark",
        "a letter has its record's contents, although the new leader's high watermark is below it",
        "self._end = partition.log.log_end_offset",
        "self._end = partition.replica.high_watermark",
        ("unit/broker/test_dead_letter_writer.py",),
    ),
    Mutant(
        "letters-decode-what-is-between",
        "a member that rejects one record in thousands has the others decoded, for 50 ms each time",
        "if header.is_control or first == at:",
        "if header.is_control:",
        ("unit/broker/test_dead_letter_writer.py",),
    ),
    Mutant(
        "full-sessions-answered-at-once",
        "a member that is one too many is answered after its wait, so that it does not ask all the time",
        "if refused.code is ErrorCode.share_session_limit_reached and self._max_wait_ms > 0:",
        "if False:",
        ("unit/broker/test_share_work_in_slices.py",),
    ),
    Mutant(
        "queue-known-to-one-broker",
        "a worker that asks another broker directly after create_queue finds its queue",
        "await admin.client.retry(lambda: _known_by_all(admin, queue), KNOWN_TIMEOUT_MS)",
        "pass",
        ("unit/kafka/test_queue_creation.py",),
    ),
)

# --- replicas that move between log directories
COPYING, SECONDS = "unit/storage/test_copying.py", "unit/storage/test_second_logs.py"
DIRECTORY_MOVES = (
    Mutant(
        "copy-hides-a-truncation",
        "what is copied after a truncation of the log hides what was copied before it",
        "if found is None or source.truncations != truncations:",
        "if found is None:",
        (COPYING,),
    ),
    Mutant(
        "copy-with-a-topic-id-that-may-be-lost",
        "a copy that a killed process began takes records before its topic id is durable",
        "in_directory(directory)) if not second.size]",
        "in_directory(directory)) if second.size]",
        (SECONDS,),
    ),
    Mutant(
        "clean-shutdown-vouches-for-all-folders",
        "a folder that was made while the directory closed takes records before its topic id is durable",
        "is_known = directory.is_clean and log.topic_partition in directory.recovery_points",
        "is_known = directory.is_clean",
        (SECONDS, "unit/storage/test_log_manager.py"),
    ),
    Mutant(
        "move-without-end-under-load",
        "a replica does not move as long as there are always new records",
        "is_near = move.is_near or step.kind is StepKind.NOTHING",
        "is_near = step.kind is StepKind.NOTHING",
        ("unit/broker/test_replica_moves.py",),
    ),
)

# --- what a client of few rights can cost
SLICES = "unit/broker/test_share_work_in_slices.py"
EXPRESSIONS = "unit/groups/test_consumer_group_regex_subscriptions.py"
COSTS = tuple(
    Mutant(f"cost-{name}", what, old, new, tests)
    for name, what, old, new, tests in (
        (
            "of-logs-that-are-loaded",
            "after a failure 500 records of each of fifty logs are applied before others are served",
            "_replay(shard, record)\n                            await work.step()",
            "_replay(shard, record)",
            ("unit/broker/test_coordinators_load_in_turns.py",),
        ),
        (
            "of-moved-deadlines",
            "a heartbeat puts the deadlines of 60,000 other members in their place",
            "for _ in range(MOVED_PER_CALL_MAX):",
            "while True:",
            ("unit/coordinators/test_coordinator_parts.py",),
        ),
        (
            "of-listed-groups",
            "a request of 20 bytes looks at 60,000 groups in one turn",
            "return ListGroupsResult(listing(list(groups), show))",
            "return ListGroupsResult(listing([list(map(show, groups))[0]], lambda one: one))",
            ("unit/groups/test_classic_group_reports.py",),
        ),
        (
            "of-produces-that-wait-for-one-offset",
            "each of 51,200 produces that time out is searched from the first",
            "index = bisect_left(waiting, (required_offset, ticket))",
            "index = next((n for n, one in enumerate(waiting) if one == (required_offset, ticket)), 0)",
            ("unit/replication/test_produce_tickets.py",),
        ),
        (
            "of-produces-that-are-released",
            "51,200 produces whose follower leaves the ISR are released in one turn",
            "if len(effects) > RELEASED_AT_ONCE:",
            "if len(effects) > 1_000_000:",
            ("unit/broker/test_partition_flushing.py",),
        ),
        (
            "of-a-large-index",
            "a fetch from a full segment holds the event loop for as long as its indexes are parsed",
            "size() <= WHOLE_BYTES_MAX",
            "size() >= 0",
            ("unit/storage/test_bounds_of_a_log.py",),
        ),
        (
            "of-a-long-index-interval",
            "a fetch walks over a million headers where a topic has a long index interval",
            "return min(self.index_interval_bytes, INDEX_INTERVAL_MAX)",
            "return self.index_interval_bytes",
            ("unit/storage/test_bounds_of_a_log.py",),
        ),
        (
            "of-a-long-walk",
            "a fetch walks over a million headers where the index of a segment has no entries",
            "walk_bytes = WALK_BYTES_MAX if only_cached else size",
            "walk_bytes = size",
            ("unit/storage/test_bounds_of_a_log.py",),
        ),
        (
            "of-batches-in-the-tier",
            "a fetch from remote storage checks thousands of batches on the event loop",
            "return self._cache.disk.offload(lambda: piece.records_from(at, header, max_bytes, segment))",
            "return asyncio.sleep(0, piece.records_from(at, header, max_bytes, segment))",
            ("unit/tier/test_reader.py",),
        ),
        (
            "of-searches-in-the-tier",
            "ten searches by time in remote storage each take a step in every iteration of the event loop",
            "await self._cache.next_turn()  # each step may take a millisecond",
            "await asyncio.sleep(0)",
            ("unit/tier/test_reader.py",),
        ),
        (
            "of-requests-to-controllers",
            "a request that names a million partitions holds the event loop of a node of the quorum",
            "if size > REQUEST_BYTES_MAX and key != own_apis.ASK_QUORUM:",
            "if False:",
            ("process/quorum/test_turns_at_listeners.py",),
        ),
        (
            "of-aborted-in-the-tier",
            "a fetch from remote storage tells all of thousands of transactions that were open then",
            "are_few = len(found) <= ABORTED_MAX",
            "are_few = True",
            ("unit/tier/test_reader.py",),
        ),
        (
            "of-indexes-in-the-tier",
            "the first fetch from a segment in remote storage parses its indexes on the event loop",
            "return await self.disk.offload(lambda: parse_indexes(sections, segment.base_offset, name))",
            "return parse_indexes(sections, segment.base_offset, name)",
            ("unit/tier/test_reader.py",),
        ),
        (
            "of-long-texts",
            "a member with a long id makes responses to its whole group unreadable",
            "_text_writer(write) if is_string and field.name.endswith(_TEXTS) else write",
            "write",
            ("unit/wire/test_messages.py",),
        ),
        (
            "of-tasks",
            "groups with a short topology fill the memory with tasks",
            "if not self._state.has_room(TASK_BYTES * more) and joins:",
            "if False:",
            (STREAMS_MEMBERS,),
        ),
        (
            "of-log-lines-about-records",
            "a batch that cannot be read lets each request write a line to the broker's log",
            '    "records that cannot be read": ("nilometer.broker.records",),\n',
            "",
            ("process/broker/test_hostile_clients.py",),
        ),
        (
            "of-log-lines-about-logins",
            "each login that fails and each wrong proof is a line in the broker's log",
            '    "logins": ABOUT_LOGINS,\n',
            "",
            ("process/broker/test_hostile_clients.py",),
        ),
        (
            "of-silent-handshakes",
            "connections to a console with TLS that send nothing use up its descriptors",
            "        is_full = self._open >= HANDSHAKES_MAX\n        self._open += 1\n        return",
            "        is_full = False\n        self._open += 1\n        return",
            ("process/console/test_console_connections.py",),
        ),
        (
            "of-half-forms",
            "one address keeps all others out of the console",
            "== address for one in others) > CONNECTIONS_OF_ADDRESS_MAX:",
            "== address for one in others) > CONNECTIONS_MAX:",
            ("process/console/test_console_connections.py",),
        ),
        (
            "of-audit-lines",
            "the lines of ten thousand denials are made in one turn of the event loop",
            "        try:\n            await self._disk.offload(lambda: self._write(lines))",
            "        try:\n            self._write(lines)",
            ("unit/broker/test_audit_log.py",),
        ),
        (
            "of-endpoints",
            "each heartbeat looks for the partitions of all tasks of its group",
            "known = group.endpoints.get(member.member_id)",
            "known = None",
            (STREAMS_MEMBERS,),
        ),
        (
            "of-many-topics",
            "all internal topics of a topology are created by one decision",
            "len(portion) >= CREATED_AT_ONCE or partitions > PARTITIONS_AT_ONCE",
            "partitions > PARTITIONS_AT_ONCE",
            ("unit/broker/test_streams_topics.py",),
        ),
        (
            "of-added-partitions",
            "thousands of partitions are added to a transaction in one turn",
            "    if sum(len(topic.partitions) for each in named for topic in each.topics) > FEW_PARTITIONS:",
            "    if False:",
            ("unit/broker/test_added_partitions.py",),
        ),
        (
            "of-markers",
            "the markers of thousands of partitions are distributed in one turn",
            "        if len(entries) > MARKERS_AT_ONCE:",
            "        if False:",
            ("unit/broker/test_marker_sender.py",),
        ),
        (
            "of-deleted-groups",
            "groups with thousands of offsets are deleted in one turn",
            "append(self._answer_checked(key, request))\n            await work.step(1)\n",
            "append(self._answer_checked(key, request))\n",
            ("process/broker/test_turns_of_large_state.py",),
        ),
        (
            "of-own-apis",
            "a request that is decoded at once has any size",
            "if len(frame) > WHOLE_BYTES_MAX and not connection.context.is_broker:",
            "if False:",
            ("process/broker/test_hostile_clients.py",),
        ),
        (
            "of-large-entries",
            "a large entry of the metadata log is checked and applied in one turn",
            "    if len(data) > LARGE_ENTRY_BYTES:",
            "    if False:",
            ("unit/broker/test_large_entries.py",),
        ),
        (
            "of-searches",
            "a search of the console goes on when its time is over",
            "            if self._is_over or self._clock.monotonic_ms() >= self._deadline_ms:",
            "            if self._is_over:",
            ("unit/console/test_console_selection.py",),
        ),
        (
            "of-failed-topics",
            "topics that cannot be created keep those of other clients from being created",
            "over = [name for name, attempt in self._attempts.items() if attempt.is_over]",
            "over = list[str]()",
            ("unit/broker/test_streams_topics.py",),
        ),
        (
            "of-written-locks",
            "thousands of acknowledgements take effect in one turn",
            "                if len(spans) == SPANS_PER_STEP:\n",
            "                if False:\n",
            (SHARE,),
        ),
        (
            "of-a-fetch-that-waits",
            "a fetch that waits for many bytes looks at all partitions of its session for each record",
            "looks, pause_s = 0, min(len(self._led) * PAUSE_S_OF_A_PARTITION, PAUSE_S_MAX)",
            "looks, pause_s = 0, 0.0",
            (SLICES,),
        ),
        (
            "of-ranges",
            "members that take record by record fill the memory of a leader",
            "if more > 0 and self._ranges > 2 * RANGES_MAX:",
            "if False:",
            (SLICES,),
        ),
        (
            "of-locks-when-short",
            "as many records are locked while memory is short",
            "one.core.is_memory_short = self._ranges > RANGES_MAX",
            "one.core.is_memory_short = False",
            (SLICES,),
        ),
        (
            "of-released-ranges",
            "thousands of ranges of a few share partitions are released in one turn",
            "size += sum(self._ranges_of(one.member, key) for one in sessions for key in one.partitions)",
            "pass",
            (SLICES,),
        ),
        (
            "of-a-group-named-often",
            "a group whose offsets are described is described as often as it is named",
            'Division(("groups",), ("groups",), repeated=Repeated.AT_MOST_TWICE, elements_max=1),),',
            'Division(("groups",), ("groups",), elements_max=1),),',
            (SLICES,),
        ),
        (
            "of-automatic-topics",
            "topics that the controller creates automatically do not count for the quota of their client",
            "    client = RequestingClient(client_id, context, quota)\n",
            "    client = RequestingClient(client_id, context)\n",
            ("process/broker/test_quotas.py",),
        ),
        (
            "of-large-targets",
            "the target assignment of a group is written in one turn",
            "while self._left and weight < WRITTEN_AT_ONCE_MAX:",
            "while self._left:",
            ("unit/groups/test_large_targets.py",),
        ),
        (
            "of-replaced-members",
            "a target is written on though a static member has been replaced meanwhile",
            "for member_id in group.members.keys() - target.assigned.keys()",
            "for member_id in ()",
            ("unit/groups/test_large_targets.py",),
        ),
        (
            "of-described-members",
            "the members of a description have the targets of later epochs",
            "functools.partial(_member, topics, dict(group.target))",
            "functools.partial(_member, topics, group.target)",
            ("unit/groups/test_lazy_descriptions.py",),
        ),
        (
            "of-the-metrics-of-shares",
            "the page of metrics reads all share partitions of the broker in one turn",
            "        for led in self._partitions:\n",
            "        for led in list(self._partitions):\n",
            ("unit/broker/test_share_metrics.py",),
        ),
        (
            "of-produces-that-end",
            "thousands of Produces that waited for a partition are answered in one turn",
            "if self._answered <= ELEMENTS_MAX:",
            "if True:",
            ("unit/broker/test_many_produces_end.py",),
        ),
        (
            "of-groups-without-members",
            "groups that nothing is left in fill the memory of a broker until the next check of offsets",
            "if len(self._state.groups) > self._groups_max and not self._round:",
            "if False:",
            ("unit/groups/test_offsets_of_groups.py",),
        ),
        (
            "of-deletions-that-end",
            "thousands of DeleteRecords that waited for a follower are answered in one turn",
            "self._turns.answer(self._answer, self._elements)",
            "self._answer()",
            ("unit/broker/test_delayed_request.py",),
        ),
        (
            "of-waiting-for-expressions",
            "the assignments of groups wait for the expressions of others",
            "queue = self._matching if is_match else self._assigning",
            "queue = self._matching",
            ("unit/broker/test_computations_of_groups.py",),
        ),
        (
            "of-optional-repetitions",
            "a short expression is compiled for seconds",
            "is_small = _optional_repetitions(text) > OPTIONAL_MAX",
            "is_small = False",
            ("unit/groups/test_consumer_group_regex.py",),
        ),
        (
            "of-many-expressions",
            "a created topic has all expressions of a group compiled in one turn",
            "if effort <= EFFORT_AT_ONCE or len(due) == 1:",
            "if True:",
            (EXPRESSIONS,),
        ),
        (
            "of-distinct-expressions",
            "a group has any number of expressions",
            "if len(known) >= REGEXES_MAX:",
            "if False:",
            (EXPRESSIONS,),
        ),
        (
            "of-subscriptions",
            "whether topics are read is asked of each member for each topic",
            "        return topic in self._subscribed\n",
            "        return any(topic in self.topics_of(each) for each in self.members.values())\n",
            (EXPRESSIONS,),
        ),
    )
)

# --- the metadata quorum
METADATA_QUORUM = (
    Mutant(
        "quorum-formed-by-a-part",
        "the first voter forms the quorum without those that it does not reach",
        "            if not awaited:\n                names",
        "            if found:\n                names",
        (QUORUM_OF_BROKERS,),
    ),
    Mutant(
        "quorum-key-not-asked",
        "the listener of controllers serves connections that have proved nothing",
        "            is_let_in = connection.context.is_broker\n",
        "            is_let_in = True\n",
        (QUORUM_OF_BROKERS,),
    ),
    Mutant(
        "quorum-asking-lets-in",
        "a proof that only asks who listens lets its connection in",
        "elif proving.is_proved and not proving.only_asks and",
        "elif proving.is_proved and",
        ("process/quorum/test_known_nodes.py",),
    ),
    Mutant(
        "quorum-controller-waits-for-the-session",
        "the leader's broker becomes the controller only when the session of the former one has ended",
        "return None if self._node.leads and holder != self._own() else holder",
        "return holder",
        (QUORUM_OF_BROKERS,),
    ),
    Mutant(
        "quorum-wiped-voter-keeps-its-id",
        "a voter whose metadata log was removed votes again under its former name",
        "    if owner is None or found.directory_id is None:\n",
        "    if found.directory_id is None:\n",
        ("unit/raft/test_quorum_files.py",),
    ),
    Mutant(
        "quorum-signal-of-each-fetch",
        "brokers that follow the signal of the quorum's store make fetches without end",
        "        if seen != self._seen:\n",
        "        if True:\n",
        (SIMULATED_QUORUM,),
    ),
    Mutant(
        "interrupted-claim-refused",
        "a power cut during the first start or a format leaves a directory that no node can use",
        '        name.startswith(f"{OWNER}.") and name.endswith(names.TEMPORARY_SUFFIX)\n',
        "        False\n",
        ("unit/cli/test_format_and_power_cuts.py", "unit/raft/test_quorum_files.py"),
    ),
    Mutant(
        "quorum-register-with-a-stopped-node",
        "a broker whose node of the quorum has stopped tries to register again without end",
        "        if self._node.failure is not None:\n            raise CoordinationError(",
        "        if False:\n            raise CoordinationError(",
        (SIMULATED_QUORUM,),
    ),
    Mutant(
        "quorum-ends-of-a-deposed-leader",
        "a leader of the quorum that was deposed ends sessions that its successor has renewed",
        "if self.failure is None and self.epoch == epoch:",
        "if self.failure is None:",
        (SIMULATED_QUORUM,),
    ),
    Mutant(
        "quorum-fetches-held-for-long",
        "a leader of the quorum holds fetches for longer than a follower waits",
        "min(FETCH_WAIT_MS, replica.timing.fetch_ms // 2)",
        "FETCH_WAIT_MS",
        (SIMULATED_QUORUM,),
    ),
    Mutant(
        "quorum-fetch-of-a-silent-leader",
        "a follower waits for its fetch from a leader that does not answer, though there is another one",
        "if turn.is_new_leader and self._fetching is not None:",
        "if False:",
        (SIMULATED_QUORUM,),
    ),
    Mutant(
        "quorum-former-session",
        "a broker with a new folder gives up while new leaders keep its former session",
        "            if self._node.epoch != epoch:  # a new leader",
        "            if False:  # a new leader",
        (SIMULATED_QUORUM,),
    ),
)

REASONS = (
    Mutant(
        "reason-unknown-secret",
        "a secret that this broker does not have is called a wrong proof",
        "        if secret is None:\n            self._refuse(",
        "        if secret is None and not answer.proof:\n            self._refuse(",
        ("unit/broker/test_broker_peers.py",),
    ),
    Mutant(
        "reason-not-verified",
        "a batch whose coordinator was not reached is told that its partition is not part of the transaction",
        "        case ErrorCode.not_enough_replicas:\n            return (",
        "        case ErrorCode.not_enough_replicas if not producer_id:\n            return (",
        ("unit/broker/test_batches_are_verified.py",),
    ),
    Mutant(
        "reason-batch-does-not-follow",
        "a batch that a log of the quorum has twice is not named",
        'f"a batch begins at offset {batch.header.base_offset}, but {expected} must follow"',
        'f"offset {expected} is missing"',
        ("unit/raft/test_quorum_files.py",),
    ),
)

# --- archives that are put back
RESTORES = (
    Mutant(
        "archive-into-a-tier",
        "an archive is written to a chain that brokers write",
        "        if last is not None and not last.is_archive:\n",
        "        if False:\n",
        (REFUSALS,),
    ),
    Mutant(
        "archive-into-the-store-of-a-cluster",
        "a topic is archived into the remote storage of its cluster, whose brokers remove it one day",
        "            if found.manifest is not None and not found.is_archive:\n",
        "            if False:\n",
        (REFUSALS,),
    ),
    Mutant(
        "tier-into-an-archive",
        "brokers go on with the chain of an archive, and remove it",
        "        if last.is_archive:\n            raise Contested(",
        "        if False:\n            raise Contested(",
        ("unit/tier/test_chain.py",),
    ),
    Mutant(
        "archive-of-two-histories",
        "of two runs at once the second adds the records of another history",
        "            self._require_same_history(self._sources())  # another run",
        "            # another run",
        (ARCHIVE,),
    ),
    Mutant(
        "archive-not-swept",
        "what a killed run left stays in the archive",
        "        await self._sweep()\n",
        "",
        (ARCHIVE,),
    ),
    Mutant(
        "archive-of-deleted-records-ends",
        "records that were deleted from the topic are not read from its archive",
        "if live is not None and not archived.is_archive:",
        "if live is not None:",
        (ARCHIVE,),
    ),
    Mutant(
        "open-transactions-of-an-archive",
        "consumers of a restored topic get records of a transaction that has no end",
        "if partition.is_archive and not sections.producers:",
        "if False:",
        (EARLIER,),
    ),
    Mutant(
        "checksum-of-an-archive",
        "damage in the header of a batch is not found in an archive",
        "if segment.log_crc is not None and found != (",
        "if False and found != (",
        (RESTORE,),
    ),
    Mutant(
        "transaction-over-a-gap",
        "what a gap cut from its transaction's end counts as a part of the producer's next one",
        "cut = list(self.first_offsets.items()) if header.base_offset > self._end else []",
        "cut: list[tuple[int, int]] = []",
        (RESTORE,),
    ),
    Mutant(
        "restored-into-internal-topic",
        "archived records are written into a topic of the coordinators",
        "sorted({*topics, *([] if name is None else [name])} & set(INTERNAL_TOPICS))",
        "sorted({*topics} & set(INTERNAL_TOPICS))",
        (RESTORE,),
    ),
    Mutant(
        "full-disk-stays-full",
        "a log on a full disk keeps what was restored, and its broker cannot start",
        "            self._directory.open_without(self.folder)\n        self.begin(0)\n",
        "            return\n        self.begin(0)\n",
        (RESTORE,),
    ),
    Mutant(
        "full-disk-emptied-last",
        "what was restored stays where emptying a log needs room on the disk that is full",
        "sorted(self._written, key=lambda one: one.log.failure is None)",
        "list(self._written)",
        (RESTORE,),
    ),
    Mutant(
        "commit-before-purge",
        "an offset of a new topic goes with those of the deleted one of its name",
        "        self._expiry.before_commit(turn)\n",
        "",
        ("unit/groups/test_offsets_of_groups.py",),
    ),
    Mutant(
        "held-replicas-multiply",
        "a replica that is held back is looked at once for each time that it was",
        "followed is not None and followed.held_until_ms == until_ms:",
        "followed is not None:",
        ("unit/broker/test_brokers_do_not_wait.py",),
    ),
    Mutant(
        "second-interrupt",
        "a second Ctrl-C leaves a part of what was restored",
        "            with _uninterrupted():\n                left = self._undo()\n",
        "            if True:\n                left = self._undo()\n",
        (RESTORE,),
    ),
    Mutant(
        "restored-and-not-flushed",
        "what fails when restored logs are flushed is not undone",
        "            replica.flush()\n",
        "            pass\n",
        (RESTORE,),
    ),
    Mutant(
        "offsets-beyond-a-segment",
        "empty batches of more offsets than a segment has are appended to one",
        "if size >= CHUNK_BYTES or end - first > _PIECE_MAX:",
        "if size >= CHUNK_BYTES:",
        (RESTORE,),
    ),
    Mutant(
        "secret-of-a-wrong-place",
        "the message about a place of an unknown kind has its secrets",
        "reason = str(error).replace(place, shown_folder(place))",
        "reason = str(error)",
        ("unit/pipeline/test_archive_refusals.py",),
    ),
)

# --- records that are in remote storage only
TIERED = (
    Mutant(
        "damaged-bytes-kept",
        "bytes of a remote object that were damaged on their way are read from the cache ever after",
        "            self.chunks.forget(lambda key: cast(tuple[str, int], key)[0].startswith(folder))\n",
        "",
        ("unit/tier/test_reader.py",),
    ),
    Mutant(
        "deleted-before-it-is-copied",
        "local retention deletes segments that are not in remote storage",
        "limit, delete = min(high_watermark, log.tiered_offset), _delete_locally",
        "limit, delete = high_watermark, _delete_locally",
        (TIER,),
    ),
    Mutant(
        "copied-above-the-stable-offset",
        "a segment with an open transaction is copied to remote storage",
        "if following is None or following.base_offset > stable_offset:",
        "if following is None:",
        (TIER,),
    ),
    Mutant(
        "tiered-log-begins-with-its-files",
        "after a restart a log has lost what is in remote storage",
        "    log.begin_in_tier()\n    return _delete_files(log, due)",
        "    return _delete_files(log, due)",
        (TIER,),
    ),
    Mutant(
        "tiered-log-begins-at-an-older-offset",
        "after a restart records are readable again that were deleted in remote storage",
        "            self._least_start = max(self._least_start, known[0][1])",
        "            pass",
        (TIER,),
    ),
    Mutant(
        "tiered-log-begins-with-lost-epochs",
        "a leader that lost its epochs deletes in remote storage what is below its first segment",
        "        elif disk.read_file(marker) != names.EPOCHS_LOST:",
        "        else:",
        (TIER,),
    ),
    Mutant(
        "swept-by-a-wrong-clock",
        "what failed copies left stays in remote storage, because the wall clock has stepped back",
        "        return self._parts.runtime.clock.monotonic_ms()",
        "        return self._parts.runtime.clock.wall_ms()",
        ("unit/broker/test_sweeps_of_deposed_leaders.py",),
    ),
    Mutant(
        "copies-without-earlier-transactions",
        "after a move to another directory, consumers get records of a transaction that was aborted",
        "    if source.begins_in_tier:\n        # Without",
        "    if False:\n        # Without",
        (TIER,),
    ),
    Mutant(
        "tiered-records-replaced",
        "after a truncation other records count as copied",
        "        self.tiered_offset = min(self.tiered_offset, end_offset)\n",
        "",
        (TIER,),
    ),
    Mutant(
        "producers-unknown-behind-the-tier",
        "a log truncated below its first segment goes on without its producers",
        "            if log.begins_in_tier:  # what its producers had done by then",
        "            if False:  # what its producers had done by then",
        (TIER,),
    ),
    Mutant(
        "half-begun-behind-the-tier",
        "a power cut leaves a replica that does not know of what is in remote storage",
        "    log.begin_in_tier()\n    make_durable(log.files.disk, log.epochs.path)",
        "    log.begin_in_tier()",
        (TIER,),
    ),
    Mutant(
        "moved-logs-forget-the-tier",
        "a replica that moved to another directory has lost what is in remote storage",
        "        if self.begins_in_tier:\n            other.begin_in_tier()\n",
        "",
        (TIER,),
    ),
    Mutant(
        "folders-without-their-tier",
        "a reader of folders leaves out what is in remote storage, and says nothing",
        "        return ReadableLog((*_only_in_tier(live, live.start), live))",
        "        return ReadableLog((live,))",
        ("unit/pipeline/test_log_folders.py",),
    ),
    Mutant(
        "archives-without-the-tier",
        "an archive lacks what is in remote storage, and nothing says so",
        "            if only_there is not None and not covers(covered, *only_there):",
        "            if False:",
        ("unit/pipeline/test_archive_refusals.py",),
    ),
    Mutant(
        "copies-hold-the-queue",
        "a partition with much to copy keeps others from their claims, looks and expiry",
        "                    self._due.append(remote)  # what is due to others",
        "                    self._due.appendleft(remote)  # what is due to others",
        ("unit/broker/test_turns_of_remote_copies.py",),
    ),
    Mutant(
        "tiered-topics-in-any-format",
        "an earlier version takes the records that are only in remote storage for deleted",
        "        return TIERED_TOPICS_FORMAT_VERSION",
        "        return OLDEST_FORMAT_VERSION",
        ("unit/cluster/test_tiered_settings.py",),
    ),
    Mutant(
        "emptied-segments-not-copied",
        "behind a segment that compaction has emptied, nothing local is deleted",
        "        return segment if segment.end_offset <= log.last_stable_offset else None",
        "        return segment if segment.end_offset <= log.last_stable_offset and segment.size else None",
        ("unit/tier/test_plan.py",),
    ),
    Mutant(
        "agreed-one-segment-too-far",
        "the first segment that was not compared yet is never compared",
        "range(bisect_right(segments, agreed, key=_end_offset), end)",
        "range(bisect_right(segments, agreed, key=_end_offset) + 1, end)",
        ("unit/tier/test_plan.py",),
    ),
    Mutant(
        "agreed-for-every-leader",
        "what agreed with an earlier leader's log is not compared with that of the present one",
        "        if by != self._compared_by:",
        "        if not self._compared_by:",
        ("unit/broker/test_turns_of_remote_copies.py",),
    ),
    Mutant(
        "bandwidth-of-the-file",
        "a bandwidth of remote storage that is set while a broker runs has no effect",
        "        self._copies.bytes_per_second = config.copy_bytes_per_second",
        "        self._copies.bytes_per_second = self._file_config.copy_bytes_per_second",
        ("unit/broker/test_tier_settings_of_running_brokers.py",),
    ),
    Mutant(
        "another-clusters-copies-kept",
        "a cluster that takes a store has the records of the former one in place of its own",
        "        if manifest.claim < self._claim:\n            return max(",
        "        if False:\n            return max(",
        ("unit/broker/test_claims_of_tiers.py",),
    ),
    Mutant(
        "other-records-of-an-epoch",
        "a leader takes what another cluster with its id has copied for its own, and deletes its records",
        "            self.foreign, self._own_by = segment, ()",
        "            self._proven = segment.end_offset",
        (CLAIMS,),
    ),
    Mutant(
        "other-records-deleted-by-followers",
        "a follower deletes its records because another cluster with its id has copied others",
        "            if self.foreign is not None:\n                first",
        "            if False:\n                first",
        (CLAIMS,),
    ),
    Mutant(
        "written-while-a-leader-begins",
        "what another cluster writes at the moment in which a leader begins counts as this one's",
        "                await self._compare()\n                self._check_lineage()\n",
        "",
        (CLAIMS,),
    ),
    Mutant(
        "log-start-of-other-records",
        "a leader gives up the records that another cluster with its id has given up",
        "        is_own = self._lineage.foreign is None",
        "        is_own = True",
        (CLAIMS,),
    ),
    Mutant(
        "compacted-batches-told-apart",
        "a tier stops, because compaction has rewritten a batch in one replica and not yet in another",
        "return header.crc if is_whole and not log.may_have_gaps else None",
        "return header.crc",
        ("unit/storage/test_tiering.py",),
    ),
    Mutant(
        "log-start-of-others",
        "a leader that may not write to a tier gives up the records that another cluster has given up",
        " and self._goes_on_from(last):",
        ":",
        ("unit/broker/test_claims_of_tiers.py",),
    ),
    Mutant(
        "metadata-of-the-same-length",
        "metadata that were restored from a backup count as those of the tier once they have as many entries",
        "        return manifest.writer == self._found or known_entry <",
        "        return known_entry <",
        ("unit/broker/test_claims_of_tiers.py",),
    ),
    Mutant(
        "lines-of-a-manifest-at-once",
        "all of a long manifest is read in one turn",
        "itertools.chain((manifest.segments,), map(_to_segments, lines))",
        "(manifest.segments, *map(_to_segments, lines))",
        ("unit/tier/test_format.py",),
    ),
    Mutant(
        "lines-of-a-manifest-written-at-once",
        "all of a long manifest is written in one turn",
        "        crc = crc32c(lines[-1], crc)\n        yield len(some)",
        "        crc = crc32c(lines[-1], crc)\n    yield len(segments)",
        ("unit/tier/test_format.py",),
    ),
    Mutant(
        "orphans-looked-for-at-once",
        "a hundred thousand objects are looked at in one turn",
        "    for part in _in_parts(names):",
        "    for part in [tuple(names)]:",
        ("unit/tier/test_plan.py",),
    ),
    Mutant(
        "epochs-compared-at-once",
        "a leader that begins compares a hundred thousand segments with its log in one turn",
        "until = min(first + SEGMENTS_OF_A_LINE, len(segments))",
        "until = len(segments)",
        ("unit/tier/test_lineage.py",),
    ),
    Mutant(
        "negative-index-entries",
        "a flipped bit of an index makes a read fail as if the disk had failed",
        "        if relative < 0 or position < 0:",
        "        if False:",
        ("unit/storage/test_damaged_lookups.py",),
    ),
    Mutant(
        "cut-of-a-lagging-follower",
        "a follower that looked at the tier while it lagged frees nothing",
        "as_of, min(end, manifest.end_offset)",
        "as_of",
        ("unit/broker/test_turns_of_remote_copies.py",),
    ),
    Mutant(
        "limits-looked-at-once",
        "a transfer waits by the limit that there was when it began",
        "asyncio.sleep(min(wait_ms, LIMIT_LOOK_MS) / 1000)",
        "asyncio.sleep(wait_ms / 1000)",
        ("unit/broker/test_tier_bandwidth.py",),
    ),
    Mutant(
        "successors-copies-swept",
        "a leader that was deposed while it sweeps removes what its successor has copied",
        "        manifest = await self._read_chain()\n        if manifest is None or not self._is_current",
        "        manifest = self._chain.last\n        if manifest is None or not self._is_current",
        ("unit/broker/test_sweeps_of_deposed_leaders.py",),
    ),
    Mutant(
        "swept-since-the-look",
        "what a former leader uploads until its successor writes stays in remote storage for ever",
        "            self._orphans_since_ms = self._monotonic_ms  # until now",
        "            pass  # until now",
        ("unit/broker/test_sweeps_of_deposed_leaders.py",),
    ),
    Mutant(
        "restored-with-former-epochs",
        "restored batches have leader epochs that no leader of the new cluster has had",
        "set_leader_epoch(piece.records, at, LEADER_EPOCH)",
        "pass",
        (FROM_STORE,),
    ),
    Mutant(
        "restored-with-former-producers",
        "the ids of former producers, which others get now, are known in a restored topic",
        "encode_index(sections._replace(producers=NO_PRODUCERS))",
        "encode_index(sections)",
        (FROM_STORE,),
    ),
    Mutant(
        "restored-without-ends",
        "records of a transaction whose end is not in the store are committed when it is restored",
        "    if not running:\n        return None",
        "    if running or not running:\n        return None",
        (FROM_STORE,),
    ),
    Mutant(
        "manifests-of-all-topics-kept",
        "a restore of one topic needs the memory for the manifests of all topics in the store",
        "return found if not topics or found.problem or found.topic in topics else None",
        "return found",
        ("unit/tier/test_catalogue.py",),
    ),
    Mutant(
        "restored-over-records",
        "a topic that has records in remote storage is restored into",
        "last.is_deleted or (last.segments and not _is_own(last))",
        "last.is_deleted",
        (FROM_STORE,),
    ),
    Mutant(
        "copied-twice",
        "a restore that was killed copies again what it had copied",
        "            if _has_copied(one.stored, chain.last):",
        "            if False:",
        (FROM_STORE,),
    ),
    Mutant(
        "claims-ignored",
        "a former cluster goes on to write where another one has taken over",
        "if last.claim > self._claim:",
        "if False:",
        ("unit/tier/test_chain.py", CLAIMS),
    ),
    Mutant(
        "two-writers-of-an-epoch",
        "two clusters with the same metadata write one chain, each behind the other",
        "if last.rank == rank and last.writer != self._writer:",
        "if False:",
        ("unit/tier/test_chain.py",),
    ),
    Mutant(
        "older-metadata-copy",
        "a cluster whose metadata were restored from an older backup copies at once",
        "if manifest is not None and self._is_behind(manifest):",
        "if False:",
        (CLAIMS,),
    ),
    Mutant(
        "unknown-topics-swept-at-once",
        "the records of topics that restored metadata do not know are removed at once",
        "if now_ms - since_ms >= grace_ms]",
        "]",
        (CLAIMS,),
    ),
    Mutant(
        "local-bytes-counted-twice",
        "records expire that retention.bytes keeps, after a leader change",
        "    behind = sum(one.size for one in log.sealed if one.base_offset >= offset)",
        "    behind = sum(one.size for one in log.sealed if one.end_offset > offset)",
        ("unit/tier/test_plan.py",),
    ),
    Mutant(
        "gaps-searched-for-ever",
        "a read in a gap of remote storage begins again and again, while every other client waits",
        "            if start == 0 or floor > indexed:\n                break\n",
        "            if start == 0 and position == piece.end:\n                break\n",
        ("unit/tier/test_reader.py",),
    ),
    Mutant(
        "gaps-at-the-end-of-the-tier",
        "a consumer in a gap with which remote storage ends gets nothing",
        "            if not found.records:\n                found = self._read_local(",
        "            if False:\n                found = self._read_local(",
        ("unit/broker/test_gaps_at_the_end_of_a_tier.py",),
    ),
    Mutant(
        "aborts-looked-up-beside-the-loop",
        "an abort that is appended meanwhile is lost from the list of its segment",
        "                local = log.aborted_transactions(offset, found.next_offset, found.records)",
        "                local = await self._parts.runtime.disk.offload("
        "lambda: log.aborted_transactions(offset, found.next_offset, found.records))",
        ("unit/broker/test_aborted_in_tier.py",),
    ),
    Mutant(
        "expired-without-a-policy",
        "records are deleted in remote storage though the topic's cleanup.policy is empty",
        "        retention = plan.Retention(-1, -1)  # with an empty cleanup.policy all is kept\n"
        "        if config.is_deleted_by_retention:\n    ",
        "",
        ("unit/broker/test_tier_without_retention.py",),
    ),
    Mutant(
        "times-searched-once",
        "a record is passed over that is copied and deleted while it is looked for",
        "if log.local_start_offset == start or not log.begins_in_tier:",
        "if True:",
        ("unit/broker/test_remote_reads.py",),
    ),
    Mutant(
        "consumers-pass-over-lost-records",
        "a consumer is told that it is out of range where remote storage lacks records",
        "        if offset < partition.log.log_start_offset:\n            raise\n        # A consumer",
        "        raise\n        # A consumer",
        ("unit/broker/test_remote_reads.py",),
    ),
    Mutant(
        "aborts-deleted-meanwhile",
        "aborted records are read if what ends them is copied and deleted meanwhile",
        "                if log.local_start_offset > local_from:",
        "                if False:",
        ("unit/broker/test_aborted_in_tier.py",),
    ),
    Mutant(
        "follower-fetches-while-it-begins",
        "a follower fetches while it is to go on behind remote storage",
        "        if self.is_starting_in_tier:\n            return NoFetch.IN_TIER\n",
        "",
        ("unit/replication/test_start_in_tier.py",),
    ),
    Mutant(
        "every-fetch-reads-the-tier-again",
        "a client that asks again waits for a read of its own",
        "        found = self._reads.get(key)",
        "        found = None",
        ("unit/broker/test_remote_reads.py",),
    ),
    Mutant(
        "remote-reads-without-a-bound",
        "any number of reads waits for remote storage",
        "return self.reader is not None and self._begun >= self._begun_max",
        "return False",
        ("unit/broker/test_remote_reads.py",),
    ),
    Mutant(
        "deleted-topics-copied-again",
        "a leader that does not know yet that its topic was deleted copies it to remote storage again",
        "            if self._end >= 0:  # to begin again",
        "            if False:  # to begin again",
        ("unit/tier/test_chain.py",),
    ),
    Mutant(
        "tier-write-stays-unsettled",
        "what failed copies left stays in remote storage if nothing more is written",
        "self._uncertain is not None and end >= self._uncertain",
        "self._uncertain is not None and end < 0",
        ("unit/tier/test_chain.py",),
    ),
    Mutant(
        "tier-segment-covers-nothing",
        "a segment that covers those of another leader breaks the order of the manifest",
        "        first = bisect_left(self.segments, segment.base_offset, key=_base_offset)",
        "        first = len(self.segments)",
        ("unit/tier/test_format.py",),
    ),
)

TIERED_LOGS = (
    Mutant(
        "tiered-log-abort-that-left-the-disk",
        "an aborted transaction is read if its index leaves the disk while a read is planned",
        "disk.file_size(_path(folder, base, names.LOG_SUFFIX))  # its name is the first that goes",
        "pass",
        (TIERED_LOG,),
    ),
    Mutant(
        "tiered-log-all-of-the-tier",
        "a plan reads all of remote storage if a segment leaves the disk meanwhile",
        "_require_segment(part, disk, folder, base)\n            return False",
        "return False",
        (TIERED_LOG,),
    ),
    Mutant(
        "tiered-log-index-that-is-gone",
        "an aborted transaction is read if its index is gone from remote storage",
        "            if part.replica.tier is not None or part.replica.segments_in_tier:\n",
        "            if False:\n",
        (TIERED_LOG,),
    ),
    Mutant(
        "tiered-log-old-manifest",
        "an object that another one has replaced is not found by those who planned before",
        "self._disk, self._folder = open_place(self._place)  # by the manifest of now",
        "pass",
        (TIERED_LOG,),
    ),
    Mutant(
        "tiered-log-stale-start",
        "records that were deleted since the manifest was written are read",
        "first = max(first, live.replica.checkpointed_start)",
        "pass",
        (TIERED_LOG,),
    ),
    Mutant(
        "tiered-log-compacted-end",
        "the records after an offset that compaction left out are taken for lost",
        "following = segment_end or self._base_above(bases[slot])",
        "following = self._base_above(bases[slot])",
        (TIERED_LOG,),
    ),
    Mutant(
        "tiered-log-batch-too-long",
        "a damaged batch hides those behind it in its object",
        "if at < len(buffer) and is_tiered(self._place):",
        "if False:",
        (TIERED_LOG,),
    ),
    Mutant(
        "tiered-log-whole-object",
        "an object of another size is read",
        "if (size := file.size()) != segment.log_bytes:",
        "if (size := file.size()) < 0:",
        (TIERED_LOG,),
    ),
    Mutant(
        "tiered-log-left-the-disk",
        "what leaves the disk after the plan is taken for lost",
        "reader = SliceReader(self._tier,",
        "reader = SliceReader(self._place,",
        (TIERED_LOG,),
    ),
    Mutant(
        "tiered-log-of-another-cluster",
        "a folder is read with what another cluster has of the same topic id",
        "(is_open or self.cluster_id == other.cluster_id)",
        "True",
        (TIERED_LOG,),
    ),
    Mutant(
        "tiered-log-beside-damage",
        "a broken topic stops the reads of all others in its store",
        "is_known or folder[0] in (topics or ()) or (topics is None and not error.are_gone)",
        "True",
        (TIERED_LOG,),
    ),
    Mutant(
        "tiered-log-gone-within-a-read",
        "an object that is removed while it is read fails a job that goes on without it",
        "        if store.get_file_info(path).type == FileType.NotFound:\n            raise F",
        "        if False:\n            raise F",
        (TIERED_LOG,),
    ),
    Mutant(
        "tiered-log-unneeded-indexes",
        "a read is planned again for a segment that it does not need",
        "for base in _reaching(part.bases, part.start):\n        if",
        "for base in part.bases:\n        if",
        (TIERED_LOG,),
    ),
    Mutant(
        "tiered-log-first-copies",
        "a topic whose first segments are copied after the plan is taken for lost",
        "place_in_tier(store, live.replica)  # its first segments may come",
        "None",
        (TIERED_LOG,),
    ),
)

MUTANTS: tuple[Mutant, ...] = (
    *TIERED,
    *TIERED_LOGS,
    *METADATA_QUORUM,
    *DIRECTORY_MOVES,
    *FOUND_LOGS,
    *TOPIC_IDS,
    *FOLDERS,
    *INVALID_RECORDS,
    *AUDIT,
    *TERMINALS,
    *MALFORMED,
    *FEW_RIGHTS,
    *CERTIFICATES,
    *PAGES,
    *EXAMPLES,
    *CLIENT,
    *COMMANDS,
    *NOT_ASKED,
    *PIPELINES,
    *RESTORES,
    *SHARE_PARTITION,
    *SHARE_REQUESTS,
    *SHARE_STATE,
    *STREAMS_GROUPS,
    *DEAD_LETTERS,
    *COSTS,
    *REASONS,
)
