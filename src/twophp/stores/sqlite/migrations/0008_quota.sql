-- What has expired no longer counts: whoever waited for room would have learned the grace. Counted anew, once.
DELETE FROM quota WHERE principal NOT IN (
    SELECT principal FROM intent
    WHERE counted_bytes IS NOT NULL AND (phase = 'WAITING_CONFIRM' OR phase = 'PROCESSING'));
UPDATE quota SET
    version = version + 1,
    (open_intents, open_bytes) = (
        SELECT count(*), sum(counted_bytes) FROM intent
        WHERE intent.principal = quota.principal
        AND counted_bytes IS NOT NULL AND (phase = 'WAITING_CONFIRM' OR phase = 'PROCESSING'));
