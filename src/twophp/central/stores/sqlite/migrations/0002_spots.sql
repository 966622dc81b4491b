-- Where an id is found. Ids are long and random: an index over them would be as large as the table, and a small batch
-- would change a page for every id it names. So an id stands as one number, its spot: the upper 28 bits of its CRC-32,
-- then 35 bits for the number of a row that names it, as client id, server id or parent. Whoever looks for an id finds
-- rows that may name it, and compares. What arrived lately has its spots in a small table, whose few pages all batches
-- share, and is moved to the large one, in order, many at a time.

CREATE TABLE spot (
    spot  INTEGER PRIMARY KEY
) STRICT;
CREATE TABLE recent_spot (
    spot  INTEGER PRIMARY KEY
) STRICT;
CREATE VIEW any_spot AS SELECT spot FROM recent_spot UNION ALL SELECT spot FROM spot;

INSERT INTO spot
SELECT client_hash >> 4 << 35 | sequence FROM entry
UNION SELECT server_hash >> 4 << 35 | sequence FROM entry
UNION SELECT parent_hash >> 4 << 35 | sequence FROM entry WHERE parent_hash IS NOT NULL
ORDER BY 1;

DROP INDEX entry_by_client_id;
DROP INDEX entry_by_server_id;
DROP INDEX entry_children;
ALTER TABLE entry DROP COLUMN client_hash;
ALTER TABLE entry DROP COLUMN server_hash;
ALTER TABLE entry DROP COLUMN parent_hash;
