-- The registrar's statements. The first four are filled in for each table (registrar_tables.py). Rows written once have no
-- update; their delete is what a trigger refuses.

-- name: registrar_read
SELECT {table}.* FROM json_each(?) AS wanted CROSS JOIN {table} ON {key};

-- name: registrar_insert
INSERT INTO {table} VALUES ({values});

-- name: registrar_update
UPDATE {table} SET {settings} WHERE id = ? AND version = ?;

-- name: registrar_delete
DELETE FROM {table} WHERE id = ?;

-- The independent reader. ----------------------------------------------------------------------------------------------

-- name: look_at_key
SELECT
    EXISTS (SELECT 1 FROM registrar_consumed WHERE logical_request_key = ?1),
    coalesce((SELECT version FROM registrar_fence WHERE logical_request_key = ?1), 0),
    coalesce((SELECT version FROM registrar_gate), 0);

-- name: readback
-- The inert rows of a key beside what was consumed for them, and who used the nonce.
SELECT consumed.*, inert.replay_key, inert.status, used.logical_request_key FROM registrar_consumed AS consumed
CROSS JOIN registrar_registration AS inert ON inert.logical_request_key = consumed.logical_request_key
LEFT JOIN registrar_nonce_use AS used
    ON used.authorization_nonce = consumed.authorization_nonce AND used.used_for = 'registration'
WHERE consumed.logical_request_key = ?;

-- name: readback_of_compensation
SELECT compensation.*, used.logical_request_key,
    (SELECT count(*) FROM registrar_registration AS inert
     WHERE inert.logical_request_key = compensation.logical_request_key)
FROM registrar_compensation AS compensation
LEFT JOIN registrar_nonce_use AS used
    ON used.authorization_nonce = compensation.authorization_nonce AND used.used_for = 'compensation'
WHERE compensation.authorization_nonce = ?;

-- name: unverified_registrations
SELECT logical_request_key FROM registrar_consumed AS consumed WHERE NOT EXISTS (
    SELECT 1 FROM registrar_verification WHERE about = 'registration' AND subject = consumed.logical_request_key)
ORDER BY id LIMIT ?;

-- name: unverified_compensations
SELECT logical_request_key, authorization_nonce FROM registrar_compensation AS compensation WHERE NOT EXISTS (
    SELECT 1 FROM registrar_verification WHERE about = 'compensation' AND subject = compensation.authorization_nonce)
ORDER BY id LIMIT ?;

-- name: erased_keys
-- What other rows say was consumed, and is not there.
SELECT logical_request_key FROM registrar_registration UNION SELECT logical_request_key FROM registrar_nonce_use
UNION SELECT logical_request_key FROM registrar_verification
EXCEPT SELECT logical_request_key FROM registrar_consumed LIMIT ?;

-- name: erased_in_journal
-- What history says was consumed, and is not there or is not what it was.
SELECT subject FROM journal WHERE kind = 'registration' AND event = 'registered' AND NOT EXISTS (
    SELECT 1 FROM registrar_consumed WHERE logical_request_key = subject AND replay_key = detail)
LIMIT ?;

-- name: failures_of_key
SELECT * FROM registrar_audit WHERE logical_request_key = ? ORDER BY id DESC LIMIT ?;

-- name: failures_newest
SELECT * FROM registrar_audit ORDER BY id DESC LIMIT ?;

-- name: registrar_consumed_of_key
SELECT * FROM registrar_consumed WHERE logical_request_key = ?;

-- name: registrar_verdict_of_key
SELECT * FROM registrar_verification WHERE about = 'registration' AND subject = ?;

-- name: registrar_compensations_of_key
SELECT * FROM registrar_compensation WHERE logical_request_key = ? ORDER BY id LIMIT ?;

-- name: registrar_gate_now
SELECT * FROM registrar_gate;

-- Verification: the registrar's rows against the journal. --------------------------------------------------------------

-- name: count_registrar_rows
SELECT (SELECT count(*) FROM registrar_consumed) + (SELECT count(*) FROM registrar_verification)
    + (SELECT count(*) FROM registrar_compensation) + (SELECT count(*) FROM registrar_fence)
    + (SELECT count(*) FROM registrar_gate);

-- name: registrar_rows_gone
-- Lines whose row is not there. None of these rows may ever go; ids are unique over all tables.
SELECT seq, subject, event FROM journal WHERE kind IN ('registration', 'gate') AND NOT EXISTS (
    SELECT 1 FROM registrar_consumed WHERE id = journal.record
    UNION ALL SELECT 1 FROM registrar_verification WHERE id = journal.record
    UNION ALL SELECT 1 FROM registrar_compensation WHERE id = journal.record
    UNION ALL SELECT 1 FROM registrar_fence WHERE id = journal.record
    UNION ALL SELECT 1 FROM registrar_gate WHERE id = journal.record)
ORDER BY seq;

-- name: consumed_with_line
-- Each consumed key with the line that registered it and the rows that were written beside it.
SELECT journal.seq, journal.subject, journal.detail, journal.at,
    inert.replay_key, inert.registered_at, inert.status, used.logical_request_key, used.used_at,
    EXISTS (SELECT 1 FROM registrar_nonce WHERE authorization_nonce = consumed.authorization_nonce
        AND owner_or_approval_binding = consumed.owner_or_approval_binding),
    consumed.*
FROM registrar_consumed AS consumed
LEFT JOIN journal ON journal.record = consumed.id AND journal.kind = 'registration' AND journal.event = 'registered'
LEFT JOIN registrar_registration AS inert ON inert.logical_request_key = consumed.logical_request_key
LEFT JOIN registrar_nonce_use AS used
    ON used.authorization_nonce = consumed.authorization_nonce AND used.used_for = 'registration'
ORDER BY consumed.id;

-- name: verdicts_with_line
SELECT journal.seq, journal.subject, journal.event, journal.at,
    verdict.logical_request_key, verdict.about || '_' || lower(verdict.verdict), verdict.verified_at
FROM registrar_verification AS verdict LEFT JOIN journal ON journal.record = verdict.id ORDER BY verdict.id;

-- name: compensations_with_line
SELECT journal.seq, journal.subject, journal.event, journal.at,
    compensation.logical_request_key, 'compensated', compensation.compensated_at
FROM registrar_compensation AS compensation LEFT JOIN journal ON journal.record = compensation.id
ORDER BY compensation.id;

-- name: key_fences_with_line
SELECT journal.seq, journal.subject, journal.fence, journal.at, fence.logical_request_key, fence.version, fence.fenced_at
FROM registrar_fence AS fence
LEFT JOIN journal ON journal.seq = (SELECT max(line.seq) FROM journal AS line WHERE line.record = fence.id)
ORDER BY fence.id;

-- name: gates_with_line
SELECT journal.seq, journal.after, journal.detail, journal.at,
    iif(gate.is_open, 'OPEN', 'HOLD'), iif(gate.authority_ref = '', gate.reason, gate.authority_ref), gate.changed_at
FROM registrar_gate AS gate
LEFT JOIN journal ON journal.seq = (SELECT max(line.seq) FROM journal AS line WHERE line.record = gate.id)
ORDER BY gate.id;
