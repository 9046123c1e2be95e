
-- fixed_window: see fixed_window.go.
--
-- state   start (µs), count (events), queued (events), 4·events of the limit
-- limit   1 events, 2 window, 3 align clock (0 or 1), 4 most queued
local function fixed_window_keep_until(l, start, count, queued)
  if queued > 0 then
    return start + (1 + ceil(min(queued, l[4]) / l[1])) * l[2]
  end
  return count > 0 and start + l[2] or start
end

local function fixed_window_read(l, message, pos)
  l[1], l[2], l[3], l.quantum, pos = unpack_numbers('<dddd', message, pos)
  l[4], l.keep_until, l.counted_by = (floor(forever / 4 / l[2]) + 1) * l[1], fixed_window_keep_until, 4 * l[1]
  return pos
end

local function fixed_window_roll(l, now, start, count, queued)
  local events, window, align_clock, dirty = l[1], l[2], l[3] == 1, 0
  local new_start = now
  queued = queued > 0 and min(queued, l[4]) or 0
  if align_clock then
    new_start = now - now % window
  end
  if start - now > step_back then
    start, dirty = new_start, 1
  end
  if now - start >= window then
    local windows = min(floor((now - start) / window), 1 + ceil(queued / events))
    count = min(max(queued - (windows - 1) * events, 0), events)
    start, queued = start + windows * window, max(queued - windows * events, 0)
  end
  if count == 0 then
    start = new_start
  end
  return start, count, queued, dirty
end

local function fixed_window_used(l, count, queued) return queued > 0 and l[1] + queued or min(count, l[1]) end

local function fixed_window_decide(l, k, now, cost)
  local events, window = l[1], l[2]
  local start, count, queued, dirty = fixed_window_roll(l, now, load(l, k))
  local used = (queued > 0 or count > events) and fixed_window_used(l, count, queued) or count
  local fits = events - max(used, count + queued)
  local retry = 0
  if cost > events then
    retry = forever
  elseif cost > fits and cost > 0 then
    retry = floor((used + cost - 1) / events) * window - (now - start)
  end
  return fits, retry, start, count, queued, dirty
end

local function fixed_window_commit(l, k, now, charge, outcome, start, count, queued, dirty)
  local events, align_clock = l[1], l[3] == 1
  if queued == 0 and count + charge <= events then -- as below, in less time
    if charge > 0 or dirty == 1 and outcome ~= peek then
      save(l, k, start, count + charge, 0, l.counted_by)
    end
    return charge, start, count + charge
  end
  local used = fixed_window_used(l, count, queued)
  if outcome == denied and used + charge > events then
    if align_clock or used > events then
      charge = max(events - used, 0)
    else
      charge = min(charge, events)
      start, count, queued, used = max(now, start), max(count, events) - charge, 0, events - charge
    end
  end
  charge = max(min(charge, forever / 2 - count - queued), 0)
  local queue = 0
  if outcome ~= settled and used + charge > events then
    queue = min(used + charge - events, charge)
  end
  count, queued = count + charge - queue, queued + queue
  if charge > 0 or dirty == 1 and outcome ~= peek then
    save(l, k, start, count, queued, l.counted_by)
  end
  return charge, start, fixed_window_used(l, count, queued)
end

local function fixed_window_refund(l, k, now, receipt_start, receipt_used, n)
  local events = l[1]
  local start, count, queued = fixed_window_roll(l, now, load(l, k))
  local rolled_start, refundable, later =
    fixed_window_roll(l, now, receipt_start, min(receipt_used, events), max(receipt_used - events, 0))
  refundable = refundable + later
  local used = fixed_window_used(l, count, queued)
  if queued > 0 and used > refundable then
    return -- later requests wait behind this charge
  end
  n = min(n, refundable)
  if n > 0 and used > 0 and start == rolled_start then
    local ahead = min(n, queued)
    save(l, k, start, max(count - n + ahead, 0), queued - ahead, l.counted_by)
  end
end
