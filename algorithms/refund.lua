
-- Give back what was charged: see Refund in take.go.
--
-- KEYS     the budgets
-- ARGV     now in µs (0: ask Redis), number of limits; per limit as in take.lua;
--          per budget: number of the limit (from 1), the receipt's two numbers and its instant, how many events
-- reply    now in µs; per budget 1, or the text of the error that kept it as it was

local now = the_time(tonumber(ARGV[1]))
local limits, i = read_limits(3, tonumber(ARGV[2]))
local reply = { now }

for k, key in ipairs(KEYS) do
  local l = limits[ARGV[i]]
  local a, b, at, n = tonumber(ARGV[i + 1]), tonumber(ARGV[i + 2]), tonumber(ARGV[i + 3]), tonumber(ARGV[i + 4])
  local ok, err = pcall(give_back, l, key, now, a, b, at, n)
  if type(err) == 'table' then err = err.err end
  reply[k + 1] = ok and 1 or tostring(err)
  i = i + 5
end

return reply
