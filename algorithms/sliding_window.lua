
-- sliding_window: see sliding_window.go.
--
-- state   start (µs), prev (events), cur (events), 4·events of the limit
-- limit   1 events, 2 window, 3 unit (µs), 4 width
local function sliding_window_keep_until(l, start, prev, cur)
  local window = l[2]
  if cur > 0 then
    return start + 2 * window
  elseif prev > 0 then
    return start + window
  end
  return start
end

local function sliding_window_read(l, message, pos)
  l[1], l[2], l[3], l.quantum, pos = unpack_numbers('<dddd', message, pos)
  l[4], l.keep_until, l.counted_by = ceil(l[2] / l[3]), sliding_window_keep_until, 4 * l[1]
  return pos
end

local function sliding_window_free(l, now, start, prev, cur)
  local events, window, unit = l[1], l[2], l[3]
  local more = max(cur - events, 0)
  prev, cur = min(prev, events), min(cur, events)
  local width, elapsed = l[4], floor(max(now - start, 0) / unit)
  return floor((events * width - prev * (width - elapsed) - cur * width) / width) - more
end

local function sliding_window_fits_at(l, start, prev, cur, cost)
  local events, window, unit = l[1], l[2], l[3]
  prev, cur = min(prev, events), min(cur, events)
  if cur + cost > events then
    start, prev, cur = start + window, cur, 0
  end
  local elapsed = l[4] - floor((events - cur - cost) * l[4] / prev)
  return start + min(elapsed * unit, window)
end

local function sliding_window_roll(l, k, now)
  local window, dirty = l[2], 0
  local start, prev, cur = load(l, k)
  if start - now > step_back then
    start, dirty = now - now % window, 1
  end
  if now - start >= 2 * window then
    start, prev, cur = now - now % window, 0, 0
  elseif now - start >= window then
    start, prev, cur = start + window, cur, 0
  end
  return start, prev, cur, dirty
end

local function sliding_window_decide(l, k, now, cost)
  local events = l[1]
  local start, prev, cur, dirty = sliding_window_roll(l, k, now)
  local fits = sliding_window_free(l, now, start, prev, cur)
  local retry = 0
  if cost > events then
    retry = forever
  elseif cost > fits and cost > 0 then
    retry = sliding_window_fits_at(l, start, prev, cur, cost) - now
  end
  return fits, retry, start, prev, cur, dirty
end

local function sliding_window_commit(l, k, now, charge, outcome, start, prev, cur, dirty)
  local events = l[1]
  local most = forever / 2
  if outcome == denied then
    most = 2 * events
  end
  charge = max(min(charge, most - cur), 0)
  cur = cur + charge
  if charge > 0 or dirty == 1 and outcome ~= peek then
    save(l, k, start, prev, cur, l.counted_by)
  end
  return charge, start, prev, cur
end

local function sliding_window_refund(l, k, now, receipt_start, _, n)
  local window = l[2]
  local start, prev, cur = sliding_window_roll(l, k, now)
  if receipt_start == start and cur > 0 then
    cur = max(cur - n, 0)
  elseif receipt_start == start - window and prev > 0 then
    prev = max(prev - n, 0)
  else
    return
  end
  save(l, k, start, prev, cur, l.counted_by)
end
