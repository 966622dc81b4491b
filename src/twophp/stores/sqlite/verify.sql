-- Verification: what is compared with what. ``journal`` is the table of every line that a verification makes for itself.

-- name: count_to_verify
SELECT (SELECT count(*) FROM old_journal) + (SELECT coalesce(sum(count), 0) FROM link) + (SELECT count(*) FROM live_intent)
    + (SELECT count(*) FROM obligation) + (SELECT count(*) FROM job) + (SELECT count(*) FROM call);

-- name: old_lines_from
SELECT * FROM old_journal WHERE seq > ? ORDER BY seq;

-- name: old_line_next
SELECT min(seq) FROM old_journal WHERE seq > ?;

-- name: read_old_head
SELECT seq, hash FROM head;

-- name: links_as_bytes
SELECT id, writer, seq, count, at, next_id, hash, CAST(lines AS BLOB) FROM link ORDER BY id;

-- name: newest_links
SELECT id, writer, seq, count, at, next_id, hash, CAST(lines AS BLOB) FROM link ORDER BY id DESC;

-- name: all_writers
SELECT id, seq, link, hash FROM writer;

-- name: make_line_table
CREATE TEMP TABLE journal (
    seq INTEGER PRIMARY KEY, record, kind, subject, event, before, after, at, observed_at, fence, trace_id, detail, hash);

-- name: copy_old_lines
INSERT INTO temp.journal SELECT * FROM old_journal;

-- name: keep_line
INSERT OR IGNORE INTO temp.journal VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: index_line_table
CREATE INDEX temp.journal_by_record ON journal (record);
CREATE INDEX temp.journal_of_the_forgotten ON journal (subject) WHERE after = 'ABSENT';

-- name: intents_with_last_line
SELECT journal.seq, journal.subject, journal.after, journal.fence, live_intent.* FROM live_intent
LEFT JOIN journal ON journal.seq = (SELECT max(line.seq) FROM journal AS line WHERE line.record = live_intent.id)
ORDER BY live_intent.id;

-- name: facts_of_intent
-- What the lines that registered and settled it bind, whether one deletes its payload or all of it, and which of its
-- sealed parts are there.
SELECT
    (SELECT detail FROM journal WHERE record = ?1 AND before = 'ABSENT' ORDER BY seq LIMIT 1),
    (SELECT detail FROM journal WHERE record = ?1 AND before = 'PROCESSING' AND after IN ('COMMITTED', 'FAILED')
     ORDER BY seq DESC LIMIT 1),
    EXISTS (SELECT 1 FROM journal WHERE record = ?1 AND event = 'payload_purged'),
    EXISTS (SELECT 1 FROM journal WHERE subject = ?2 AND after = 'ABSENT' AND kind = 'intent'),
    payload IS NOT NULL OR EXISTS (SELECT 1 FROM seal WHERE record = ?1 AND part = 'payload'),
    response IS NOT NULL OR EXISTS (SELECT 1 FROM seal WHERE record = ?1 AND part = 'response'),
    row_version
FROM intent WHERE id = ?1;

-- name: entry_of_record
SELECT * FROM client_row WHERE id = ?;

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
AND NOT EXISTS (SELECT 1 FROM intent WHERE intent.id = journal.record AND forgotten = 0)
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
WHERE (kind = 'intent' AND before = 'ABSENT' AND EXISTS (
        SELECT 1 FROM journal AS line WHERE line.subject = journal.subject AND line.after = 'ABSENT' AND line.kind = 'intent')
    OR kind = 'call' AND after NOT IN ('ABSENT', 'SENT'))
AND NOT EXISTS (SELECT 1 FROM client_entry WHERE client_entry.id = record)
AND NOT EXISTS (SELECT 1 FROM intent WHERE intent.id = record AND row_version > 0)
AND NOT EXISTS (SELECT 1 FROM call WHERE call.id = record)
AND NOT EXISTS (SELECT 1 FROM journal AS line WHERE line.record = journal.record AND line.kind = 'entry')
GROUP BY record ORDER BY record;

-- name: entries_without_call
SELECT journal.seq, journal.subject, journal.after,
    EXISTS (SELECT 1 FROM journal AS line WHERE line.record = entry.id AND line.event = 'indeterminate'),
    entry.client_correlation_id, entry.phase, entry.indeterminate, entry.source, entry.service_ledger_id
FROM client_entry AS entry
LEFT JOIN journal ON journal.seq = (SELECT max(line.seq) FROM journal AS line WHERE line.record = entry.id)
WHERE actor = 'client' AND NOT EXISTS (SELECT 1 FROM call WHERE call.id = entry.id) ORDER BY entry.id;

-- name: entries_without_intent
-- The rows of what was forgotten: the last line about the record still says how it ended. Whose they are is a setting.
SELECT journal.seq, journal.subject, journal.after,
    EXISTS (SELECT 1 FROM journal AS line WHERE line.record = intent.id AND line.event = 'indeterminate'),
    intent.server_correlation_id, intent.phase, intent.indeterminate, NULL, NULL
FROM intent
LEFT JOIN journal ON journal.seq = (SELECT max(line.seq) FROM journal AS line WHERE line.record = intent.id)
WHERE forgotten = 1 ORDER BY intent.id;

-- name: forgotten_intents
-- With all that their lines bind, unless only their ledger row was taken over from an older file.
SELECT id, client_correlation_id, server_correlation_id, principal, replay_key, callback, client_id_is_proxy, mode,
    service_endpoint, path, method, received_at, ttl_ms, delta_ms, counted_bytes, phase, version, confirmed_at, settled_at,
    status, resource_id, owner, lease_until, fence, has_payload, transaction_reference, due_at, request_digest, indeterminate
FROM intent WHERE forgotten = 1 AND principal <> '' ORDER BY id;

-- name: any_entry
SELECT EXISTS (SELECT 1 FROM client_entry) OR EXISTS (SELECT 1 FROM intent WHERE row_version > 0);

-- name: newest_restamp
-- Since when the ledger has the GUID it has. Such a line belongs to no record, which an index finds.
SELECT seq, after FROM journal WHERE record = 0 AND kind = 'ledger' AND event = 'restamped' ORDER BY seq DESC LIMIT 1;

-- name: largest_id
-- All ids are from one counter. A record of its own table has lines under its id; the other tables are asked themselves.
SELECT max(coalesce(taken, 0)) FROM (
    SELECT max(record) AS taken FROM journal UNION ALL SELECT max(id) FROM intent UNION ALL SELECT max(id) FROM client_entry
    UNION ALL SELECT max(id) FROM quota
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
