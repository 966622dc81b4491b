-- Obligations as a product of their own: budgets, fencing tokens, and two more kinds of work for the outbox.

-- Whether it takes up a place in its flow's budget while it is Reserved: what was not counted is not subtracted either.
ALTER TABLE obligation ADD COLUMN counted INTEGER NOT NULL DEFAULT 0;
-- After a crash somebody has to find what an intent's handler had reserved.
CREATE INDEX obligation_of_intent ON obligation (intent) WHERE state = 'Reserved' AND intent <> '';

-- How many obligations of a flow are Reserved and counted; no row where none is.
CREATE TABLE budget (
    id        INTEGER PRIMARY KEY,
    flow      TEXT    NOT NULL UNIQUE,
    reserved  INTEGER NOT NULL CHECK (reserved > 0),
    version   INTEGER NOT NULL CHECK (version > 0)
) STRICT;

-- The newest token of each resource. A row is never deleted: tokens must rise for ever.
CREATE TABLE fence (
    id             INTEGER PRIMARY KEY,
    resource       TEXT    NOT NULL UNIQUE,
    token          INTEGER NOT NULL CHECK (token > 0),
    obligation_id  TEXT    NOT NULL,
    version        INTEGER NOT NULL CHECK (version > 0)
) STRICT;
CREATE TRIGGER fence_never_goes_back BEFORE UPDATE ON fence WHEN new.token <= old.token
BEGIN
    SELECT raise(ABORT, 'a fencing token only rises');
END;
CREATE TRIGGER fence_is_never_forgotten BEFORE DELETE ON fence
BEGIN
    SELECT raise(ABORT, 'a fencing token only rises');
END;

-- A check cannot be altered, so the table is made anew.
CREATE TABLE job_with_effects (
    id          INTEGER PRIMARY KEY,
    job_id      TEXT    NOT NULL UNIQUE,
    work        TEXT    NOT NULL CHECK (work = 'callback' OR work = 'hook' OR work = 'effect' OR work = 'release'),
    subject     TEXT    NOT NULL,
    name        TEXT    NOT NULL,
    created_at  INTEGER NOT NULL,
    state       TEXT    NOT NULL CHECK (
        state = 'PENDING' OR state = 'RUNNING' OR state = 'DELIVERED' OR state = 'DEAD'),
    version     INTEGER NOT NULL CHECK (version > 0),
    attempts    INTEGER NOT NULL CHECK (attempts >= 0),
    due_at      INTEGER,
    last_error  TEXT    NOT NULL
) STRICT;
INSERT INTO job_with_effects SELECT * FROM job;
DROP TABLE job;
ALTER TABLE job_with_effects RENAME TO job;
CREATE INDEX job_due ON job (due_at) WHERE due_at IS NOT NULL;
