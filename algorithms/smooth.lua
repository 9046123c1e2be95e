-- smooth: see smooth.go.
--
-- state   used (events×µs; with warm_up µs), next_free (µs), last_charge (µs), 4·events of the limit that counts the use, + 2 if
--         another limit wrote it
-- limit   1 events, 2 window, 3 burst, 4 max_charge, 5 refill_rate, 6 withheld, 7 retention, 8 warm_up; 19 events and 20 window as
--         configured
--         with warm_up: 9 idle_num, 10 idle_den, 11 events_to_warm, 12 threshold, 13 unit,
--         14 cold_span, 15 steep_num, 16 steep_den, 17 ratio_num, 18 ratio_den
local function smooth_use(l, used, counted_by)
  local full = l[3] * l[2]
  local events = floor(counted_by / 4)
  if l[8] > 0 then
    return used, 0
  elseif events ~= l[19] and events > 0 then
    local _, other = parts_of(l, events)
    used = convert_parts(used, other, l[2], full + 1)
  end
  if used > full then
    return full, min(events, 1)
  end
  return used, 0
end

local function smooth_keep_until(l, used, next_free, _, counted_by)
  if counted_by == l.counted_by and used <= l[3] * l[2] then
    return next_free + ceil(used / l[5]) + l[7]
  end
  local own, larger = smooth_use(l, used, counted_by)
  local refill = ceil(own / l[5])
  if larger == 1 then
    local rate = parts_of(l, floor(counted_by / 4))
    refill = max(refill, min(ceil(used / rate), forever / 2))
  end
  return next_free + refill + l[7]
end

local function smooth_read(l, message, pos)
  l[1], l[2], l[3], l[4], l[5], l[6], l[7], l[8], l[19], l[20], pos =
    unpack_numbers('<dddddddddd', message, pos)
  if l[8] > 0 then
    l[9], l[10], l[11], l[12], l[13], l[14], l[15], l[16], l[17], l[18], pos = unpack_numbers('<dddddddddd', message, pos)
  end
  l.quantum, pos = unpack_numbers('<d', message, pos)
  l.keep_until, l.counted_by, l.unit, l.tick, l.window = smooth_keep_until, 4 * l[19], l[2], 1, l[20]
  return pos
end

local function smooth_save(l, k, now, used, next_free, eff, larger, delta)
  if larger == 1 then
    local used_before, next_free_before, _, counted_by = load(l, k)
    local all, other = count_for_larger(l, used_before, floor(counted_by / 4), max(now - next_free_before, 0), delta)
    if ceil(all / other) > l[3] then
      save(l, k, all, next_free, eff, counted_by - counted_by % 4 + 2)
      return l[3] * l[2]
    end
  end
  save(l, k, used, next_free, eff, l.counted_by)
  return used
end

local function smooth_refill(l, used, next_free, last_charge, now)
  local window, refill_rate, withheld, dirty = l[2], l[5], l[6], 0
  if next_free == 0 and withheld > 0 then
    return withheld * window, now, now, 1
  end
  if last_charge - now > step_back then
    next_free, last_charge, dirty = next_free - last_charge + now, now, 1
  end
  if now > next_free then
    used = max(used - min(now - next_free, ceil(used / refill_rate)) * refill_rate, 0)
    next_free = now
  elseif next_free > max(now, last_charge) and l[8] == 0 then
    used = l[3] * window
  end
  return used, next_free, max(now, last_charge), dirty
end

local function smooth_warm(l, used, charge)
  local events, window, warm_up, idle_num, idle_den, events_to_warm = l[1], l[2], l[8], l[9], l[10], l[11]
  local threshold, unit, cold_span, steep_num, steep_den, ratio_num, ratio_den = l[12], l[13], l[14], l[15], l[16], l[17], l[18]
  local idle = warm_up - used
  local idle_spent = min(ceil(min(charge, events_to_warm) * idle_num / idle_den), idle)
  local above_before = ceil(max(idle - threshold, 0) / unit)
  local above_after = ceil(max(idle - idle_spent - threshold, 0) / unit)
  local extra = ceil(steep_num * (above_before - above_after) * (above_before + above_after) / (steep_den * 2 * cold_span)) * unit
  return used + idle_spent, ceil(charge * window / events) + ceil(extra * ratio_num / ratio_den)
end

local function smooth_decide(l, k, now, cost)
  local used, next_free, last_charge, counted_by = load(l, k)
  local larger, eff, dirty = 0, nil, nil
  if counted_by ~= l.counted_by or used > l[3] * l[2] then
    used, larger = smooth_use(l, used, counted_by)
  end
  used, next_free, eff, dirty = smooth_refill(l, used, next_free, last_charge, now)
  local fits, retry = forever, 0
  if next_free > eff then
    fits = -forever
    if cost > 0 then
      retry = next_free - now
    end
  end
  return fits, retry, used, next_free, eff, dirty + 2 * larger
end

local function smooth_commit(l, k, now, charge, outcome, used, next_free, eff, marks)
  local events, window, burst, max_charge, warm_up = l[1], l[2], l[3], l[4], l[8]
  local before, dirty, larger = used, marks % 2, marks >= 2 and 1 or 0
  charge = min(charge, max_charge)
  if warm_up > 0 then
    local cost
    used, cost = smooth_warm(l, used, charge)
    next_free = next_free + cost
  else
    local spent = max(min(charge * window, burst * window - used), 0)
    used = used + spent
    next_free = next_free + ceil((charge * window - spent) / events)
  end
  if charge > 0 or dirty == 1 and outcome ~= peek then
    used = smooth_save(l, k, now, used, next_free, eff, larger, used - before)
  end
  return charge, used, next_free, eff
end

local function smooth_refund(l, k, now, receipt_used, receipt_next_free, n)
  local events, window, max_charge, warm_up = l[1], l[2], l[4], l[8]
  local used, next_free, last_charge, counted_by = load(l, k)
  if next_free == 0 then
    return
  end
  local larger, eff
  used, larger = smooth_use(l, used, counted_by)
  used, next_free, eff = smooth_refill(l, used, next_free, last_charge, now)
  local refundable, expected_next_free = smooth_refill(l, receipt_used, receipt_next_free, 0, now)
  local refunded = min(n, max_charge) * window
  if next_free > eff and (next_free > expected_next_free or next_free == expected_next_free and used ~= refundable) then
    return -- later requests wait behind this charge
  end
  local earlier = min(ceil(refunded / events), next_free - eff)
  next_free = next_free - earlier
  local left = used
  if warm_up == 0 then
    left = max(used - min(max(refunded - earlier * events, 0), refundable), 0)
  end
  if earlier > 0 or left < used then
    smooth_save(l, k, now, left, next_free, eff, larger, left - used)
  end
end
