-- Copying a whole ledger into an empty one (`twophp store copy`).

-- name: take_your_time
-- Nothing is held here but a snapshot.
SET LOCAL idle_in_transaction_session_timeout = 0;

-- name: copied_columns
SELECT attname::text AS name, format_type(atttypid, NULL) = 'boolean' AS is_boolean FROM pg_attribute
WHERE attrelid = to_regclass($1) AND attnum > 0 AND NOT attisdropped ORDER BY attnum;

-- name: copied_rows
SELECT {columns} FROM twophp.{table} AS t WHERE t.{key} > $1 ORDER BY t.{key} LIMIT $2;

-- name: copied_seals
-- Both parts of a record come together.
SELECT record, part, sealed FROM twophp.seal WHERE record IN (
    SELECT DISTINCT record FROM twophp.seal WHERE record > $1 ORDER BY record LIMIT $2) ORDER BY record, part;

-- name: joined_line
-- The number among all lines of the newest line about a record.
(SELECT j.first + t.last_line - j.link FROM twophp.joined AS j WHERE j.link <= t.last_line ORDER BY j.link DESC LIMIT 1);

-- name: joined_so_far
SELECT lines, hash FROM twophp.joined_head;

-- name: joined_lines
SELECT said.line, (SELECT j.first + said.line - j.link FROM twophp.joined AS j WHERE j.link <= said.line
    ORDER BY j.link DESC LIMIT 1) AS number FROM unnest($1::bigint[]) AS said (line);

-- name: count_rows
SELECT count(*) FROM twophp.{table};

-- name: holds_anything
SELECT EXISTS (SELECT 1 FROM twophp.link) OR EXISTS (SELECT 1 FROM twophp.intent) OR EXISTS (SELECT 1 FROM twophp.meta)
    OR EXISTS (SELECT 1 FROM twophp.quota) OR EXISTS (SELECT 1 FROM twophp.registrar_nonce);

-- name: unfinished_copy
SELECT value FROM twophp.meta WHERE name = 'unfinished_copy';

-- name: mark_copy
INSERT INTO twophp.meta VALUES ('unfinished_copy', $1) ON CONFLICT (name) DO UPDATE SET value = excluded.value;

-- name: end_copy
DELETE FROM twophp.meta WHERE name = 'unfinished_copy';

-- name: writer_so_far
SELECT id, seq, link, lines, hash FROM twophp.writer WHERE id = $1 AND NOT is_closed;

-- name: move_on_ids
-- Ids and times go on from where they were.
SELECT setval('twophp.record_id', greatest($1, nextval('twophp.record_id')));

-- name: all_meta
SELECT name, value FROM twophp.meta WHERE name <> 'unfinished_copy' ORDER BY name;
