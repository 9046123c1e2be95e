
-- gcra: see gcra.go. State: tat (whole µs), part (1/events µs), at (µs).
local gcra = {}
algorithms.gcra = gcra

local function gcra_arrival(key, now)
  local tat, part, at = load(key, 3)
  local dirty = 0
  if at - now > step_back then
    tat, at, dirty = tat - at + now, now, 1
  end
  if tat < now then
    tat, part = now, 0
  end
  return tat, part, max(now, at), dirty
end

local function gcra_free(l, ahead, part)
  local events, window, burst = l[1], l[2], l[3]
  if ahead > floor(burst * window / events) then
    return 0
  end
  return max(floor((burst * window - ahead * events - part) / window), 0)
end

function gcra.decide(l, key, now, cost)
  local events, window, burst = l[1], l[2], l[3]
  local tat, part, at, dirty = gcra_arrival(key, now)
  local ahead = tat - now
  local fits = gcra_free(l, ahead, part)
  local retry = 0
  if cost > burst then
    retry = forever
  elseif cost > fits then
    retry = ahead + ceil((part + (cost - burst) * window) / events)
  end
  return fits, retry, tat, part, at, dirty
end

function gcra.commit(l, key, now, charge, outcome, tat, part, at, dirty)
  local events, window, burst = l[1], l[2], l[3]
  local ahead, most = tat - now, 2 * burst * window
  if outcome == 'refused' and ahead > floor(most / events) then
    charge = 0
  elseif outcome == 'refused' then
    charge = max(min(charge, ceil((most - ahead * events - part) / window)), 0)
  end
  part = part + charge * window
  ahead, part = ahead + floor(part / events), part % events
  if outcome == 'refused' and charge > 0 and ahead * events + part > most then
    ahead, part = floor(most / events), most % events
  end
  local remaining, more, reset = gcra_free(l, ahead, part), 0, 0
  if remaining < burst then
    more = ahead + ceil((part + (remaining + 1 - burst) * window) / events)
    reset = ahead + ceil(part / events)
  end
  tat = now + ahead
  if charge > 0 or dirty == 1 and outcome ~= 'peek' then
    save(key, reset, tat, part, at)
  end
  return charge, tat, part, remaining, more, reset
end

function gcra.refund(l, key, now, a, b, n)
  local events, window, burst = l[1], l[2], l[3]
  local tat, part, at = gcra_arrival(key, now)
  if tat == now and part == 0 or a < now then
    return
  end
  local behind = tat > a or tat == a and part > b
  if behind and tat - now > floor(burst * window / events) then
    return
  end
  local back = min(n, 2 * burst) * window
  if a - now <= floor(back / events) then
    back = min(back, (a - now) * events + b)
  end
  part = part - back
  tat, part = tat + floor(part / events), part - floor(part / events) * events
  if tat < now then
    tat, part = now, 0
  end
  save(key, tat - now + ceil(part / events), tat, part, at)
end
