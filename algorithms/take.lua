
-- Decide all checks of a request, then charge them: see Take in take.go.
--
-- KEYS     per group, where the overrides of its zones are kept that can have one, and then the
--          budget of each check, in the order of the checks
-- ARGV     now in µs (0: ask Redis), the last µs at which anything may be decided (0: any),
--          number of limits; per limit: its algorithm, how many numbers follow, the numbers;
--          number of asks, which are what zones ask; per ask: mode (or the longest wait in µs:
--          binary, and then charged in advance; or slots), cost, number of checks (negative: a shadow),
--          and per check which limit (from 1), a ban last;
--          for each group, which is one HTTP request: a '=' and the override it is asked by, for
--          each zone that can have one; the ask of each of its zones (from 1), that of the last
--          one negative. The slots of a zone are an ask of their own, right after the other one.
-- reply    now in µs, whether it was too late (1: then nothing follows); per group either 1 and,
--          per check, whether there was room (1, 0, or 2: there will be), charged, the receipt's
--          two numbers, remaining (of slots: how many are taken), more, retry (or the wait until there
--          is room), reset; or 0 and the text of the error that kept it from being decided; or 2 and
--          the overrides that there are, if they aren't those it was asked by

local now = the_time(tonumber(ARGV[1]))
if tonumber(ARGV[2]) > 0 and now > tonumber(ARGV[2]) then
  return { now, 1 }
end
local limits, i = read_limits(4, tonumber(ARGV[3]))

-- Most groups of a batch ask the same: that is read once.
local asks, last_asks = {}, {}
for n = 1, tonumber(ARGV[i]) do
  local mode, cost, checks = ARGV[i + 1], tonumber(ARGV[i + 2]), tonumber(ARGV[i + 3])
  local ask = { mode = mode, cost = cost, want = cost, longest = tonumber(mode) or 0, shadow = checks < 0,
    slots = mode == 'slots' }
  checks = math.abs(checks)
  if mode == 'nary' then ask.want = min(cost, 1) elseif mode == 'force' then ask.want = 0 end
  for j = 1, checks do ask[j] = limits[ARGV[i + 3 + j]] end
  asks[tostring(n)], last_asks['-' .. n] = ask, ask
  i = i + 3 + checks
end

-- These are made with room for one check: to let a table grow costs more than to fill it.
local reply, r, k = { now, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }, 2, 0

-- of the group at hand, per zone and per check
local zones = { 0 }
local fits, room, retry, A, B, C, D = { 0 }, { 0 }, { 0 }, { 0 }, { 0 }, { 0 }, { 0 }
local overrides = {}

-- the overrides that there are, or nothing if they are those that the group is asked by
local function others(number)
  local found, same = {}, true
  for n = 1, number do
    found[n] = redis.call('GET', KEYS[k + n]) or ''
    same = same and found[n] == overrides[n]
  end
  return not same and found or nil
end

local function take(count, number)
  local found = number > 0 and others(number)
  if found then return found end
  local k = k + number
  local allowed, c = true, 0
  for z = 1, count do
    local ask = zones[z]
    local want, longest = ask.want, ask.longest
    for n = 1, #ask do
      c = c + 1
      local l = ask[n]
      if l.bans then longest = 0 end
      fits[c], retry[c], A[c], B[c], C[c], D[c] = l.decide(l, KEYS[k + c], now, want)
      if want <= fits[c] then
        room[c] = 1
      elseif retry[c] <= longest then
        room[c] = 2
      else
        room[c] = 0
        if retry[c] < forever then retry[c] = retry[c] - longest end
      end
      allowed = allowed and (room[c] > 0 or ask.shadow)
    end
  end
  c = 0
  for z = 1, count do
    local ask = zones[z]
    local mode, cost, passes = ask.mode, ask.cost, allowed
    if ask.shadow then
      local first, last = 1, #ask
      if ask.slots then
        first = 1 - #zones[z - 1]
      elseif z < count and zones[z + 1].slots then
        last = #ask + 1
      end
      for n = first, last do passes = passes and room[c + n] > 0 end
    end
    local charge, outcome = cost, cost == 0 and 'peek' or passes and 'granted' or 'refused'
    if not passes and mode ~= 'uniform' then
      charge = 0
    elseif mode == 'nary' then
      for n = 1, #ask do charge = min(charge, fits[c + n]) end
    end
    local counts = cost == 0 and 'peek' or 'granted'
    if #ask > 0 and ask[#ask].bans then
      if room[c + #ask] == 0 then
        charge = 0
      else
        for n = 1, #ask do
          if room[c + n] == 0 then counts = 'refused' end
        end
      end
    end
    for n = 1, #ask do
      c = c + 1
      local l, key = ask[n], KEYS[k + c]
      if mode == 'force' and passes then charge = min(cost, fits[c]) end
      if l.bans then charge, outcome = 0, counts end
      local charged, a, b, remaining, more, reset = l.commit(l, key, now, charge, outcome, A[c], B[c], C[c], D[c])
      if mode == 'uniform' and not passes then
        local _
        _, retry[c] = l.decide(l, key, now, cost)
      end
      if l.bans then retry[c] = more end
      if ask.slots then remaining = C[c] + charged end
      if charged == 0 then a, b = 0, 0 end
      local at = r + 8 * c - 6
      reply[at], reply[at + 1], reply[at + 2], reply[at + 3] = room[c], charged, a, b
      reply[at + 4], reply[at + 5], reply[at + 6], reply[at + 7] = remaining, more, retry[c], reset
    end
  end
end

local count, checks, number = 0, 0, 0
for w = i + 1, #ARGV do
  local ask = asks[ARGV[w]] or last_asks[ARGV[w]]
  if ask then
    count, checks = count + 1, checks + #ask
    zones[count] = ask
  else
    number = number + 1
    overrides[number] = string.sub(ARGV[w], 2)
  end
  if last_asks[ARGV[w]] then
    reply[r + 1] = 1
    local ok, found = pcall(take, count, number)
    if not ok then
      if type(found) == 'table' then found = found.err end
      reply[r + 1], reply[r + 2] = 0, tostring(found)
      r = r + 2
    elseif found then
      reply[r + 1] = 2
      for n = 1, number do reply[r + 1 + n] = found[n] end
      r = r + 1 + number
    else
      r = r + 1 + 8 * checks
    end
    k, count, checks, number = k + number + checks, 0, 0, 0
  end
end

for at = #reply, r + 1, -1 do reply[at] = nil end
return reply
