
-- ban: see ban.go. State: start (µs), ends (µs), denials times 64 and level.

local function ban_untouched(l, start, ends, counts)
  local window, most = l[2], l[4]
  local untouched = start
  if counts >= 64 then
    untouched = start + window
  end
  if counts % 64 > 0 then
    untouched = max(untouched, ends + most)
  end
  return untouched
end

local function ban_read(l, message, at)
  l[1], l[2], l[3], l[4], at = unpack_numbers('<dddd', message, at)
  l.untouched, l.quantum = ban_untouched, 1000000
  return at
end

-- whether a ban stands
local function ban_decide(l, k, now)
  local window, most = l[2], l[4]
  local start, ends, counts = load(l, k, 3)
  local denials, level = floor(counts / 64), counts % 64
  l.stepped_back = start - now > step_back
  if l.stepped_back then
    start, ends = now, ends - start + now
  end
  if now - start >= window then
    start, denials = 0, 0
  end
  if level == 0 or now >= ends + most then
    ends, level = 0, 0
  end
  l.start, l.ends, l.denials, l.level, l.stands = start, ends, denials, level, ends > now
  return l.stands
end

local function ban_save(l, k, start, ends, counts)
  save(l, k, ban_untouched(l, start, ends, counts), start, ends, counts)
end

-- whether the ban began, and how long until it ends
local function ban_commit(l, k, now, denied, peeks)
  local after, duration, most = l[1], l[3], l[4]
  local counts, began = denied and not l.stands, 0
  if counts then
    if l.denials == 0 then
      l.start = now
    end
    l.denials = l.denials + 1
    if l.denials >= after then
      for _ = 1, l.level do
        duration = min(2 * duration, most)
      end
      l.start, l.denials = now, 0
      l.ends, l.level = now + duration, min(l.level + 1, 63)
      began = 1
    end
  end
  local ends_after = max(l.ends - now, 0)
  if counts or l.stepped_back and not peeks then
    ban_save(l, k, l.start, l.ends, l.denials * 64 + l.level)
  end
  return began, ends_after
end

-- Begin a ban that stands from now on for span.
local function ban_begin(l, k, now, span)
  ban_decide(l, k, now)
  ban_save(l, k, now, now + span, min(l.level + 1, 63))
end
