
-- smooth: see smooth.go. State: used (events×µs, or µs with warm_up), free (µs), at (µs).
local function smooth_untouched(l, used, free) return free + ceil(used / l[5]) + l[7] end

local function smooth_read(l, message, at)
  l[1], l[2], l[3], l[4], l[5], l[6], l[7], l[8], at = unpack_numbers('<dddddddd', message, at)
  if l[8] > 0 then
    l[9], l[10], l[11], l[12], l[13], l[14], l[15], l[16], l[17], l[18], at = unpack_numbers('<dddddddddd', message, at)
  end
  l.quantum, at = unpack_numbers('<d', message, at)
  l.untouched = smooth_untouched
  return at
end

local function smooth_rest(l, used, free, at, now)
  local window, speed, withheld, dirty = l[2], l[5], l[6], 0
  if free == 0 and withheld > 0 then
    return withheld * window, now, now, 1
  end
  if at - now > step_back then
    free, at, dirty = free - at + now, now, 1
  end
  if now > free then
    used = max(used - min(now - free, ceil(used / speed)) * speed, 0)
    free = now
  end
  return used, free, max(now, at), dirty
end

local function smooth_warm(l, used, charge)
  local events, window, warm_up, idle_n, idle_per, enough = l[1], l[2], l[8], l[9], l[10], l[11]
  local threshold, unit, span, steep, steep_per, ratio, ratio_per = l[12], l[13], l[14], l[15], l[16], l[17], l[18]
  local idle = warm_up - used
  local dx = min(ceil(min(charge, enough) * idle_n / idle_per), idle)
  local y1 = ceil(max(idle - threshold, 0) / unit)
  local y0 = ceil(max(idle - dx - threshold, 0) / unit)
  local extra = ceil(steep * (y1 - y0) * (y1 + y0) / (steep_per * 2 * span)) * unit
  return used + dx, ceil(charge * window / events) + ceil(extra * ratio / ratio_per)
end

local function smooth_decide(l, k, now, cost)
  local used, free, at = load(l, k, 3)
  local eff, dirty
  used, free, eff, dirty = smooth_rest(l, used, free, at, now)
  local fits, retry = forever, 0
  if free > eff then
    fits = 0
    if cost > 0 then
      retry = free - now
    end
  end
  return fits, retry, used, free, eff, dirty
end

local function smooth_commit(l, k, now, charge, outcome, used, free, eff, dirty)
  local events, window, burst, most, speed, warm_up = l[1], l[2], l[3], l[4], l[5], l[8]
  local remaining, more = 0, 0
  charge = min(charge, most)
  if warm_up > 0 then
    local cost
    used, cost = smooth_warm(l, used, charge)
    free = free + cost
    if free <= eff then
      remaining = 1
    end
  else
    local spent = max(min(charge * window, burst * window - used), 0)
    used = used + spent
    free = free + ceil((charge * window - spent) / events)
    local saved = max(floor((burst * window - used) / window), 0)
    if free <= eff then
      remaining = saved + 1
    end
    if used > 0 then
      more = ceil(((saved + 1) * window - (burst * window - used)) / events) + eff - now
    end
  end
  if free > eff then
    more = free - now
  end
  local full = free + ceil(used / speed)
  local reset = full - now
  if charge > 0 or dirty == 1 and outcome ~= peek then
    save(l, k, full + l[7], used, free, eff)
  end
  return charge, used, free, remaining, more, reset
end

local function smooth_refund(l, k, now, a, b, n)
  local events, window, most, warm_up = l[1], l[2], l[4], l[8]
  local used, free, at = load(l, k, 3)
  if free == 0 then
    return
  end
  local eff
  used, free, eff = smooth_rest(l, used, free, at, now)
  local left, next_free = smooth_rest(l, a, b, 0, now)
  local back = min(n, most) * window
  if free > eff and (free > next_free or free == next_free and used ~= left) then
    return
  end
  local sooner = min(ceil(back / events), free - eff)
  free = free - sooner
  if warm_up == 0 then
    used = max(used - min(max(back - sooner * events, 0), left), 0)
  end
  save(l, k, smooth_untouched(l, used, free), used, free, eff)
end
