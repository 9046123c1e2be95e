
-- token_bucket: see token_bucket.go. State: used (events×µs), at (µs).
local token_bucket = {}
algorithms.token_bucket = token_bucket

function token_bucket.decide(l, key, now, cost)
  local events, window, burst = l[1], l[2], l[3]
  local used, at = load(key)
  local eff = max(now, at)
  used = max(used - min(eff - at, ceil(used / events)) * events, 0)
  local free = burst * window - used
  local fits = max(floor(free / window), 0)
  local retry = 0
  if cost > burst then
    retry = forever
  elseif cost > fits then
    retry = ceil((cost * window - free) / events) + eff - now
  end
  return fits, retry, used, eff
end

function token_bucket.commit(l, key, now, charge, used, eff)
  local events, window, burst = l[1], l[2], l[3]
  local most = max(used, 2 * burst * window)
  charge = min(charge, ceil((most - used) / window))
  used = min(used + charge * window, most)
  local free = burst * window - used
  local remaining, more, reset = max(floor(free / window), 0), 0, 0
  if used > 0 then
    more = ceil(((remaining + 1) * window - free) / events) + eff - now
    reset = ceil(used / events) + eff - now
  end
  if charge > 0 then
    save(key, reset, used, eff)
  end
  return charge, remaining, more, reset
end
