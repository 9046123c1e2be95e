
-- gcra: see gcra.go. State: tat (whole µs), part (1/events µs).
local gcra = {}
algorithms.gcra = gcra

local function gcra_free(l, ahead, part)
  local events, window, burst = l[1], l[2], l[3]
  if ahead > floor(burst * window / events) then
    return 0
  end
  return max(floor((burst * window - ahead * events - part) / window), 0)
end

function gcra.decide(l, key, now, cost)
  local events, window, burst = l[1], l[2], l[3]
  local tat, part = load(key)
  if tat < now then
    tat, part = now, 0
  end
  local ahead = tat - now
  local fits = gcra_free(l, ahead, part)
  local retry = 0
  if cost > burst then
    retry = forever
  elseif cost > fits then
    retry = ahead + ceil((part + (cost - burst) * window) / events)
  end
  return fits, retry, tat, part
end

function gcra.commit(l, key, now, charge, tat, part)
  local events, window, burst = l[1], l[2], l[3]
  local ahead, most = tat - now, 2 * burst * window
  if ahead > floor(most / events) then
    charge = 0
  else
    charge = max(min(charge, ceil((most - ahead * events - part) / window)), 0)
  end
  part = part + charge * window
  ahead, part = ahead + floor(part / events), part % events
  if charge > 0 and ahead * events + part > most then
    ahead, part = floor(most / events), most % events
  end
  local remaining, more, reset = gcra_free(l, ahead, part), 0, 0
  if remaining < burst then
    more = ahead + ceil((part + (remaining + 1 - burst) * window) / events)
    reset = ahead + ceil(part / events)
  end
  if charge > 0 then
    save(key, reset, now + ahead, part)
  end
  return charge, remaining, more, reset
end
