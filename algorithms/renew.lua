
-- Give back what was charged, and charge it anew as of now as far as there is room: what
-- refund.lua does and then, for as many events in mode force, take.lua.
--
-- KEYS     the budgets; one may be there several times
-- ARGV     now in µs (0: ask Redis), the last µs at which anything may be charged (0: any), and then
--          as of refund.lua
-- reply    now in µs, whether it was too late (1: then nothing follows); per budget either 1, charged,
--          and the receipt's two numbers; or 0 and the text of the error

local now = the_time(tonumber(ARGV[1]))
if tonumber(ARGV[2]) > 0 and now > tonumber(ARGV[2]) then
  return { now, 1 }
end
local limits, i = read_limits(4, tonumber(ARGV[3]))
local reply = { now, 0 }

local function renew(l, key, a, b, at, n)
  local fits, _, A, B, C, D = l.decide(l, key, now, 0)
  if l.log and D == 0 and fits >= n and a - l[4] < now then
    -- The other way round, which comes to the same unless the clock was set back: a log that is
    -- empty for a moment is gone, and where its slot is on its way to another node of a cluster,
    -- this one may not begin a new one.
    local charged, stamp = l.commit(l, key, now, n, 'granted', A, B, C, D)
    l.refund(l, key, now, a, b, n)
    return charged, stamp, 0
  end
  give_back(l, key, now, a, b, at, n)
  fits, _, A, B, C, D = l.decide(l, key, now, 0)
  return l.commit(l, key, now, min(n, fits), 'granted', A, B, C, D)
end

for _, key in ipairs(KEYS) do
  local l, r = limits[ARGV[i]], #reply
  local a, b, at, n = tonumber(ARGV[i + 1]), tonumber(ARGV[i + 2]), tonumber(ARGV[i + 3]), tonumber(ARGV[i + 4])
  local ok, charged
  ok, charged, a, b = pcall(renew, l, key, a, b, at, n)
  if not ok then
    if type(charged) == 'table' then charged = charged.err end
    reply[r + 1], reply[r + 2] = 0, tostring(charged)
  else
    if charged == 0 then a, b = 0, 0 end
    reply[r + 1], reply[r + 2], reply[r + 3], reply[r + 4] = 1, charged, a, b
  end
  i = i + 5
end

return reply
