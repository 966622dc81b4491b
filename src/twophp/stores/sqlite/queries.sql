-- Every statement the store runs, by name. A read for a batch takes its keys as one JSON array, of strings where the
-- first value alone finds the rows, else of arrays; CROSS JOIN keeps the planner from turning the loop around.

-- name: begin
BEGIN IMMEDIATE;

-- name: commit
COMMIT;

-- name: rollback
ROLLBACK;

-- name: savepoint
SAVEPOINT one;

-- name: rollback_to_savepoint
ROLLBACK TO one;

-- name: release_savepoint
RELEASE one;

-- name: begin_trial
SAVEPOINT trial;

-- name: undo_trial
ROLLBACK TO trial;

-- name: end_trial
RELEASE trial;

-- name: read_head
SELECT seq, hash, at, next_id FROM head;

-- name: write_head
UPDATE head SET seq = ?, hash = ?, at = ?, next_id = ?;

-- name: prove_durable
UPDATE head SET opened = opened + 1;

-- name: count_tables
SELECT count(*) FROM sqlite_schema;

-- name: read_meta
SELECT value FROM meta WHERE name = ?;

-- name: keep_meta
INSERT INTO meta VALUES (?, ?) ON CONFLICT DO NOTHING;

-- name: replace_meta
INSERT OR REPLACE INTO meta VALUES (?, ?);

-- name: last_entry
SELECT coalesce(max(id), 0) FROM entry;

-- name: restamp_entries
UPDATE entry SET service_ledger_id = ?1 WHERE id > ?2 AND id <= ?3 AND service_ledger_id <> ?1;

-- name: intents_by_client_id
SELECT intent.* FROM json_each(?) AS wanted CROSS JOIN intent ON client_correlation_id = wanted.value;

-- name: intents_by_server_id
SELECT intent.* FROM json_each(?) AS wanted CROSS JOIN intent ON server_correlation_id = wanted.value
WHERE mode = 'async';

-- name: intents_due
SELECT client_correlation_id, server_correlation_id FROM intent WHERE due_at < ? ORDER BY due_at LIMIT ?;

-- name: owners_of_intents
-- From each owner to the next: as many steps as there are owners, however much each of them runs.
WITH RECURSIVE found (owner) AS (
    SELECT min(owner) FROM intent WHERE owner IS NOT NULL
    UNION ALL
    SELECT (SELECT min(intent.owner) FROM intent WHERE intent.owner > found.owner)
    FROM found WHERE found.owner IS NOT NULL
)
SELECT owner FROM found WHERE owner IS NOT NULL;

-- name: intents_owned
SELECT client_correlation_id, server_correlation_id FROM intent WHERE owner = ? LIMIT ?;

-- name: insert_intent
INSERT INTO intent VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: update_intent
UPDATE intent SET phase = ?, version = ?, confirmed_at = ?, settled_at = ?, status = ?, resource_id = ?, owner = ?,
    lease_until = ?, fence = ?, has_payload = ?, transaction_reference = ?, due_at = ?, indeterminate = ? WHERE id = ? AND version = ?;

-- name: states_of_intents
SELECT intent.id, server_correlation_id, version, phase, fence
FROM json_each(?) AS wanted CROSS JOIN intent ON intent.id = wanted.value;

-- name: delete_intent
DELETE FROM intent WHERE id = ?;

-- name: obligations_by_id
SELECT obligation.* FROM json_each(?) AS wanted CROSS JOIN obligation ON obligation_id = wanted.value;

-- name: obligations_by_flow_and_key
SELECT obligation.* FROM json_each(?) AS wanted CROSS JOIN obligation
ON flow = wanted.value ->> 0 AND obligation.key = wanted.value ->> 1
AND state = 'Reserved' AND obligation.key <> '';

-- name: obligations_due
SELECT obligation_id FROM obligation WHERE due_at < ? ORDER BY due_at LIMIT ?;

-- name: insert_obligation
INSERT INTO obligation VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: update_obligation
UPDATE obligation SET state = ?, version = ?, settled_at = ?, resolution = ?, due_at = ?, counted = ? WHERE id = ? AND version = ?;

-- name: delete_obligation
DELETE FROM obligation WHERE id = ?;

-- name: jobs_by_id
SELECT job.* FROM json_each(?) AS wanted CROSS JOIN job ON job_id = wanted.value;

-- name: jobs_due
SELECT job_id FROM job WHERE due_at < ? ORDER BY due_at LIMIT ?;

-- name: insert_job
INSERT INTO job VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: update_job
UPDATE job SET state = ?, version = ?, attempts = ?, due_at = ?, last_error = ? WHERE id = ? AND version = ?;

-- name: delete_job
DELETE FROM job WHERE id = ?;

-- name: calls_by_client_id
SELECT call.* FROM json_each(?) AS wanted CROSS JOIN call ON client_correlation_id = wanted.value;

-- name: calls_due
SELECT client_correlation_id FROM call WHERE due_at < ? ORDER BY due_at LIMIT ?;

-- name: owners_of_calls
WITH RECURSIVE found (owner) AS (
    SELECT min(owner) FROM call WHERE owner > ''
    UNION ALL
    SELECT (SELECT min(call.owner) FROM call WHERE call.owner > found.owner AND call.owner > '')
    FROM found WHERE found.owner IS NOT NULL
)
SELECT owner FROM found WHERE owner IS NOT NULL;

-- name: calls_owned
SELECT client_correlation_id FROM call WHERE owner = ?1 AND owner > '' LIMIT ?2;

-- name: insert_call
INSERT INTO call VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: update_call
UPDATE call SET stage = ?, version = ?, row_version = ?, server_correlation_id = ?, ttl_ms = ?, registered_at = ?,
    confirm_by = ?, confirmed_at = ?, settled_at = ?, status = ?, resource_id = ?, status_url = ?, acknowledged_at = ?,
    answered_at = ?, owner = ?, fence = ?, attempts = ?, last_error = ?, due_at = ?, indeterminate = ? WHERE id = ? AND version = ?;

-- name: delete_call
DELETE FROM call WHERE id = ?;

-- name: quotas_by_principal
SELECT quota.* FROM json_each(?) AS wanted CROSS JOIN quota ON principal = wanted.value;

-- name: insert_quota
INSERT INTO quota VALUES (?, ?, ?, ?, ?);

-- name: update_quota
UPDATE quota SET open_intents = ?, open_bytes = ?, version = ? WHERE id = ? AND version = ?;

-- name: delete_quota
DELETE FROM quota WHERE id = ?;

-- name: budgets_by_flow
SELECT budget.* FROM json_each(?) AS wanted CROSS JOIN budget ON flow = wanted.value;

-- name: insert_budget
INSERT INTO budget VALUES (?, ?, ?, ?);

-- name: update_budget
UPDATE budget SET reserved = ?, version = ? WHERE id = ? AND version = ?;

-- name: delete_budget
DELETE FROM budget WHERE id = ?;

-- name: fences_by_resource
SELECT fence.* FROM json_each(?) AS wanted CROSS JOIN fence ON resource = wanted.value;

-- name: insert_fence
INSERT INTO fence VALUES (?, ?, ?, ?, ?);

-- name: update_fence
UPDATE fence SET token = ?, obligation_id = ?, version = ? WHERE id = ? AND version = ?;

-- name: delete_fence
DELETE FROM fence WHERE id = ?;

-- name: obligations_found
-- Newest first: whoever looks wants what happened lately, and no index is needed for that.
SELECT * FROM obligation
WHERE (?1 = '' OR flow = ?1) AND (?2 = '' OR state = ?2) AND (?3 = '' OR key = ?3) AND (?4 = '' OR intent = ?4)
AND (?5 = '' OR trace_id = ?5)
AND (?6 = '' OR id < (SELECT earlier.id FROM obligation AS earlier WHERE earlier.obligation_id = ?6))
ORDER BY id DESC LIMIT ?7;

-- name: obligations_reserved
-- The same among what is Reserved: those alone are due, and an index knows them.
SELECT * FROM obligation INDEXED BY obligation_due
WHERE due_at IS NOT NULL AND (?1 = '' OR flow = ?1) AND (?2 = '' OR state = ?2) AND (?3 = '' OR key = ?3)
AND (?4 = '' OR intent = ?4) AND (?5 = '' OR trace_id = ?5)
AND (?6 = '' OR id < (SELECT earlier.id FROM obligation AS earlier WHERE earlier.obligation_id = ?6))
ORDER BY id DESC LIMIT ?7;

-- name: obligations_reserved_by_intent
-- The same among what the handler of one intent has Reserved.
SELECT * FROM obligation INDEXED BY obligation_of_intent
WHERE state = 'Reserved' AND intent <> '' AND intent = ?4 AND (?1 = '' OR flow = ?1) AND (?2 = '' OR state = ?2)
AND (?3 = '' OR key = ?3) AND (?5 = '' OR trace_id = ?5)
AND (?6 = '' OR id < (SELECT earlier.id FROM obligation AS earlier WHERE earlier.obligation_id = ?6))
ORDER BY id DESC LIMIT ?7;

-- name: obligation_with_id
SELECT * FROM obligation WHERE obligation_id = ?;

-- name: count_reserved
SELECT count(*) FROM obligation WHERE due_at IS NOT NULL;

-- name: obligations_settled
-- Ids rise with time, so nothing behind the first that was reserved later can have been settled earlier.
SELECT obligation_id FROM obligation
WHERE settled_at < ?1 AND id < coalesce(
    (SELECT later.id FROM obligation AS later WHERE later.reserved_at >= ?1 ORDER BY later.id LIMIT 1),
    9223372036854775807)
ORDER BY id LIMIT ?2;

-- name: tally_obligations
SELECT flow, state, resolution, count(*) FROM obligation WHERE reserved_at >= ? GROUP BY 1, 2, 3 ORDER BY 1, 2, 3;

-- name: insert_entry
INSERT INTO entry VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: update_entry
UPDATE entry SET phase = ?, phase_2_timestamp = ?, outcome = ?, payload_ref = ?, sync_timestamp = ?,
    transaction_reference = ?, version = ?, settled_at = ?, indeterminate = ? WHERE id = ?;

-- name: append_journal
INSERT INTO journal VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: last_state_of
SELECT after FROM journal WHERE record = ? ORDER BY seq DESC LIMIT 1;

-- name: journal_of_intent
SELECT journal.* FROM intent CROSS JOIN journal ON journal.record = intent.id
WHERE client_correlation_id = ? AND server_correlation_id = ? ORDER BY seq;

-- name: journal_of_obligation
SELECT journal.* FROM obligation CROSS JOIN journal ON journal.record = obligation.id
WHERE obligation_id = ? ORDER BY seq;

-- name: journal_of_job
SELECT journal.* FROM job CROSS JOIN journal ON journal.record = job.id WHERE job_id = ? ORDER BY seq;

-- name: journal_of_call
SELECT journal.* FROM call CROSS JOIN journal ON journal.record = call.id WHERE client_correlation_id = ? ORDER BY seq;

-- name: journal_after
SELECT * FROM journal WHERE seq > ? ORDER BY seq LIMIT ?;

-- name: entries_unsynced
-- The journal is the feed: whatever changed after the cursor and has not been acknowledged since, oldest change first.
SELECT entry.* FROM (
    SELECT DISTINCT record FROM journal NOT INDEXED CROSS JOIN entry ON entry.id = record AND sync_timestamp IS NULL
    WHERE seq > (SELECT synced FROM head) LIMIT ?
) AS changed CROSS JOIN entry ON entry.id = changed.record;

-- name: advance_synced
-- Everything before the first change that is still unacknowledged never has to be looked at again.
UPDATE head SET synced = coalesce(
    (SELECT journal.seq - 1 FROM journal CROSS JOIN entry ON entry.id = record AND sync_timestamp IS NULL
     WHERE journal.seq > head.synced ORDER BY journal.seq LIMIT 1),
    head.seq);

-- name: mark_synced
UPDATE entry SET sync_timestamp = ?
WHERE client_correlation_id = ? AND server_correlation_id = ? AND actor = ? AND version = ?;

-- name: entries_outlived
SELECT entry.* FROM entry INDEXED BY entry_synced WHERE sync_timestamp < ?
AND NOT EXISTS (SELECT 1 FROM intent WHERE intent.id = entry.id)
AND NOT EXISTS (SELECT 1 FROM call WHERE call.id = entry.id)
AND NOT EXISTS (SELECT 1 FROM obligation WHERE obligation.id = entry.id)
ORDER BY sync_timestamp LIMIT ?;

-- name: purge_entry
-- Looked at once more: nobody may have changed it, or brought its record back.
DELETE FROM entry
WHERE client_correlation_id = ? AND server_correlation_id = ? AND actor = ? AND version = ? AND sync_timestamp = ?
AND NOT EXISTS (SELECT 1 FROM intent WHERE intent.id = entry.id)
AND NOT EXISTS (SELECT 1 FROM call WHERE call.id = entry.id)
AND NOT EXISTS (SELECT 1 FROM obligation WHERE obligation.id = entry.id)
RETURNING id;

-- name: entries_of_tree
WITH RECURSIVE called (client_id) AS (
    VALUES (?1)
    UNION
    SELECT child.client_correlation_id FROM called
    CROSS JOIN entry AS child ON child.parent_reference_id = called.client_id AND child.actor = 'client'
    LIMIT ?2
)
SELECT entry.* FROM called CROSS JOIN entry ON entry.client_correlation_id = called.client_id
ORDER BY entry.id LIMIT ?2;

-- name: entries_initiated
SELECT * FROM entry WHERE source = ? AND actor = 'client' ORDER BY id LIMIT ?;

-- name: entries_stalled
SELECT entry.* FROM entry LEFT JOIN intent ON intent.id = entry.id
WHERE (outcome IS NULL OR outcome = 'TTL_EXPIRED')
AND (entry.phase <> 'PROCESSING' OR lease_until <= ?) ORDER BY phase_1_timestamp LIMIT ?;

-- name: entries_found
-- By client id it is a look-up. A server id alone is looked for row by row: it is indexed nowhere, see 0001.
SELECT * FROM entry WHERE client_correlation_id = ?1 OR server_correlation_id = ?1 ORDER BY id LIMIT ?2;

-- name: entries_of_calls
SELECT entry.* FROM (SELECT DISTINCT value FROM json_each(?)) AS wanted
CROSS JOIN entry ON client_correlation_id = wanted.value ORDER BY entry.id LIMIT ?;

-- name: entries_newest
SELECT * FROM entry ORDER BY id DESC LIMIT ?;

-- Looking at a ledger from outside. -----------------------------------------------------------------------------------

-- name: entries_changed_after
-- The journal is the feed here, too: rows in the order of their latest change, each as it is now.
SELECT entry.* FROM (
    SELECT record, max(seq) AS latest FROM journal NOT INDEXED WHERE seq > ? GROUP BY record
) AS changed CROSS JOIN entry ON entry.id = changed.record ORDER BY latest LIMIT ?;

-- name: journal_about_pair
-- Everything about one call: its own rows, what it owes to others, what its handler reserved.
SELECT journal.* FROM (
    SELECT id FROM entry WHERE client_correlation_id = ?1 AND server_correlation_id = ?2
    UNION SELECT id FROM job WHERE subject = ?2
    UNION SELECT id FROM obligation WHERE intent = ?2
) AS about CROSS JOIN journal ON journal.record = about.id ORDER BY seq LIMIT ?3;

-- name: intent_of_pair
SELECT * FROM intent WHERE client_correlation_id = ? AND server_correlation_id = ?;

-- name: call_of_pair
SELECT * FROM call WHERE client_correlation_id = ? AND server_correlation_id = ?;

-- name: jobs_of_subject
SELECT * FROM job WHERE subject = ? ORDER BY id LIMIT ?;

-- name: obligations_of_intent
SELECT * FROM obligation WHERE intent = ? ORDER BY id LIMIT ?;

-- Looking after what is stored: verification, and the rotation of keys. ------------------------------------------------

-- name: begin_reading
BEGIN;

-- name: find_table
SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name = ?;

-- name: count_to_verify
SELECT (SELECT count(*) FROM journal) + (SELECT count(*) FROM intent) + (SELECT count(*) FROM obligation)
    + (SELECT count(*) FROM job) + (SELECT count(*) FROM call);

-- name: journal_from
SELECT * FROM journal WHERE seq > ? ORDER BY seq;

-- name: journal_next
SELECT min(seq) FROM journal WHERE seq > ?;

-- name: intents_with_last_line
SELECT journal.seq, journal.subject, journal.after, journal.fence, intent.* FROM intent
LEFT JOIN journal ON journal.seq = (SELECT max(line.seq) FROM journal AS line WHERE line.record = intent.id)
ORDER BY intent.id;

-- name: facts_of_intent
-- What the lines that registered and settled it bind, whether one lets go of its payload, and which of its sealed parts
-- are there.
SELECT
    (SELECT detail FROM journal WHERE record = ?1 AND before = 'ABSENT' ORDER BY seq LIMIT 1),
    (SELECT detail FROM journal WHERE record = ?1 AND before = 'PROCESSING' AND after IN ('COMMITTED', 'FAILED')
     ORDER BY seq DESC LIMIT 1),
    EXISTS (SELECT 1 FROM journal WHERE record = ?1 AND event = 'payload_purged'),
    EXISTS (SELECT 1 FROM seal WHERE record = ?1 AND part = 'payload'),
    EXISTS (SELECT 1 FROM seal WHERE record = ?1 AND part = 'response');

-- name: entry_of_record
SELECT entry.* FROM entry WHERE id = ?;

-- name: obligations_with_last_line
SELECT journal.seq, journal.subject, journal.after, journal.fence, obligation.* FROM obligation
LEFT JOIN journal ON journal.seq = (SELECT max(line.seq) FROM journal AS line WHERE line.record = obligation.id)
ORDER BY obligation.id;

-- name: jobs_with_last_line
SELECT journal.seq, journal.subject, journal.after, journal.fence, job.* FROM job
LEFT JOIN journal ON journal.seq = (SELECT max(line.seq) FROM journal AS line WHERE line.record = job.id)
ORDER BY job.id;

-- name: calls_with_last_line
SELECT journal.seq, journal.subject, journal.after, journal.fence, call.* FROM call
LEFT JOIN journal ON journal.seq = (SELECT max(line.seq) FROM journal AS line WHERE line.record = call.id)
ORDER BY call.id;

-- name: detail_of_line
SELECT detail FROM journal WHERE seq = ?;

-- name: intents_gone
-- Registered, not there, and no line says that it was forgotten.
SELECT seq, subject FROM journal WHERE kind = 'intent' AND before = 'ABSENT'
AND NOT EXISTS (SELECT 1 FROM intent WHERE intent.id = journal.record)
AND subject NOT IN (SELECT subject FROM journal WHERE kind = 'intent' AND after = 'ABSENT');

-- name: obligations_gone
SELECT seq, subject FROM journal WHERE kind = 'obligation' AND before = 'Absent'
AND NOT EXISTS (SELECT 1 FROM obligation WHERE obligation.id = journal.record)
AND subject NOT IN (SELECT gone.value FROM journal AS line CROSS JOIN json_each(line.detail) AS gone
    WHERE line.kind = 'retention');

-- name: jobs_gone
SELECT seq, subject FROM journal WHERE kind = 'job' AND before = 'ABSENT'
AND NOT EXISTS (SELECT 1 FROM job WHERE job.id = journal.record)
AND subject NOT IN (SELECT subject FROM journal WHERE kind = 'job' AND after = 'ABSENT');

-- name: calls_gone
SELECT seq, subject FROM journal WHERE kind = 'call' AND before = 'ABSENT'
AND NOT EXISTS (SELECT 1 FROM call WHERE call.id = journal.record)
AND subject NOT IN (SELECT subject FROM journal WHERE kind = 'call' AND after = 'ABSENT');

-- name: entries_gone
-- The record was forgotten and left a row behind, which is not there; and no line says that it was purged.
SELECT min(seq), subject FROM journal
WHERE (kind = 'intent' AND before = 'ABSENT' OR kind = 'call' AND after NOT IN ('ABSENT', 'SENT'))
AND NOT EXISTS (SELECT 1 FROM entry WHERE entry.id = record)
AND NOT EXISTS (SELECT 1 FROM intent WHERE intent.id = record)
AND NOT EXISTS (SELECT 1 FROM call WHERE call.id = record)
AND NOT EXISTS (SELECT 1 FROM journal AS line WHERE line.record = journal.record AND line.kind = 'entry')
GROUP BY record ORDER BY record;

-- name: entries_without_call
SELECT journal.seq, journal.subject, journal.after,
    EXISTS (SELECT 1 FROM journal AS line WHERE line.record = entry.id AND line.event = 'indeterminate'),
    entry.client_correlation_id, entry.phase, entry.indeterminate, entry.source, entry.service_ledger_id FROM entry
LEFT JOIN journal ON journal.seq = (SELECT max(line.seq) FROM journal AS line WHERE line.record = entry.id)
WHERE actor = 'client' AND NOT EXISTS (SELECT 1 FROM call WHERE call.id = entry.id)
AND NOT EXISTS (SELECT 1 FROM intent WHERE intent.id = entry.id) ORDER BY entry.id;

-- name: entries_without_intent
-- The rows of what was forgotten: the last line about the record still says how it ended.
SELECT journal.seq, journal.subject, journal.after,
    EXISTS (SELECT 1 FROM journal AS line WHERE line.record = entry.id AND line.event = 'indeterminate'),
    entry.server_correlation_id, entry.phase, entry.indeterminate, entry.source, entry.service_ledger_id FROM entry
LEFT JOIN journal ON journal.seq = (SELECT max(line.seq) FROM journal AS line WHERE line.record = entry.id)
WHERE actor = 'server' AND NOT EXISTS (SELECT 1 FROM intent WHERE intent.id = entry.id) ORDER BY entry.id;

-- name: any_entry
SELECT EXISTS (SELECT 1 FROM entry);

-- name: newest_restamp
-- Since when the ledger has the GUID it has. Such a line belongs to no record, which an index finds.
SELECT seq, after FROM journal WHERE record = 0 AND kind = 'ledger' AND event = 'restamped' ORDER BY seq DESC LIMIT 1;

-- name: largest_id
-- All ids are from one counter. A record of its own table has lines under its id; the other tables are asked themselves.
SELECT max(coalesce(taken, 0)) FROM (
    SELECT max(record) AS taken FROM journal UNION ALL SELECT max(id) FROM entry UNION ALL SELECT max(id) FROM quota
    UNION ALL SELECT max(id) FROM budget UNION ALL SELECT max(id) FROM fence
    UNION ALL SELECT max(id) FROM registrar_nonce UNION ALL SELECT max(id) FROM registrar_registration
    UNION ALL SELECT max(id) FROM registrar_nonce_use UNION ALL SELECT max(id) FROM registrar_audit);

-- name: newest_in_store_time
-- The newest line that was noted at the time of its own change, which is the head's or earlier. A request is noted at its
-- arrival if that was later, and what belongs to no record when its maker says: a clock that was set back in between
-- leaves both ahead of the head.
SELECT seq, observed_at FROM journal
WHERE record <> 0 AND NOT (kind = 'intent' AND before IN ('ABSENT', 'WAITING_CONFIRM', 'TTL_EXPIRED'))
ORDER BY seq DESC LIMIT 1;

-- name: line_that_reserved
SELECT seq, trace_id, detail, at FROM journal WHERE record = ? AND before = 'Absent' ORDER BY seq LIMIT 1;

-- name: line_that_ended
SELECT event, detail, observed_at FROM journal WHERE seq = ?;
