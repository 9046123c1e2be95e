
-- Carry out the operations of one message, in order and at one instant. Each has its own reply.
--
-- Types   u8, u16, u32   unsigned integers, little-endian
--         f64            a double that holds an integer, little-endian; times are in µs
--         text           u32 length, then as many bytes
--
-- KEYS    the keys of the operations, in order; the keys of logs come after all others
-- ARGV    one message. If its keys have several hash slots of one node of a cluster, they come before it, instead of KEYS.
--
--   head        f64        now; 0: ask Redis
--               f64 f64    not before, not after: the first and the last instant at which anything may be done; 0: none
--               7 bytes    id of the instance
--               f64        expiry of the instance's slots
--               u16        number of keys of logs
--               u32        length of all operations in bytes
--
--   operation   u8         kind: 1 take, 2 refund, 3 set
--               u16 u16    take: number of overrides, of zones; refund: number of budgets, of reservations (0 or 1); set: 0 0
--               u32        length of the rest behind the next two numbers, in bytes
--               u16 u16    number of its other keys, of its keys of logs
--
--   take        per override
--                 text     expected override
--               per zone
--                 u8       mode: see Mode in take.go
--                 u8       1 for a shadow, plus 2 for a peek
--                 u16      number of limits
--                 u8       1 with slots, plus 2 with reserved events
--                 u8       ban: 0 or 1
--                 f64      cost
--                 f64      max wait
--                 per limit
--                   u32    offset of the limit among the limits below
--                   f64    burst; 0: the algorithm takes none
--                 with slots
--                   f64    limit of slots
--                   line   that of the request's tenant
--                 with reserved events
--                   line
--                 with a ban
--                   4 f64  after, window, duration, max
--
--   line        u8         1: the request has waited, plus 2: it has a tenant
--               7 bytes    tenant, if it has one
--               u16        and the weight of the tenant
--               f64        for how long it has waited, if it has; then the rest follows, too
--               f64        how many requests of the instance wait in this line, with it; 0: it stands in no line, or another
--               4 f64      for how long the marked ones behind it have waited
--
--   refund      per budget
--                 u32      offset of the limit
--                 f64      burst; 0: the algorithm takes none
--                 f64 f64  A and B of the receipt
--                 f64      instant of the receipt
--                 f64      number of events
--               per reservation
--                 f64      number of events
--
--   set         f64        new count of the slots of the instance's tenant
--               u8         1: no request of the tenant waits for them in this instance any more
--               7 bytes    tenant; 0: the slots have no tenants
--
--   limit       u8         number of the algorithm
--               f64 …      numbers of the limit, with 0 for the burst
--
-- Reply   one string:
--
--   head        f64        now
--               u8         0; 1: too early or too late, nothing follows
--
--   operation   u8         0 failed, 1 done, 2 not done, because a key of ARGV isn't on this node, 3 other overrides were found
--     failed    text       error
--     others    text …     overrides found
--     take      per zone
--                 per limit
--                   u8     0 denied, 1 allowed, 2 allowed after a wait, 3 reserved: see Decision in algorithms.go
--                   f64    retry after, or the wait
--                   f64    charged
--                   2 f64  A and B of the balance: see Balance in algorithms.go; some algorithms add C, or C and D
--                 with slots
--                   u8     whether a slot was free
--                   f64    count of the instance before
--                   f64    in flight, of all instances, after
--                 with reserved events
--                   f64    count of the instance before
--                   f64    events that the request has reserved
--                   f64    reserved events, of all instances, after
--                 with a ban
--                   u8     whether it stood before
--                   u8     whether it began
--                   f64    ends after
--     refund    per reservation
--                 f64      count of the instance before
--     set       f64        count of the instance before

local message, string_byte = ARGV[#ARGV], string.byte
ARGV[#ARGV] = nil
local crosses = #ARGV > 0 -- hash slots
if crosses then keys = ARGV end
local not_before, not_after, instance, slots_expiry, log_keys, size, operations_pos
now, not_before, not_after, instance, slots_expiry, log_keys, size, operations_pos =
  unpack_numbers('<dddc7dI2I4', message)
now = resolve_now(now)
if now < not_before or not_after > 0 and now > not_after then
  return pack_numbers('<dB', now, 1)
end

local state_keys = #keys - log_keys
local limits_pos = operations_pos + size

-- The budget of each key, by index. It is the index of the first key of that name.
local budget_of, first_key = {--[[room]]}, {}
for k = 1, state_keys do
  local name = keys[k]
  local known = first_key[name]
  if not known then
    first_key[name], known = k, k
  end
  budget_of[k] = known
end

-- The hash tags of keys that aren't on this node, as a set; nil if there are none. While a hash slot moves, some of its keys
-- can be on this node, and others not.
local elsewhere

local function tag_of(key) return string.match(key, '{(.-)}') end

-- Read a key that KEYS doesn't have, or the length of a log. Servers have many texts for a key that isn't there. With KEYS
-- they give the true error, so that all other errors count as this one. Nothing is written yet. A value that isn't a string
-- is read as one that no budget has, so that an operation on it fails before it writes other keys.
local foreign = '!'
local function read_crossing(command, key)
  local value = redis.pcall(command, key)
  if type(value) ~= 'table' then return value end
  if string.sub(value.err, 1, 9) == 'WRONGTYPE' then return foreign end
  elsewhere = elsewhere or {}
  elsewhere[tag_of(key)] = true
  return false
end

if crosses then
  stored = {--[[room]]}
  for k = 1, #keys do
    if k > state_keys then
      read_crossing('STRLEN', keys[k])
    elseif budget_of[k] == k then
      stored[k] = read_crossing('GET', keys[k])
    end
  end
elseif state_keys <= 1000 then
  stored = state_keys > 0 and redis.call('MGET', unpack(keys, 1, state_keys)) or {}
else
  stored = {}
  for from = 1, state_keys, 1000 do
    for n, state in ipairs(redis.call('MGET', unpack(keys, from, min(from + 999, state_keys)))) do
      stored[from + n - 1] = state
    end
  end
end

local operation_count = 0
local replies = {--[[room]]} -- the head, then one string per operation

-- The zones and checks of the current operation. The next operation uses the same tables.
local zones, checks = {}, {}
local function new_check()
  return {
    limit = { 0, 0, 0, 0, 0, 0, 0, 0, 0, algorithm = 0, keep_until = 0, quantum = 0, counted_by = 0 },
    limit_pos = -1, budget = 0, fits = 0, room = 0, retry = 0, a = 0, b = 0, c = 0, d = 0,
  }
end

local algorithms = {} -- the algorithms of this call, by number

-- Read the limit of a check. A limit that differs only in its burst isn't read again.
local function read_limit(check, limit_pos)
  local number = string_byte(message, limits_pos + limit_pos)
  local algorithm = algorithms[number]
  if not algorithm then
    algorithm = define[number]()
    algorithms[number] = algorithm
  end
  local l = check.limit
  algorithm.read(l, message, limits_pos + limit_pos + 1)
  l.algorithm, check.limit_pos = algorithm, limit_pos
end

-- Read the instance's count of a key for the tenant of a request, and the line in which the request has waited.
local function read_count(count, key, pos)
  local has, tenant, weight = string_byte(message, pos), no_tenant, 0
  pos = pos + 1
  if has > 1 then tenant, weight, pos = unpack_numbers('<c7I2', message, pos) end
  count.key, count.slots, count.weight = key, slots_read(key, instance, tenant, now, slots_expiry), weight
  count.came, count.waiting = now, 0
  if has % 2 == 1 then
    local waited, w1, w2, w3, w4
    waited, count.waiting, w1, w2, w3, w4, pos = unpack_numbers('<dddddd', message, pos)
    count.came = now - waited
    count.line = pack_numbers(line_format, count.came, max(count.waiting - 1, 0), now - w1, now - w2, now - w3, now - w4)
  end
  count.ahead = slots_ahead(count.slots, count.came, weight)
  return pos
end

-- One function per kind of operation. Its arguments are the two numbers of the operation, and the
-- position of the rest in the message. The indexes of the last keys before its own follow. It returns the
-- reply, then the position and the indexes behind the operation. If it can't know these, it
-- returns the reply alone.

-- Decide and charge one HTTP request: see Take in take.go.
local function take(override_count, zone_count, pos, k, log_key)
  if override_count > 0 then
    local found, unchanged = {}, true
    for n = 1, override_count do
      local expected
      expected, pos = unpack_numbers('<I4c0', message, pos)
      k = k + 1
      local text = stored[budget_of[k]] or ''
      if text == foreign then text = '' end
      found[n] = pack_numbers('<I4c0', #text, text)
      unchanged = unchanged and text == expected
    end
    if not unchanged then
      return '\003' .. table.concat(found) -- the rest is not read: without pos, run fails, and run_each does all again
    end
  end

  local allowed, c = true, 0
  for z = 1, zone_count do
    local zone = zones[z]
    if not zone then
      zone = {
        mode = 0, shadow = 0, peeks = 0, checks = 0, cost = 0, has_room = 0, counts = 0, slots = {}, reserved = {},
        slots_free = false, ban = 0, delayed = false,
      }
      zones[z] = zone
    end
    local mode, shadow, check_count, counts, has_ban, cost, max_wait
    mode, shadow, check_count, counts, has_ban, cost, max_wait, pos = unpack_numbers('<BBI2BBdd', message, pos)
    zone.peeks, shadow = shadow > 1, shadow % 2
    local needed, has_room = cost, true
    if mode == 1 then needed = min(cost, 1) elseif mode >= 3 then needed = 0 end
    zone.mode, zone.shadow, zone.checks, zone.cost, zone.counts, zone.ban = mode, shadow == 1, check_count, cost, counts, nil
    zone.delayed = false
    for _ = 1, check_count do
      c = c + 1
      local check, limit_pos, burst = checks[c], nil, nil
      if not check then
        check = new_check()
        checks[c] = check
      end
      limit_pos, burst, pos = unpack_numbers('<I4d', message, pos)
      if check.limit_pos ~= limit_pos then read_limit(check, limit_pos) end
      local l, key = check.limit, nil
      if burst > 0 then l[3] = burst end -- read_limit sets 0
      if l.algorithm.is_log then
        log_key = log_key + 1
        key = log_key
      else
        k = k + 1
        key = budget_of[k]
      end
      local fits, wait
      fits, wait, check.a, check.b, check.c, check.d = l.algorithm.decide(l, key, now, needed)
      local room = 1
      if needed > fits and needed > 0 then
        room = 2
        if wait > max_wait then
          room, has_room = 0, false
          if wait < forever then wait = wait - max_wait end
        else
          zone.delayed = true
        end
      end
      check.budget, check.fits, check.retry, check.room = key, fits, wait, room
    end
    if counts % 2 == 1 then
      local slots_limit, count = nil, zone.slots
      slots_limit, pos = unpack_numbers('<d', message, pos)
      k = k + 1
      pos = read_count(count, budget_of[k], pos)
      zone.slots_free = slots_total(count.slots) + count.ahead < slots_limit
      has_room = has_room and zone.slots_free
    end
    if counts > 1 then
      local count = zone.reserved
      k = k + 1
      pos = read_count(count, budget_of[k], pos)
      local events, ahead = slots_total(count.slots), count.ahead * needed
      for n = c - check_count + 1, c do
        local check = checks[n]
        local fits, room = check.fits, check.room
        if room == 0 and check.retry < forever and needed <= fits + events or room == 1 and needed > 0 and needed > fits - ahead then
          check.room, has_room = 3, false
        end
      end
    end
    if has_ban == 1 then
      local ban = {}
      pos = ban_read(ban, message, pos)
      k = k + 1
      ban.key = budget_of[k]
      ban_decide(ban, ban.key, now)
      zone.ban, has_room = ban, has_room and not ban.stands
    end
    allowed = allowed and (has_room or shadow == 1)
    zone.has_room = has_room
  end

  local reply = '\001'
  c = 0
  for z = 1, zone_count do
    local zone = zones[z]
    local mode, cost, counts, ban = zone.mode, zone.cost, zone.counts, zone.ban
    local passes, peeks = allowed and (zone.has_room or not zone.shadow), zone.peeks
    local charge, outcome, limits_deny = cost, mode == 4 and settled or (peeks or cost == 0) and peek or passes and granted or denied, false
    if peeks or not passes and mode ~= 2 or ban and ban.stands then
      charge = 0
    elseif mode == 1 then
      for n = c + 1, c + zone.checks do charge = min(charge, max(checks[n].fits, 0)) end
    end
    local added = passes and mode < 3 and not zone.delayed and charge or 0
    local reserved = counts > 1 and slots_total(zone.reserved.slots) + added or 0
    for _ = 1, zone.checks do
      c = c + 1
      local check = checks[c]
      local l, key, room, retry = check.limit, check.budget, check.room, check.retry
      if mode >= 3 and passes and not peeks then
        charge = (l.algorithm.is_binary_only or mode == 3 and not l.algorithm.is_calendar) and min(cost, max(check.fits, 0)) or cost
      end
      local charged, balance_a, balance_b, balance_c, balance_d =
        l.algorithm.commit(l, key, now, charge, outcome, check.a, check.b, check.c, check.d, reserved)
      if mode == 2 and not passes then
        local _
        _, retry = l.algorithm.decide(l, key, now, cost)
      end
      limits_deny = limits_deny or room == 0
      local format = balance_d and '<Bdddddd' or balance_c and '<Bddddd' or '<Bdddd'
      reply = reply .. pack_numbers(format, room, retry, charged, balance_a, balance_b, balance_c, balance_d)
    end
    if counts % 2 == 1 then
      local slots = zone.slots.slots
      local count_before = slots.count
      if not peeks then slots_take(zone.slots, passes and 1 or 0, instance, now, slots_expiry) end
      reply = reply .. pack_numbers('<Bdd', zone.slots_free and 1 or 0, count_before, slots_total(slots))
    end
    if counts > 1 then
      local count_before = zone.reserved.slots.count
      if not peeks then slots_take(zone.reserved, added, instance, now, slots_expiry) end
      reply = reply .. pack_numbers('<ddd', count_before, added, reserved)
    end
    if ban then
      local began, ends_after = ban_commit(ban, ban.key, now, limits_deny, outcome == peek)
      reply = reply .. pack_numbers('<BBd', ban.stands and 1 or 0, began, ends_after)
    end
  end
  return reply, pos, k, log_key
end

-- Give back a charge: see Refund in take.go. A reservation ends, whatever becomes of its charge.
local refund_check
local function refund(budget_count, reservation_count, pos, k, log_key)
  refund_check = refund_check or new_check()
  for _ = 1, budget_count do
    local limit_pos, burst, receipt_a, receipt_b, charged_at, n
    limit_pos, burst, receipt_a, receipt_b, charged_at, n, pos = unpack_numbers('<I4ddddd', message, pos)
    if refund_check.limit_pos ~= limit_pos then read_limit(refund_check, limit_pos) end
    local l, key = refund_check.limit, nil
    if burst > 0 then l[3] = burst end
    if l.algorithm.is_log then
      log_key = log_key + 1
      key = log_key
    else
      k = k + 1
      key = budget_of[k]
    end
    if charged_at - now <= step_back or l.algorithm.is_log then
      l.algorithm.refund(l, key, now, receipt_a, receipt_b, n)
    end
  end
  local reply = '\001'
  if reservation_count == 1 then
    local n
    n, pos = unpack_numbers('<d', message, pos)
    k = k + 1
    local key = budget_of[k]
    local reserved = slots_read(key, instance, no_tenant, now, slots_expiry)
    reply = reply .. pack_numbers('<d', reserved.count)
    slots_set(reserved, max(reserved.count - n, 0), now, slots_expiry)
    slots_save(reserved, key, instance, now, slots_expiry)
  end
  return reply, pos, k, log_key
end

-- Set the count of the slots of the instance's tenant.
local function set(_, _, pos, k, log_key)
  local new_count, ends_line, tenant
  new_count, ends_line, tenant, pos = unpack_numbers('<dBc7', message, pos)
  k = k + 1
  local key = budget_of[k]
  local slots = slots_read(key, instance, tenant, now, slots_expiry)
  local count_before = slots.count
  if ends_line == 1 then slots.line_expires, slots.line = 0, no_line end
  slots_set(slots, new_count, now, slots_expiry)
  slots_save(slots, key, instance, now, slots_expiry)
  return pack_numbers('<Bd', 1, count_before), pos, k, log_key
end

local kinds = { take, refund, set }

local function fail(n, err)
  err = type(err) == 'table' and err.err or tostring(err)
  replies[n + 1] = pack_numbers('<BI4c0', 0, #err, err)
end

-- Carry out all operations. The run fails with the first operation that fails or returns its reply
-- alone.
local function run()
  local pos, k, log_key = operations_pos, 0, state_keys
  while pos < limits_pos do
    local kind, first, first_high, second, second_high = string_byte(message, pos, pos + 4) -- costs half of unpack
    operation_count = operation_count + 1
    replies[operation_count + 1], pos, k, log_key =
      kinds[kind](first + 256 * first_high, second + 256 * second_high, pos + 13, k, log_key)
  end
end

-- Carry out each operation by itself, and undo its changes if it fails. Logs are written
-- immediately, and can't be undone. But only the first write to a log can fail.
local function run_each()
  local function undo_changes()
    for n = #undo_log, 1, -1 do
      local k, state, ttl = undo_log[n][1], undo_log[n][2], undo_log[n][3]
      pending[k], pending_ttl[k] = state, ttl
      if not state then changed_count = changed_count - 1 end
    end
    slots_of = {}
  end

  -- Return whether one of the next keys shares a hash tag with a key that isn't on this node.
  local function has_elsewhere(last, count)
    for k = last + 1, last + count do
      if elsewhere[tag_of(keys[k])] then return true end
    end
    return false
  end

  local pos, k, log_key = operations_pos, 0, state_keys
  while pos < limits_pos do
    local kind, first, second, length, own_state_keys, own_logs
    kind, first, second, length, own_state_keys, own_logs, pos = unpack_numbers('<BI2I2I4I2I2', message, pos)
    operation_count = operation_count + 1
    undo_log = {}
    local ok, result = true, '\002'
    if not elsewhere or not has_elsewhere(k, own_state_keys) and not has_elsewhere(log_key, own_logs) then
      ok, result = pcall(kinds[kind], first, second, pos, k, log_key)
    end
    if ok then
      replies[operation_count + 1] = result
    else
      undo_changes()
      fail(operation_count, result)
    end
    pos, k, log_key = pos + length, k + own_state_keys, log_key + own_logs
  end
end

if log_keys > 0 or elsewhere then
  run_each()
elseif not pcall(run) then
  -- Nothing is written yet.
  pending, slots_of, changed_count = {}, {}, 0
  operation_count, replies = 0, {}
  run_each()
end

-- If Redis denies a write, all operations on its key fail.
while true do
  local ok, err = pcall(write_changes)
  if ok then break end
  local name, own_k, pos = keys[changed_keys[next_change]], 0, operations_pos
  for operation = 1, operation_count do
    local length, own_state_keys
    length, own_state_keys, pos = unpack_numbers('<I4I2', message, pos + 5)
    pos = pos + 2 + length
    for own = own_k + 1, own_k + own_state_keys do
      if keys[own] == name then fail(operation, err) end
    end
    own_k = own_k + own_state_keys
  end
  next_change = next_change + 1
end

replies[1] = pack_numbers('<dB', now, 0)
return table.concat(replies)
