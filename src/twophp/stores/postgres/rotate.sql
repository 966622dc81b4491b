-- Sealed parts, wherever they lie, with what each is bound to.

-- name: sealed_after
-- A page of the parts that do not begin with this header, by record and part.
SELECT * FROM (
    (SELECT seal.record, seal.part, seal.sealed, coalesce(o.obligation_id, j.job_id, c.client_correlation_id) AS subject,
        '' AS principal, '' AS client, '' AS server, '' AS method, '' AS path
    FROM twophp.seal LEFT JOIN twophp.obligation AS o ON o.id = seal.record LEFT JOIN twophp.job AS j ON j.id = seal.record
    LEFT JOIN twophp.call AS c ON c.id = seal.record
    WHERE (seal.record, seal.part) > ($1::bigint, $2::text) AND substring(seal.sealed FOR length($3::bytea)) <> $3::bytea
    ORDER BY seal.record, seal.part LIMIT $4)
    UNION ALL
    (SELECT id, 'payload', payload, NULL, principal, client_correlation_id, server_correlation_id, method, path
    FROM twophp.intent WHERE id >= $1::bigint AND (id, 'payload') > ($1::bigint, $2::text) AND substring(payload FOR length($3::bytea)) <> $3::bytea
    ORDER BY id LIMIT $4)
    UNION ALL
    (SELECT id, 'response', response, NULL, principal, client_correlation_id, server_correlation_id, method, path
    FROM twophp.intent WHERE id >= $1::bigint AND (id, 'response') > ($1::bigint, $2::text) AND substring(response FOR length($3::bytea)) <> $3::bytea
    ORDER BY id LIMIT $4)
) AS found ORDER BY record, part LIMIT $4;

-- name: count_sealed_by_others
SELECT (SELECT count(*) FROM twophp.seal WHERE substring(sealed FOR length($1::bytea)) <> $1::bytea)
    + (SELECT count(*) FROM twophp.intent WHERE substring(payload FOR length($1::bytea)) <> $1::bytea)
    + (SELECT count(*) FROM twophp.intent WHERE substring(response FOR length($1::bytea)) <> $1::bytea);

-- name: lock_sealed
-- As a batch does: one kind after the other, in the order of ids. Whoever holds a record holds its parts.
SELECT id FROM twophp.{table} WHERE id = ANY($1::bigint[]) ORDER BY id FOR UPDATE;

-- name: reseal
-- Only over the very bytes that were opened: a part that was replaced meanwhile is newer.
WITH n (record, part, old, new) AS (SELECT * FROM unnest($1::bigint[], $2::text[], $3::bytea[], $4::bytea[])),
apart AS (
    UPDATE twophp.seal AS t SET sealed = n.new FROM n WHERE t.record = n.record AND t.part = n.part AND t.sealed = n.old
)
UPDATE twophp.intent AS t SET
    payload = CASE WHEN t.payload = p.old THEN p.new ELSE t.payload END,
    response = CASE WHEN t.response = r.old THEN r.new ELSE t.response END
FROM (SELECT DISTINCT record FROM n) AS one
LEFT JOIN n AS p ON p.record = one.record AND p.part = 'payload'
LEFT JOIN n AS r ON r.record = one.record AND r.part = 'response'
WHERE t.id = one.record;
