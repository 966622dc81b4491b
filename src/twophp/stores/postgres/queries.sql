-- The statements that are not made from a record's description, by name. `twophp` stands for the ledger's schema.

-- Control. ------------------------------------------------------------------------------------------------------------

-- name: begin
-- Whatever somebody has made the default of the role, of the database or of a pooler's session. What is stricter stays.
BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE;
SELECT set_config('synchronous_commit', 'on', true)
WHERE current_setting('synchronous_commit') IN ('off', 'local', 'remote_write');

-- name: begin_pooled
BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE;
SELECT set_config('synchronous_commit', 'on', true)
WHERE current_setting('synchronous_commit') IN ('off', 'local', 'remote_write');
SET LOCAL idle_in_transaction_session_timeout = '10s';
SET LOCAL lock_timeout = '20s';
SET LOCAL jit = off;
SET LOCAL enable_seqscan = off;
SET LOCAL enable_hashjoin = off;
SET LOCAL enable_mergejoin = off;

-- name: commit
COMMIT;

-- name: rollback
ROLLBACK;

-- name: begin_trial
SAVEPOINT trial;

-- name: undo_trial
ROLLBACK TO SAVEPOINT trial;

-- name: backend
SELECT pg_backend_pid();

-- name: nothing
SELECT 1;

-- Made from a record's description, for sets of rows: one array for each column. ---------------------------------------

-- name: insert_rows
INSERT INTO twophp.{table} ({columns}) SELECT * FROM unnest({arrays});

-- name: update_rows
UPDATE twophp.{table} AS t SET {sets} FROM unnest({arrays}) AS n ({columns}) WHERE {guard};

-- name: delete_rows
DELETE FROM twophp.{table} WHERE id = ANY($1::bigint[]);

-- name: find_rows
SELECT {columns} FROM twophp.{table} AS t WHERE {where};

-- name: find_rows_by_several
SELECT {columns} FROM unnest({arrays}) AS w ({names}) JOIN twophp.{table} AS t ON {where};

-- name: lock_rows
-- In the order of ids, whoever asks: nobody holds a row that another waits for and waits for the other's.
{find} ORDER BY t.id FOR UPDATE OF t;

-- name: share_rows
-- Of a row that many read and few change: readers do not wait for each other.
{find} ORDER BY t.id FOR SHARE OF t;

-- name: lock_usage
-- With what is to be subtracted from each count, which is deleted once its count is locked; so nobody waits for that.
WITH locked AS MATERIALIZED ({find} ORDER BY t.id FOR UPDATE OF t),
gone AS (
    DELETE FROM twophp.released WHERE principal IN (SELECT locked.principal FROM locked) RETURNING principal, bytes
), less AS (
    SELECT principal, count(*) AS intents, sum(bytes)::bigint AS bytes FROM gone GROUP BY principal
)
SELECT id, principal, greatest(open_intents - coalesce(less.intents, 0), 0),
    greatest(open_bytes - coalesce(less.bytes, 0), 0), version, less.intents IS NOT NULL
FROM locked LEFT JOIN less USING (principal);

-- name: release
INSERT INTO twophp.released (principal, bytes) SELECT * FROM unnest($1::text[], $2::bigint[]);

-- name: together
-- How many rows each part has changed, and which transaction it was.
WITH {parts} SELECT {counts}, txid_current();

-- name: transaction
SELECT txid_current();

-- Opening. ------------------------------------------------------------------------------------------------------------

-- name: about_server
SELECT current_setting('fsync'), current_setting('full_page_writes'), current_setting('synchronous_commit'),
    current_setting('transaction_read_only'), pg_backend_pid();

-- name: about_ledger
SELECT current_setting('server_version'), current_setting('synchronous_standby_names'),
    floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint, coalesce(max(at), 0) FROM twophp.writer;

-- name: hash_of_line
-- Of a line that ends a link, as the newest does whenever somebody notes it.
SELECT hash FROM twophp.joined WHERE first <= $1 AND first + count - 1 = $1 ORDER BY first DESC LIMIT 1;

-- name: make_schema
CREATE SCHEMA {schema};

-- name: try_lock_schema
SELECT pg_try_advisory_xact_lock(hashtextextended('twophp:ledger:twophp.', 0));

-- name: lock_schema
SELECT pg_advisory_xact_lock(hashtextextended('twophp:ledger:twophp.', 0));

-- name: has_schema
SELECT count(*) FROM pg_catalog.pg_namespace WHERE nspname = $1;

-- name: has_version
SELECT to_regclass('twophp.schema_version') IS NOT NULL;

-- name: make_version
CREATE TABLE twophp.schema_version (number bigint NOT NULL);

-- name: read_version
SELECT coalesce(max(number), 0) FROM twophp.schema_version;

-- name: note_version
INSERT INTO twophp.schema_version VALUES ($1);

-- name: begin_writer
-- Under the lock, so that each names the one before it.
INSERT INTO twophp.writer (id, name, seq, link, lines, hash, at, is_closed, previous, joined)
SELECT nextval('twophp.writer_id'), $1, 0, 0, 0,
    sha256(convert_to(last.id || ' ' || head.lines || ' ', 'UTF8') || head.hash), last.at, false, last.id, head.lines
FROM twophp.joined_head AS head
CROSS JOIN (SELECT coalesce(max(id), 0) AS id, coalesce(max(at), 0) AS at FROM twophp.writer) AS last
RETURNING id, hash, at;

-- name: close_writers
-- Waits for every batch that is under way. Handles of an older version write no more.
UPDATE twophp.writer SET is_closed = true WHERE NOT is_closed;

-- name: close_writer
-- Waits for a batch of this writer that is still under way; one that comes later finds it closed.
UPDATE twophp.writer SET is_closed = true WHERE id = $1;

-- name: lock_timeout
SET LOCAL lock_timeout = '10s';

-- name: be_patient
SET LOCAL lock_timeout = '1h';

-- A batch. ------------------------------------------------------------------------------------------------------------

-- name: clock_and_ids
SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint,
    ARRAY(SELECT nextval('twophp.record_id') FROM generate_series(1, $1::bigint));

-- name: append_link
INSERT INTO twophp.link
SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[], $7::bytea[],
    $8::bytea[]);

-- name: move_writer
UPDATE twophp.writer AS t SET seq = n.seq, link = n.link, lines = n.lines, hash = n.hash, at = n.at
FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bytea[], $7::bigint[])
    AS n (id, before, seq, link, lines, hash, at)
WHERE t.id = n.id AND t.seq = n.before AND NOT t.is_closed;

-- name: keep_meta
INSERT INTO twophp.meta SELECT * FROM unnest($1::text[], $2::text[]) ON CONFLICT DO NOTHING;

-- name: forget_intents
-- They let go of their keys and their sealed parts. Their ledger rows stay.
UPDATE twophp.intent SET forgotten = true, owner = NULL, lease_until = NULL, due_at = NULL, payload = NULL, response = NULL
WHERE id = ANY($1::bigint[]);

-- name: delete_intents
-- What was never in the ledger leaves no row.
DELETE FROM twophp.intent WHERE id = ANY($1::bigint[]) AND row_version = 0;

-- name: leave_entries
UPDATE twophp.client_entry AS t SET last_line = n.last_line
FROM unnest($1::bigint[], $2::bigint[]) AS n (id, last_line) WHERE t.id = n.id;

-- name: keep_seals
INSERT INTO twophp.seal SELECT * FROM unnest($1::bigint[], $2::text[], $3::bytea[])
ON CONFLICT (record, part) DO UPDATE SET sealed = excluded.sealed;

-- name: destroy_seals
DELETE FROM twophp.seal USING unnest($1::bigint[], $2::text[]) AS n (record, part)
WHERE seal.record = n.record AND seal.part = n.part;

-- name: destroy_all_seals
DELETE FROM twophp.seal WHERE record = ANY($1::bigint[]);

-- name: mark_carried
-- A row that another batch holds is passed over, for these were not locked in the order of a batch: it is sent again.
UPDATE twophp.client_entry AS t SET sync_timestamp = one.at FROM (
    SELECT row.id, n.at
    FROM unnest($1::bigint[], $2::text[], $3::text[], $4::text[], $5::bigint[]) AS n (at, client, server, actor, version)
    JOIN twophp.client_entry AS row ON row.client_correlation_id = n.client AND row.server_correlation_id = n.server
    AND row.actor = n.actor AND row.version = n.version
    FOR UPDATE OF row SKIP LOCKED
) AS one WHERE t.id = one.id;

-- name: mark_server
UPDATE twophp.intent AS t SET sync_timestamp = one.at FROM (
    SELECT row.id, n.at
    FROM unnest($1::bigint[], $2::text[], $3::text[], $4::text[], $5::bigint[]) AS n (at, client, server, actor, version)
    JOIN twophp.intent AS row ON row.client_correlation_id = n.client AND row.server_correlation_id = n.server
    AND n.actor = 'server' AND row.row_version = n.version
    FOR UPDATE OF row SKIP LOCKED
) AS one WHERE t.id = one.id;

-- name: purge_entry
-- Looked at once more: nobody may have changed it, or brought its record back. What is held is purged another time.
DELETE FROM twophp.client_entry WHERE id = ANY(ARRAY(
    SELECT t.id FROM twophp.client_entry AS t
    WHERE client_correlation_id = $1 AND server_correlation_id = $2 AND actor = $3 AND version = $4 AND sync_timestamp = $5
    AND NOT EXISTS (SELECT 1 FROM twophp.call WHERE call.id = t.id)
    AND NOT EXISTS (SELECT 1 FROM twophp.obligation WHERE obligation.id = t.id)
    FOR UPDATE OF t SKIP LOCKED
)) RETURNING id, last_line;

-- name: purge_forgotten
DELETE FROM twophp.intent WHERE id = ANY(ARRAY(
    SELECT id FROM twophp.intent
    WHERE client_correlation_id = $1 AND server_correlation_id = $2 AND $3::text = 'server'
    AND row_version = $4 AND sync_timestamp = $5 AND forgotten
    FOR UPDATE SKIP LOCKED
)) RETURNING id, last_line;

-- name: tell
SELECT pg_notify($1, $2);

-- A transaction of the application's own (ADR 44). ---------------------------------------------------------------------

-- name: lent_target
SELECT current_setting('transaction_read_only'), to_regclass('twophp.writer') IS NOT NULL;

-- name: lent_writer
SELECT count(*) FROM twophp.writer WHERE id = $1 AND name = $2;

-- name: lent_privileges
SELECT concat_ws(', ', string_agg(p || ' on ' || t, ', '),
    CASE WHEN NOT has_sequence_privilege('twophp.record_id', 'USAGE') THEN 'USAGE on record_id' END) FROM (VALUES
    ('intent', 'SELECT'), ('intent', 'UPDATE'),
    ('obligation', 'SELECT'), ('obligation', 'INSERT'), ('obligation', 'UPDATE'),
    ('job', 'SELECT'), ('job', 'INSERT'), ('job', 'UPDATE'),
    ('seal', 'SELECT'), ('seal', 'INSERT'), ('seal', 'UPDATE'), ('seal', 'DELETE'),
    ('budget', 'SELECT'), ('budget', 'INSERT'), ('budget', 'UPDATE'), ('budget', 'DELETE'),
    ('released', 'INSERT'), ('link', 'INSERT'), ('writer', 'SELECT'), ('writer', 'UPDATE')
) AS needed (t, p) WHERE NOT has_table_privilege('twophp.' || t, p);

-- name: lent_begin
-- Its number tells whether it is still the same when the intent is settled in it.
SELECT txid_current();

-- name: lent_settle
-- The first look of a settlement, in one trip: whose transaction it is, and from here to its end the settings of our own
-- sessions, for the application's statements are over.
WITH here AS MATERIALIZED (
    SELECT txid_current(), current_setting('transaction_deferrable') = 'on', set_config('lock_timeout', '20s', true),
        set_config('idle_in_transaction_session_timeout', '10s', true), set_config('jit', 'off', true),
        set_config('enable_seqscan', 'off', true), set_config('enable_hashjoin', 'off', true),
        set_config('enable_mergejoin', 'off', true), set_config('plan_cache_mode', 'force_generic_plan', true),
        CASE WHEN current_setting('synchronous_commit') IN ('off', 'local', 'remote_write')
            THEN set_config('synchronous_commit', 'on', true) END
), found AS MATERIALIZED ({find}) SELECT here.*, found.* FROM here LEFT JOIN found ON true;

-- Questions. ----------------------------------------------------------------------------------------------------------

-- name: read_meta
SELECT value FROM twophp.meta WHERE name = $1;

-- name: replace_meta
INSERT INTO twophp.meta VALUES ($1, $2) ON CONFLICT (name) DO UPDATE SET value = excluded.value;

-- name: last_entry
SELECT coalesce(max(id), 0) FROM twophp.client_entry;

-- name: restamp_entries
UPDATE twophp.client_entry SET service_ledger_id = $1 WHERE id IN (
    SELECT id FROM twophp.client_entry WHERE service_ledger_id <> $1 ORDER BY id LIMIT $2);

-- name: intents_due
SELECT client_correlation_id, server_correlation_id FROM twophp.intent
WHERE due_at < $1 ORDER BY due_at LIMIT $2 FOR KEY SHARE SKIP LOCKED;

-- name: obligations_due
SELECT obligation_id FROM twophp.obligation WHERE due_at < $1 ORDER BY due_at LIMIT $2 FOR KEY SHARE SKIP LOCKED;

-- name: jobs_due
SELECT job_id FROM twophp.job WHERE due_at < $1 ORDER BY due_at LIMIT $2 FOR KEY SHARE SKIP LOCKED;

-- name: calls_due
SELECT client_correlation_id FROM twophp.call WHERE due_at < $1 ORDER BY due_at LIMIT $2 FOR KEY SHARE SKIP LOCKED;

-- name: seal_of_intent
SELECT CASE $3::text WHEN 'payload' THEN payload ELSE response END FROM twophp.intent
WHERE client_correlation_id = $1 AND server_correlation_id = $2 AND NOT forgotten;

-- name: seal_of_obligation
SELECT sealed FROM twophp.seal JOIN twophp.obligation AS t ON t.id = record WHERE t.obligation_id = $1 AND part = $2;

-- name: seal_of_job
SELECT sealed FROM twophp.seal JOIN twophp.job AS t ON t.id = record WHERE t.job_id = $1 AND part = $2;

-- name: seal_of_call
SELECT sealed FROM twophp.seal JOIN twophp.call AS t ON t.id = record WHERE t.client_correlation_id = $1 AND part = $2;

-- name: last_line_of_intent
SELECT id, last_line FROM twophp.intent
WHERE client_correlation_id = $1 AND server_correlation_id = $2 AND NOT forgotten;

-- name: last_line_of_obligation
SELECT id, last_line FROM twophp.obligation WHERE obligation_id = $1;

-- name: last_line_of_job
SELECT id, last_line FROM twophp.job WHERE job_id = $1;

-- name: last_line_of_call
SELECT id, last_line FROM twophp.call WHERE client_correlation_id = $1;

-- name: entries_unsynced
-- What was registered first goes first; a row that changed after it was sent is among them again.
SELECT * FROM (
    (SELECT row.* FROM twophp.server_entry AS row WHERE row.sync_timestamp IS NULL ORDER BY row.id LIMIT $1)
    UNION ALL
    (SELECT row.* FROM twophp.client_row AS row WHERE row.sync_timestamp IS NULL ORDER BY row.id LIMIT $1)
) AS found ORDER BY id LIMIT $1;

-- name: entries_outlived
SELECT * FROM (
    (SELECT row.* FROM twophp.intent JOIN twophp.server_entry AS row USING (id)
        WHERE intent.forgotten AND intent.sync_timestamp < $1 ORDER BY intent.sync_timestamp LIMIT $2)
    UNION ALL
    (SELECT row.* FROM twophp.client_row AS row WHERE row.sync_timestamp < $1
        AND NOT EXISTS (SELECT 1 FROM twophp.call WHERE call.id = row.id)
        AND NOT EXISTS (SELECT 1 FROM twophp.obligation WHERE obligation.id = row.id)
        ORDER BY row.sync_timestamp LIMIT $2)
) AS found ORDER BY sync_timestamp LIMIT $2;

-- name: entries_of_tree
WITH RECURSIVE called (client_id) AS (
    SELECT $1::text COLLATE "C"
    UNION
    SELECT child.client_correlation_id FROM called JOIN twophp.client_entry AS child
    ON child.parent_reference_id = called.client_id AND child.actor = 'client'
)
SELECT row.* FROM twophp.entry AS row WHERE row.client_correlation_id IN (SELECT client_id FROM called LIMIT $2)
ORDER BY row.id LIMIT $2;

-- name: entries_initiated
SELECT * FROM twophp.client_row WHERE source = $1 AND actor = 'client' ORDER BY id LIMIT $2;

-- name: entries_stalled
SELECT * FROM (
    SELECT row.* FROM twophp.intent JOIN twophp.server_entry AS row USING (id)
    WHERE intent.phase IN ('WAITING_CONFIRM', 'PROCESSING', 'TTL_EXPIRED')
    AND (intent.phase <> 'PROCESSING' OR intent.lease_until <= $1)
    UNION ALL
    (SELECT row.* FROM twophp.client_row AS row WHERE (outcome IS NULL OR outcome = 'TTL_EXPIRED')
        AND phase <> 'PROCESSING' ORDER BY phase_1_timestamp LIMIT $2)
) AS found ORDER BY phase_1_timestamp, id LIMIT $2;

-- name: entries_found
-- By client id it is a look-up. A server id alone is looked for row by row: no index knows it.
SELECT * FROM twophp.entry WHERE client_correlation_id = $1 OR server_correlation_id = $1 ORDER BY id LIMIT $2;

-- name: entries_of_calls
SELECT * FROM twophp.entry WHERE client_correlation_id = ANY($1::text[]) ORDER BY id LIMIT $2;

-- name: entries_newest
SELECT * FROM (
    (SELECT * FROM twophp.server_entry ORDER BY id DESC LIMIT $1)
    UNION ALL (SELECT * FROM twophp.client_row ORDER BY id DESC LIMIT $1)
) AS found ORDER BY id DESC LIMIT $1;

-- name: obligations_found
-- Newest first: whoever looks wants what happened lately.
SELECT * FROM twophp.obligation
WHERE ($1 = '' OR flow = $1) AND ($2 = '' OR state = $2) AND ($3 = '' OR key = $3) AND ($4 = '' OR intent = $4)
AND ($5 = '' OR trace_id = $5)
AND ($6 = '' OR id < (SELECT earlier.id FROM twophp.obligation AS earlier WHERE earlier.obligation_id = $6))
ORDER BY id DESC LIMIT $7;

-- name: obligations_reserved
-- The same among what is Reserved: those alone are due, and an index knows them.
SELECT * FROM (SELECT * FROM twophp.obligation WHERE due_at IS NOT NULL OFFSET 0) AS obligation
WHERE ($1 = '' OR flow = $1) AND ($2 = '' OR state = $2) AND ($3 = '' OR key = $3) AND ($4 = '' OR intent = $4)
AND ($5 = '' OR trace_id = $5)
AND ($6 = '' OR id < (SELECT earlier.id FROM twophp.obligation AS earlier WHERE earlier.obligation_id = $6))
ORDER BY id DESC LIMIT $7;

-- name: count_reserved
SELECT count(*) FROM twophp.obligation WHERE due_at IS NOT NULL;

-- name: obligations_settled
SELECT obligation_id FROM twophp.obligation WHERE settled_at < $1 ORDER BY settled_at, id LIMIT $2;

-- name: tally_obligations
SELECT flow, state, resolution, count(*) FROM twophp.obligation WHERE reserved_at >= $1
GROUP BY flow, state, resolution ORDER BY flow, state COLLATE "C", resolution COLLATE "C";

-- The journal. --------------------------------------------------------------------------------------------------------

-- name: link_with_line
SELECT link.*, joined.first, joined.hash AS joined_hash FROM twophp.link LEFT JOIN twophp.joined ON joined.link = link.id
WHERE link.id <= $1 ORDER BY link.id DESC LIMIT 1;

-- name: lock_joined
SELECT lines, hash FROM twophp.joined_head FOR UPDATE;

-- name: is_joined
-- Asked of the links themselves: who looks after a writer's row was changed must see them as well.
WITH RECURSIVE of (writer) AS (
    (SELECT id >> 40 FROM twophp.link ORDER BY id LIMIT 1)
    UNION ALL
    SELECT next.writer FROM of CROSS JOIN LATERAL (
        SELECT id >> 40 AS writer FROM twophp.link WHERE id >= (of.writer + 1) << 40 ORDER BY id LIMIT 1) AS next
)
SELECT count(*) = 0 FROM of CROSS JOIN LATERAL (
    SELECT id FROM twophp.link WHERE id < (of.writer + 1) << 40 ORDER BY id DESC LIMIT 1
) AS last WHERE NOT EXISTS (SELECT 1 FROM twophp.joined WHERE joined.link = last.id);

-- name: links_to_join
-- Of each writer that has links what follows its last joined one, in its own order, whatever the time of a link says.
WITH RECURSIVE of (writer) AS (
    (SELECT id >> 40 FROM twophp.link ORDER BY id LIMIT 1)
    UNION ALL
    SELECT next.writer FROM of CROSS JOIN LATERAL (
        SELECT id >> 40 AS writer FROM twophp.link WHERE id >= (of.writer + 1) << 40 ORDER BY id LIMIT 1) AS next
)
SELECT * FROM (
    SELECT link.*, max(link.at) OVER (PARTITION BY of.writer ORDER BY link.id) AS reached
    FROM of CROSS JOIN LATERAL (
        SELECT coalesce(max(joined.link), of.writer << 40) AS link FROM twophp.joined
        WHERE joined.link >= of.writer << 40 AND joined.link < (of.writer + 1) << 40
    ) AS last CROSS JOIN LATERAL (
        SELECT * FROM twophp.link WHERE link.id > last.link AND link.id < (of.writer + 1) << 40 ORDER BY link.id LIMIT $1
    ) AS link
) AS link ORDER BY link.reached, link.id LIMIT $1;

-- name: append_joined
INSERT INTO twophp.joined SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bytea[]);

-- name: move_joined
UPDATE twophp.joined_head SET lines = $1, hash = $2;

-- name: joined_after
SELECT joined.first, joined.hash AS joined_hash, link.* FROM twophp.joined JOIN twophp.link ON link.id = joined.link
WHERE joined.first >= coalesce((SELECT max(first) FROM twophp.joined WHERE first <= $1 + 1), 0)
ORDER BY joined.first LIMIT $2;
