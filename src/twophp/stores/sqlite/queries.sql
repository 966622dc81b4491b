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
-- Where the journal, the time and the ids have come to: the last link says it, or the head of the old journal. A batch that
-- writes no line moves time and ids on in the head.
SELECT coalesce(link.id + link.count - 1, head.seq), coalesce(link.hash, head.hash), max(head.at, coalesce(link.at, 0)),
    max(head.next_id, coalesce(link.next_id, 0))
FROM head LEFT JOIN link ON link.id = (SELECT max(id) FROM link);

-- name: write_head
UPDATE head SET at = max(at, ?), next_id = max(next_id, ?);

-- name: prove_durable
UPDATE head SET opened = opened + 1;

-- name: count_tables
SELECT count(*) FROM sqlite_schema;

-- name: objects_of_schema
-- Tables first: an index or a trigger needs its table. What SQLite makes by itself has no text, or a name of its own.
SELECT type, name, sql FROM sqlite_schema WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite!_%' ESCAPE '!'
ORDER BY type <> 'table', rowid;

-- name: rows_of_table
SELECT * FROM a_table;

-- name: put_row
INSERT INTO a_table VALUES (?);

-- name: read_meta
SELECT value FROM meta WHERE name = ?;

-- name: keep_meta
INSERT INTO meta VALUES (?, ?) ON CONFLICT DO NOTHING;

-- name: replace_meta
INSERT OR REPLACE INTO meta VALUES (?, ?);

-- name: last_entry
SELECT coalesce(max(id), 0) FROM client_entry;

-- name: restamp_entries
UPDATE client_entry SET service_ledger_id = ?1 WHERE id > ?2 AND id <= ?3 AND service_ledger_id <> ?1;

-- name: intents_by_client_id
-- The caller computes the hashes: a call back into Python for each of them costs more than the look-up.
SELECT live_intent.* FROM json_each(?) AS wanted CROSS JOIN live_intent ON client_hash = wanted.value;

-- name: intents_by_server_id
SELECT live_intent.* FROM json_each(?) AS wanted CROSS JOIN live_intent ON server_correlation_id = wanted.value
WHERE mode = 'async';

-- name: intents_due
-- Of each open phase, and of what has ended, the most overdue; then the most overdue of those.
SELECT client_correlation_id, server_correlation_id FROM (
    SELECT * FROM (SELECT client_correlation_id, server_correlation_id, due_at FROM intent INDEXED BY intent_open
        WHERE phase = 'WAITING_CONFIRM' AND due_at < ?1 ORDER BY due_at LIMIT ?2)
    UNION ALL SELECT * FROM (SELECT client_correlation_id, server_correlation_id, due_at FROM intent INDEXED BY intent_open
        WHERE phase = 'PROCESSING' AND due_at < ?1 ORDER BY due_at LIMIT ?2)
    UNION ALL SELECT * FROM (SELECT client_correlation_id, server_correlation_id, due_at FROM intent INDEXED BY intent_open
        WHERE phase = 'TTL_EXPIRED' AND due_at < ?1 ORDER BY due_at LIMIT ?2)
    UNION ALL SELECT * FROM (SELECT client_correlation_id, server_correlation_id, due_at FROM intent INDEXED BY intent_kept
        WHERE due_at < ?1 AND (phase = 'COMMITTED' OR phase = 'FAILED' OR phase = 'ABANDONED') ORDER BY due_at LIMIT ?2)
) ORDER BY due_at LIMIT ?2;

-- name: owners_of_intents
-- Among those that run: there are as many as handlers.
SELECT DISTINCT owner FROM intent INDEXED BY intent_open WHERE phase = 'PROCESSING' AND owner IS NOT NULL;

-- name: intents_owned
SELECT client_correlation_id, server_correlation_id FROM intent INDEXED BY intent_open
WHERE phase = 'PROCESSING' AND owner = ? LIMIT ?;

-- name: insert_intent
INSERT INTO intent VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?,
    ?, ?, ?, ?, ?, ?, ?, ?);

-- name: update_intent
-- Only if the row has the version that was read and is not synced; an index covers the unsynced rows.
UPDATE intent SET phase = ?1, version = ?2, confirmed_at = ?3, settled_at = ?4, status = ?5, resource_id = ?6, owner = ?7,
    lease_until = ?8, fence = ?9, has_payload = ?10, transaction_reference = ?11, due_at = ?12, indeterminate = ?13,
    row_version = ?14, last_line = ?15, payload = iif(?16, ?17, payload), response = iif(?18, ?19, response)
WHERE id = ?20 AND version = ?21 AND sync_timestamp IS NULL;

-- name: update_synced_intent
-- The same for a synced row: the central ledger must receive the new version (A-57).
UPDATE intent SET phase = ?1, version = ?2, confirmed_at = ?3, settled_at = ?4, status = ?5, resource_id = ?6, owner = ?7,
    lease_until = ?8, fence = ?9, has_payload = ?10, transaction_reference = ?11, due_at = ?12, indeterminate = ?13,
    row_version = ?14, last_line = ?15, payload = iif(?16, ?17, payload), response = iif(?18, ?19, response),
    sync_timestamp = NULL
WHERE id = ?20 AND version = ?21 AND sync_timestamp IS NOT NULL;

-- name: renew_intent
-- The same for a change that does not alter the ledger row.
UPDATE intent SET phase = ?1, version = ?2, confirmed_at = ?3, settled_at = ?4, status = ?5, resource_id = ?6, owner = ?7,
    lease_until = ?8, fence = ?9, has_payload = ?10, transaction_reference = ?11, due_at = ?12, indeterminate = ?13,
    last_line = ?15, payload = iif(?16, ?17, payload), response = iif(?18, ?19, response)
WHERE id = ?20 AND version = ?21;

-- name: forget_intent
-- Its keys and its sealed parts are deleted. Its ledger row stays.
UPDATE intent SET forgotten = 1, who = NULL, owner = NULL, lease_until = NULL, due_at = NULL, payload = NULL, response = NULL
WHERE id = ?;

-- name: states_of_intents
SELECT live_intent.id, server_correlation_id, version, phase, fence
FROM json_each(?) AS wanted CROSS JOIN live_intent ON live_intent.id = wanted.value;

-- name: delete_intent
-- What was never in the ledger leaves no row.
DELETE FROM intent WHERE id = ? AND row_version = 0;

-- name: obligations_by_id
SELECT obligation.* FROM json_each(?) AS wanted CROSS JOIN obligation ON obligation_id = wanted.value;

-- name: obligations_by_flow_and_key
SELECT obligation.* FROM json_each(?) AS wanted CROSS JOIN obligation
ON flow = wanted.value ->> 0 AND obligation.key = wanted.value ->> 1
AND state = 'Reserved' AND obligation.key <> '';

-- name: obligations_due
SELECT obligation_id FROM obligation WHERE due_at < ? ORDER BY due_at LIMIT ?;

-- name: insert_obligation
INSERT INTO obligation VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: update_obligation
UPDATE obligation SET state = ?, version = ?, settled_at = ?, resolution = ?, due_at = ?, counted = ?, last_line = ?
WHERE id = ? AND version = ?;

-- name: delete_obligation
DELETE FROM obligation WHERE id = ?;

-- name: jobs_by_id
SELECT job.* FROM json_each(?) AS wanted CROSS JOIN job ON job_id = wanted.value;

-- name: jobs_due
SELECT job_id FROM job WHERE due_at < ? ORDER BY due_at LIMIT ?;

-- name: insert_job
INSERT INTO job VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: update_job
UPDATE job SET state = ?, version = ?, attempts = ?, due_at = ?, last_error = ?, last_line = ? WHERE id = ? AND version = ?;

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
INSERT INTO call VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: update_call
UPDATE call SET stage = ?, version = ?, row_version = ?, server_correlation_id = ?, ttl_ms = ?, registered_at = ?,
    confirm_by = ?, confirmed_at = ?, settled_at = ?, status = ?, resource_id = ?, status_url = ?, acknowledged_at = ?,
    answered_at = ?, owner = ?, fence = ?, attempts = ?, last_error = ?, due_at = ?, indeterminate = ?, last_line = ?
WHERE id = ? AND version = ?;

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
-- Newest first: readers want the latest obligations, and that order needs no index.
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
INSERT INTO client_entry VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 0);

-- name: update_entry
UPDATE client_entry SET phase = ?, phase_2_timestamp = ?, outcome = ?, payload_ref = ?, sync_timestamp = ?,
    transaction_reference = ?, version = ?, settled_at = ?, indeterminate = ? WHERE id = ?;

-- name: leave_entry
-- The record goes and its ledger row stays: from now on the row leads to its history.
UPDATE client_entry SET last_line = ?1 WHERE id = ?2;

-- name: append_link
INSERT INTO link VALUES (?, ?, ?, ?, ?, ?, ?, ?);

-- name: last_state_of
-- What the newest line about an intent says that it is.
SELECT lines ->> ('$[' || (?1 - id) || '][7]') FROM link
WHERE id = (SELECT max(id) FROM link WHERE id <= ?1) AND lines ->> ('$[' || (?1 - id) || '][2]') = ?2;

-- name: old_state_of
SELECT after FROM old_journal WHERE record = ? ORDER BY seq DESC LIMIT 1;

-- name: read_writer
SELECT seq FROM writer WHERE id = ? AND name = ?;

-- name: write_writer
INSERT INTO writer VALUES (?, ?, ?, ?, ?)
ON CONFLICT (id) DO UPDATE SET seq = excluded.seq, link = excluded.link, hash = excluded.hash;

-- name: link_with_line
SELECT id, hash, lines FROM link WHERE id = (SELECT max(id) FROM link WHERE id <= ?);

-- name: links_after
-- From the link that the line after ?1 is in.
SELECT id, hash, lines FROM link WHERE id >= coalesce((SELECT max(id) FROM link WHERE id <= ?1 + 1), 0) ORDER BY id;

-- name: whole_links_after
SELECT * FROM link WHERE id > ? ORDER BY id LIMIT ?;

-- name: old_lines_of
SELECT * FROM old_journal WHERE record = ? ORDER BY seq;

-- name: last_line_of_intent
SELECT id, last_line FROM live_intent
WHERE client_hash = twophp_hash(?1) AND client_correlation_id = ?1 AND server_correlation_id = ?2;

-- name: last_line_of_obligation
SELECT id, last_line FROM obligation WHERE obligation_id = ?;

-- name: last_line_of_job
SELECT id, last_line FROM job WHERE job_id = ?;

-- name: last_line_of_call
SELECT id, last_line FROM call WHERE client_correlation_id = ?;

-- name: old_lines_after
SELECT * FROM old_journal WHERE seq > ? ORDER BY seq LIMIT ?;

-- name: entries_unsynced
-- What was registered first goes first; a row that changed after it was sent is among them again.
SELECT * FROM (
    SELECT * FROM (SELECT row.* FROM intent INDEXED BY intent_unsynced CROSS JOIN server_entry AS row ON row.id = intent.id
        WHERE intent.sync_timestamp IS NULL ORDER BY intent.id LIMIT ?1)
    UNION ALL
    SELECT * FROM (SELECT row.* FROM client_entry INDEXED BY client_entry_unsynced
        CROSS JOIN client_row AS row ON row.id = client_entry.id
        WHERE client_entry.sync_timestamp IS NULL ORDER BY client_entry.id LIMIT ?1)
) ORDER BY id LIMIT ?1;

-- name: mark_carried_synced
UPDATE client_entry SET sync_timestamp = ?1
WHERE client_correlation_id = ?2 AND server_correlation_id = ?3 AND actor = ?4 AND version = ?5;

-- name: mark_server_synced
UPDATE intent SET sync_timestamp = ?1
WHERE client_hash = twophp_hash(?2) AND client_correlation_id = ?2 AND server_correlation_id = ?3 AND ?4 = 'server'
AND row_version = ?5;

-- name: entries_outlived
SELECT * FROM (
    SELECT * FROM (SELECT row.* FROM intent INDEXED BY intent_forgotten CROSS JOIN server_entry AS row ON row.id = intent.id
        WHERE forgotten = 1 AND intent.sync_timestamp < ?1 ORDER BY intent.sync_timestamp LIMIT ?2)
    UNION ALL
    SELECT * FROM (SELECT row.* FROM client_entry INDEXED BY client_entry_synced
        CROSS JOIN client_row AS row ON row.id = client_entry.id
        WHERE client_entry.sync_timestamp < ?1
        AND NOT EXISTS (SELECT 1 FROM call WHERE call.id = client_entry.id)
        AND NOT EXISTS (SELECT 1 FROM obligation WHERE obligation.id = client_entry.id)
        ORDER BY client_entry.sync_timestamp LIMIT ?2)
) ORDER BY sync_timestamp LIMIT ?2;

-- name: purge_entry
-- Checked once more: the row must be unchanged, and its record must not have come back.
DELETE FROM client_entry
WHERE client_correlation_id = ? AND server_correlation_id = ? AND actor = ? AND version = ? AND sync_timestamp = ?
AND NOT EXISTS (SELECT 1 FROM call WHERE call.id = client_entry.id)
AND NOT EXISTS (SELECT 1 FROM obligation WHERE obligation.id = client_entry.id)
RETURNING id, last_line;

-- name: purge_forgotten
DELETE FROM intent
WHERE client_hash = twophp_hash(?1) AND client_correlation_id = ?1 AND server_correlation_id = ?2 AND ?3 = 'server'
AND row_version = ?4 AND sync_timestamp = ?5 AND forgotten = 1
RETURNING id, last_line;

-- name: entries_of_tree
WITH RECURSIVE called (client_id) AS (
    VALUES (?1)
    UNION
    SELECT child.client_correlation_id FROM called
    CROSS JOIN client_entry AS child ON child.parent_reference_id = called.client_id AND child.actor = 'client'
    LIMIT ?2
)
SELECT * FROM (
    SELECT row.* FROM called CROSS JOIN intent ON intent.client_hash = twophp_hash(called.client_id)
    CROSS JOIN server_entry AS row ON row.id = intent.id AND row.client_correlation_id = called.client_id
    UNION ALL
    SELECT row.* FROM called CROSS JOIN client_row AS row ON row.client_correlation_id = called.client_id
) ORDER BY id LIMIT ?2;

-- name: entries_initiated
SELECT * FROM client_row WHERE source = ? AND actor = 'client' ORDER BY id LIMIT ?;

-- name: entries_stalled
SELECT * FROM (
    SELECT row.* FROM intent INDEXED BY intent_open CROSS JOIN server_entry AS row ON row.id = intent.id
    WHERE (intent.phase = 'WAITING_CONFIRM' OR intent.phase = 'PROCESSING' OR intent.phase = 'TTL_EXPIRED')
    AND (intent.phase <> 'PROCESSING' OR lease_until <= ?1)
    UNION ALL
    SELECT * FROM (SELECT client_row.* FROM client_row WHERE (outcome IS NULL OR outcome = 'TTL_EXPIRED')
        AND phase <> 'PROCESSING' ORDER BY phase_1_timestamp LIMIT ?2)
) ORDER BY phase_1_timestamp LIMIT ?2;

-- name: entries_found
-- By client id it is a look-up. A server id alone is looked for row by row: no index knows it.
SELECT * FROM entry WHERE client_correlation_id = ?1 OR server_correlation_id = ?1 ORDER BY id LIMIT ?2;

-- name: entries_of_calls
WITH wanted AS (SELECT DISTINCT value AS client_id FROM json_each(?1))
SELECT * FROM (
    SELECT row.* FROM wanted CROSS JOIN intent ON intent.client_hash = twophp_hash(wanted.client_id)
    CROSS JOIN server_entry AS row ON row.id = intent.id AND row.client_correlation_id = wanted.client_id
    UNION ALL
    SELECT row.* FROM wanted CROSS JOIN client_row AS row ON row.client_correlation_id = wanted.client_id
) ORDER BY id LIMIT ?2;

-- name: entries_newest
SELECT * FROM (
    SELECT * FROM (SELECT * FROM server_entry ORDER BY id DESC LIMIT ?1)
    UNION ALL SELECT * FROM (SELECT * FROM client_row ORDER BY id DESC LIMIT ?1)
) ORDER BY id DESC LIMIT ?1;

-- Looking at a ledger from outside. -----------------------------------------------------------------------------------

-- name: entries_changed_after
-- Rows in the order of their latest change, each as it is now.
SELECT row.* FROM (
    SELECT record, max(seq) AS latest FROM (
        SELECT record, seq FROM old_journal NOT INDEXED WHERE seq > ?1
        UNION ALL
        SELECT line.value ->> 2, line.value ->> 0 FROM link CROSS JOIN json_each(link.lines) AS line
        WHERE link.id >= coalesce((SELECT max(id) FROM link WHERE id <= ?1 + 1), 0) AND line.value ->> 0 > ?1
    ) GROUP BY record
) AS changed CROSS JOIN entry AS row ON row.id = changed.record ORDER BY latest LIMIT ?2;

-- name: last_lines_about_pair
-- Everything about one call: its own rows, what it owes to others, what its handler reserved. Each with its newest line.
SELECT id, last_line FROM intent
WHERE client_hash = twophp_hash(?1) AND client_correlation_id = ?1 AND server_correlation_id = ?2
UNION SELECT client_entry.id, max(client_entry.last_line, coalesce(call.last_line, 0)) FROM client_entry
LEFT JOIN call ON call.id = client_entry.id
WHERE client_entry.client_correlation_id = ?1 AND client_entry.server_correlation_id = ?2
UNION SELECT id, last_line FROM job WHERE subject = ?2
UNION SELECT id, last_line FROM obligation WHERE intent = ?2;

-- name: intent_of_pair
SELECT * FROM live_intent
WHERE client_hash = twophp_hash(?1) AND client_correlation_id = ?1 AND server_correlation_id = ?2;

-- name: call_of_pair
SELECT * FROM call WHERE client_correlation_id = ? AND server_correlation_id = ?;

-- name: jobs_of_subject
SELECT * FROM job WHERE subject = ? ORDER BY id LIMIT ?;

-- name: obligations_of_intent
SELECT * FROM obligation WHERE intent = ? ORDER BY id LIMIT ?;

-- name: begin_reading
BEGIN;

-- name: find_table
SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name = ?;
