
-- Decide all checks of a request, then charge them: see Take in take.go.
--
-- KEYS     the budget of each check, in the order of the checks
-- ARGV     now in µs (0: ask Redis), the last µs at which anything may be decided (0: any),
--          number of limits;
--          per limit: its algorithm, how many numbers follow, the numbers;
--          per group (one group is one HTTP request): number of zones, number of words that follow;
--          per zone: mode (or the longest wait in µs: binary, and then charged in advance),
--          cost, number of checks; per check: which limit (from 1)
-- reply    now in µs, whether it was too late (1: then nothing follows); per group either 1 and, per check, whether there was room (1, 0, or 2: there
--          will be), charged, the receipt's two numbers, remaining, more, retry (or the wait until
--          there is room), reset; or 0 and the text of the error that kept it from
--          being decided

local now = the_time(tonumber(ARGV[1]))
if tonumber(ARGV[2]) > 0 and now > tonumber(ARGV[2]) then
  return { now, 1 }
end
local limits, i = read_limits(4, tonumber(ARGV[3]))

-- Most groups of a batch repeat the same few numbers: each text is converted once.
-- What is in almost every call is there from the start; binary is no longest wait.
local number = setmetatable({ ['1'] = 1, binary = false }, { __index = function(known, text)
  local n = tonumber(text)
  known[text] = n
  return n
end })

-- These are made with room for one check: to let a table grow costs more than to fill it.
local reply, r, k = { now, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }, 2, 0

-- per check of the group at hand
local L, fits, room, retry, A, B, C = { 0 }, { 0 }, { 0 }, { 0 }, { 0 }, { 0 }, { 0 }

local function take(zones)
  local allowed, c, z = true, 0, i + 1
  for _ = 1, zones do
    local mode, want, checks = ARGV[z + 1], number[ARGV[z + 2]], number[ARGV[z + 3]]
    local longest = number[mode] or 0
    if mode == 'nary' then want = min(want, 1) elseif mode == 'force' then want = 0 end
    for n = 1, checks do
      c = c + 1
      local l = limits[ARGV[z + 3 + n]]
      L[c] = l
      fits[c], retry[c], A[c], B[c], C[c] = l.decide(l, KEYS[k + c], now, want)
      if want <= fits[c] then
        room[c] = 1
      elseif retry[c] <= longest then
        room[c] = 2
      else
        room[c] = 0
        if retry[c] < forever then retry[c] = retry[c] - longest end
      end
      allowed = allowed and room[c] > 0
    end
    z = z + 3 + checks
  end
  c, z = 0, i + 1
  for _ = 1, zones do
    local mode, cost, checks = ARGV[z + 1], number[ARGV[z + 2]], number[ARGV[z + 3]]
    local charge, outcome = cost, cost == 0 and 'peek' or allowed and 'granted' or 'refused'
    if not allowed and mode ~= 'uniform' then
      charge = 0
    elseif mode == 'nary' then
      for n = 1, checks do charge = min(charge, fits[c + n]) end
    end
    for _ = 1, checks do
      c = c + 1
      local l, key = L[c], KEYS[k + c]
      if mode == 'force' and allowed then charge = min(cost, fits[c]) end
      local charged, a, b, remaining, more, reset = l.commit(l, key, now, charge, outcome, A[c], B[c], C[c])
      if mode == 'uniform' and not allowed then
        local _
        _, retry[c] = l.decide(l, key, now, cost)
      end
      if charged == 0 then a, b = 0, 0 end
      local at = r + 8 * c - 6
      reply[at], reply[at + 1], reply[at + 2], reply[at + 3] = room[c], charged, a, b
      reply[at + 4], reply[at + 5], reply[at + 6], reply[at + 7] = remaining, more, retry[c], reset
    end
    z = z + 3 + checks
  end
end

while i <= #ARGV do
  local zones, words = number[ARGV[i]], number[ARGV[i + 1]]
  local checks = words - 3 * zones
  reply[r + 1] = 1
  local ok, err = pcall(take, zones)
  if ok then
    r = r + 1 + 8 * checks
  else
    if type(err) == 'table' then err = err.err end
    for at = r + 3, r + 1 + 8 * checks do reply[at] = nil end
    reply[r + 1], reply[r + 2] = 0, tostring(err)
    r = r + 2
  end
  i, k = i + 2 + words, k + checks
end

return reply
