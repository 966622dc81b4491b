-- Sealed parts: kept with their records, opened with them, sealed anew by a rotation.

-- name: keep_seal
INSERT INTO seal VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET sealed = excluded.sealed;

-- name: destroy_seal
DELETE FROM seal WHERE record = ? AND part = ?;

-- name: destroy_seals
DELETE FROM seal WHERE record = ?;

-- name: seal_of_intent
SELECT coalesce(iif(?3 = 'payload', payload, response), (SELECT sealed FROM seal WHERE record = id AND part = ?3))
FROM intent WHERE client_hash = twophp_hash(?1) AND client_correlation_id = ?1 AND server_correlation_id = ?2;

-- name: seal_of_obligation
SELECT sealed FROM obligation CROSS JOIN seal ON seal.record = obligation.id AND part = ?2 WHERE obligation_id = ?1;

-- name: seal_of_job
SELECT sealed FROM job CROSS JOIN seal ON seal.record = job.id AND part = ?2 WHERE job_id = ?1;

-- name: seal_of_call
SELECT sealed FROM call CROSS JOIN seal ON seal.record = call.id AND part = ?2 WHERE client_correlation_id = ?1;

-- name: any_seal
SELECT EXISTS (SELECT 1 FROM sealed_part);

-- name: any_separate_seal
SELECT EXISTS (SELECT 1 FROM seal);

-- name: any_old_seal
SELECT EXISTS (SELECT 1 FROM old_seal);

-- name: newest_seals
-- From the end of both tables that hold them.
SELECT record, part, sealed, subject, principal, client_correlation_id, server_correlation_id, method, path FROM (
    SELECT * FROM (SELECT * FROM seal_of_record ORDER BY record DESC LIMIT 16)
    UNION ALL SELECT * FROM (SELECT * FROM seal_of_row ORDER BY record DESC LIMIT 32)
) ORDER BY record DESC LIMIT 16;

-- name: all_seals
SELECT * FROM seal_of_record UNION ALL SELECT * FROM seal_of_row;

-- name: count_seals
SELECT count(*) FROM sealed_part;

-- name: count_seals_of_others
-- How many sealed parts do not begin with this header.
SELECT count(*) FROM sealed_part WHERE substr(sealed, 1, length(?1)) <> ?1;

-- name: last_sealed_record
SELECT max(coalesce((SELECT max(record) FROM seal), 0), coalesce((SELECT max(id) FROM intent), 0));

-- name: seal_headers
SELECT substr(sealed, 1, 257) FROM sealed_part;

-- name: seals_of_others
-- A page over all tables: rows behind the first ``limit`` of them are on a later page.
SELECT * FROM (
    SELECT * FROM (SELECT * FROM seal_of_record
        WHERE (record, part) > (?1, ?2) AND record <= ?3 AND substr(sealed, 1, length(?4)) <> ?4
        ORDER BY record, part LIMIT ?5)
    UNION ALL
    SELECT * FROM (SELECT * FROM seal_of_row
        WHERE record >= ?1 AND (record, part) > (?1, ?2) AND record <= ?3 AND substr(sealed, 1, length(?4)) <> ?4
        ORDER BY record, part LIMIT ?5)
) ORDER BY record, part LIMIT ?5;

-- name: reseal
-- Only over the very bytes that were opened: a part that was replaced since then is newer.
UPDATE seal SET sealed = ?1 WHERE record = ?2 AND part = ?3 AND sealed = ?4;

-- name: reseal_payload
UPDATE intent SET payload = ?1 WHERE id = ?2 AND ?3 = 'payload' AND payload = ?4;

-- name: reseal_response
UPDATE intent SET response = ?1 WHERE id = ?2 AND ?3 = 'response' AND response = ?4;
