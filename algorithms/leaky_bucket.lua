
-- leaky_bucket: see leaky_bucket.go. State: drip (µs), level.
local function leaky_bucket_untouched(l, drip, level) return drip + ceil(level / l[1]) * l[2] end

local function leaky_bucket_read(l, message, at)
  l[1], l[2], l[3], l.quantum, at = unpack_numbers('<dddd', message, at)
  l.untouched = leaky_bucket_untouched
  return at
end

local function leaky_bucket_leak(l, drip, level, now)
  local events, window, dirty = l[1], l[2], 0
  if drip - now > step_back then
    drip, dirty = now, 1
  end
  local drips = min(floor((max(now, drip) - drip) / window), ceil(level / events))
  drip, level = drip + drips * window, max(level - drips * events, 0)
  if level == 0 then
    drip = now
  end
  return drip, level, dirty
end

local function leaky_bucket_decide(l, k, now, cost)
  local events, window, burst = l[1], l[2], l[3]
  local drip, level = load(l, k, 2)
  local dirty
  drip, level, dirty = leaky_bucket_leak(l, drip, level, now)
  local fits = max(burst - level, 0)
  local retry = 0
  if cost > burst then
    retry = forever
  elseif cost > fits then
    retry = drip + ceil((level + cost - burst) / events) * window - now
  end
  return fits, retry, drip, level, 0, dirty
end

local function leaky_bucket_commit(l, k, now, charge, outcome, drip, level, _, dirty)
  local events, window, burst = l[1], l[2], l[3]
  if outcome == denied then
    charge = max(min(charge, 2 * burst - level), 0)
  end
  level = level + charge
  local untouched = drip + ceil(level / events) * window
  local remaining, more, reset = max(burst - level, 0), 0, 0
  if level > 0 then
    more = drip + ceil((level - burst + remaining + 1) / events) * window - now
    reset = untouched - now
  end
  if charge > 0 or dirty == 1 and outcome ~= peek then
    save(l, k, untouched, drip, level)
  end
  return charge, drip, level, remaining, more, reset
end

local function leaky_bucket_refund(l, k, now, a, b, n)
  local burst = l[3]
  local drip, level = load(l, k, 2)
  drip, level = leaky_bucket_leak(l, drip, level, now)
  local _, left = leaky_bucket_leak(l, a, b, now)
  if level > burst and level > left then
    return
  end
  n = min(n, left)
  if n > 0 and level > 0 then
    level = max(level - n, 0)
    save(l, k, leaky_bucket_untouched(l, drip, level), drip, level)
  end
end
