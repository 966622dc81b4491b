-- Heads of the journal, for whoever notes them elsewhere.

-- name: newest_head
SELECT id + count - 1, hash FROM link ORDER BY id DESC LIMIT 1;

-- name: hash_of_line
-- Of a line that ends a link, as the newest does whenever somebody notes it.
SELECT hash FROM link WHERE id <= ?1 AND id + count - 1 = ?1 ORDER BY id DESC LIMIT 1;
