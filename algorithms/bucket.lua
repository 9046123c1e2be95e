-- token_bucket, gcra, leaky_bucket: see bucket.go.
--
-- state   admitted use (parts), last_tick (µs), debt or credit (parts), 4·events of the limit that counts them + its kind:
--         0 in advance, 1 owed, 2 a credit, 3 a debt of a smaller limit
-- limit   1 rate, 2 unit, 3 burst, 4 withheld, 5 retention, 6 tick, 7 most, 8 events, 9 window
local function bucket_use(l, admitted, rest, counted_by)
  local unit, most, events, kind = l[2], l[7], floor(counted_by / 4), counted_by % 4
  local full, larger = l[3] * unit, 0
  if events ~= l[8] and events > 0 then
    local _, other = parts_of(l, events)
    admitted = convert_parts(admitted, other, unit, full + 1)
    if kind == 2 then
      rest = full - convert_parts(max(convert_parts(full, unit, other, forever / 2) - rest, 0), other, unit, full)
    else
      rest = convert_parts(rest, other, unit, most - full)
    end
  end
  if admitted > full or kind >= 2 and events > l[8] then
    admitted, larger = full, min(events, 1)
  end
  if kind == 2 then
    admitted, rest = admitted - larger * min(rest, admitted), 0
  end
  return min(admitted + rest, most), kind == 1 and 1 or 0, larger
end

local function bucket_all(admitted, rest, counted_by) return min(admitted + (counted_by % 4 == 2 and 0 or rest), forever - 1) end

local function bucket_keep_until(l, admitted, last_tick, rest, counted_by)
  if rest == 0 and counted_by == l.counted_by and admitted <= l[7] then
    return last_tick + ceil(admitted / l[1]) * l[6] + l[5]
  end
  local used, _, larger = bucket_use(l, admitted, rest, counted_by)
  local ticks = ceil(used / l[1])
  if larger == 1 then
    local rate = parts_of(l, floor(counted_by / 4))
    ticks = max(ticks, min(ceil(bucket_all(admitted, rest, counted_by) / rate), floor(forever / 2 / l[6])))
  end
  return last_tick + ticks * l[6] + l[5]
end

local function bucket_read(l, message, pos)
  l[1], l[2], l[3], l[4], l[5], l[6], l[7], l[8], l[9], l.quantum, pos = unpack_numbers('<dddddddddd', message, pos)
  l.keep_until, l.counted_by, l.unit, l.tick, l.window = bucket_keep_until, 4 * l[8], l[2], l[6], l[9]
  return pos
end

local function bucket_refill(l, used, last_tick, now)
  local rate, tick, unit, withheld = l[1], l[6], l[2], l[4]
  if last_tick == 0 and withheld > 0 then
    return withheld * unit, now, 1
  end
  local dirty = 0
  if last_tick - now > step_back then
    last_tick, dirty = now, 1
  end
  local eff, elapsed = last_tick, now - last_tick
  if elapsed > 0 then
    local refilled = (elapsed - elapsed % tick) / tick * rate -- above 2^53 it is not exact, but more than any use
    if refilled < used then
      used, eff = used - refilled, now - elapsed % tick
    else
      used, eff = 0, now
    end
  end
  return used, eff, dirty
end

local function bucket_save(l, k, used, eff, owed, larger, delta)
  local unit, full = l[2], l[3] * l[2]
  local debt = max(used - full, 0)
  if larger == 1 then
    local admitted, last_tick, rest, counted_by = load(l, k)
    local all, other = count_for_larger(l, bucket_all(admitted, rest, counted_by), floor(counted_by / 4),
      floor(max(eff - last_tick, 0) / l[6]), delta)
    if all > convert_parts(used, unit, other, forever - 1) then
      local kind = 2
      rest = max(convert_parts(full, unit, other, forever / 2) - convert_parts(used, unit, other, forever / 2), 0)
      if debt > 0 then
        kind, rest = 3, convert_parts(debt, unit, other, all)
        all = all - rest
      end
      counted_by = counted_by - counted_by % 4 + kind
      save(l, k, all, eff, rest, counted_by)
      local used_now = bucket_use(l, all, rest, counted_by)
      return used_now
    end
  end
  save(l, k, used - debt, eff, debt, l.counted_by + min(owed, debt))
  return used
end

local function bucket_decide(l, k, now, cost)
  local rate, tick, unit, burst = l[1], l[6], l[2], l[3]
  local admitted, last_tick, debt, counted_by = load(l, k)
  local used, owed, larger, eff, dirty = admitted, 0, 0, nil, nil
  if counted_by ~= l.counted_by or debt > 0 or admitted > burst * unit then
    used, owed, larger = bucket_use(l, admitted, debt, counted_by)
  end
  used, eff, dirty = bucket_refill(l, used, last_tick, now)
  local free = burst * unit - used
  local fits = floor(free / unit)
  local retry = 0
  if cost > burst then
    retry = forever
  elseif cost > fits and cost > 0 then
    retry = ceil((cost * unit - free) / rate) * tick + eff - now
  end
  return fits, retry, used, eff, owed + 2 * larger, dirty
end

local function bucket_commit(l, k, now, charge, outcome, used, eff, marks, dirty)
  local unit, full, most = l[2], l[3] * l[2], l[7]
  local before, all = used, used + charge * unit
  if all <= full and marks < 2 then -- as below, in less time
    if charge > 0 or dirty == 1 and outcome ~= peek then
      save(l, k, all, eff, 0, l.counted_by)
    end
    return charge, all, eff
  end
  local owed, larger = marks % 2, floor(marks / 2)
  if outcome == denied then
    local max_used = max(used, 2 * full)
    charge = min(charge, ceil((max_used - used) / unit))
    used = min(used + charge * unit, max_used)
  else
    charge = min(charge, floor((most - used) / unit))
    used = used + charge * unit
  end
  if charge > 0 and outcome ~= settled then
    owed = 0
  elseif charge > 0 and before <= full then
    owed = 1
  end
  if charge > 0 or dirty == 1 and outcome ~= peek then
    used = bucket_save(l, k, used, eff, owed, larger, used - before)
  end
  return charge, used, eff
end

local function bucket_refund(l, k, now, receipt_used, receipt_at, n)
  local unit, full = l[2], l[3] * l[2]
  local admitted, last_tick, debt, counted_by = load(l, k)
  if last_tick == 0 then
    return
  end
  local used, owed, larger = bucket_use(l, admitted, debt, counted_by)
  local eff
  used, eff = bucket_refill(l, used, last_tick, now)
  local refundable = bucket_refill(l, receipt_used, receipt_at, now)
  if refundable == 0 or owed == 0 and used > full and used > refundable then
    return -- all of it has refilled, or later requests wait behind this charge
  end
  refundable = min(refundable, n * unit, used)
  if counted_by % 4 == 2 and larger == 0 and floor(counted_by / 4) == l[8] then
    save(l, k, admitted - refundable, last_tick, debt, counted_by)
    return
  end
  bucket_save(l, k, used - refundable, eff, owed, larger, -refundable)
end
