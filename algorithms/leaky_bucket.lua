
-- leaky_bucket: see leaky_bucket.go. State: drip (µs), level.
local leaky_bucket = {}
algorithms.leaky_bucket = leaky_bucket

function leaky_bucket.decide(l, key, now, cost)
  local events, window, burst = l[1], l[2], l[3]
  local drip, level = load(key)
  local drips = min(floor((max(now, drip) - drip) / window), ceil(level / events))
  drip, level = drip + drips * window, max(level - drips * events, 0)
  if level == 0 then
    drip = now
  end
  local fits = max(burst - level, 0)
  local retry = 0
  if cost > burst then
    retry = forever
  elseif cost > fits then
    retry = drip + ceil((level + cost - burst) / events) * window - now
  end
  return fits, retry, drip, level
end

function leaky_bucket.commit(l, key, now, charge, drip, level)
  local events, window, burst = l[1], l[2], l[3]
  charge = max(min(charge, 2 * burst - level), 0)
  level = level + charge
  local remaining, more, reset = max(burst - level, 0), 0, 0
  if level > 0 then
    more = drip + ceil((level - burst + remaining + 1) / events) * window - now
    reset = drip + ceil(level / events) * window - now
  end
  if charge > 0 then
    save(key, reset, drip, level)
  end
  return charge, remaining, more, reset
end
