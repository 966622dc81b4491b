-- What both databases understand. A numbered question mark is a parameter by its place; the conditions, and the statements
-- they stand in, have plain ones, which are numbered when they are put together.

-- name: ready
SELECT one FROM head;

-- name: read_head
SELECT size, at FROM head;

-- The Merkle tree, and what stands for its leaves. ---------------------------------------------------------------------

-- name: read_kept_from
SELECT kept_from FROM head;

-- name: newest_leaves
SELECT * FROM entry WHERE sequence >= ?1 AND sequence < ?2 ORDER BY sequence LIMIT ?3;

-- name: past_leaves
SELECT sequence, superseded_by, leaf FROM past WHERE sequence >= ?1 AND sequence < ?2 ORDER BY sequence LIMIT ?3;

-- name: version_in
-- Of the versions that this one superseded, one after the other, the newest in a tree of so many leaves.
WITH RECURSIVE before (sequence) AS (
    SELECT sequence FROM past WHERE superseded_by = ?1
    UNION ALL SELECT past.sequence FROM before CROSS JOIN past WHERE past.superseded_by = before.sequence
)
SELECT past.sequence, superseded_by, leaf FROM before JOIN past ON past.sequence = before.sequence
WHERE past.sequence <= ?2 ORDER BY past.sequence DESC LIMIT 1;

-- name: latest_head
SELECT number, size, root, at, note FROM head_history ORDER BY number DESC LIMIT 1;

-- name: keep_head
INSERT INTO head_history VALUES (?1, ?2, ?3, ?4, ?5) ON CONFLICT DO NOTHING;

-- name: head_at
SELECT number, size, root, at, note FROM head_history WHERE at <= ?1 ORDER BY at DESC, number DESC LIMIT 1;

-- name: heads_before
SELECT number, size, root, at, note FROM head_history WHERE number < ?1 ORDER BY number DESC LIMIT ?2;

-- Alarms. -------------------------------------------------------------------------------------------------------------

-- name: raise_alarm
INSERT INTO alarm (at, code, service_ledger_id, client_correlation_id, server_correlation_id, detail)
VALUES (?1, ?2, ?3, ?4, ?5, ?6) ON CONFLICT DO NOTHING;

-- name: alarms
SELECT * FROM alarm ORDER BY alarm_id DESC LIMIT ?1;

-- Questions about rows. -----------------------------------------------------------------------------------------------

-- name: entries
SELECT * FROM entry WHERE {conditions} ORDER BY sequence DESC LIMIT ?;

-- name: exported
SELECT * FROM entry WHERE {conditions} ORDER BY sequence;

-- name: anything
sequence > 0

-- name: nothing
sequence < 0

-- name: before
sequence < ?

-- name: with_service_ledger_id
service_ledger_id = ?

-- name: with_source
source = ?

-- name: with_target
target = ?

-- name: with_service_endpoint
service_endpoint = ?

-- name: initiated_by
source = ? AND actor = 'client'

-- name: with_actor
actor = ?

-- name: determinate_only
NOT indeterminate

-- name: since
phase_1_timestamp >= ?

-- name: until
phase_1_timestamp < ?

-- name: after
SELECT * FROM entry WHERE sequence > ?1 ORDER BY sequence LIMIT ?2;

-- Services, tokens, the access log. -----------------------------------------------------------------------------------

-- name: its_service
-- Which one a credential has registered; of a new one, what it claims if that is of the service's own name.
SELECT * FROM service WHERE service_ledger_id = coalesce(
    (SELECT service_ledger_id FROM credential WHERE token_id = ?1),
    (SELECT service_ledger_id FROM service WHERE service_ledger_id = ?2 AND name = ?3)
);

-- name: service
SELECT * FROM service WHERE service_ledger_id = ?1;

-- name: services
SELECT * FROM service ORDER BY name, service_ledger_id;

-- name: add_service
INSERT INTO service VALUES (?1, ?2, ?3, NULL, 0, ?4);

-- name: update_service
UPDATE service SET name = ?1, pull_url = coalesce(?2, pull_url) WHERE service_ledger_id = ?3;

-- name: add_credential
INSERT INTO credential VALUES (?1, ?2)
ON CONFLICT (token_id) DO UPDATE SET service_ledger_id = excluded.service_ledger_id;

-- name: add_token
INSERT INTO token VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8);

-- name: token_by_hash
SELECT token_id, name, roles, created_at, service_ledger_id, expires_at, revoked_at, last_used_at
FROM token LEFT JOIN credential USING (token_id) WHERE secret_hash = ?1;

-- name: tokens
SELECT token_id, name, roles, created_at, service_ledger_id, expires_at, revoked_at, last_used_at
FROM token LEFT JOIN credential USING (token_id) ORDER BY created_at DESC, token_id;

-- name: token_used
UPDATE token SET last_used_at = ?1 WHERE token_id = ?2 AND coalesce(last_used_at, 0) < ?1;

-- name: revoke_token
UPDATE token SET revoked_at = coalesce(revoked_at, ?1) WHERE token_id = ?2 RETURNING token_id;

-- name: log_access
INSERT INTO access (at, who, role, method, path, status) VALUES (?1, ?2, ?3, ?4, ?5, ?6);

-- name: accesses
SELECT at, who, role, method, path, status FROM access ORDER BY id DESC LIMIT ?1;
