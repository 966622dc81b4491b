-- The versions that a newer one superseded, each under the number of its leaf, so that every leaf has its bytes (ADR 47).
-- superseded_by grows with the table, so its index is written at its end. Replaced versions of before are lost: their
-- numbers are noted without bytes, which is allowed up to kept_from, so that what is removed from now on still shows.

CREATE TABLE past (
    sequence       INTEGER PRIMARY KEY,
    superseded_by  INTEGER UNIQUE,
    leaf           BLOB                 -- the row as its leaf has it
) STRICT;

ALTER TABLE head ADD COLUMN kept_from INTEGER NOT NULL DEFAULT 0;
UPDATE head SET kept_from = size;

INSERT INTO past (sequence)
WITH RECURSIVE leaf (number) AS (
    SELECT 1 FROM head WHERE size > 0 UNION ALL SELECT number + 1 FROM leaf WHERE number < (SELECT size FROM head)
)
SELECT number FROM leaf WHERE NOT EXISTS (SELECT 1 FROM entry WHERE sequence = number);
