-- The raw limit that central ingest is measured against: the same columns, no index, no check, no question asked.

-- name: sqlite_raw_table
CREATE TABLE raw (sequence, client_correlation_id, server_correlation_id, service_ledger_id, service_endpoint, actor,
    source, target, parent_reference_id, phase, phase_1_timestamp, phase_2_timestamp, ttl_ms, outcome, payload_ref,
    sync_timestamp, transaction_reference, version, mode, client_id_is_proxy, settled_at, request_digest,
    indeterminate);

-- name: sqlite_raw_insert
INSERT INTO raw VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: postgres_raw_table
CREATE TABLE raw AS SELECT * FROM entry WHERE false;

