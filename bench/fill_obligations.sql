WITH RECURSIVE number (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM number WHERE n < :stored)
INSERT INTO obligation SELECT
    n, hex(randomblob(16)), 'publish', hex(randomblob(8)), 't', '', :now - 100000, 30000, :state, 2, :now - 99000,
    'caller', NULL, 0, 0
FROM number;
UPDATE head SET next_id = :stored + 1;
