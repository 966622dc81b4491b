-- A batch: every guard is checked, and then everything is written. A script is one step: nobody sees a part of it.
-- KEYS: those that the batch touches; state and places are the first two.
-- ARGV: a line of numbers, the guards, the commands.
--   the line: how many guards there are, how many lines of history, and under which name their link is kept
--   a guard: the place of a hash in KEYS, a field, and how its value has to begin; empty: there must be none
--   a command: how many words follow, its name, the place of its key in KEYS, and its arguments
-- Answer: 0, or the number of the guard that does not hold.
local at = 4
for number = 1, tonumber(ARGV[1]) do
    local found, expected = redis.call('HGET', KEYS[tonumber(ARGV[at])], ARGV[at + 1]), ARGV[at + 2]
    if expected == '' then
        if found then return number end
    elseif not found or string.sub(found, 1, #expected) ~= expected then
        return number
    end
    at = at + 3
end
local lines = tonumber(ARGV[2])
if lines > 0 then
    -- The place of the link among all links: nobody chose it, and it never changes.
    local last = redis.call('HINCRBY', KEYS[1], 'lines', lines)
    redis.call('ZADD', KEYS[2], last - lines + 1, ARGV[3])
end
while at <= #ARGV do
    local words = tonumber(ARGV[at])
    redis.call(ARGV[at + 1], KEYS[tonumber(ARGV[at + 2])], unpack(ARGV, at + 3, at + words))
    at = at + words + 1
end
return 0
