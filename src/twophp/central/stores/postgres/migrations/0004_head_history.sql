-- The heads that were signed, each with the note that says so (ADR 47).
CREATE TABLE head_history (
    number  bigint PRIMARY KEY,
    size    bigint NOT NULL UNIQUE,
    root    bytea NOT NULL,
    at      bigint NOT NULL,
    note    text NOT NULL
);
CREATE INDEX head_history_by_time ON head_history (at);
