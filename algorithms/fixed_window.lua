
-- fixed_window: see fixed_window.go. State: start (µs), count.
local function fixed_window_untouched(l, start, count) return start + ceil(count / l[1]) * l[2] end

local function fixed_window_read(l, message, at)
  l[1], l[2], l[3], l.quantum, at = unpack_numbers('<dddd', message, at)
  l.untouched = fixed_window_untouched
  return at
end

local function fixed_window_roll(l, start, count, now)
  local events, window, clock, dirty = l[1], l[2], l[3] == 1, 0
  local fresh = now
  if clock then
    fresh = now - now % window
  end
  if start - now > step_back then
    start, dirty = fresh, 1
  end
  if now - start >= window then
    local passed = min(floor((now - start) / window), ceil(count / events))
    start, count = start + passed * window, max(count - passed * events, 0)
  end
  if count == 0 then
    start = fresh
  end
  return start, count, dirty
end

local function fixed_window_decide(l, k, now, cost)
  local events, window = l[1], l[2]
  local start, count = load(l, k, 2)
  local dirty
  start, count, dirty = fixed_window_roll(l, start, count, now)
  local fits = max(events - count, 0)
  local retry = 0
  if cost > events then
    retry = forever
  elseif cost > fits then
    retry = start + floor((count + cost - 1) / events) * window - now
  end
  return fits, retry, start, count, 0, dirty
end

local function fixed_window_commit(l, k, now, charge, outcome, start, count, _, dirty)
  local events, window, clock = l[1], l[2], l[3] == 1
  if outcome == denied and count + charge > events then
    if clock or count > events then
      charge = max(events - count, 0)
    else
      charge = min(charge, events)
      start, count = max(now, start), events - charge
    end
  end
  count = count + charge
  local untouched = start + ceil(count / events) * window
  local remaining, more, reset = max(events - count, 0), 0, 0
  if count > 0 then
    more = start + max(floor(count / events), 1) * window - now
    reset = untouched - now
  end
  if charge > 0 or dirty == 1 and outcome ~= peek then
    save(l, k, untouched, start, count)
  end
  return charge, start, count, remaining, more, reset
end

local function fixed_window_refund(l, k, now, a, b, n)
  local events = l[1]
  local start, count = load(l, k, 2)
  start, count = fixed_window_roll(l, start, count, now)
  local then_start, left = fixed_window_roll(l, a, b, now)
  if count > events and count > left then
    return
  end
  n = min(n, left)
  if n > 0 and count > 0 and start == then_start then
    count = max(count - n, 0)
    save(l, k, fixed_window_untouched(l, start, count), start, count)
  end
end
