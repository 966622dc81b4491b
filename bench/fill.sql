WITH RECURSIVE number (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM number WHERE n < :stored)
INSERT INTO intent SELECT
    n, hex(randomblob(16)), hex(randomblob(16)), 'p', hex(randomblob(32)), '', 0, 'standard', 'orders/orders', '/orders', 'POST',
    :now - 100000, 30000, 5000, NULL, 'COMMITTED', 3, :now - 99000, :now - 98000, 201, '42', NULL, NULL, 1, 1, NULL,
    :now + 86400000 + n, NULL
FROM number;
-- then
INSERT INTO entry SELECT
    id, client_correlation_id, server_correlation_id, 'bench', service_endpoint, 'server', 'orders', NULL,
    client_correlation_id, phase, received_at, confirmed_at, ttl_ms, phase, NULL, NULL, NULL, version, mode, 0, settled_at, request_digest
FROM intent;
-- then
UPDATE head SET next_id = :stored + 1;
