-- Taking over what schema 12 kept in several tables: ids from ?1 to ?2, see ``widening``.

-- name: last_id_to_widen
SELECT max(coalesce((SELECT max(id) FROM old_intent), 0), coalesce((SELECT max(id) FROM old_entry), 0),
    coalesce((SELECT max(record) FROM old_seal), 0));

-- name: widened_so_far
SELECT position FROM widening;

-- name: note_widened
UPDATE widening SET position = ?;

-- name: widen_intents
-- With its ledger row, if it has one, and its sealed parts. A large part stays apart.
INSERT INTO intent SELECT
    i.id, i.client_correlation_id, i.server_correlation_id, i.principal, i.replay_key, i.callback, i.client_id_is_proxy,
    i.mode, i.service_endpoint, i.path, i.method, i.received_at, i.ttl_ms, i.delta_ms, i.counted_bytes, i.phase, i.version,
    i.confirmed_at, i.settled_at, i.status, i.resource_id, i.owner, i.lease_until, i.fence, i.has_payload,
    i.transaction_reference, i.due_at, i.request_digest, i.indeterminate,
    min(coalesce(e.version, 0), i.version), e.sync_timestamp, 0, twophp_hash(i.client_correlation_id),
    twophp_who(i.principal), 0,
    (SELECT sealed FROM old_seal WHERE record = i.id AND part = 'payload' AND length(sealed) <= 1500),
    (SELECT sealed FROM old_seal WHERE record = i.id AND part = 'response' AND length(sealed) <= 1500)
FROM old_intent AS i LEFT JOIN old_entry AS e ON e.id = i.id AND e.actor = 'server'
WHERE i.id > ?1 AND i.id <= ?2;

-- name: widen_forgotten
-- The ledger row of an intent that was forgotten: nothing else is left of it.
INSERT INTO intent SELECT
    e.id, e.client_correlation_id, e.server_correlation_id, '', '', '', e.client_id_is_proxy, e.mode, e.service_endpoint,
    '', '', e.phase_1_timestamp, e.ttl_ms, 0, NULL, e.phase, e.version, e.phase_2_timestamp, e.settled_at, NULL, NULL, NULL,
    NULL, 0, e.payload_ref IS NOT NULL, e.transaction_reference, NULL, e.request_digest, e.indeterminate, e.version,
    e.sync_timestamp, 0, twophp_hash(e.client_correlation_id), NULL, 1, NULL, NULL
FROM old_entry AS e
WHERE e.id > ?1 AND e.id <= ?2 AND e.actor = 'server' AND NOT EXISTS (SELECT 1 FROM old_intent WHERE id = e.id)
AND NOT EXISTS (SELECT 1 FROM obligation WHERE id = e.id);

-- name: widen_client_entries
INSERT INTO client_entry SELECT e.*, 0 FROM old_entry AS e
WHERE e.id > ?1 AND e.id <= ?2
AND (e.actor = 'client' OR EXISTS (SELECT 1 FROM obligation WHERE id = e.id));

-- name: widen_seals
INSERT INTO seal SELECT record, part, sealed FROM old_seal
WHERE record > ?1 AND record <= ?2
AND (length(sealed) > 1500 OR NOT EXISTS (SELECT 1 FROM old_intent WHERE id = record));

-- name: colliding_intents
SELECT client_hash, who FROM intent WHERE who IS NOT NULL GROUP BY 1, 2 HAVING count(*) > 1;

-- name: places_taken
SELECT who FROM intent WHERE client_hash = ? AND who IS NOT NULL;

-- name: intents_at_place
SELECT id FROM intent WHERE client_hash = ? AND who = ? ORDER BY id;

-- name: move_intent
UPDATE intent SET who = ? WHERE id = ?;
