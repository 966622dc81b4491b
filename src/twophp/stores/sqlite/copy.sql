-- Copying a whole ledger out of a file (`twophp store copy`).

-- name: has_old_journal
SELECT EXISTS (SELECT 1 FROM old_journal);

-- name: count_rows_to_copy
SELECT count(*) FROM {table};

-- name: count_seals_to_copy
SELECT count(*) FROM seal WHERE NOT EXISTS (SELECT 1 FROM intent WHERE intent.id = seal.record);

-- name: rows_to_copy
SELECT {columns} FROM {table} WHERE id > ? ORDER BY id LIMIT ?;

-- name: part_of_intent
coalesce({part}, (SELECT sealed FROM seal WHERE seal.record = intent.id AND seal.part = '{part}')) AS {part};

-- name: seals_to_copy
-- Both parts of a record come together; those of an intent come with its row.
SELECT record, part, sealed FROM seal WHERE record IN (
    SELECT DISTINCT record FROM seal WHERE record > ? AND NOT EXISTS (SELECT 1 FROM intent WHERE intent.id = seal.record)
    ORDER BY record LIMIT ?) ORDER BY record, part;

-- name: settings_to_copy
SELECT name, value FROM meta ORDER BY name;

-- name: links_to_copy
SELECT id, at, next_id, lines FROM link WHERE id > ? ORDER BY id LIMIT ?;
