-- The link that holds a line of a writer, with its place among all links and its hash in the joined journal.
-- KEYS: ids, link, places, joined. ARGV: the number of the line, in hexadecimal.
local found = redis.call('ZRANGE', KEYS[1], '[' .. ARGV[1], '-', 'BYLEX', 'REV', 'LIMIT', 0, 1)
local name = found[1]
if not name then return {} end
return {
    redis.call('HGET', KEYS[2], name), redis.call('ZSCORE', KEYS[3], name), redis.call('HGET', KEYS[4], name),
}
