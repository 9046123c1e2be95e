
-- sliding_log: see sliding_log.go. State: one string, a ring. Its header has six numbers: head (the
-- place of the oldest entry), how many entries there are, ahead (how far the log's own time is
-- ahead of the clock), the instant of the newest event (µs), and with buckets the number of the
-- first event and the number of the next event. Then come places for entries, one number
-- each: an instant (µs); or, with buckets, three: its end, the number of its first event, and that
-- of the first one after it. The first event of the log is in its oldest bucket, not always its
-- first. Numbers are doubles.
--
-- Logs are read and written immediately. The values that decide has read stay in l for commit. A
-- full Redis denies the first write; after that write nothing fails.
-- A number that no script writes is an error.
local function sliding_log_check(n, most)
  if not (n >= 0 and n <= most) or n % 1 ~= 0 then foreign() end
  return n
end

local function sliding_log_read(l, message, at)
  l[1], l[2], l[3], l[4], l[5], l.quantum, at = unpack_numbers('<dddddd', message, at)
  l.size = l[5] > 0 and 24 or 8
  return at
end

-- the text count times; string.rep copies byte by byte
local function sliding_log_repeat(text, count)
  local all = text
  while #all < count * #text do all = all .. all end
  return string.sub(all, 1, count * #text)
end

-- Read the header into l.
local function sliding_log_open(l, k)
  local key = keys[k]
  local header = redis.pcall('GETRANGE', key, 0, 47)
  if type(header) == 'table' then
    if string.sub(header.err, 1, 9) == 'WRONGTYPE' then foreign() end
    error(header)
  elseif header == '' then
    if redis.call('EXISTS', key) == 1 then foreign() end
    l.places, l.head, l.entries, l.held, l.ahead, l.newest, l.first, l.after = 0, 0, 0, 0, 0, 0, 0, 0
    return
  elseif #header < 48 then
    foreign()
  end
  local places = sliding_log_check((redis.call('STRLEN', key) - 48) / l.size, forever)
  local head, entries, ahead, newest, first, after = unpack_numbers('<dddddd', header)
  l.places, l.head = places, sliding_log_check(head, max(places - 1, 0))
  l.entries = sliding_log_check(entries, places)
  l.ahead, l.newest = sliding_log_check(ahead, forever), sliding_log_check(newest, forever)
  l.after = sliding_log_check(after, forever)
  l.first = sliding_log_check(first, after)
  l.held = l.entries
  if l[5] > 0 then
    l.held = after - first
    if entries > l.held or entries == 0 and l.held > 0 then foreign() end
  end
end

-- count entries as a string, from an entry on, the oldest being 0
local function sliding_log_entries(l, k, from, count)
  if count == 0 then return '' end
  local key, size, place = keys[k], l.size, (l.head + from) % l.places
  local here = min(count, l.places - place)
  local text = redis.call('GETRANGE', key, 48 + place * size, 47 + (place + here) * size)
  if here < count then
    text = text .. redis.call('GETRANGE', key, 48, 47 + (count - here) * size)
  end
  return text
end

local function sliding_log_set_entries(l, k, from, text)
  local key, size, place = keys[k], l.size, (l.head + from) % l.places
  local here = (l.places - place) * size
  if #text <= here then
    redis.call('SETRANGE', key, 48 + place * size, text)
  else
    redis.call('SETRANGE', key, 48 + place * size, string.sub(text, 1, here))
    redis.call('SETRANGE', key, 48, string.sub(text, here + 1))
  end
end

-- How many entries have, in one of their numbers (1: instant, 2: first event), at most edge. Then
-- the entry before the next one, the instant of the next one, and the number of its first event;
-- nil where there is none. It reads the oldest few, or halves until what is left is worth reading.
local function sliding_log_count(l, k, number, edge)
  local size, skip, entries = l.size, 8 * number - 7, l.entries
  local from, high, low = 0, min(entries, 16), 0
  local text = sliding_log_entries(l, k, 0, high)
  if high < entries and unpack_numbers('<d', text, (high - 1) * size + skip) <= edge then
    low, high = high, entries
    while high - low > 500 do
      local middle = floor((low + high) / 2)
      if unpack_numbers('<d', sliding_log_entries(l, k, middle, 1), skip) <= edge then
        low = middle + 1
      else
        high = middle
      end
    end
    from = low - 1
    text = sliding_log_entries(l, k, from, min(high + 1, entries) - from)
  end
  while high > low do
    local middle = floor((low + high) / 2)
    if unpack_numbers('<d', text, (middle - from) * size + skip) <= edge then
      low = middle + 1
    else
      high = middle
    end
  end
  local before, stamp, first
  if low > from then before = string.sub(text, (low - from - 1) * size + 1, (low - from) * size) end
  if low < entries then
    stamp = sliding_log_check(unpack_numbers('<d', text, (low - from) * size + 1), forever)
    if size == 24 then first = unpack_numbers('<d', text, (low - from) * size + 9) end
  end
  return low, before, stamp, first
end

-- How many events there are up to and including edge, how many entries, and the instant of the
-- next event.
local function sliding_log_dead(l, k, edge)
  local entries, before, stamp, first = sliding_log_count(l, k, 1, edge)
  if entries == l.entries then
    return l.held, entries, nil, before
  elseif l[5] == 0 or entries == 0 then
    return entries, entries, stamp, before
  end
  return sliding_log_check(first - l.first, l.held), entries, stamp, before
end

-- The instants of an event and of the next one, which there must be, and the entry of the latter.
local function sliding_log_two(l, k, event)
  if l[5] == 0 then
    local one, two = unpack_numbers('<dd', sliding_log_entries(l, k, event, 2))
    return sliding_log_check(one, forever), sliding_log_check(two, forever), event + 1
  end
  local number = l.first + event
  local entries, before, stamp, first = sliding_log_count(l, k, 2, number)
  if not before then foreign() end
  local one = sliding_log_check(unpack_numbers('<d', before), forever)
  if first == number + 1 then
    return one, stamp, entries
  end
  return one, one, entries - 1
end

-- Move entries, piece by piece, because a large string is slow to make in Lua.
local function sliding_log_move(l, k, from, count, to)
  for done = 0, count - 1, 1000 do
    local n = min(count - done, 1000)
    local skip = to < from and done or count - done - n
    sliding_log_set_entries(l, k, to + skip, sliding_log_entries(l, k, from + skip, n))
  end
end

-- Make more places in the string. Either the entries in front of the oldest entry move behind it,
-- or those behind it move to the end.
local function sliding_log_grow(l, k, places, entries)
  local key, size, old, head = keys[k], l.size, l.places, l.head
  redis.call('SETRANGE', key, 47 + places * size, '\0')
  l.places, l.head = places, 0
  local front, behind = max(head + entries - old, 0), old - head
  if front <= min(behind, places - old) then
    sliding_log_move(l, k, 0, front, old)
  else
    sliding_log_move(l, k, head, behind, places - behind)
    head = places - behind
  end
  l.head = head
  redis.call('BITOP', 'OR', key, key) -- SETRANGE leaves as much room again; a copy has none, nor a TTL
end

-- Forget the oldest entries, append another count times, and write the header. The ring grows as
-- it fills, and shrinks when little of it is left.
local function sliding_log_push(l, k, now, drop, entry, count, ahead, newest, first, after)
  local key, size, places, left = keys[k], l.size, l.places, l.entries - drop
  local entries = left + count
  local kept, span = max(l[2], l[3]), l.quantum
  local expiry, same = floor((newest - ahead + kept) / span), false
  if l.entries > 0 then
    same = expiry == floor((l.newest - l.ahead + kept) / span)
  end
  if places > 0 then
    l.head = (l.head + drop) % places
  end
  local piece = sliding_log_repeat(entry, min(count, 1000))
  if entries > places or places > 64 and entries <= min(places / 16, 1000) then
    places = min(max(2 * entries, 4), max(l[5] > 0 and l[5] + 1 or l[1], entries))
    if places <= 2048 then
      local text = sliding_log_entries(l, k, 0, left) .. sliding_log_repeat(entry, count)
      text = text .. sliding_log_repeat('\0\0\0\0\0\0\0\0', places * size / 8 - #text / 8)
      text = pack_numbers('<dddddd', 0, entries, ahead, newest, first, after) .. text
      if same then
        redis.call('SET', key, text, 'KEEPTTL')
      else
        redis.call('SET', key, text, 'PX', lifetime(expiry, span))
      end
      return
    end
    sliding_log_grow(l, k, places, left)
    same = false
  end
  for done = 0, count - 1, 1000 do
    local n = min(count - done, 1000)
    sliding_log_set_entries(l, k, left + done, string.sub(piece, 1, n * size))
  end
  redis.call('SETRANGE', key, 0, pack_numbers('<dddddd', l.head, entries, ahead, newest, first, after))
  if not same then
    redis.call('PEXPIRE', key, lifetime(expiry, span))
  end
end

local function sliding_log_decide(l, k, now, cost)
  local events, window, interval, grid = l[1], l[2], l[3], l[4]
  sliding_log_open(l, k)
  local held, ahead = l.held, l.ahead
  local newest = -max(interval, grid)
  if held > 0 then
    newest = l.newest - ahead
  end
  local back = newest - grid + 1 - now
  if back > step_back then
    newest, ahead = newest - back, ahead + back
  end
  local eff = max(now, newest - grid + 1)
  local dead
  dead, l.drop, l.oldest = sliding_log_dead(l, k, eff - window + ahead)
  local live = held - dead
  local fits = max(events - live, 0)
  local retry = 0
  if cost > fits and cost <= events then
    local stamp
    if cost < events then
      stamp, l.oldest_over, l.drop_over = sliding_log_two(l, k, dead + live + cost - events - 1)
    else
      stamp = l.newest
    end
    retry = stamp - ahead + window - now
  end
  local early = newest + interval - now
  if interval > 0 and early > 0 then
    fits = 0
    if cost > 0 then
      retry = max(retry, early)
    end
  end
  if cost > events then
    retry = forever
  end
  return fits, retry, eff, dead, live, ahead
end

local function sliding_log_commit(l, k, now, charge, outcome, eff, dead, live, ahead)
  local events, window, interval, grid = l[1], l[2], l[3], l[4]
  if charge > 0 and live == 0 then
    ahead = 0
  end
  local stamp = ceil((eff + ahead) / grid) * grid
  local oldest, newest, drop, oldest_live = stamp - ahead, stamp - ahead, l.drop, l.oldest
  if charge == 0 and dead + live > 0 then
    newest = l.newest - ahead
  end
  charge = min(charge, events)
  local over = live + charge - events
  if over > 0 then
    dead, live, drop, oldest_live = dead + over, live - over, l.drop_over, l.oldest_over
  end
  if live > 0 then
    oldest = oldest_live - ahead
  end
  local remaining, more, reset = max(events - live - charge, 0), 0, 0
  if live + charge > 0 then
    more = oldest + window - now
    reset = newest + window - now
  end
  local early = newest + interval - now
  if interval > 0 and early > 0 and dead + live + charge > 0 then
    if remaining > 0 then
      more = early
    end
    remaining, more, reset = 0, max(more, early), max(reset, early)
  end
  if charge > 0 then
    local first, after = l.first + dead, l.after + charge
    if live == 0 then
      drop, first, after = l.entries, 0, charge
    end
    local entry, count = '', 0
    if l[5] == 0 then
      entry, count, first, after = pack_numbers('<d', stamp), charge, 0, 0
    elseif live == 0 or l.newest ~= stamp then
      entry, count = pack_numbers('<ddd', stamp, after - charge, after), 1
    else
      local place = (l.head + l.entries - 1) % l.places
      redis.call('SETRANGE', keys[k], 64 + place * 24, pack_numbers('<d', after))
    end
    sliding_log_push(l, k, now, drop, entry, count, ahead, stamp, first, after)
  elseif outcome ~= peek and ahead ~= l.ahead then
    sliding_log_push(l, k, now, 0, '', 0, ahead, l.newest, l.first, l.after)
  end
  return charge, stamp, 0, remaining, more, reset
end

-- The expiry stays. At worst the key expires too late.
local function sliding_log_refund(l, k, now, at, _, n)
  sliding_log_open(l, k)
  local low, from, _, before = sliding_log_dead(l, k, at - 1)
  local high = sliding_log_dead(l, k, at)
  n = min(n, high - low)
  if n == 0 then
    return
  elseif n == l.held then
    redis.call('SET', keys[k], pack_numbers('<dddddd', 0, 0, 0, 0, 0, 0), 'KEEPTTL')
    return
  end
  local head, entries, newest, after, all = l.head, l.entries, l.newest, l.after, n == high - low
  if all and high == l.held then
    newest = sliding_log_check(unpack_numbers('<d', before), forever)
  end
  if l[5] > 0 then
    local text, old = {}, sliding_log_entries(l, k, from, entries - from)
    for i = all and 2 or 1, entries - from do
      local stamp, number, last = unpack_numbers('<ddd', old, i * 24 - 23)
      if i > 1 then number = number - n end
      text[#text + 1] = pack_numbers('<ddd', stamp, number, last - n)
    end
    if #text > 0 then
      sliding_log_set_entries(l, k, from, table.concat(text))
    end
    entries, after = from + #text, after - n
  elseif from < floor((entries - n) / 2) then
    sliding_log_move(l, k, 0, from, n)
    head, entries = (head + n) % l.places, entries - n
  else
    sliding_log_move(l, k, from + n, entries - from - n, from)
    entries = entries - n
  end
  redis.call('SETRANGE', keys[k], 0, pack_numbers('<dddddd', head, entries, l.ahead, newest, l.first, after))
end
