-- Every statement of the central ledger on SQLite, by name. CROSS JOIN keeps the planner from turning a loop around:
-- it does not know how few rows a recursion has, and would read the whole table instead. A plus before a column keeps it
-- from making an index of its own for the occasion.
--
-- Rows that name an id are found by its spot (migrations/0002): ``spot_of`` makes the lowest number that such a row's spot
-- can be; 34359738367 is 2**35 - 1, as much as is added to it.

-- name: begin
BEGIN IMMEDIATE;

-- name: begin_reading
BEGIN;

-- name: commit
COMMIT;

-- name: rollback
ROLLBACK;

-- name: cache
-- 128 MiB: random ids touch pages all over their indexes.
PRAGMA cache_size = -131072;

-- name: prove_durable
UPDATE head SET opened = opened + 1;

-- Taking rows up. -----------------------------------------------------------------------------------------------------

-- name: write_head
UPDATE head SET size = ?, at = max(at, ?);

-- name: known_spots
-- The numbers of the rows that may name one of these ids: none, of most batches.
SELECT spot & 34359738367 FROM carray(?1) CROSS JOIN recent_spot ON spot BETWEEN value AND value + 34359738367
UNION ALL
SELECT spot & 34359738367 FROM carray(?1) CROSS JOIN spot ON spot BETWEEN value AND value + 34359738367;

-- name: known_entries
SELECT entry.* FROM carray(?2) CROSS JOIN entry ON sequence = value AND +service_ledger_id = ?1;

-- name: insert_entry
INSERT INTO entry VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: keep_past
INSERT INTO past VALUES (?, ?, ?);

-- name: insert_spots
-- Two ids of a row may have one spot.
INSERT OR IGNORE INTO spot SELECT value FROM carray(?);

-- name: insert_recent_spots
INSERT OR IGNORE INTO recent_spot SELECT value FROM carray(?);

-- name: move_spots
INSERT INTO spot SELECT spot FROM recent_spot ORDER BY spot;

-- name: forget_recent_spots
DELETE FROM recent_spot;

-- name: delete_entries
DELETE FROM entry WHERE sequence IN (SELECT value FROM carray(?));

-- name: delete_recent_spots
DELETE FROM recent_spot WHERE spot IN (SELECT value FROM carray(?));

-- name: delete_spots
DELETE FROM spot WHERE spot IN (SELECT value FROM carray(?));

-- name: note_sync
UPDATE service SET last_sync_at = max(coalesce(last_sync_at, 0), ?), rows = rows + ? WHERE service_ledger_id = ?;

-- The Merkle tree. ----------------------------------------------------------------------------------------------------

-- name: keep_tile
INSERT INTO tile VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET hashes = excluded.hashes;

-- name: tiles
SELECT level, number, hashes FROM json_each(?) AS wanted CROSS JOIN tile
ON level = wanted.value ->> 0 AND number = wanted.value ->> 1;

-- Questions about rows. -----------------------------------------------------------------------------------------------

-- name: with_correlation_id
sequence IN (SELECT spot & 34359738367 FROM any_spot WHERE spot BETWEEN spot_of(?) AND spot_of(?) + 34359738367)
AND ? IN (client_correlation_id, server_correlation_id)

-- name: with_phases
phase IN (SELECT value FROM json_each(?))

-- name: open_only
sequence IN (SELECT sequence FROM entry INDEXED BY entry_open WHERE outcome IS NULL OR outcome = 'TTL_EXPIRED')

-- name: indeterminate_only
sequence IN (SELECT sequence FROM entry INDEXED BY entry_indeterminate WHERE indeterminate = 1)

-- name: tree
-- From a member's client id up to the root, and from there down; each id with its spot.
WITH RECURSIVE
member (id) AS (
    SELECT ?1
    UNION
    SELECT client_correlation_id FROM entry
    WHERE sequence IN (
        SELECT spot & 34359738367 FROM any_spot WHERE spot BETWEEN spot_of(?1) AND spot_of(?1) + 34359738367
    )
    AND +server_correlation_id = ?1
),
above (id, low) AS (
    SELECT id, spot_of(id) FROM member
    UNION
    SELECT parent_reference_id, spot_of(parent_reference_id) FROM above CROSS JOIN entry
    ON sequence IN (SELECT spot & 34359738367 FROM any_spot WHERE spot BETWEEN low AND low + 34359738367)
    AND +client_correlation_id = id AND +actor = 'client'
    LIMIT ?2
),
called (id, low) AS (
    SELECT id, low FROM above
    UNION
    SELECT client_correlation_id, spot_of(client_correlation_id) FROM called CROSS JOIN entry
    ON sequence IN (SELECT spot & 34359738367 FROM any_spot WHERE spot BETWEEN low AND low + 34359738367)
    AND +parent_reference_id = id AND +actor = 'client'
    LIMIT ?2
)
SELECT entry.* FROM called CROSS JOIN entry
ON sequence IN (SELECT spot & 34359738367 FROM any_spot WHERE spot BETWEEN low AND low + 34359738367)
AND +client_correlation_id = id
LIMIT ?2;

-- name: of_pairs
SELECT entry.* FROM (
    SELECT DISTINCT spot_of(value ->> 0) AS low, value ->> 0 AS client_id, value ->> 1 AS server_id FROM json_each(?)
) AS wanted CROSS JOIN entry
ON sequence IN (SELECT spot & 34359738367 FROM any_spot WHERE spot BETWEEN low AND low + 34359738367)
AND +client_correlation_id = client_id AND +server_correlation_id = server_id;

-- name: sla
-- A percentile is the smallest value that so large a share of the values does not exceed. Both times are ranked among
-- those of their day and endpoint; where there is none, it counts for nothing. What is indeterminate is counted apart:
-- it is no ordinary failure, and how long it took to find that out says nothing of the handler.
WITH called AS (
    SELECT date(phase_1_timestamp / 1000, 'unixepoch') AS day, service_endpoint, phase, indeterminate, mode,
        phase_2_timestamp,
        phase_2_timestamp - phase_1_timestamp AS confirm_ms,
        CASE WHEN (phase = 'COMMITTED' OR phase = 'FAILED') AND indeterminate = 0
            THEN settled_at - phase_2_timestamp END AS settle_ms
    FROM entry WHERE phase_1_timestamp >= ?1 AND phase_1_timestamp < ?2 AND actor = 'server'
),
ranked AS (
    SELECT *,
        cume_dist() OVER (PARTITION BY day, service_endpoint, confirm_ms IS NULL ORDER BY confirm_ms) AS confirm_rank,
        cume_dist() OVER (PARTITION BY day, service_endpoint, settle_ms IS NULL ORDER BY settle_ms) AS settle_rank
    FROM called
)
SELECT day, service_endpoint, count(*),
    count(*) FILTER (WHERE phase = 'COMMITTED'), count(*) FILTER (WHERE phase = 'FAILED' AND indeterminate = 0),
    count(*) FILTER (WHERE indeterminate = 1),
    count(*) FILTER (WHERE phase = 'TTL_EXPIRED'), count(*) FILTER (WHERE phase = 'ABANDONED'),
    count(*) FILTER (WHERE phase = 'WAITING_CONFIRM' OR phase = 'PROCESSING'),
    avg(phase_2_timestamp IS NOT NULL) FILTER (
        WHERE (mode = 'standard' OR mode = 'async') AND phase <> 'WAITING_CONFIRM'),
    min(confirm_ms) FILTER (WHERE confirm_rank >= 0.5), min(confirm_ms) FILTER (WHERE confirm_rank >= 0.95),
    min(confirm_ms) FILTER (WHERE confirm_rank >= 0.99),
    min(settle_ms) FILTER (WHERE settle_rank >= 0.5), min(settle_ms) FILTER (WHERE settle_rank >= 0.95),
    min(settle_ms) FILTER (WHERE settle_rank >= 0.99)
FROM ranked GROUP BY day, service_endpoint ORDER BY day, service_endpoint;

-- name: activity
WITH called AS (
    SELECT phase_1_timestamp / ?3 * ?3 AS step, phase, indeterminate,
        phase_2_timestamp - phase_1_timestamp AS confirm_ms,
        CASE WHEN (phase = 'COMMITTED' OR phase = 'FAILED') AND indeterminate = 0
            THEN settled_at - phase_2_timestamp END AS settle_ms
    FROM entry WHERE phase_1_timestamp >= ?1 AND phase_1_timestamp < ?2 AND actor = 'server'
),
ranked AS (
    SELECT *,
        cume_dist() OVER (PARTITION BY step, confirm_ms IS NULL ORDER BY confirm_ms) AS confirm_rank,
        cume_dist() OVER (PARTITION BY step, settle_ms IS NULL ORDER BY settle_ms) AS settle_rank
    FROM called
)
SELECT step,
    count(*) FILTER (WHERE phase = 'COMMITTED'), count(*) FILTER (WHERE phase = 'FAILED' AND indeterminate = 0),
    count(*) FILTER (WHERE indeterminate = 1),
    count(*) FILTER (WHERE phase = 'TTL_EXPIRED'), count(*) FILTER (WHERE phase = 'ABANDONED'),
    count(*) FILTER (WHERE phase = 'WAITING_CONFIRM' OR phase = 'PROCESSING'),
    min(confirm_ms) FILTER (WHERE confirm_rank >= 0.5), min(confirm_ms) FILTER (WHERE confirm_rank >= 0.95),
    min(confirm_ms) FILTER (WHERE confirm_rank >= 0.99),
    min(settle_ms) FILTER (WHERE settle_rank >= 0.5), min(settle_ms) FILTER (WHERE settle_rank >= 0.95),
    min(settle_ms) FILTER (WHERE settle_rank >= 0.99)
FROM ranked GROUP BY step ORDER BY step;

-- Services. -----------------------------------------------------------------------------------------------------------

-- name: lock_services
-- A transaction that writes is alone from its beginning.
SELECT one FROM head;
