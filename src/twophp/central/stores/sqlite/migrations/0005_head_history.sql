-- The heads that were signed, each with the note that says so (ADR 47).
CREATE TABLE head_history (
    number  INTEGER PRIMARY KEY,
    size    INTEGER NOT NULL UNIQUE,
    root    BLOB NOT NULL,
    at      INTEGER NOT NULL,
    note    TEXT NOT NULL
) STRICT;
CREATE INDEX head_history_by_time ON head_history (at);
