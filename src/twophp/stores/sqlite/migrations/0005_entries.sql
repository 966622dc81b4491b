-- What a report on how long calls take needs of a row, and what binds both sides to one request.
ALTER TABLE entry ADD COLUMN settled_at INTEGER;
ALTER TABLE entry ADD COLUMN request_digest TEXT;

-- A row mirrors its record. Where that is gone already, the journal alone says when it was settled.
UPDATE entry SET
    settled_at = coalesce(
        (SELECT intent.settled_at FROM intent WHERE intent.id = entry.id),
        (SELECT call.settled_at FROM call WHERE call.id = entry.id)),
    request_digest = (SELECT substr(call.meant, 1, 64) FROM call WHERE call.id = entry.id);
