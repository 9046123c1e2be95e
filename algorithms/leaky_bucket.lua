
-- leaky_bucket: see leaky_bucket.go.
--
-- state   last_drip (µs), level (events)
-- limit   1 events, 2 window, 3 burst
local function leaky_bucket_keep_until(l, last_drip, level) return last_drip + ceil(level / l[1]) * l[2] end

local function leaky_bucket_read(l, message, pos)
  l[1], l[2], l[3], l.quantum, pos = unpack_numbers('<dddd', message, pos)
  l.keep_until = leaky_bucket_keep_until
  return pos
end

local function leaky_bucket_leak(l, last_drip, level, now)
  local events, window, dirty = l[1], l[2], 0
  if last_drip - now > step_back then
    last_drip, dirty = now, 1
  end
  local drips = min(floor((max(now, last_drip) - last_drip) / window), ceil(level / events))
  last_drip, level = last_drip + drips * window, max(level - drips * events, 0)
  if level == 0 then
    last_drip = now
  end
  return last_drip, level, dirty
end

local function leaky_bucket_decide(l, k, now, cost)
  local events, window, burst = l[1], l[2], l[3]
  local last_drip, level = load(l, k, 2)
  local dirty
  last_drip, level, dirty = leaky_bucket_leak(l, last_drip, level, now)
  local fits = max(burst - level, 0)
  local retry = 0
  if cost > burst then
    retry = forever
  elseif cost > fits then
    retry = last_drip + ceil((level + cost - burst) / events) * window - now
  end
  return fits, retry, last_drip, level, 0, dirty
end

local function leaky_bucket_commit(l, k, now, charge, outcome, last_drip, level, _, dirty)
  local burst = l[3]
  if outcome == denied then
    charge = max(min(charge, 2 * burst - level), 0)
  end
  level = level + charge
  if charge > 0 or dirty == 1 and outcome ~= peek then
    save(l, k, last_drip, level)
  end
  return charge, last_drip, level
end

local function leaky_bucket_refund(l, k, now, receipt_drip, receipt_level, n)
  local burst = l[3]
  local last_drip, level = load(l, k, 2)
  last_drip, level = leaky_bucket_leak(l, last_drip, level, now)
  local _, refundable = leaky_bucket_leak(l, receipt_drip, receipt_level, now)
  if level > burst and level > refundable then
    return -- later requests wait behind this charge
  end
  n = min(n, refundable)
  if n > 0 and level > 0 then
    level = max(level - n, 0)
    save(l, k, last_drip, level)
  end
end
