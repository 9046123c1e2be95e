
-- gcra: see gcra.go.
--
-- state   tat (whole µs), fraction (1/events µs), last_charge (µs)
-- limit   1 events, 2 window, 3 burst
local function gcra_keep_until(l, tat, fraction) return tat + ceil(fraction / l[1]) end

local function gcra_read(l, message, pos)
  l[1], l[2], l[3], l.quantum, pos = unpack_numbers('<dddd', message, pos)
  l.keep_until = gcra_keep_until
  return pos
end

local function gcra_arrival(l, k, now)
  local tat, fraction, last_charge = load(l, k, 3)
  local dirty = 0
  if last_charge - now > step_back then
    tat, last_charge, dirty = tat - last_charge + now, now, 1
  end
  local eff = max(now, last_charge)
  if tat < eff then
    tat, fraction = eff, 0
  end
  return tat, fraction, eff, dirty
end

local function gcra_free(l, ahead, fraction)
  local events, window, burst = l[1], l[2], l[3]
  if ahead > floor(burst * window / events) then
    return 0
  end
  return max(floor((burst * window - ahead * events - fraction) / window), 0)
end

local function gcra_decide(l, k, now, cost)
  local events, window, burst = l[1], l[2], l[3]
  local tat, fraction, eff, dirty = gcra_arrival(l, k, now)
  local ahead = tat - eff
  local fits = gcra_free(l, ahead, fraction)
  local retry = 0
  if cost > burst then
    retry = forever
  elseif cost > fits then
    retry = ahead + ceil((fraction + (cost - burst) * window) / events) + eff - now
  end
  return fits, retry, tat, fraction, eff, dirty
end

local function gcra_commit(l, k, now, charge, outcome, tat, fraction, eff, dirty)
  local events, window, burst = l[1], l[2], l[3]
  local ahead, max_debt = tat - eff, 2 * burst * window
  if outcome == denied then
    charge = max(min(charge, ceil((max_debt - ahead * events - fraction) / window)), 0)
  end
  fraction = fraction + charge * window
  ahead, fraction = ahead + floor(fraction / events), fraction % events
  if outcome == denied and charge > 0 and ahead * events + fraction > max_debt then
    ahead, fraction = floor(max_debt / events), max_debt % events
  end
  tat = eff + ahead
  if charge > 0 or dirty == 1 and outcome ~= peek then
    save(l, k, tat, fraction, eff)
  end
  return charge, tat, fraction, eff
end

local function gcra_refund(l, k, now, receipt_tat, receipt_fraction, n)
  local events, window, burst = l[1], l[2], l[3]
  local tat, fraction, eff = gcra_arrival(l, k, now)
  if tat == eff and fraction == 0 or receipt_tat < eff then
    return
  end
  local charged_since = tat > receipt_tat or tat == receipt_tat and fraction > receipt_fraction
  if charged_since and tat - eff > floor(burst * window / events) then
    return -- later requests wait behind this charge
  end
  local refunded = min(n, 2 * burst) * window
  if receipt_tat - eff <= floor(refunded / events) then
    refunded = min(refunded, (receipt_tat - eff) * events + receipt_fraction)
  end
  fraction = fraction - refunded
  tat, fraction = tat + floor(fraction / events), fraction - floor(fraction / events) * events
  if tat < eff then
    tat, fraction = eff, 0
  end
  save(l, k, tat, fraction, eff)
end
