
-- fixed_window: see fixed_window.go.
--
-- state   start (µs), count (events)
-- limit   1 events, 2 window, 3 align clock (0 or 1)
local function fixed_window_keep_until(l, start, count) return start + ceil(count / l[1]) * l[2] end

local function fixed_window_read(l, message, pos)
  l[1], l[2], l[3], l.quantum, pos = unpack_numbers('<dddd', message, pos)
  l.keep_until = fixed_window_keep_until
  return pos
end

local function fixed_window_roll(l, start, count, now)
  local events, window, align_clock, dirty = l[1], l[2], l[3] == 1, 0
  local new_start = now
  if align_clock then
    new_start = now - now % window
  end
  if start - now > step_back then
    start, dirty = new_start, 1
  end
  if now - start >= window then
    local windows = min(floor((now - start) / window), ceil(count / events))
    start, count = start + windows * window, max(count - windows * events, 0)
  end
  if count == 0 then
    start = new_start
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
  local events, align_clock = l[1], l[3] == 1
  if outcome == denied and count + charge > events then
    if align_clock or count > events then
      charge = max(events - count, 0)
    else
      charge = min(charge, events)
      start, count = max(now, start), events - charge
    end
  end
  count = count + charge
  if charge > 0 or dirty == 1 and outcome ~= peek then
    save(l, k, start, count)
  end
  return charge, start, count
end

local function fixed_window_refund(l, k, now, receipt_start, receipt_count, n)
  local events = l[1]
  local start, count = load(l, k, 2)
  start, count = fixed_window_roll(l, start, count, now)
  local rolled_start, refundable = fixed_window_roll(l, receipt_start, receipt_count, now)
  if count > events and count > refundable then
    return -- later requests wait behind this charge
  end
  n = min(n, refundable)
  if n > 0 and count > 0 and start == rolled_start then
    count = max(count - n, 0)
    save(l, k, start, count)
  end
end
