-- The registrar's statements.

-- name: lock_keys
-- Also of keys that are not there yet, in the order of their numbers. Whoever resolves a key and whoever consumes it come one
-- after the other (A-96), though neither finds a row to lock.
SELECT pg_advisory_xact_lock(number) FROM (
    SELECT DISTINCT hashtextextended('twophp.' || key, 0) AS number FROM unnest($1::text[]) AS key ORDER BY number OFFSET 0
) AS numbers;

-- name: is_effect
md5(t.canonical_operation) = md5(w.a) AND md5(t.canonical_target) = md5(w.b)
AND md5(t.deployed_artifact_hash) = md5(w.c) AND md5(t.effect_run_id) = md5(w.d);

-- name: as_registrar
SET LOCAL twophp_ledger.registrar = 'on';

-- The independent reader. ----------------------------------------------------------------------------------------------

-- name: surface_state
-- Changes when a table or a trigger of the surface is altered, a function that a trigger calls, or a grant.
WITH own (oid) AS (SELECT unnest(ARRAY['twophp.registrar_consumed', 'twophp.registrar_audit']::regclass[])::oid)
SELECT hashtextextended(string_agg(part, ' ' ORDER BY part), 0) FROM (
    SELECT 'r' || oid || ' ' || xmin AS part FROM pg_class WHERE oid IN (SELECT oid FROM own)
    UNION ALL SELECT 't' || oid || ' ' || xmin || tgenabled::text FROM pg_trigger WHERE tgrelid IN (SELECT oid FROM own)
    UNION ALL SELECT 'c' || oid || ' ' || xmin FROM pg_constraint WHERE conrelid IN (SELECT oid FROM own)
    UNION ALL SELECT 'a' || attrelid || ' ' || attnum || ' ' || xmin FROM pg_attribute WHERE attrelid IN (SELECT oid FROM own)
    UNION ALL SELECT 'i' || indexrelid || ' ' || xmin FROM pg_index WHERE indrelid IN (SELECT oid FROM own)
    UNION ALL SELECT 'f' || oid || ' ' || xmin FROM pg_proc WHERE oid IN (
        SELECT tgfoid FROM pg_trigger WHERE tgrelid IN (SELECT oid FROM own))
) AS parts;

-- name: look_at_key
SELECT
    NOT EXISTS (SELECT 1 FROM twophp.registrar_consumed WHERE logical_request_key = $1),
    coalesce((SELECT version FROM twophp.registrar_fence WHERE logical_request_key = $1), 0),
    coalesce((SELECT version FROM twophp.registrar_gate), 0);

-- name: readback
-- The inert rows of a key beside what was consumed for them, and who used the nonce.
SELECT consumed.*, inert.replay_key, inert.status, used.logical_request_key FROM twophp.registrar_consumed AS consumed
JOIN twophp.registrar_registration AS inert ON inert.logical_request_key = consumed.logical_request_key
LEFT JOIN twophp.registrar_nonce_use AS used
    ON used.authorization_nonce = consumed.authorization_nonce AND used.used_for = 'registration'
WHERE consumed.logical_request_key = $1;

-- name: readback_of_compensation
SELECT compensation.*, used.logical_request_key,
    (SELECT count(*) FROM twophp.registrar_registration AS inert
     WHERE inert.logical_request_key = compensation.logical_request_key)
FROM twophp.registrar_compensation AS compensation
LEFT JOIN twophp.registrar_nonce_use AS used
    ON used.authorization_nonce = compensation.authorization_nonce AND used.used_for = 'compensation'
WHERE compensation.authorization_nonce = $1;

-- name: unverified_registrations
SELECT logical_request_key FROM twophp.registrar_consumed AS consumed WHERE NOT EXISTS (
    SELECT 1 FROM twophp.registrar_verification AS said
    WHERE said.about = 'registration' AND said.subject = consumed.logical_request_key)
ORDER BY id LIMIT $1;

-- name: unverified_compensations
SELECT logical_request_key, authorization_nonce FROM twophp.registrar_compensation AS compensation WHERE NOT EXISTS (
    SELECT 1 FROM twophp.registrar_verification AS said
    WHERE said.about = 'compensation' AND said.subject = compensation.authorization_nonce)
ORDER BY id LIMIT $1;

-- name: erased_keys
-- What other rows say was consumed, and is not there.
SELECT logical_request_key FROM twophp.registrar_registration
UNION SELECT logical_request_key FROM twophp.registrar_nonce_use
UNION SELECT logical_request_key FROM twophp.registrar_verification
EXCEPT SELECT logical_request_key FROM twophp.registrar_consumed LIMIT $1;

-- name: lines_of_links
SELECT id, lines FROM twophp.link WHERE id > $1 ORDER BY id LIMIT $2;

-- name: erased_of
-- Of these keys and what was meant by each, those that are not there or are not what they were.
SELECT said.key FROM unnest($1::text[], $2::text[]) AS said (key, replay_key) WHERE NOT EXISTS (
    SELECT 1 FROM twophp.registrar_consumed AS consumed
    WHERE consumed.logical_request_key = said.key AND consumed.replay_key = said.replay_key);

-- name: failures_of_key
SELECT * FROM twophp.registrar_audit WHERE logical_request_key = $1 ORDER BY id DESC LIMIT $2;

-- name: failures_newest
SELECT * FROM twophp.registrar_audit ORDER BY id DESC LIMIT $1;

-- name: consumed_of_key
SELECT * FROM twophp.registrar_consumed WHERE logical_request_key = $1;

-- name: verdict_of_key
SELECT * FROM twophp.registrar_verification WHERE about = 'registration' AND subject = $1;

-- name: compensations_of_key
SELECT * FROM twophp.registrar_compensation WHERE logical_request_key = $1 ORDER BY id LIMIT $2;

-- name: gate_now
SELECT * FROM twophp.registrar_gate;

-- Verification: the registrar's rows against the lines about them. -----------------------------------------------------

-- name: registrar_rows_gone
-- Lines whose row is not there. None of these rows may ever go.
SELECT number, subject, event FROM told WHERE kind IN ('registration', 'gate')
AND NOT EXISTS (SELECT 1 FROM twophp.registrar_consumed AS t WHERE t.id = told.record)
AND NOT EXISTS (SELECT 1 FROM twophp.registrar_verification AS t WHERE t.id = told.record)
AND NOT EXISTS (SELECT 1 FROM twophp.registrar_compensation AS t WHERE t.id = told.record)
AND NOT EXISTS (SELECT 1 FROM twophp.registrar_fence AS t WHERE t.id = told.record)
AND NOT EXISTS (SELECT 1 FROM twophp.registrar_gate AS t WHERE t.id = told.record)
ORDER BY number;

-- name: consumed_with_line
-- Each consumed key with the line that registered it and the rows that were written beside it.
SELECT told.number, told.subject, told.detail, told.at,
    inert.replay_key, inert.registered_at, inert.status, used.logical_request_key, used.used_at,
    EXISTS (SELECT 1 FROM twophp.registrar_nonce AS nonce WHERE nonce.authorization_nonce = consumed.authorization_nonce
        AND nonce.owner_or_approval_binding = consumed.owner_or_approval_binding),
    consumed.*
FROM twophp.registrar_consumed AS consumed
LEFT JOIN told ON told.record = consumed.id AND told.kind = 'registration' AND told.event = 'registered'
LEFT JOIN twophp.registrar_registration AS inert ON inert.logical_request_key = consumed.logical_request_key
LEFT JOIN twophp.registrar_nonce_use AS used
    ON used.authorization_nonce = consumed.authorization_nonce AND used.used_for = 'registration'
ORDER BY consumed.id;

-- name: verdicts_with_line
SELECT told.number, told.subject, told.event, told.at,
    verdict.logical_request_key, verdict.about || '_' || lower(verdict.verdict), verdict.verified_at
FROM twophp.registrar_verification AS verdict LEFT JOIN told ON told.record = verdict.id ORDER BY verdict.id;

-- name: compensations_with_line
SELECT told.number, told.subject, told.event, told.at,
    compensation.logical_request_key, 'compensated', compensation.compensated_at
FROM twophp.registrar_compensation AS compensation LEFT JOIN told ON told.record = compensation.id
ORDER BY compensation.id;

-- name: key_fences_with_line
SELECT told.number, told.subject, told.fence, told.at, fence.logical_request_key, fence.version, fence.fenced_at
FROM twophp.registrar_fence AS fence LEFT JOIN LATERAL (
    SELECT * FROM told WHERE told.record = fence.id ORDER BY told.number DESC LIMIT 1) AS told ON true
ORDER BY fence.id;

-- name: gates_with_line
SELECT told.number, told.after, told.detail, told.at,
    CASE WHEN gate.is_open THEN 'OPEN' ELSE 'HOLD' END,
    CASE WHEN gate.authority_ref = '' THEN gate.reason ELSE gate.authority_ref END, gate.changed_at
FROM twophp.registrar_gate AS gate LEFT JOIN LATERAL (
    SELECT * FROM told WHERE told.record = gate.id ORDER BY told.number DESC LIMIT 1) AS told ON true
ORDER BY gate.id;
