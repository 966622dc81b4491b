-- Sealed parts: kept with their records, opened with them, sealed anew by a rotation.

-- name: keep_seal
INSERT INTO seal VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET sealed = excluded.sealed;

-- name: destroy_seal
DELETE FROM seal WHERE record = ? AND part = ?;

-- name: destroy_seals
DELETE FROM seal WHERE record = ?;

-- name: seal_of_intent
SELECT sealed FROM intent CROSS JOIN seal ON seal.record = intent.id AND part = ?3
WHERE client_correlation_id = ?1 AND server_correlation_id = ?2;

-- name: seal_of_obligation
SELECT sealed FROM obligation CROSS JOIN seal ON seal.record = obligation.id AND part = ?2 WHERE obligation_id = ?1;

-- name: seal_of_job
SELECT sealed FROM job CROSS JOIN seal ON seal.record = job.id AND part = ?2 WHERE job_id = ?1;

-- name: seal_of_call
SELECT sealed FROM call CROSS JOIN seal ON seal.record = call.id AND part = ?2 WHERE client_correlation_id = ?1;

-- name: any_seal
SELECT EXISTS (SELECT 1 FROM seal);

-- name: newest_seals
SELECT seal.record, seal.part, seal.sealed, coalesce(obligation_id, job_id, call.client_correlation_id),
    coalesce(principal, ''), coalesce(intent.client_correlation_id, ''), coalesce(intent.server_correlation_id, ''),
    coalesce(intent.method, ''), coalesce(path, '') FROM seal
LEFT JOIN intent ON intent.id = seal.record LEFT JOIN obligation ON obligation.id = seal.record
LEFT JOIN job ON job.id = seal.record LEFT JOIN call ON call.id = seal.record
ORDER BY seal.record DESC LIMIT 16;

-- name: all_seals
SELECT seal.record, seal.part, seal.sealed, coalesce(obligation_id, job_id, call.client_correlation_id),
    coalesce(principal, ''), coalesce(intent.client_correlation_id, ''), coalesce(intent.server_correlation_id, ''),
    coalesce(intent.method, ''), coalesce(path, '') FROM seal
LEFT JOIN intent ON intent.id = seal.record LEFT JOIN obligation ON obligation.id = seal.record
LEFT JOIN job ON job.id = seal.record LEFT JOIN call ON call.id = seal.record;

-- name: count_seals
SELECT count(*) FROM seal;

-- name: count_seals_of_others
-- How many sealed parts do not begin with this header.
SELECT count(*) FROM seal WHERE substr(sealed, 1, length(?1)) <> ?1;

-- name: last_sealed_record
SELECT coalesce(max(record), 0) FROM seal;

-- name: seal_headers
SELECT substr(sealed, 1, 257) FROM seal;

-- name: seals_of_others
SELECT seal.record, seal.part, seal.sealed, coalesce(obligation_id, job_id, call.client_correlation_id),
    coalesce(principal, ''), coalesce(intent.client_correlation_id, ''), coalesce(intent.server_correlation_id, ''),
    coalesce(intent.method, ''), coalesce(path, '') FROM seal
LEFT JOIN intent ON intent.id = seal.record LEFT JOIN obligation ON obligation.id = seal.record
LEFT JOIN job ON job.id = seal.record LEFT JOIN call ON call.id = seal.record
WHERE (seal.record, seal.part) > (?1, ?2) AND seal.record <= ?3 AND substr(seal.sealed, 1, length(?4)) <> ?4
ORDER BY seal.record, seal.part LIMIT ?5;

-- name: reseal
-- Only over the very bytes that were opened: a part that was replaced meanwhile is newer.
UPDATE seal SET sealed = ?1 WHERE record = ?2 AND part = ?3 AND sealed = ?4;
