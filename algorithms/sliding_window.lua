
-- sliding_window: see sliding_window.go. State: start (µs), prev, cur.
local function sliding_window_untouched(l, start, prev, cur)
  local window = l[2]
  if cur > 0 then
    return start + 2 * window
  elseif prev > 0 then
    return start + window
  end
  return start
end

local function sliding_window_read(l, message, at)
  l[1], l[2], l[3], l.quantum, at = unpack_numbers('<dddd', message, at)
  l.untouched = sliding_window_untouched
  return at
end

local function sliding_window_free(l, now, start, prev, cur)
  local events, window, unit = l[1], l[2], l[3]
  local width, into = ceil(window / unit), floor((max(now, start) - start) / unit)
  return max(floor((events * width - prev * (width - into) - cur * width) / width), 0)
end

local function sliding_window_room(l, start, prev, cur, cost)
  local events, window, unit = l[1], l[2], l[3]
  if cur + cost > events then
    start, prev, cur = start + window, cur, 0
  end
  local width = ceil(window / unit)
  local into = width - floor((events - cur - cost) * width / prev)
  return start + min(into * unit, window)
end

local function sliding_window_roll(l, k, now)
  local window, dirty = l[2], 0
  local start, prev, cur = load(l, k, 3)
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
  elseif cost > fits then
    retry = sliding_window_room(l, start, prev, cur, cost) - now
  end
  return fits, retry, start, prev, cur, dirty
end

local function sliding_window_commit(l, k, now, charge, outcome, start, prev, cur, dirty)
  local events = l[1]
  charge = max(min(charge, 2 * events - cur), 0)
  cur = cur + charge
  local untouched = sliding_window_untouched(l, start, prev, cur)
  local remaining, more, reset = sliding_window_free(l, now, start, prev, cur), 0, 0
  if remaining < events then
    more = sliding_window_room(l, start, prev, cur, remaining + 1) - now
  end
  if cur > 0 or prev > 0 then
    reset = untouched - now
  end
  if charge > 0 or dirty == 1 and outcome ~= peek then
    save(l, k, untouched, start, prev, cur)
  end
  return charge, start, 0, remaining, more, reset
end

local function sliding_window_refund(l, k, now, at, _, n)
  local window = l[2]
  local start, prev, cur = sliding_window_roll(l, k, now)
  if at == start and cur > 0 then
    cur = max(cur - n, 0)
  elseif at == start - window and prev > 0 then
    prev = max(prev - n, 0)
  else
    return
  end
  save(l, k, sliding_window_untouched(l, start, prev, cur), start, prev, cur)
end
