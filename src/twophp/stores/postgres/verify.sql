-- What verification asks. Every line goes into a temporary table that ends with the transaction.

-- name: make_told
CREATE TEMPORARY TABLE told (
    line bigint PRIMARY KEY, number bigint NOT NULL, previous bigint NOT NULL, record bigint NOT NULL, kind text NOT NULL,
    subject text NOT NULL, event text NOT NULL, before text NOT NULL, after text NOT NULL, fence bigint NOT NULL,
    detail text NOT NULL, at bigint NOT NULL
) ON COMMIT DROP;

-- name: add_told
INSERT INTO told SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[], $5::text[], $6::text[],
    $7::text[], $8::text[], $9::text[], $10::bigint[], $11::text[], $12::bigint[]) ON CONFLICT DO NOTHING;

-- name: index_told
CREATE INDEX ON told (record, previous);
CREATE INDEX ON told (subject) WHERE after = 'ABSENT';
ANALYZE told;

-- name: writers
SELECT id, seq, link, lines, hash, previous, joined FROM twophp.writer ORDER BY id;

-- name: not_joined
-- Somebody has put them in before a link that had its place already: joining goes on from there.
SELECT id, writer FROM twophp.link WHERE NOT EXISTS (SELECT 1 FROM twophp.joined WHERE joined.link = link.id)
ORDER BY id LIMIT $1;

-- name: count_to_verify
SELECT (SELECT coalesce(sum(count), 0)::bigint FROM twophp.joined) + (SELECT count(*) FROM twophp.intent)
    + (SELECT count(*) FROM twophp.obligation) + (SELECT count(*) FROM twophp.job) + (SELECT count(*) FROM twophp.call)
    + (SELECT count(*) FROM twophp.registrar_consumed) + (SELECT count(*) FROM twophp.registrar_verification)
    + (SELECT count(*) FROM twophp.registrar_compensation) + (SELECT count(*) FROM twophp.registrar_fence)
    + (SELECT count(*) FROM twophp.registrar_gate);

-- name: records_with_last_line
-- A record, the line that it points to, and whether a later line is about it.
SELECT {columns}, told.number AS said_number, told.subject AS said_subject, told.after AS said_after,
    told.fence AS said_fence, told.detail AS said_detail, told.record = t.id AS is_its_own,
    EXISTS (SELECT 1 FROM told AS later WHERE later.record = t.id AND later.previous = t.last_line) AS was_set_back
FROM twophp.{table} AS t LEFT JOIN told ON told.line = t.last_line WHERE t.id > $1 ORDER BY t.id LIMIT $2;

-- name: bound
-- What the lines that registered and settled these intents bind, and which of their sealed parts are there.
SELECT t.id,
    (SELECT detail FROM told WHERE record = t.id AND before = 'ABSENT' LIMIT 1) AS registered,
    (SELECT detail FROM told WHERE record = t.id AND before = 'PROCESSING' AND after IN ('COMMITTED', 'FAILED')
        ORDER BY fence DESC LIMIT 1) AS settled,
    EXISTS (SELECT 1 FROM told WHERE record = t.id AND event = 'payload_purged') AS is_purged,
    payload IS NOT NULL AS has_payload, response IS NOT NULL AS has_response, forgotten, row_version
FROM twophp.intent AS t WHERE id = ANY($1::bigint[]);

-- name: gone
-- Records that lines are about and that are not there, though no line says that they were forgotten or purged.
SELECT DISTINCT ON (told.record) told.number, told.kind, told.subject FROM told
WHERE told.record <> 0 AND told.kind IN ('intent', 'obligation', 'job', 'call')
AND NOT EXISTS (SELECT 1 FROM twophp.intent WHERE intent.id = told.record)
AND NOT EXISTS (SELECT 1 FROM twophp.obligation WHERE obligation.id = told.record)
AND NOT EXISTS (SELECT 1 FROM twophp.job WHERE job.id = told.record)
AND NOT EXISTS (SELECT 1 FROM twophp.call WHERE call.id = told.record)
AND NOT EXISTS (
    SELECT 1 FROM told AS ended WHERE ended.after = 'ABSENT' AND ended.kind = told.kind AND ended.subject = told.subject)
AND NOT EXISTS (SELECT 1 FROM told AS purged WHERE purged.record = told.record AND purged.event = 'purged')
ORDER BY told.record, told.number LIMIT $1;

-- name: all_seals
-- Every sealed part, and the facts of its record that it is bound to.
SELECT id AS record, 'payload' AS part, payload AS sealed, NULL AS subject, principal, client_correlation_id,
    server_correlation_id, method, path FROM twophp.intent WHERE payload IS NOT NULL
UNION ALL
SELECT id, 'response', response, NULL, principal, client_correlation_id, server_correlation_id, method, path
FROM twophp.intent WHERE response IS NOT NULL
UNION ALL
SELECT seal.record, seal.part, seal.sealed, coalesce(obligation_id, job_id, call.client_correlation_id), '', '', '', '', ''
FROM twophp.seal LEFT JOIN twophp.obligation ON obligation.id = seal.record
LEFT JOIN twophp.job ON job.id = seal.record LEFT JOIN twophp.call ON call.id = seal.record;

-- name: count_seals
SELECT (SELECT count(payload) + count(response) FROM twophp.intent) + (SELECT count(*) FROM twophp.seal);
