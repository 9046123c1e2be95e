
-- sliding_log: see sliding_log.go. State: a list of instants (µs), oldest first, or,
-- with buckets, of ends, first numbers and numbers after the last, packed by threes. If the log's
-- own time is ahead of the clock, the last entry says by how much, as a text such as +600000000.
local sliding_log = { log = true }
algorithms.sliding_log = sliding_log

local function sliding_log_triple(key, index)
  return unpack_state(redis.call('LINDEX', key, index), 3)
end

-- an instant or a span kept as text
local function sliding_log_number(text)
  local n = tonumber(text)
  if not n or not (n >= 0 and n <= forever) or n % 1 ~= 0 then foreign() end
  return n
end

-- the number of instants or buckets, how far the log's own time is ahead, and the last entry
local function sliding_log_entries(key)
  local length = redis.call('LLEN', key)
  if length == 0 then
    return 0, 0
  end
  local last = redis.call('LINDEX', key, -1)
  if #last < 24 and string.sub(last, 1, 1) == '+' then
    return length - 1, sliding_log_number(last), redis.call('LINDEX', key, -2)
  end
  return length, 0, last
end

local function sliding_log_set_ahead(key, ahead)
  local _, old = sliding_log_entries(key)
  if old ~= ahead and old > 0 then
    redis.call('LTRIM', key, 0, -2)
  end
  if old ~= ahead and ahead > 0 then
    redis.call('RPUSH', key, string.format('+%.0f', ahead))
  end
  return old ~= ahead
end

local function sliding_log_bucket(key, number)
  local low, high = 0, sliding_log_entries(key)
  while high - low > 1 do
    local middle = floor((low + high) / 2)
    local _, first = sliding_log_triple(key, middle)
    if first <= number then
      low = middle
    else
      high = middle
    end
  end
  return low
end

local function sliding_log_held(l, key)
  local entries, ahead, last = sliding_log_entries(key)
  if entries == 0 then
    return 0, ahead
  elseif not l[5] then
    return entries, ahead, sliding_log_number(last)
  end
  local _, first = sliding_log_triple(key, 0)
  local newest, _, after = unpack_state(last, 3)
  if first >= after then foreign() end
  return after - first, ahead, newest
end

local function sliding_log_stamp(l, key, entry)
  if not l[5] then
    return sliding_log_number(redis.call('LINDEX', key, entry))
  end
  return (sliding_log_triple(key, entry))
end

local function sliding_log_at(l, key, event)
  if not l[5] then
    return sliding_log_stamp(l, key, event)
  end
  local _, first = sliding_log_triple(key, 0)
  return sliding_log_stamp(l, key, sliding_log_bucket(key, first + event))
end

local function sliding_log_dead(l, key, held, edge)
  local entries = l[5] and sliding_log_entries(key) or held
  local low, high = 0, 1
  while high <= entries and sliding_log_stamp(l, key, high - 1) <= edge do
    low, high = high, high * 2
  end
  high = min(high, entries + 1)
  while high - low > 1 do
    local middle = floor((low + high) / 2)
    if sliding_log_stamp(l, key, middle - 1) <= edge then
      low = middle
    else
      high = middle
    end
  end
  if low == entries then
    return held
  elseif not l[5] then
    return low
  end
  local _, first = sliding_log_triple(key, 0)
  local _, number = sliding_log_triple(key, low)
  if number < first or number - first > held then foreign() end
  return number - first
end

local function sliding_log_drop(l, key, n)
  if n == 0 then
    return
  elseif not l[5] then
    redis.call('LTRIM', key, n, -1)
  else
    local _, first = sliding_log_triple(key, 0)
    redis.call('LTRIM', key, sliding_log_bucket(key, first + n), -1)
    local stamp, _, after = sliding_log_triple(key, 0)
    redis.call('LSET', key, 0, struct.pack('<i8i8i8', stamp, first + n, after))
  end
end

local function sliding_log_push(l, key, stamp, n, live)
  if not l[5] then
    local text, texts = string.format('%.0f', stamp), {}
    for j = 1, min(n, 1000) do texts[j] = text end
    for left = n, 1, -1000 do
      redis.call('RPUSH', key, unpack(texts, 1, min(left, 1000)))
    end
    return
  end
  local number = 0
  if live > 0 then
    local newest, first, after = sliding_log_triple(key, -1)
    if newest == stamp then
      redis.call('LSET', key, -1, struct.pack('<i8i8i8', stamp, first, after + n))
      return
    end
    number = after
  end
  redis.call('RPUSH', key, struct.pack('<i8i8i8', stamp, number, number + n))
end

local function sliding_log_renumber(key, bucket, n)
  local stamp, first, after = sliding_log_triple(key, bucket)
  redis.call('LSET', key, bucket, struct.pack('<i8i8i8', stamp, first, after - n))
  for i = bucket + 1, sliding_log_entries(key) - 1 do
    local later, from, to = sliding_log_triple(key, i)
    redis.call('LSET', key, i, struct.pack('<i8i8i8', later, from - n, to - n))
  end
  if first == after - n then
    redis.call('LREM', key, 1, struct.pack('<i8i8i8', stamp, first, first))
  end
end

function sliding_log.decide(l, key, now, cost)
  local events, window, interval, grid = l[1], l[2], l[3], l[4]
  local held, ahead, newest = sliding_log_held(l, key)
  if held > 0 then
    newest = newest - ahead
  else
    newest = -max(interval, grid)
  end
  local back = newest - grid + 1 - now
  if back > step_back then
    newest, ahead = newest - back, ahead + back
  end
  local eff = max(now, newest - grid + 1)
  local dead = sliding_log_dead(l, key, held, eff - window + ahead)
  local live = held - dead
  local fits = max(events - live, 0)
  local retry = 0
  if cost > fits and cost <= events then
    retry = sliding_log_at(l, key, dead + live + cost - events - 1) - ahead + window - now
  end
  local early = newest + interval - now
  if interval > 0 and early > 0 then
    fits = 0
    if cost > 0 then
      retry = max(retry, early)
    end
  end
  if cost > events then
    retry = forever
  end
  return fits, retry, eff, dead, live, ahead
end

function sliding_log.commit(l, key, now, charge, outcome, eff, dead, live, ahead)
  local events, window, interval, grid = l[1], l[2], l[3], l[4]
  if charge > 0 and live == 0 then
    ahead = 0
  end
  local stamp = ceil((eff + ahead) / grid) * grid
  local oldest, newest = stamp - ahead, stamp - ahead
  if charge == 0 and dead + live > 0 then
    local _, _, last = sliding_log_held(l, key)
    newest = last - ahead
  end
  charge = min(charge, events)
  local over = live + charge - events
  if over > 0 then
    dead, live = dead + over, live - over
  end
  if live > 0 then
    oldest = sliding_log_at(l, key, dead) - ahead
  end
  local remaining, more, reset = max(events - live - charge, 0), 0, 0
  if live + charge > 0 then
    more = oldest + window - now
    reset = newest + window - now
  end
  local early = newest + interval - now
  if interval > 0 and early > 0 and dead + live + charge > 0 then
    if remaining > 0 then
      more = early
    end
    remaining, more, reset = 0, max(more, early), max(reset, early)
  end
  if charge > 0 then
    if ahead > 0 then
      sliding_log_set_ahead(key, 0)
    end
    if live > 0 then
      sliding_log_drop(l, key, dead)
    end
    sliding_log_push(l, key, stamp, charge, live)
    if live == 0 and dead > 0 then
      -- only now: a key that is empty for a moment is gone, and where its slot is on its way
      -- to another node of a cluster, this one may not begin a new one
      redis.call('LTRIM', key, l[5] and -1 or -charge, -1)
    end
    if ahead > 0 then
      sliding_log_set_ahead(key, ahead)
    end
    redis.call('PEXPIRE', key, ttl(reset))
  elseif outcome ~= 'peek' and ahead > 0 and sliding_log_set_ahead(key, ahead) then
    redis.call('PEXPIRE', key, ttl(reset))
  end
  return charge, stamp, 0, remaining, more, reset
end

function sliding_log.refund(l, key, _, at, _, n)
  local held = sliding_log_held(l, key)
  local low, high = sliding_log_dead(l, key, held, at - 1), sliding_log_dead(l, key, held, at)
  n = min(n, high - low)
  if n == 0 then
    return
  elseif n == held then
    redis.call('DEL', key)
  elseif not l[5] then
    if low < held / 2 then n = -n end
    redis.call('LREM', key, -n, string.format('%.0f', at)) -- from the nearer end
  else
    local _, first = sliding_log_triple(key, 0)
    sliding_log_renumber(key, sliding_log_bucket(key, first + low), n)
  end
end
