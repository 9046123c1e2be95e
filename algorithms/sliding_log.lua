
-- sliding_log: see sliding_log.go. State: a list of instants (µs), oldest first.
local sliding_log = {}
algorithms.sliding_log = sliding_log

local function sliding_log_at(key, index)
  return tonumber(redis.call('LINDEX', key, index))
end

local function sliding_log_dead(key, held, edge)
  local low, high = 0, 1
  while high <= held and sliding_log_at(key, high - 1) <= edge do
    low, high = high, high * 2
  end
  high = min(high, held + 1)
  while high - low > 1 do
    local middle = floor((low + high) / 2)
    if sliding_log_at(key, middle - 1) <= edge then
      low = middle
    else
      high = middle
    end
  end
  return low
end

function sliding_log.decide(l, key, now, cost)
  local events, window, interval = l[1], l[2], l[3]
  local held = redis.call('LLEN', key)
  local newest = -interval
  if held > 0 then
    newest = sliding_log_at(key, held - 1)
  end
  local eff = max(now, newest)
  local dead = sliding_log_dead(key, held, eff - window)
  local live = held - dead
  local fits = max(events - live, 0)
  local retry = 0
  if cost > fits and cost <= events then
    retry = sliding_log_at(key, dead + live + cost - events - 1) + window - now
  end
  local early = newest + interval - now
  if early > 0 then
    fits = 0
    if cost > 0 then
      retry = max(retry, early)
    end
  end
  if cost > events then
    retry = forever
  end
  return fits, retry, eff, dead, live
end

function sliding_log.commit(l, key, now, charge, eff, dead, live)
  local events, window, interval = l[1], l[2], l[3]
  local oldest, newest = eff, eff
  if charge == 0 and dead + live > 0 then
    newest = sliding_log_at(key, dead + live - 1)
  end
  charge = min(charge, events)
  local over = live + charge - events
  if over > 0 then
    dead, live = dead + over, live - over
  end
  if live > 0 then
    oldest = sliding_log_at(key, dead)
  end
  local remaining, more, reset = max(events - live - charge, 0), 0, 0
  if live + charge > 0 then
    more = oldest + window - now
    reset = newest + window - now
  end
  local early = newest + interval - now
  if early > 0 and dead + live + charge > 0 then
    if remaining > 0 then
      more = early
    end
    remaining, more, reset = 0, max(more, early), max(reset, early)
  end
  if charge > 0 then
    if dead > 0 then
      redis.call('LTRIM', key, dead, -1)
    end
    local stamp, stamps = string.format('%.0f', eff), {}
    for j = 1, min(charge, 1000) do stamps[j] = stamp end
    for left = charge, 1, -1000 do
      redis.call('RPUSH', key, unpack(stamps, 1, min(left, 1000)))
    end
    redis.call('PEXPIRE', key, ttl(reset))
  end
  return charge, remaining, more, reset
end
