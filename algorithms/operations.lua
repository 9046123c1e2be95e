
-- Carry out operations, in order and on one instant. Each has its own reply.
--
-- KEYS     the keys of the operations, in order; the keys of logs come after all others
-- ARGV     one message. Numbers are doubles unless another type is named.
--            head: now in µs (0: ask Redis), the last µs at which anything may be done (0: any), the id
--              of the instance (16 bytes), how long its slots last in µs, the number of keys of logs
--              (2 bytes), the length of the operations (4 bytes)
--            per operation: its kind, two numbers that depend on the kind (1 byte each), the length of
--              the rest of it (4 bytes), its number of other keys and its number of keys of logs
--              (2 bytes each), and
--            take (1): the two numbers are those of overrides and of zones
--              per override: the text that is expected (4 bytes length, text)
--              per zone: mode, shadow (0 or 1), number of limits, slots (0: none, 1: take one, 2: look),
--                ban (0 or 1; 1 byte each), cost, longest wait in µs;
--                per limit: its position among the limits below (4 bytes), its burst or 0;
--                with slots: how many there are; with a ban: its numbers
--            refund (2): the first number is that of budgets
--              per budget: the position of its limit (4 bytes), its burst or 0, the receipt's two
--                numbers and its instant, how many events
--            set (3): how many slots the instance has
--            per limit: algorithm (1 byte), its numbers, without the burst
-- reply    one string: now, whether it is too late (1 byte; 1: nothing follows); per operation a byte:
--            0  it failed; the text of the error (4 bytes length, text)
--            1  it is done. Of a take, per zone:
--                 per limit: whether there was room (1 byte: 0, 1, or 2: there will be), charged, the
--                   receipt's two numbers, remaining, more, retry (or the wait until there is room), reset
--                 with slots: whether one was free (1 byte), how many the instance had, how many are
--                   in flight
--                 with a ban: whether it stood, whether it began (1 byte each), how long until it ends
--               Of a set: how many slots the instance had.
--            2  there are other overrides; their texts (4 bytes length, text each)

local message, string_byte = ARGV[1], string.byte
local not_after, instance, slots_lifetime, log_keys, size, begin
now, not_after, instance, slots_lifetime, log_keys, size, begin = unpack_numbers('<ddc16dI2I4', message)
now = the_time(now)
if not_after > 0 and now > not_after then
  return pack_numbers('<dB', now, 1)
end

local strings = #keys - log_keys
if strings <= 1000 then
  stored = strings > 0 and redis.call('MGET', unpack(keys, 1, strings)) or {}
else
  stored = {}
  for from = 1, strings, 1000 do
    for n, state in ipairs(redis.call('MGET', unpack(keys, from, min(from + 999, strings)))) do
      stored[from + n - 1] = state
    end
  end
end

local limits_begin = begin + size

-- By the index of a key, the index by which its budget is known: the first one with that name.
local budgets, first = {--[[room]]}, {}
for k = 1, strings do
  local name = keys[k]
  local known = first[name]
  if not known then
    first[name], known = k, k
  end
  budgets[k] = known
end

local count = 0 -- of operations
local out = {--[[room]]} -- the reply, a piece per operation

-- The zones of the operation at hand, and their checks. Both are used again.
local zones, checks = {}, {}
local function new_check()
  return { limit = { 0, 0, 0, 0, 0, algorithm = 0, untouched = 0, quantum = 0 }, limit_at = -1, budget = 0, fits = 0, room = 0, retry = 0, a = 0, b = 0, c = 0, d = 0 }
end

local algorithms = {} -- those that are defined, by their numbers

-- Read the limit of a check. Where many are the same but for the burst, it is read once.
local function read_limit(check, limit_at)
  local number = string_byte(message, limits_begin + limit_at)
  local algorithm = algorithms[number]
  if not algorithm then
    algorithm = define[number]()
    algorithms[number] = algorithm
  end
  local l = check.limit
  algorithm.read(l, message, limits_begin + limit_at + 1)
  l.algorithm, check.limit_at = algorithm, limit_at
end

-- Kinds of operations. Each is told its two numbers, its position in the message, and the indexes
-- of the keys before its own. It returns its reply, and these three as they are behind it; or its
-- reply alone, if it doesn't know them.

local function take(overrides, number, at, k, log)
  if overrides > 0 then
    local found, same = {}, true
    for n = 1, overrides do
      local expected
      expected, at = unpack_numbers('<I4c0', message, at)
      k = k + 1
      local text = stored[budgets[k]] or ''
      found[n] = pack_numbers('<I4c0', #text, text)
      same = same and text == expected
    end
    if not same then
      return '\002' .. table.concat(found) -- the rest of the operation is not read
    end
  end

  local allowed, c = true, 0
  for z = 1, number do
    local zone = zones[z]
    if not zone then
      zone = { mode = 0, shadow = 0, checks = 0, cost = 0, has_room = 0, slots = 0, slots_key = 0, ban = 0 }
      zones[z] = zone
    end
    local mode, shadow, limits_of, has_slots, has_ban, cost, longest
    mode, shadow, limits_of, has_slots, has_ban, cost, longest, at = unpack_numbers('<BBBBBdd', message, at)
    local want, has_room = cost, true
    if mode == 1 then want = min(cost, 1) elseif mode == 3 then want = 0 end
    zone.mode, zone.shadow, zone.checks, zone.cost, zone.slots, zone.ban = mode, shadow == 1, limits_of, cost, nil, nil
    for _ = 1, limits_of do
      c = c + 1
      local check, limit_at, burst = checks[c], nil, nil
      if not check then
        check = new_check()
        checks[c] = check
      end
      limit_at, burst, at = unpack_numbers('<I4d', message, at)
      if check.limit_at ~= limit_at then read_limit(check, limit_at) end
      local l, key = check.limit, nil
      if burst > 0 then l[3] = burst end -- the limits read have none
      if l.algorithm.is_log then
        log = log + 1
        key = log
      else
        k = k + 1
        key = budgets[k]
      end
      local fits, wait
      fits, wait, check.a, check.b, check.c, check.d = l.algorithm.decide(l, key, now, want)
      local room = 1
      if want > fits then
        room = 2
        if wait > longest then
          room, has_room = 0, false
          if wait < forever then wait = wait - longest end
        end
      end
      check.budget, check.fits, check.retry, check.room = key, fits, wait, room
    end
    if has_slots > 0 then
      local most
      most, at = unpack_numbers('<d', message, at)
      k = k + 1
      local key = budgets[k]
      local s = slots_read(key, instance, now, slots_lifetime)
      s.takes, s.free = has_slots == 1, s.others + s.count < most
      zone.slots, zone.slots_key, has_room = s, key, has_room and s.free
    end
    if has_ban == 1 then
      local b = {}
      at = ban_read(b, message, at)
      k = k + 1
      b.key = budgets[k]
      ban_decide(b, b.key, now)
      zone.ban, has_room = b, has_room and not b.stands
    end
    allowed = allowed and (has_room or shadow == 1)
    zone.has_room = has_room
  end

  local reply = '\001'
  c = 0
  for z = 1, number do
    local zone = zones[z]
    local mode, cost, s, b = zone.mode, zone.cost, zone.slots, zone.ban
    local passes = allowed and (zone.has_room or not zone.shadow)
    local charge, outcome, limits_deny = cost, cost == 0 and peek or passes and granted or denied, false
    if not passes and mode ~= 2 or b and b.stands then
      charge = 0
    elseif mode == 1 then
      for n = c + 1, c + zone.checks do charge = min(charge, checks[n].fits) end
    end
    for _ = 1, zone.checks do
      c = c + 1
      local check = checks[c]
      local l, key, room, retry = check.limit, check.budget, check.room, check.retry
      if mode == 3 and passes then charge = min(cost, check.fits) end
      local charged, x, y, remaining, more, reset =
        l.algorithm.commit(l, key, now, charge, outcome, check.a, check.b, check.c, check.d)
      if mode == 2 and not passes then
        local _
        _, retry = l.algorithm.decide(l, key, now, cost)
      end
      if charged == 0 then x, y = 0, 0 end
      limits_deny = limits_deny or room == 0
      reply = reply .. pack_numbers('<Bddddddd', room, charged, x, y, remaining, more, retry, reset)
    end
    if s then
      local had = s.count
      if passes and s.takes then
        slots_set(s, zone.slots_key, instance, had + 1, now, slots_lifetime)
      elseif s.stepped_back and s.takes then
        slots_save(s, zone.slots_key, instance, now, slots_lifetime)
      end
      reply = reply .. pack_numbers('<Bdd', s.free and 1 or 0, had, s.others + s.count)
    end
    if b then
      local began, ends_after = ban_commit(b, b.key, now, limits_deny, cost == 0)
      reply = reply .. pack_numbers('<BBd', b.stands and 1 or 0, began, ends_after)
    end
  end
  return reply, at, k, log
end

-- Give back what was charged: see Refund in take.go.
local given_back
local function refund(number, _, at, k, log)
  given_back = given_back or new_check()
  for _ = 1, number do
    local limit_at, burst, a, b, charged_at, n
    limit_at, burst, a, b, charged_at, n, at = unpack_numbers('<I4ddddd', message, at)
    if given_back.limit_at ~= limit_at then read_limit(given_back, limit_at) end
    local l, key = given_back.limit, nil
    if burst > 0 then l[3] = burst end
    if l.algorithm.is_log then
      log = log + 1
      key = log
    else
      k = k + 1
      key = budgets[k]
    end
    if charged_at - now <= step_back or l.algorithm.is_log then
      l.algorithm.refund(l, key, now, a, b, n)
    end
  end
  return '\001', at, k, log
end

local function set(_, _, at, k, log)
  local number
  number, at = unpack_numbers('<d', message, at)
  k = k + 1
  local key = budgets[k]
  local s = slots_read(key, instance, now, slots_lifetime)
  local had = s.count
  slots_set(s, key, instance, number, now, slots_lifetime)
  return pack_numbers('<Bd', 1, had), at, k, log
end

local kinds = { take, refund, set }

local function fail(n, err)
  err = type(err) == 'table' and err.err or tostring(err)
  out[n + 1] = pack_numbers('<BI4c0', 0, #err, err)
end

-- Carry out all operations. The first one that fails, or that doesn't know where it ends, makes the
-- run fail.
local function run()
  local at, k, log = begin, 0, strings
  while at < limits_begin do
    local kind, x, y = string_byte(message, at, at + 2)
    count = count + 1
    out[count + 1], at, k, log = kinds[kind](x, y, at + 11, k, log)
  end
end

-- Carry out each operation by itself. Its changes count only if it succeeds. Only logs are written
-- immediately. Only the first write to a log can fail.
local function run_each()
  local function undo_changes()
    for n = #undo, 1, -1 do
      local k, state, lasts = undo[n][1], undo[n][2], undo[n][3]
      text[k], lifetimes[k] = state, lasts
      if not state then changes = changes - 1 end
    end
    slots_at = {}
  end

  local at, k, log = begin, 0, strings
  while at < limits_begin do
    local kind, x, y, length, own_strings, own_logs
    kind, x, y, length, own_strings, own_logs, at = unpack_numbers('<BBBI4I2I2', message, at)
    count = count + 1
    undo = {}
    local done, result = pcall(kinds[kind], x, y, at, k, log)
    if done then
      out[count + 1] = result
    else
      undo_changes()
      fail(count, result)
    end
    at, k, log = at + length, k + own_strings, log + own_logs
  end
end

if log_keys > 0 then
  run_each()
elseif not pcall(run) then
  -- Nothing is written yet.
  text, slots_at, changes = {}, {}, 0
  count, out = 0, {}
  run_each()
end

-- If a write is denied, all operations on its key fail.
while true do
  local done, err = pcall(write_changes)
  if done then break end
  local name, own_k, at = keys[changed[next_change]], 0, begin
  for operation = 1, count do
    local length, own_strings
    length, own_strings, at = unpack_numbers('<I4I2', message, at + 3)
    at = at + 2 + length
    for own = own_k + 1, own_k + own_strings do
      if keys[own] == name then fail(operation, err) end
    end
    own_k = own_k + own_strings
  end
  next_change = next_change + 1
end

out[1] = pack_numbers('<dB', now, 0)
return table.concat(out)
