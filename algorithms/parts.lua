
-- parts: see parts.go. A limit with parts has the fields unit, tick and window.
local function parts_of(l, events)
  if l.tick == l.window then
    return events, 1
  end
  local divisor, rest = events, l.window % events
  while rest > 0 do
    divisor, rest = rest, divisor % rest
  end
  return events / divisor, l.window / divisor
end

local function convert_parts(n, from, to, most)
  local whole = floor(n / from)
  local rest = n - whole * from
  if from == to then
    return min(n, most)
  elseif whole > floor(most / to) then
    return most
  end
  local coarse = ceil(max(rest, 1) / floor(forever / 2 / to))
  local part = ceil(ceil(rest / coarse) * to / floor(from / coarse))
  return min(whole * to + min(part, to), most)
end

local function count_for_larger(l, used, events, ticks, delta)
  local rate, unit = parts_of(l, events)
  used = max(used - min(ticks, ceil(used / rate)) * rate, 0)
  if delta < 0 then
    used = max(used - convert_parts(-delta, l.unit, unit, forever / 2), 0)
  else
    used = used + min(convert_parts(delta, l.unit, unit, forever / 2), forever - 1 - used)
  end
  return used, unit
end

