-- The versions that a newer one superseded, each under the number of its leaf, so that every leaf has its bytes (ADR 47).
-- Replaced versions of before are lost: their numbers are noted without bytes, which is allowed up to kept_from, so that
-- what is removed from now on still shows.

CREATE TABLE past (
    sequence       bigint PRIMARY KEY,
    superseded_by  bigint UNIQUE,
    leaf           bytea                -- the row as its leaf has it
);

ALTER TABLE head ADD COLUMN kept_from bigint NOT NULL DEFAULT 0;
UPDATE head SET kept_from = size;

INSERT INTO past (sequence)
SELECT number FROM generate_series(1, (SELECT size FROM head)) AS number
WHERE NOT EXISTS (SELECT 1 FROM entry WHERE sequence = number);
