
-- sliding_log: see sliding_log.go. State: a list of instants (µs), oldest first, or,
-- with buckets, of ends, first numbers and numbers after the last, packed by threes.
local sliding_log = {}
algorithms.sliding_log = sliding_log

local function sliding_log_triple(key, index)
  return unpack_state(redis.call('LINDEX', key, index), 3)
end

local function sliding_log_bucket(key, number)
  local low, high = 0, redis.call('LLEN', key)
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
  local length = redis.call('LLEN', key)
  if not l[5] or length == 0 then
    return length
  end
  local _, first = sliding_log_triple(key, 0)
  local _, _, after = sliding_log_triple(key, -1)
  if first >= after then foreign() end
  return after - first
end

local function sliding_log_stamp(l, key, entry)
  if not l[5] then
    local stamp = tonumber(redis.call('LINDEX', key, entry))
    if not stamp or not (stamp >= 0 and stamp <= forever) or stamp % 1 ~= 0 then foreign() end
    return stamp
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
  local entries = l[5] and redis.call('LLEN', key) or held
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
  for i = bucket + 1, redis.call('LLEN', key) - 1 do
    local later, from, to = sliding_log_triple(key, i)
    redis.call('LSET', key, i, struct.pack('<i8i8i8', later, from - n, to - n))
  end
  if first == after - n then
    redis.call('LREM', key, 1, struct.pack('<i8i8i8', stamp, first, first))
  end
end

function sliding_log.decide(l, key, now, cost)
  local events, window, interval, grid = l[1], l[2], l[3], l[4]
  local held = sliding_log_held(l, key)
  local newest = -max(interval, grid)
  if held > 0 then
    newest = sliding_log_stamp(l, key, -1)
  end
  local eff = max(now, newest - grid + 1)
  local dead = sliding_log_dead(l, key, held, eff - window)
  local live = held - dead
  local fits = max(events - live, 0)
  local retry = 0
  if cost > fits and cost <= events then
    retry = sliding_log_at(l, key, dead + live + cost - events - 1) + window - now
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
  return fits, retry, ceil(eff / grid) * grid, dead, live
end

function sliding_log.commit(l, key, now, charge, _, stamp, dead, live)
  local events, window, interval = l[1], l[2], l[3]
  local oldest, newest = stamp, stamp
  if charge == 0 and dead + live > 0 then
    newest = sliding_log_stamp(l, key, -1)
  end
  charge = min(charge, events)
  local over = live + charge - events
  if over > 0 then
    dead, live = dead + over, live - over
  end
  if live > 0 then
    oldest = sliding_log_at(l, key, dead)
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
    if live > 0 then
      sliding_log_drop(l, key, dead)
    end
    sliding_log_push(l, key, stamp, charge, live)
    if live == 0 and dead > 0 then
      -- only now: a key that is empty for a moment is gone, and where its slot is on its way
      -- to another node of a cluster, this one may not begin a new one
      redis.call('LTRIM', key, l[5] and -1 or -charge, -1)
    end
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
  end
  if not l[5] then
    if low < held / 2 then n = -n end
    redis.call('LREM', key, -n, string.format('%.0f', at)) -- from the nearer end
  else
    local _, first = sliding_log_triple(key, 0)
    sliding_log_renumber(key, sliding_log_bucket(key, first + low), n)
  end
end
