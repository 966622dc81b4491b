-- What wrk sends. MODE: plain, handshake, auto, callback (auto-confirm to CALLBACK), replay or keyed (an Idempotency-Key).
-- wrk runs with one connection to a thread, and a thread has its own state here: requests and answers alternate.

local mode = os.getenv("MODE")
local body = '{"sku": "A-1", "quantity": 3, "note": "' .. string.rep("x", 240) .. '"}'
local plain = {["Content-Type"] = "application/json"}
local prefix, serial = "", 0
local client, server
local counter = 0

function setup(thread)
  thread:set("number", counter)
  counter = counter + 1
end

function init(_)
  prefix = string.format("%s-%d-", os.getenv("RUN"), number)
end

local function headers()
  return {["Content-Type"] = "application/json", ["DTT-2PHP-Enabled"] = "true",
          ["DTT-2PHP-Client-Correlation-ID"] = client, ["DTT-2PHP-Server-Correlation-ID"] = server}
end

local function fresh()
  serial = serial + 1
  client, server = prefix .. serial, nil
end

request = function()
  if mode == "plain" then
    return wrk.format("POST", "/orders", plain, body)
  end
  if server then
    return wrk.format("POST", "/orders/confirm", headers(), "")
  end
  fresh()
  if mode == "keyed" then
    return wrk.format("POST", "/orders", {["Content-Type"] = "application/json", ["Idempotency-Key"] = client}, body)
  end
  local h = headers()
  if mode == "auto" or mode == "callback" then h["DTT-2PHP-Auto-Confirm"] = "true" end
  if mode == "callback" then h["DTT-2PHP-Callback"] = os.getenv("CALLBACK") end
  return wrk.format("POST", "/orders", h, body)
end

if mode == "handshake" or mode == "replay" then
  response = function(_, h, _)
    local state = h["dtt-2php-phase-state"]
    if state == "WAITING_CONFIRM" then
      server = h["dtt-2php-server-correlation-id"]
    elseif mode == "handshake" then
      server = nil
    end
  end
end
