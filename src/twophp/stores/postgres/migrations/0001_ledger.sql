-- The ledger store. All of it lies in a schema of its own, beside whatever else the database holds; statements name that
-- schema, so that no session has to be set up for them. Text is kept as `twophp.stores.postgres.text` writes it.

-- Ids of records, in the order in which they are made as far as that is known, and the numbers of the writers.
CREATE SEQUENCE twophp.record_id AS bigint;
CREATE SEQUENCE twophp.writer_id AS bigint;

CREATE TABLE twophp.meta (
    name   text PRIMARY KEY,
    value  text NOT NULL
);

-- The record, its ledger row and its sealed parts (ADR 33). A forgotten intent keeps its row for the ledger until that is
-- purged; it no longer holds its keys.
CREATE TABLE twophp.intent (
    id                     bigint PRIMARY KEY,
    client_correlation_id  text COLLATE "C" NOT NULL,
    server_correlation_id  text COLLATE "C" NOT NULL,
    principal              text COLLATE "C" NOT NULL,
    replay_key             text    NOT NULL,
    callback               text    NOT NULL,
    client_id_is_proxy     boolean NOT NULL,
    mode                   text    NOT NULL,
    service_endpoint       text    NOT NULL,
    path                   text    NOT NULL,
    method                 text    NOT NULL,
    received_at            bigint  NOT NULL,
    ttl_ms                 bigint  NOT NULL CHECK (ttl_ms > 0),
    delta_ms               bigint  NOT NULL CHECK (delta_ms >= 0),
    counted_bytes          bigint,
    phase                  text    NOT NULL CHECK (
        phase IN ('WAITING_CONFIRM', 'PROCESSING', 'COMMITTED', 'FAILED', 'TTL_EXPIRED', 'ABANDONED')),
    version                bigint  NOT NULL CHECK (version > 0),
    confirmed_at           bigint,
    settled_at             bigint,
    status                 bigint,
    resource_id            text,
    owner                  text,
    lease_until            bigint,
    fence                  bigint  NOT NULL,
    has_payload            boolean NOT NULL,
    transaction_reference  text,
    due_at                 bigint,
    request_digest         text,
    indeterminate          boolean NOT NULL,
    last_line              bigint  NOT NULL,   -- the newest line about it, as `link` numbers lines
    row_version            bigint  NOT NULL CHECK (row_version <= version),  -- of its ledger row; 0: it has none
    sync_timestamp         bigint,             -- when the central ledger had this version of the row
    forgotten              boolean NOT NULL,
    payload                bytea,              -- sealed
    response               bytea
);
-- A logical key is used once, whichever replica it comes to. It is found by the client's id alone as well.
CREATE UNIQUE INDEX intent_logical_key ON twophp.intent (client_correlation_id, principal) WHERE NOT forgotten;
CREATE UNIQUE INDEX intent_polled ON twophp.intent (server_correlation_id) WHERE mode = 'async' AND NOT forgotten;
CREATE INDEX intent_due ON twophp.intent (due_at) WHERE due_at IS NOT NULL;
CREATE INDEX intent_open ON twophp.intent (received_at) WHERE phase IN ('WAITING_CONFIRM', 'PROCESSING', 'TTL_EXPIRED');
CREATE INDEX intent_unsynced ON twophp.intent (id) WHERE sync_timestamp IS NULL AND row_version > 0;
CREATE INDEX intent_outlived ON twophp.intent (sync_timestamp) WHERE forgotten;

CREATE TABLE twophp.obligation (
    id             bigint PRIMARY KEY,
    obligation_id  text COLLATE "C" NOT NULL UNIQUE,
    flow           text COLLATE "C" NOT NULL,
    key            text COLLATE "C" NOT NULL,
    trace_id       text    NOT NULL,
    intent         text COLLATE "C" NOT NULL,
    reserved_at    bigint  NOT NULL,
    timeout_ms     bigint  NOT NULL CHECK (timeout_ms > 0),
    state          text    NOT NULL CHECK (state IN ('Reserved', 'Committed', 'RolledBack')),
    version        bigint  NOT NULL CHECK (version > 0),
    settled_at     bigint,
    resolution     text    NOT NULL,
    due_at         bigint,
    counted        boolean NOT NULL,
    last_line      bigint  NOT NULL
);
CREATE UNIQUE INDEX obligation_held ON twophp.obligation (flow, key) WHERE state = 'Reserved' AND key <> '';
CREATE INDEX obligation_due ON twophp.obligation (due_at) WHERE due_at IS NOT NULL;
CREATE INDEX obligation_of_intent ON twophp.obligation (intent) WHERE state = 'Reserved' AND intent <> '';
CREATE INDEX obligation_settled ON twophp.obligation (settled_at, id) WHERE settled_at IS NOT NULL;

CREATE TABLE twophp.job (
    id          bigint PRIMARY KEY,
    job_id      text COLLATE "C" NOT NULL UNIQUE,
    work        text   NOT NULL,
    subject     text   NOT NULL,
    name        text   NOT NULL,
    created_at  bigint NOT NULL,
    state       text   NOT NULL CHECK (state IN ('PENDING', 'RUNNING', 'DELIVERED', 'DEAD')),
    version     bigint NOT NULL CHECK (version > 0),
    attempts    bigint NOT NULL CHECK (attempts >= 0),
    due_at      bigint,
    last_error  text   NOT NULL,
    last_line   bigint NOT NULL
);
CREATE INDEX job_due ON twophp.job (due_at) WHERE due_at IS NOT NULL;

CREATE TABLE twophp.call (
    id                     bigint PRIMARY KEY,
    client_correlation_id  text COLLATE "C" NOT NULL UNIQUE,
    parent_reference_id    text    NOT NULL,
    method                 text    NOT NULL,
    url                    text    NOT NULL,
    meant                  text    NOT NULL,
    target                 text    NOT NULL,
    service_endpoint       text    NOT NULL,
    mode                   text    NOT NULL,
    sent_at                bigint  NOT NULL,
    stage                  text    NOT NULL,
    version                bigint  NOT NULL CHECK (version > 0),
    row_version            bigint  NOT NULL,
    server_correlation_id  text    NOT NULL,
    ttl_ms                 bigint  NOT NULL,
    registered_at          bigint,
    confirm_by             bigint,
    confirmed_at           bigint,
    settled_at             bigint,
    status                 bigint,
    resource_id            text,
    status_url             text    NOT NULL,
    acknowledged_at        bigint,
    answered_at            bigint,
    owner                  text    NOT NULL,
    fence                  bigint  NOT NULL,
    attempts               bigint  NOT NULL,
    last_error             text    NOT NULL,
    due_at                 bigint,
    indeterminate          boolean NOT NULL,
    last_line              bigint  NOT NULL
);
CREATE INDEX call_due ON twophp.call (due_at) WHERE due_at IS NOT NULL;

CREATE TABLE twophp.quota (
    id            bigint PRIMARY KEY,
    principal     text COLLATE "C" NOT NULL UNIQUE,
    open_intents  bigint NOT NULL,
    open_bytes    bigint NOT NULL,
    version       bigint NOT NULL CHECK (version > 0)
) WITH (fillfactor = 50);

CREATE TABLE twophp.budget (
    id        bigint PRIMARY KEY,
    flow      text COLLATE "C" NOT NULL UNIQUE,
    reserved  bigint NOT NULL CHECK (reserved > 0),
    version   bigint NOT NULL CHECK (version > 0)
) WITH (fillfactor = 50);

-- The newest token of each resource. A row is never deleted: tokens must rise for ever.
CREATE TABLE twophp.fence (
    id             bigint PRIMARY KEY,
    resource       text COLLATE "C" NOT NULL UNIQUE,
    token          bigint NOT NULL CHECK (token > 0),
    obligation_id  text   NOT NULL,
    version        bigint NOT NULL CHECK (version > 0)
) WITH (fillfactor = 50);

-- Sealed parts of obligations, jobs and calls.
CREATE TABLE twophp.seal (
    record  bigint NOT NULL,
    part    text   NOT NULL CHECK (part IN ('payload', 'response')),
    sealed  bytea  NOT NULL,
    PRIMARY KEY (record, part)
);

-- The rows that are carried by another record than an intent: the calls that a client made.
CREATE TABLE twophp.client_entry (
    id                     bigint PRIMARY KEY,
    client_correlation_id  text COLLATE "C" NOT NULL,
    server_correlation_id  text COLLATE "C" NOT NULL,
    service_ledger_id      text    NOT NULL,
    service_endpoint       text    NOT NULL,
    actor                  text    NOT NULL CHECK (actor IN ('client', 'server')),
    source                 text    NOT NULL,
    target                 text    CHECK ((actor = 'client') = (target IS NOT NULL)),
    parent_reference_id    text COLLATE "C" NOT NULL CHECK (actor = 'client' OR parent_reference_id = client_correlation_id),
    phase                  text    NOT NULL,
    phase_1_timestamp      bigint  NOT NULL,
    phase_2_timestamp      bigint,
    ttl_ms                 bigint  NOT NULL CHECK (ttl_ms > 0),
    outcome                text    CHECK (outcome IN ('COMMITTED', 'FAILED', 'TTL_EXPIRED', 'ABANDONED')),
    payload_ref            text,
    sync_timestamp         bigint,
    transaction_reference  text,
    version                bigint  NOT NULL CHECK (version > 0),
    mode                   text    NOT NULL,
    client_id_is_proxy     boolean NOT NULL,
    settled_at             bigint,
    request_digest         text,
    indeterminate          boolean NOT NULL,
    last_line              bigint  NOT NULL,   -- the newest line about its record
    UNIQUE (client_correlation_id, server_correlation_id, actor)
);
CREATE INDEX client_entry_open ON twophp.client_entry (phase_1_timestamp) WHERE outcome IS NULL OR outcome = 'TTL_EXPIRED';
CREATE INDEX client_entry_children ON twophp.client_entry (parent_reference_id) WHERE actor = 'client';
CREATE INDEX client_entry_synced ON twophp.client_entry (sync_timestamp) WHERE sync_timestamp IS NOT NULL;
CREATE INDEX client_entry_unsynced ON twophp.client_entry (id) WHERE sync_timestamp IS NULL;

-- A server's ledger row is what its intent says. Who writes it is a setting, the same for every row.
CREATE VIEW twophp.server_entry AS SELECT
    id, client_correlation_id, server_correlation_id,
    (SELECT value FROM twophp.meta WHERE name = 'service_ledger_id') AS service_ledger_id,
    service_endpoint, 'server'::text AS actor, (SELECT value FROM twophp.meta WHERE name = 'service') AS source,
    NULL::text AS target, client_correlation_id AS parent_reference_id, phase, received_at AS phase_1_timestamp,
    confirmed_at AS phase_2_timestamp, ttl_ms,
    CASE WHEN phase IN ('WAITING_CONFIRM', 'PROCESSING') THEN NULL ELSE phase END AS outcome,
    CASE WHEN has_payload THEN 'vault:' || server_correlation_id || '/payload' END AS payload_ref,
    sync_timestamp, transaction_reference, row_version AS version, mode, client_id_is_proxy, settled_at, request_digest,
    indeterminate
FROM twophp.intent WHERE row_version > 0;
CREATE VIEW twophp.client_row AS SELECT
    id, client_correlation_id, server_correlation_id, service_ledger_id, service_endpoint, actor, source, target,
    parent_reference_id, phase, phase_1_timestamp, phase_2_timestamp, ttl_ms, outcome, payload_ref, sync_timestamp,
    transaction_reference, version, mode, client_id_is_proxy, settled_at, request_digest, indeterminate
FROM twophp.client_entry;
CREATE VIEW twophp.entry AS SELECT * FROM twophp.server_entry UNION ALL SELECT * FROM twophp.client_row;

-- The journal: one chain for each writer, so that no two of them wait for each other. The number of a line is its writer's,
-- times 2^40, and its place in the chain. A link's id is the number of its first line.
CREATE TABLE twophp.link (
    id       bigint PRIMARY KEY,
    writer   bigint NOT NULL,
    seq      bigint NOT NULL,      -- the writer's own count of its links
    count    bigint NOT NULL CHECK (count > 0),
    at       bigint NOT NULL,
    next_id  bigint NOT NULL,
    hash     bytea  NOT NULL,      -- over its lines, its numbers, and the hash of the writer's link before it
    lines    bytea  NOT NULL       -- JSON: an array for each line; its last value is its own CRC
);
-- Where each writer has come to, written by that writer alone, with every batch. Whoever takes its place closes it: a batch
-- that is still under way ends before that, or fails.
CREATE TABLE twophp.writer (
    id         bigint  PRIMARY KEY,
    name       text    NOT NULL,
    seq        bigint  NOT NULL,   -- how many links it has written,
    link       bigint  NOT NULL,   -- the last of them; 0: none
    lines      bigint  NOT NULL,   -- how many lines are in them
    hash       bytea   NOT NULL,   -- and the hash of the last
    at         bigint  NOT NULL,   -- time never runs backwards, not even over a restart
    is_closed  boolean NOT NULL
) WITH (fillfactor = 50);
-- All chains as one, in an order that was settled when somebody asked for it, and chained once more (ADR 38).
CREATE TABLE twophp.joined (
    first  bigint PRIMARY KEY,     -- the number of its first line among all lines
    link   bigint NOT NULL UNIQUE,
    count  bigint NOT NULL,
    hash   bytea  NOT NULL
);
CREATE TABLE twophp.joined_head (
    one    boolean PRIMARY KEY CHECK (one),
    lines  bigint  NOT NULL,
    hash   bytea   NOT NULL
);
INSERT INTO twophp.joined_head VALUES (true, 0, '');

CREATE FUNCTION twophp.refuse_edit() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '% is append-only', TG_TABLE_NAME USING ERRCODE = 'integrity_constraint_violation';
END $$;
CREATE TRIGGER link_is_never_edited BEFORE UPDATE OR DELETE OR TRUNCATE ON twophp.link
FOR EACH STATEMENT EXECUTE FUNCTION twophp.refuse_edit();
CREATE TRIGGER joined_is_never_edited BEFORE UPDATE OR DELETE OR TRUNCATE ON twophp.joined
FOR EACH STATEMENT EXECUTE FUNCTION twophp.refuse_edit();
CREATE TRIGGER fence_is_never_forgotten BEFORE DELETE OR TRUNCATE ON twophp.fence
FOR EACH STATEMENT EXECUTE FUNCTION twophp.refuse_edit();
