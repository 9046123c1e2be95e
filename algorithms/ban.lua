
-- ban: see ban.go.
--
-- state   start (µs), ends (µs), packed (denials·128 + operator·64 + level)
--         operator is 1 if an operator began the last ban
-- ban     1 after, 2 window, 3 duration, 4 max_duration
local function ban_keep_until(ban, start, ends, packed)
  local window, max_duration = ban[2], ban[4]
  local keep_until = start
  if packed >= 128 then
    keep_until = start + window
  end
  if packed % 64 > 0 then
    keep_until = max(keep_until, ends + max_duration)
  end
  return keep_until
end

local function ban_read(ban, message, pos)
  ban[1], ban[2], ban[3], ban[4], pos = unpack_numbers('<dddd', message, pos)
  ban.keep_until, ban.quantum, ban.counted_by = ban_keep_until, 1000000, 0
  return pos
end

-- Read the state into ban. Return whether a ban stands.
local function ban_decide(ban, k, now)
  local window, max_duration = ban[2], ban[4]
  local start, ends, packed = load(ban, k)
  local denials, by_operator, level = floor(packed / 128), floor(packed / 64) % 2, packed % 64
  ban.stepped_back = start - now > step_back
  if ban.stepped_back then
    start, ends = now, ends - start + now
  end
  if now - start >= window then
    start, denials = 0, 0
  end
  if level == 0 or now >= ends + max_duration then
    ends, level, by_operator = 0, 0, 0
  end
  ban.start, ban.ends, ban.denials, ban.by_operator, ban.level, ban.stands = start, ends, denials, by_operator, level, ends > now
  return ban.stands
end

-- Count a denial by the zone's limits. A peek doesn't save the count. Return whether a ban began, and
-- when it ends, from now.
local function ban_commit(ban, k, now, limits_deny, is_peek)
  local after, duration, max_duration = ban[1], ban[3], ban[4]
  local counts, began = limits_deny and after > 0 and not ban.stands, 0
  if counts then
    if ban.denials == 0 then
      ban.start = now
    end
    ban.denials = ban.denials + 1
    if ban.denials >= after then
      for _ = 1, ban.level do
        duration = min(2 * duration, max_duration)
      end
      ban.start, ban.denials, ban.by_operator = now, 0, 0
      ban.ends, ban.level = now + duration, min(ban.level + 1, 63)
      began = 1
    end
  end
  local ends_after = max(ban.ends - now, 0)
  if not is_peek and (counts or ban.stepped_back) then
    save(ban, k, ban.start, ban.ends, ban.denials * 128 + ban.by_operator * 64 + ban.level, 0)
  end
  return began, ends_after
end

-- Begin a ban that stands for span from now on. One that holds leaves a ban that ends later.
local function ban_begin(ban, k, now, span, holds)
  ban_decide(ban, k, now)
  local ends, by_operator, level = now + span, 1, min(ban.level + 1, 63)
  if holds then
    ends, level = max(ban.ends, ends), max(ban.level, 1)
    by_operator = ban.ends == ends and ban.by_operator or 0
  end
  save(ban, k, now, ends, by_operator * 64 + level, 0)
end
