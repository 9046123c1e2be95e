
-- ban: see ban.go. State: start (µs), ends (µs), refusals times 64 and level.
local ban = { bans = true }
algorithms.ban = ban

function ban.decide(l, key, now)
  local window, most = l[2], l[4]
  local start, ends, counts = load(key, 3)
  local refusals, level = floor(counts / 64), counts % 64
  local dirty = 0
  if start - now > step_back then
    start, ends, dirty = now, ends - start + now, 1
  end
  if now - start >= window then
    start, refusals = 0, 0
  end
  if level == 0 or now >= ends + most then
    ends, level = 0, 0
  end
  local fits, retry = forever, 0
  if ends > now then
    fits, retry = -1, ends - now
  end
  return fits, retry, start, ends, refusals * 64 + level, dirty
end

function ban.begin(l, key, now, span)
  local most = l[4]
  local _, _, _, _, counts = ban.decide(l, key, now)
  local level = min(counts % 64 + 1, 63)
  save(key, span + most, now, now + span, level)
end

function ban.commit(l, key, now, charge, outcome, start, ends, counts, dirty)
  local after, window, duration, most = l[1], l[2], l[3], l[4]
  local refusals, level = floor(counts / 64), counts % 64
  if outcome == 'refused' then
    if refusals == 0 then
      start = now
    end
    refusals = refusals + 1
    if refusals >= after then
      for _ = 1, level do
        duration = min(2 * duration, most)
      end
      start, refusals = now, 0
      ends, level = now + duration, min(level + 1, 63)
    end
  end
  local remaining, more, reset = forever, 0, 0
  if ends > now then
    remaining, more = 0, ends - now
  end
  if refusals > 0 then
    reset = start + window - now
  end
  if level > 0 then
    reset = max(reset, ends + most - now)
  end
  if outcome == 'refused' or dirty == 1 and outcome ~= 'peek' then
    save(key, reset, start, ends, refusals * 64 + level)
  end
  return 0, 0, 0, remaining, more, reset
end
