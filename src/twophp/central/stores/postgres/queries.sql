-- Every statement of the central ledger on PostgreSQL, by name. LATERAL with OFFSET 0 keeps the planner to a look-up
-- for each row of a recursion: it guesses how many there are, and would at times read the whole table instead.

-- Opening. ------------------------------------------------------------------------------------------------------------

-- name: durability
SELECT current_setting('fsync'), current_setting('full_page_writes'), current_setting('synchronous_commit');

-- name: lock_schema
SELECT pg_advisory_xact_lock(hashtextextended('twophp:central:' || current_schema(), 0));

-- name: make_schema_version
CREATE TABLE IF NOT EXISTS twophp_central_schema (number integer NOT NULL);

-- name: schema_version
SELECT coalesce(max(number), 0) FROM twophp_central_schema;

-- name: note_schema_version
INSERT INTO twophp_central_schema VALUES ($1);

-- name: survey
SET LOCAL work_mem = '32MB';
SET LOCAL hash_mem_multiplier = 2;
SET LOCAL plan_cache_mode = auto;
SET LOCAL enable_seqscan = on;

-- Taking rows up. -----------------------------------------------------------------------------------------------------

-- name: lock_head
-- One batch at a time: leaves have an order.
SELECT size FROM head FOR UPDATE;

-- name: look_ahead
-- Whether any of these rows is known, and the tiles that the next leaf continues.
SELECT is_known, level, number, hashes FROM (
    SELECT EXISTS (
        SELECT 1 FROM unnest($2::text[], $3::text[], $4::text[]) AS wanted (client_id, server_id, actor)
        CROSS JOIN LATERAL (
            SELECT 1 FROM entry
            WHERE client_correlation_id = wanted.client_id AND server_correlation_id = wanted.server_id
            AND actor = wanted.actor AND service_ledger_id = $1 OFFSET 0
        ) AS found
    ) AS is_known
) AS probe LEFT JOIN (
    SELECT tile.* FROM unnest($5::integer[], $6::bigint[]) AS wanted (level, number) JOIN tile USING (level, number)
) AS edge ON true;

-- name: known_entries
SELECT found.* FROM unnest($2::text[], $3::text[], $4::text[]) AS wanted (client_id, server_id, actor)
CROSS JOIN LATERAL (
    SELECT * FROM entry
    WHERE client_correlation_id = wanted.client_id AND server_correlation_id = wanted.server_id
    AND actor = wanted.actor AND service_ledger_id = $1 OFFSET 0
) AS found;

-- name: delete_entries
DELETE FROM entry WHERE sequence = ANY ($1::bigint[]);

-- name: keep_past
INSERT INTO past SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::bytea[]);

-- name: conclude
WITH kept AS (
    INSERT INTO tile SELECT * FROM unnest($1::integer[], $2::bigint[], $3::bytea[])
    ON CONFLICT (level, number) DO UPDATE SET hashes = excluded.hashes
),
grown AS (UPDATE head SET size = $4, at = greatest(at, $5) WHERE size < $4)
UPDATE service SET last_sync_at = greatest(last_sync_at, $5), rows = rows + $6 WHERE service_ledger_id = $7;

-- The Merkle tree. ----------------------------------------------------------------------------------------------------

-- name: tiles
SELECT level, number, hashes FROM unnest($1::integer[], $2::bigint[]) AS wanted (level, number)
JOIN tile USING (level, number);

-- Questions about rows. -----------------------------------------------------------------------------------------------

-- name: with_correlation_id
sequence IN (SELECT sequence FROM entry WHERE client_correlation_id = ?
             UNION ALL SELECT sequence FROM entry WHERE server_correlation_id = ?)

-- name: with_phases
phase = ANY (?::text[])

-- name: open_only
(outcome IS NULL OR outcome = 'TTL_EXPIRED')

-- name: indeterminate_only
indeterminate

-- name: tree
WITH RECURSIVE
member (id) AS (
    SELECT $1::text COLLATE "C" UNION SELECT client_correlation_id FROM entry WHERE server_correlation_id = $1
),
above (id) AS (
    SELECT id FROM member
    UNION
    SELECT own.parent_reference_id FROM above CROSS JOIN LATERAL (
        SELECT parent_reference_id FROM entry WHERE client_correlation_id = above.id AND actor = 'client' OFFSET 0
    ) AS own
),
called (id) AS (
    SELECT id FROM (SELECT id FROM above LIMIT $2) AS ancestor
    UNION
    SELECT child.client_correlation_id FROM called CROSS JOIN LATERAL (
        SELECT client_correlation_id FROM entry
        WHERE parent_reference_id = called.id AND actor = 'client' AND parent_reference_id <> client_correlation_id
        OFFSET 0
    ) AS child
)
SELECT found.* FROM (SELECT id FROM called LIMIT $2) AS member CROSS JOIN LATERAL (
    SELECT * FROM entry WHERE client_correlation_id = member.id OFFSET 0
) AS found LIMIT $2;

-- name: of_pairs
SELECT found.* FROM (SELECT DISTINCT * FROM unnest($1::text[], $2::text[])) AS wanted (client_id, server_id)
CROSS JOIN LATERAL (
    SELECT * FROM entry WHERE client_correlation_id = client_id AND server_correlation_id = server_id OFFSET 0
) AS found;

-- name: sla
WITH called AS (
    SELECT to_char(to_timestamp(phase_1_timestamp / 1000) AT TIME ZONE 'UTC', 'YYYY-MM-DD') AS day, service_endpoint,
        phase, indeterminate, mode, phase_2_timestamp, phase_2_timestamp - phase_1_timestamp AS confirm_ms,
        CASE WHEN (phase = 'COMMITTED' OR phase = 'FAILED') AND NOT indeterminate
            THEN settled_at - phase_2_timestamp END AS settle_ms
    FROM entry WHERE phase_1_timestamp >= $1 AND phase_1_timestamp < $2 AND actor = 'server'
)
SELECT day, service_endpoint, count(*),
    count(*) FILTER (WHERE phase = 'COMMITTED'), count(*) FILTER (WHERE phase = 'FAILED' AND NOT indeterminate),
    count(*) FILTER (WHERE indeterminate),
    count(*) FILTER (WHERE phase = 'TTL_EXPIRED'), count(*) FILTER (WHERE phase = 'ABANDONED'),
    count(*) FILTER (WHERE phase = 'WAITING_CONFIRM' OR phase = 'PROCESSING'),
    (avg((phase_2_timestamp IS NOT NULL)::integer) FILTER (
        WHERE (mode = 'standard' OR mode = 'async') AND phase <> 'WAITING_CONFIRM'))::float8,
    percentile_disc(0.5) WITHIN GROUP (ORDER BY confirm_ms), percentile_disc(0.95) WITHIN GROUP (ORDER BY confirm_ms),
    percentile_disc(0.99) WITHIN GROUP (ORDER BY confirm_ms),
    percentile_disc(0.5) WITHIN GROUP (ORDER BY settle_ms), percentile_disc(0.95) WITHIN GROUP (ORDER BY settle_ms),
    percentile_disc(0.99) WITHIN GROUP (ORDER BY settle_ms)
FROM called GROUP BY day, service_endpoint ORDER BY day, service_endpoint;

-- name: activity
WITH called AS (
    SELECT phase_1_timestamp / $3::bigint * $3::bigint AS step, phase, indeterminate,
        phase_2_timestamp - phase_1_timestamp AS confirm_ms,
        CASE WHEN (phase = 'COMMITTED' OR phase = 'FAILED') AND NOT indeterminate
            THEN settled_at - phase_2_timestamp END AS settle_ms
    FROM entry WHERE phase_1_timestamp >= $1 AND phase_1_timestamp < $2 AND actor = 'server'
)
SELECT step,
    count(*) FILTER (WHERE phase = 'COMMITTED'), count(*) FILTER (WHERE phase = 'FAILED' AND NOT indeterminate),
    count(*) FILTER (WHERE indeterminate),
    count(*) FILTER (WHERE phase = 'TTL_EXPIRED'), count(*) FILTER (WHERE phase = 'ABANDONED'),
    count(*) FILTER (WHERE phase = 'WAITING_CONFIRM' OR phase = 'PROCESSING'),
    percentile_disc(0.5) WITHIN GROUP (ORDER BY confirm_ms), percentile_disc(0.95) WITHIN GROUP (ORDER BY confirm_ms),
    percentile_disc(0.99) WITHIN GROUP (ORDER BY confirm_ms),
    percentile_disc(0.5) WITHIN GROUP (ORDER BY settle_ms), percentile_disc(0.95) WITHIN GROUP (ORDER BY settle_ms),
    percentile_disc(0.99) WITHIN GROUP (ORDER BY settle_ms)
FROM called GROUP BY step ORDER BY step;

-- Services, tokens, the access log. -----------------------------------------------------------------------------------

-- name: lock_services
-- One registration at a time: two that claim the same id must not both have it.
SELECT pg_advisory_xact_lock(hashtextextended('twophp:central-services:' || current_schema(), 0));
