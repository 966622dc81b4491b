-- What a batch reads, all of it as it is at one moment, with the server's time and new ids.
-- KEYS: state, key, record. ARGV: how many ids are wanted, then the names of keys.
-- Answer: seconds, microseconds, the last of the ids, the id under each name, and the records: id, value, id, value ...
local wanted = tonumber(ARGV[1])
local last = wanted > 0 and redis.call('HINCRBY', KEYS[1], 'ids', wanted) or 0
local time, found, records, seen = redis.call('TIME'), {}, {}, {}
for place = 2, #ARGV do
    local id = redis.call('HGET', KEYS[2], ARGV[place])
    found[place - 1] = id
    if id and not seen[id] then
        seen[id] = true
        local value = redis.call('HGET', KEYS[3], id)
        if value then
            records[#records + 1] = id
            records[#records + 1] = value
        end
    end
end
return {time[1], time[2], last, found, records}
