-- Which of these keys are there, in their order.
local found = {}
for place = 1, #KEYS do
    found[place] = redis.call('EXISTS', KEYS[place])
end
return found
