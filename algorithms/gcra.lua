
-- gcra: see gcra.go. State: tat (whole µs), part (1/events µs), at (µs).
local function gcra_untouched(l, tat, part) return tat + ceil(part / l[1]) end

local function gcra_read(l, message, at)
  l[1], l[2], l[3], l.quantum, at = unpack_numbers('<dddd', message, at)
  l.untouched = gcra_untouched
  return at
end

local function gcra_arrival(l, k, now)
  local tat, part, at = load(l, k, 3)
  local dirty = 0
  if at - now > step_back then
    tat, at, dirty = tat - at + now, now, 1
  end
  local eff = max(now, at)
  if tat < eff then
    tat, part = eff, 0
  end
  return tat, part, eff, dirty
end

local function gcra_free(l, ahead, part)
  local events, window, burst = l[1], l[2], l[3]
  if ahead > floor(burst * window / events) then
    return 0
  end
  return max(floor((burst * window - ahead * events - part) / window), 0)
end

local function gcra_decide(l, k, now, cost)
  local events, window, burst = l[1], l[2], l[3]
  local tat, part, eff, dirty = gcra_arrival(l, k, now)
  local ahead = tat - eff
  local fits = gcra_free(l, ahead, part)
  local retry = 0
  if cost > burst then
    retry = forever
  elseif cost > fits then
    retry = ahead + ceil((part + (cost - burst) * window) / events) + eff - now
  end
  return fits, retry, tat, part, eff, dirty
end

local function gcra_commit(l, k, now, charge, outcome, tat, part, eff, dirty)
  local events, window, burst = l[1], l[2], l[3]
  local ahead, most = tat - eff, 2 * burst * window
  if outcome == denied then
    charge = max(min(charge, ceil((most - ahead * events - part) / window)), 0)
  end
  part = part + charge * window
  ahead, part = ahead + floor(part / events), part % events
  if outcome == denied and charge > 0 and ahead * events + part > most then
    ahead, part = floor(most / events), most % events
  end
  tat = eff + ahead
  local untouched = tat + ceil(part / events)
  local remaining, more, reset = gcra_free(l, ahead, part), 0, 0
  if remaining < burst then
    more = ahead + ceil((part + (remaining + 1 - burst) * window) / events) + eff - now
    reset = untouched - now
  end
  if charge > 0 or dirty == 1 and outcome ~= peek then
    save(l, k, untouched, tat, part, eff)
  end
  return charge, tat, part, remaining, more, reset
end

local function gcra_refund(l, k, now, a, b, n)
  local events, window, burst = l[1], l[2], l[3]
  local tat, part, eff = gcra_arrival(l, k, now)
  if tat == eff and part == 0 or a < eff then
    return
  end
  local behind = tat > a or tat == a and part > b
  if behind and tat - eff > floor(burst * window / events) then
    return
  end
  local back = min(n, 2 * burst) * window
  if a - eff <= floor(back / events) then
    back = min(back, (a - eff) * events + b)
  end
  part = part - back
  tat, part = tat + floor(part / events), part - floor(part / events) * events
  if tat < eff then
    tat, part = eff, 0
  end
  save(l, k, gcra_untouched(l, tat, part), tat, part, eff)
end
