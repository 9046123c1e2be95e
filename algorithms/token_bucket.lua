
-- token_bucket: see token_bucket.go.
--
-- state   used (events×µs), last_charge (µs)
-- limit   1 events, 2 window, 3 burst, 4 withheld, 5 retention
local function token_bucket_keep_until(l, used, last_charge) return last_charge + ceil(used / l[1]) + l[5] end

local function token_bucket_read(l, message, pos)
  l[1], l[2], l[3], l[4], l[5], l.quantum, pos = unpack_numbers('<dddddd', message, pos)
  l.keep_until = token_bucket_keep_until
  return pos
end

local function token_bucket_refill(l, used, last_charge, now)
  local events, window, withheld = l[1], l[2], l[4]
  if last_charge == 0 and withheld > 0 then
    return withheld * window, now, 1
  end
  local dirty = 0
  if last_charge - now > step_back then
    last_charge, dirty = now, 1
  end
  local eff = max(now, last_charge)
  used = max(used - min(eff - last_charge, ceil(used / events)) * events, 0)
  return used, eff, dirty
end

local function token_bucket_decide(l, k, now, cost)
  local events, window, burst = l[1], l[2], l[3]
  local used, last_charge = load(l, k, 2)
  local eff, dirty
  used, eff, dirty = token_bucket_refill(l, used, last_charge, now)
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
  local window, burst = l[2], l[3]
  if outcome == denied then
    local max_used = max(used, 2 * burst * window)
    charge = min(charge, ceil((max_used - used) / window))
    used = min(used + charge * window, max_used)
  else
    used = used + charge * window
  end
  if charge > 0 or dirty == 1 and outcome ~= peek then
    save(l, k, used, eff)
  end
  return charge, used, eff
end

local function token_bucket_refund(l, k, now, receipt_used, receipt_at, n)
  local window, burst = l[2], l[3]
  local used, last_charge = load(l, k, 2)
  if last_charge == 0 then
    return
  end
  local eff
  used, eff = token_bucket_refill(l, used, last_charge, now)
  local refundable = token_bucket_refill(l, receipt_used, receipt_at, now)
  if used > burst * window and used > refundable then
    return -- later requests wait behind this charge
  end
  if n < ceil(refundable / window) then
    refundable = n * window
  end
  used = max(used - refundable, 0)
  save(l, k, used, eff)
end
