
-- calendar: see calendar.go.
--
-- state   end of the period (µs), count (events), highest claimed count of the period
-- limit   1 events, 2 3 4 ends of the period that was expected, of the next, and of the one after that
local function calendar_keep_until(_, period_end) return period_end end

local function calendar_read(l, message, pos)
  l[1], l[2], l[3], l[4], l.quantum, pos = unpack_numbers('<ddddd', message, pos)
  l.keep_until, l.counted_by = calendar_keep_until, 0
  return pos
end

local function calendar_roll(l, now, period_end, count, highest)
  local dirty, end_now, end_next = 0, l[2], l[3]
  if now >= end_now then
    end_now, end_next = end_next, l[4]
  end
  if period_end - end_now > end_next - period_end and end_now - now > step_back then
    period_end, dirty = end_now, 1
  end
  if now >= period_end then
    period_end, count, highest = end_now, 0, 0
  end
  return period_end, count, highest, dirty
end

local function calendar_decide(l, k, now, cost)
  local events = l[1]
  local period_end, count, highest, dirty = calendar_roll(l, now, load(l, k))
  local fits = events - count
  local retry = 0
  if cost > events then
    retry = forever
  elseif cost > fits and cost > 0 then
    retry = period_end - now
  end
  return fits, retry, period_end, count, highest, dirty
end

local function calendar_commit(l, k, now, charge, outcome, period_end, count, before, dirty, reserved)
  local events = l[1]
  if outcome == denied then
    charge = min(charge, max(events - count, 0))
  end
  charge = min(charge, forever / 2 - count)
  count = count + charge
  local used, highest = max(count - reserved, 0), before
  if outcome == settled then
    highest = max(highest, used)
  end
  if outcome ~= peek and (charge > 0 or dirty == 1 or highest > before) then
    save(l, k, period_end, count, highest, 0)
  end
  return charge, period_end, before, count, used
end

local function calendar_refund(l, k, now, receipt_end, _, n)
  local period_end, count, highest = calendar_roll(l, now, load(l, k))
  if count > 0 and period_end == receipt_end then
    count = max(count - n, 0)
    save(l, k, period_end, count, highest, 0)
  end
end
