-- Probing a table. Names in braces are inserted quoted; see surface.py.

-- name: surface_table
SELECT sql FROM sqlite_schema WHERE type = 'table' AND name = ?;

-- name: surface_columns
-- Of generated columns there is nothing to give; a rowid gives itself.
SELECT name, type, "notnull", dflt_value, pk, hidden FROM pragma_table_xinfo(?);

-- name: surface_uniques
SELECT list.name, info.name FROM pragma_index_list(?) AS list CROSS JOIN pragma_index_xinfo(list.name) AS info
WHERE list."unique" AND NOT list.partial AND info.key ORDER BY list.seq, info.seqno;

-- name: surface_triggers
SELECT name, sql FROM sqlite_schema WHERE type = 'trigger' AND sql IS NOT NULL;

-- name: surface_all_tables
SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite\_%' ESCAPE '\' ORDER BY name;

-- name: surface_insert
INSERT INTO {table} ({columns}) VALUES ({values});

-- name: surface_insert_ignore
INSERT INTO {table} ({columns}) VALUES ({values}) ON CONFLICT DO NOTHING;

-- name: surface_insert_replace
INSERT OR REPLACE INTO {table} ({columns}) VALUES ({values});

-- name: surface_update
UPDATE {table} SET {column} = ? WHERE {where};

-- name: surface_delete
DELETE FROM {table} WHERE {where};

-- name: surface_read
SELECT {columns} FROM {table} WHERE {where};
