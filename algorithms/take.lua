
-- Decide all checks of a request, then charge all of them or none: see Take in take.go.
--
-- KEYS     the budget of each check, in the order of the checks
-- ARGV     now in µs (0: ask Redis), number of limits;
--          per limit: its algorithm, how many numbers follow, the numbers;
--          per group (one group is one request): number of checks;
--          per check: which limit (from 1), cost
-- reply    now in µs; per group either 1 and, per check, charged, remaining, more,
--          retry, reset; or 0 and the text of the error that kept it from being decided

local now = tonumber(ARGV[1])
if now == 0 then
  local time = redis.call('TIME')
  now = time[1] * 1000000 + time[2]
end

local limits, i = {}, 3
for n = 1, tonumber(ARGV[2]) do
  local algorithm, l = algorithms[ARGV[i]], {}
  local count = tonumber(ARGV[i + 1])
  for j = 1, count do l[j] = tonumber(ARGV[i + 1 + j]) end
  l.decide, l.commit = algorithm.decide, algorithm.commit
  limits[tostring(n)] = l
  i = i + 2 + count
end

-- Most groups of a batch repeat the same few numbers: each text is converted once.
local number = setmetatable({}, { __index = function(known, text)
  local n = tonumber(text)
  known[text] = n
  return n
end })

local reply, r, k = { now }, 1, 0
local L, charge, retry, A, B, C = {}, {}, {}, {}, {}, {} -- per check of the group at hand

local function take(checks)
  local allowed = true
  local fits
  for c = 1, checks do
    local l, cost = limits[ARGV[i + 2 * c - 1]], number[ARGV[i + 2 * c]]
    L[c], charge[c] = l, cost
    fits, retry[c], A[c], B[c], C[c] = l.decide(l, KEYS[k + c], now, cost)
    allowed = allowed and cost <= fits
  end
  for c = 1, checks do
    local l = L[c]
    if not allowed then charge[c] = 0 end
    local remaining, more, reset = l.commit(l, KEYS[k + c], now, charge[c], A[c], B[c], C[c])
    local at = r + 5 * c - 3
    reply[at], reply[at + 1], reply[at + 2], reply[at + 3], reply[at + 4] = charge[c], remaining, more, retry[c], reset
  end
end

while i <= #ARGV do
  local checks = number[ARGV[i]]
  local ok, err = pcall(take, checks)
  if ok then
    reply[r + 1] = 1
    r = r + 1 + 5 * checks
  else
    if type(err) == 'table' then err = err.err end
    for at = #reply, r + 1, -1 do reply[at] = nil end
    reply[r + 1], reply[r + 2] = 0, tostring(err)
    r = r + 2
  end
  i, k = i + 1 + 2 * checks, k + checks
end

return reply
