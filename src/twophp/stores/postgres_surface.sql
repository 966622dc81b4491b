-- Probing a table in PostgreSQL. Names in braces are inserted quoted; every value comes as text and is cast.

-- name: find
SELECT class.oid, class.relpersistence::text, class.relkind::text, class.relispartition,
    pg_get_userbyid(class.relowner) AS owner, current_user::text AS me
FROM pg_class AS class WHERE class.oid = to_regclass($1);

-- name: all_tables
SELECT format('%I.%I', schemaname, tablename) AS name FROM pg_tables
WHERE schemaname NOT IN ('pg_catalog', 'information_schema') ORDER BY 1;

-- name: columns
SELECT attname AS name, format_type(atttypid, atttypmod) AS type, attnotnull AS not_null,
    (atthasdef OR attidentity <> '' OR attgenerated <> '') AS gives_itself, attgenerated <> '' AS generated
FROM pg_attribute WHERE attrelid = $1 AND attnum > 0 AND NOT attisdropped ORDER BY attnum;

-- name: uniques
-- Those that hold for every row and at once: neither partial nor deferred, and over plain columns.
SELECT array_agg(attribute.attname::text ORDER BY position.number) AS names FROM pg_index AS index
CROSS JOIN unnest(index.indkey::smallint[]) WITH ORDINALITY AS position (attnum, number)
JOIN pg_attribute AS attribute ON attribute.attrelid = index.indrelid AND attribute.attnum = position.attnum
WHERE index.indrelid = $1 AND index.indisunique AND index.indisvalid AND index.indimmediate
    AND index.indpred IS NULL AND index.indexprs IS NULL AND position.number <= index.indnkeyatts
GROUP BY index.indexrelid;

-- name: checks
SELECT coalesce(string_agg(pg_get_constraintdef(oid), E'\n'), '') FROM pg_constraint WHERE conrelid = $1 AND contype = 'c';

-- name: writers
-- The roles that may insert, beside the owner and the current one.
SELECT DISTINCT CASE WHEN acl.grantee = 0 THEN 'PUBLIC' ELSE pg_get_userbyid(acl.grantee)::text END AS name
FROM pg_class AS class CROSS JOIN aclexplode(coalesce(class.relacl, acldefault('r', class.relowner))) AS acl
WHERE class.oid = $1 AND acl.privilege_type = 'INSERT' AND acl.grantee <> class.relowner
    AND acl.grantee <> (SELECT oid FROM pg_roles WHERE rolname = current_user);

-- name: durability
SELECT name, setting FROM pg_settings WHERE name IN ('fsync', 'synchronous_commit', 'full_page_writes') AND setting = 'off';

-- name: insert
INSERT INTO {table} ({columns}) VALUES ({values})

-- name: insert_ignore
INSERT INTO {table} ({columns}) VALUES ({values}) ON CONFLICT DO NOTHING

-- name: insert_replace
INSERT INTO {table} ({columns}) VALUES ({values}) ON CONFLICT ({key}) DO UPDATE SET {key} = excluded.{key}

-- name: update
UPDATE {table} SET {column} = {value} WHERE {where}

-- name: delete
DELETE FROM {table} WHERE {where}

-- name: truncate
TRUNCATE {table}

-- name: read
SELECT {columns} FROM {table} WHERE {where}

-- name: make_stranger
CREATE ROLE twophp_probe_stranger NOLOGIN

-- name: become_stranger
SET LOCAL ROLE twophp_probe_stranger

-- name: be_yourself
RESET ROLE

-- name: do_not_wait
SET LOCAL lock_timeout = '250ms'

-- name: take_turns
SELECT pg_advisory_xact_lock(hashtextextended('twophp:probe:' || $1, 0))

-- name: be_registrar
-- What the guards of our own tables ask for. Other tables do not know it.
SET LOCAL twophp_ledger.registrar = 'on'

-- name: guard_against_truncate
-- The first enabled trigger that is asked before the table is emptied.
SELECT tgname FROM pg_trigger
WHERE tgrelid = to_regclass($1) AND tgtype & 34 = 34 AND tgenabled IN ('O', 'A') ORDER BY tgname LIMIT 1
