
-- token_bucket: see token_bucket.go. State: used (events×µs), at (µs).
local function token_bucket_untouched(l, used, at) return at + ceil(used / l[1]) + l[5] end

local function token_bucket_read(l, message, at)
  l[1], l[2], l[3], l[4], l[5], l.quantum, at = unpack_numbers('<dddddd', message, at)
  l.untouched = token_bucket_untouched
  return at
end

local function token_bucket_refill(l, used, at, now)
  local events, window, withheld = l[1], l[2], l[4]
  if at == 0 and withheld > 0 then
    return withheld * window, now, 1
  end
  local dirty = 0
  if at - now > step_back then
    at, dirty = now, 1
  end
  local eff = max(now, at)
  used = max(used - min(eff - at, ceil(used / events)) * events, 0)
  return used, eff, dirty
end

local function token_bucket_decide(l, k, now, cost)
  local events, window, burst = l[1], l[2], l[3]
  local used, at = load(l, k, 2)
  local eff, dirty
  used, eff, dirty = token_bucket_refill(l, used, at, now)
  local free = burst * window - used
  local fits = max(floor(free / window), 0)
  local retry = 0
  if cost > burst then
    retry = forever
  elseif cost > fits then
    retry = ceil((cost * window - free) / events) + eff - now
  end
  return fits, retry, used, eff, 0, dirty
end

local function token_bucket_commit(l, k, now, charge, outcome, used, eff, _, dirty)
  local events, window, burst = l[1], l[2], l[3]
  if outcome == denied then
    local most = max(used, 2 * burst * window)
    charge = min(charge, ceil((most - used) / window))
    used = min(used + charge * window, most)
  else
    used = used + charge * window
  end
  local free = burst * window - used
  local full = eff + ceil(used / events)
  local remaining, more, reset = max(floor(free / window), 0), 0, 0
  if used > 0 then
    more = ceil(((remaining + 1) * window - free) / events) + eff - now
    reset = full - now
  end
  if charge > 0 or dirty == 1 and outcome ~= peek then
    save(l, k, full + l[5], used, eff)
  end
  return charge, used, eff, remaining, more, reset
end

local function token_bucket_refund(l, k, now, a, b, n)
  local events, window, burst = l[1], l[2], l[3]
  local used, at = load(l, k, 2)
  if at == 0 then
    return
  end
  local eff
  used, eff = token_bucket_refill(l, used, at, now)
  local left = token_bucket_refill(l, a, b, now)
  if used > burst * window and used > left then
    return
  end
  if n < ceil(left / window) then
    left = n * window
  end
  used = max(used - left, 0)
  save(l, k, token_bucket_untouched(l, used, eff), used, eff)
end
