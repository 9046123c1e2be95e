
-- fixed_window: see fixed_window.go. State: start (µs), count.
local fixed_window = {}
algorithms.fixed_window = fixed_window

function fixed_window.decide(l, key, now, cost)
  local events, window, clock = l[1], l[2], l[3] == 1
  local start, count = load(key)
  if count == 0 or now - start >= window then
    start, count = now, 0
    if clock then
      start = now - now % window
    end
  end
  local fits = max(events - count, 0)
  local retry = 0
  if cost > events then
    retry = forever
  elseif cost > fits then
    retry = start + window - now
  end
  return fits, retry, start, count
end

function fixed_window.commit(l, key, now, charge, start, count)
  local events, window, clock = l[1], l[2], l[3] == 1
  if count + charge > events then
    if clock then
      charge = events - count
    else
      charge = min(charge, events)
      start, count = now, events - charge
    end
  end
  count = count + charge
  local remaining, more, reset = max(events - count, 0), 0, 0
  if count > 0 then
    more = start + window - now
    reset = start + window - now
  end
  if charge > 0 then
    save(key, reset, start, count)
  end
  return charge, remaining, more, reset
end
