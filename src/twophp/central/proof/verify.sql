-- What a verification has seen so far: a file, so that its memory does not grow with the ledger, and it can go on after an
-- interruption. Nothing in it is worth a sync: what is lost is verified again.

-- name: make
PRAGMA journal_mode = WAL;
PRAGMA synchronous = OFF;
CREATE TABLE IF NOT EXISTS progress (
    one         INTEGER PRIMARY KEY CHECK (one = 1),
    about       BLOB    NOT NULL,   -- the ledger and the heads that were noted of it: others begin anew
    place       INTEGER NOT NULL,   -- how many leaves were looked at
    edge        BLOB    NOT NULL,   -- what their tree goes on from
    roots       BLOB    NOT NULL,   -- of the noted heads, as the leaves have them
    without_row INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS seen (
    row_key        BLOB    NOT NULL,
    sequence       INTEGER NOT NULL,
    superseded_by  INTEGER NOT NULL,   -- 0: served as the newest; -1: by nothing that is said
    size           INTEGER NOT NULL    -- how many leaves there were when it was looked at
);
CREATE TABLE IF NOT EXISTS finding (what TEXT NOT NULL, sequence INTEGER, message TEXT NOT NULL);

-- name: progress
SELECT about, place, edge, roots, without_row FROM progress;

-- name: keep_progress
INSERT OR REPLACE INTO progress VALUES (1, ?, ?, ?, ?, ?);

-- name: forget_seen
DELETE FROM seen WHERE sequence > ?;

-- name: forget_findings
DELETE FROM finding WHERE sequence > ? OR sequence IS NULL;

-- name: keep_seen
INSERT INTO seen VALUES (?, ?, ?, ?);

-- name: keep_finding
INSERT INTO finding VALUES (?, ?, ?);

-- name: findings
SELECT what, sequence, message FROM finding ORDER BY sequence IS NULL, sequence LIMIT ?;

-- name: count_findings
SELECT count(*) FROM finding;

-- name: count_seen
SELECT count(*), coalesce(sum(superseded_by <> 0), 0) FROM seen;

-- name: out_of_order
-- Leaves of one row follow each other: each but the last says which one supersedes it, and the last is what is served. One
-- that was looked at before its successor arrived was served rightly. What stands in a leaf with a finding is said there.
SELECT sequence, superseded_by, next FROM (
    SELECT *, lead(sequence) OVER (PARTITION BY row_key ORDER BY sequence) AS next FROM seen
)
WHERE (superseded_by = 0 AND next <= size)
OR (superseded_by <> 0 AND superseded_by IS NOT next
    AND superseded_by NOT IN (SELECT sequence FROM finding WHERE sequence IS NOT NULL))
ORDER BY sequence;
