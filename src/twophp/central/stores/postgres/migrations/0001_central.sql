-- The central ledger. A row stands under the number of its newest leaf. Ids are opaque (A-13) and compared byte by
-- byte, so they are texts, and every text sorts as its bytes do.

CREATE TABLE head (
    one   boolean PRIMARY KEY DEFAULT true CHECK (one),
    size  bigint  NOT NULL,     -- how many leaves the Merkle tree has
    at    bigint  NOT NULL      -- when the last of them arrived
);
INSERT INTO head VALUES (true, 0, 0);

CREATE TABLE entry (
    sequence               bigint  NOT NULL,
    client_correlation_id  text    COLLATE "C" NOT NULL,
    server_correlation_id  text    COLLATE "C" NOT NULL,
    service_ledger_id      text    COLLATE "C" NOT NULL,
    service_endpoint       text    COLLATE "C" NOT NULL,
    actor                  text    COLLATE "C" NOT NULL CHECK (actor = 'client' OR actor = 'server'),
    source                 text    COLLATE "C" NOT NULL,
    target                 text    COLLATE "C" CHECK ((actor = 'client') = (target IS NOT NULL)),
    parent_reference_id    text    COLLATE "C" NOT NULL
                                   CHECK (actor = 'client' OR parent_reference_id = client_correlation_id),
    phase                  text    COLLATE "C" NOT NULL,
    phase_1_timestamp      bigint  NOT NULL,
    phase_2_timestamp      bigint,
    ttl_ms                 bigint  NOT NULL CHECK (ttl_ms > 0),
    outcome                text    COLLATE "C",
    payload_ref            text    COLLATE "C",
    sync_timestamp         bigint  NOT NULL,
    transaction_reference  text    COLLATE "C",
    version                bigint  NOT NULL CHECK (version > 0),
    mode                   text    COLLATE "C" NOT NULL,
    client_id_is_proxy     boolean NOT NULL,
    settled_at             bigint,
    request_digest         text    COLLATE "C"
);
ALTER TABLE entry ADD PRIMARY KEY (sequence);
CREATE UNIQUE INDEX entry_is_one ON entry (client_correlation_id, server_correlation_id, actor, service_ledger_id);
CREATE INDEX entry_by_server_id ON entry USING hash (server_correlation_id);
-- The parent of a server row, and of a root, is its own client id, which the unique index finds.
CREATE INDEX entry_children ON entry USING hash (parent_reference_id)
WHERE actor = 'client' AND parent_reference_id <> client_correlation_id;
CREATE INDEX entry_open ON entry (sequence) WHERE outcome IS NULL OR outcome = 'TTL_EXPIRED';
CREATE INDEX entry_initiated ON entry (source, sequence) WHERE actor = 'client';
-- Rows arrive about in the order of their calls, so a page has rows of one time: a summary of pages is index enough.
CREATE INDEX entry_by_time ON entry USING brin (phase_1_timestamp) WITH (pages_per_range = 32, autosummarize = on);

-- The Merkle tree: 256 neighbouring hashes of every eighth level, the last of each level as far as it has come.
CREATE TABLE tile (
    level   integer NOT NULL,
    number  bigint  NOT NULL,
    hashes  bytea   NOT NULL,
    PRIMARY KEY (level, number)
);
ALTER TABLE tile ALTER COLUMN hashes SET STORAGE EXTERNAL;  -- Hashes do not compress.

CREATE TABLE service (
    service_ledger_id  text   COLLATE "C" PRIMARY KEY,
    name               text   COLLATE "C" NOT NULL,
    registered_at      bigint NOT NULL,
    last_sync_at       bigint,
    rows               bigint NOT NULL,
    pull_url           text
);

-- Whose credential is whose: several may be one service's, as when one follows another.
CREATE TABLE credential (
    token_id           text COLLATE "C" PRIMARY KEY,
    service_ledger_id  text COLLATE "C" NOT NULL
);

CREATE TABLE token (
    token_id      text   COLLATE "C" PRIMARY KEY,
    secret_hash   bytea  NOT NULL UNIQUE,
    name          text   NOT NULL,
    roles         text   NOT NULL,     -- separated by spaces
    created_at    bigint NOT NULL,
    expires_at    bigint,
    revoked_at    bigint,
    last_used_at  bigint
);

CREATE TABLE alarm (
    alarm_id               bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at                     bigint NOT NULL,
    code                   text   NOT NULL,
    service_ledger_id      text   NOT NULL,
    client_correlation_id  text   NOT NULL,
    server_correlation_id  text   NOT NULL,
    detail                 text   NOT NULL,
    -- Whoever sends the same again is alarmed about once.
    UNIQUE (code, service_ledger_id, client_correlation_id, server_correlation_id, detail)
);

CREATE TABLE access (
    id      bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at      bigint  NOT NULL,
    who     text    NOT NULL,
    role    text    NOT NULL,
    method  text    NOT NULL,
    path    text    NOT NULL,
    status  integer NOT NULL
);
