
-- sliding_log: see sliding_log.go. Decide and commit are the same there; the log is stored
-- differently.
--
-- state   one string of doubles: a header, then a ring of places for entries
--   header     head (the place of the oldest entry), entries (their number), shift (µs),
--              newest (the instant of the newest event, µs); with buckets: first (the number of the
--              oldest event) and after (the number of the next event), otherwise 0 and 0; events of the limit that wrote it
--   entry      the instant of an event (µs); with buckets: the end of the bucket (µs), the number of
--              its first event, and the number of the first event after it
-- limit   1 events, 2 window, 3 min_interval, 4 grid, 5 buckets
--
-- The oldest bucket can have lost its oldest events. Then first is above the number in its entry.
--
-- Logs are read and written immediately. Decide keeps in l the numbers that commit needs. A full
-- Redis denies the first write; after that write nothing fails.

-- Return n, an integer from 0 to bound. No script writes another number, so others are an error.
local function sliding_log_check(n, bound)
  if not (n >= 0 and n <= bound) or n % 1 ~= 0 then not_a_budget() end
  return n
end

local function sliding_log_read(l, message, pos)
  l[1], l[2], l[3], l[4], l[5], l.quantum, pos = unpack_numbers('<dddddd', message, pos)
  l.size = l[5] > 0 and 24 or 8
  return pos
end

-- Return the text count times. string.rep is slower, because it copies byte by byte.
local function sliding_log_repeat(text, count)
  local all = text
  while #all < count * #text do all = all .. all end
  return string.sub(all, 1, count * #text)
end

-- Read the header into l.
local function sliding_log_open(l, k)
  local key = keys[k]
  local header = redis.pcall('GETRANGE', key, 0, 55)
  if type(header) == 'table' then
    if string.sub(header.err, 1, 9) == 'WRONGTYPE' then not_a_budget() end
    error(header)
  elseif header == '' then
    if redis.call('EXISTS', key) == 1 then not_a_budget() end
    l.places, l.head, l.entries, l.length, l.shift, l.newest, l.first, l.after, l.writer = 0, 0, 0, 0, 0, 0, 0, 0, 0
    return
  elseif #header < 56 then
    not_a_budget()
  end
  local places = sliding_log_check((redis.call('STRLEN', key) - 56) / l.size, forever)
  local head, entries, shift, newest, first, after, writer = unpack_numbers('<ddddddd', header)
  l.places, l.head = places, sliding_log_check(head, max(places - 1, 0))
  l.entries = sliding_log_check(entries, places)
  l.shift, l.newest = sliding_log_check(shift, forever), sliding_log_check(newest, forever)
  l.after = sliding_log_check(after, forever)
  l.first, l.writer = sliding_log_check(first, after), writer
  l.length = l.entries
  if l[5] > 0 then
    l.length = after - first
    if entries > l.length or entries == 0 and l.length > 0 then not_a_budget() end
  end
end

-- Return count entries as a string, from an entry on; the oldest is entry 0.
local function sliding_log_entries(l, k, from, count)
  if count == 0 then return '' end
  local key, size, place = keys[k], l.size, (l.head + from) % l.places
  local until_end = min(count, l.places - place)
  local text = redis.call('GETRANGE', key, 56 + place * size, 55 + (place + until_end) * size)
  if until_end < count then
    text = text .. redis.call('GETRANGE', key, 56, 55 + (count - until_end) * size)
  end
  return text
end

-- Write entries over the present ones, from an entry on.
local function sliding_log_set_entries(l, k, from, text)
  local key, size, place = keys[k], l.size, (l.head + from) % l.places
  local until_end = (l.places - place) * size
  if #text <= until_end then
    redis.call('SETRANGE', key, 56 + place * size, text)
  else
    redis.call('SETRANGE', key, 56 + place * size, string.sub(text, 1, until_end))
    redis.call('SETRANGE', key, 56, string.sub(text, until_end + 1))
  end
end

-- Return the number of entries up to and including edge, by a column of the entries (1: instant,
-- 2: number of the first event). Return also the last of these entries as a string, and
-- the instant and first event of the next entry. Values are nil where there is no entry.
-- It reads the oldest 16 entries. If all are below edge, it halves until about 500 remain to read.
local function sliding_log_count(l, k, column, edge)
  local size, offset, entries = l.size, 8 * column - 7, l.entries
  local from, high, low = 0, min(entries, 16), 0
  local text = sliding_log_entries(l, k, 0, high)
  if high < entries and unpack_numbers('<d', text, (high - 1) * size + offset) <= edge then
    low, high, text = high, entries, nil
  end
  while high > low do
    if not text and high - low <= 500 then
      from = low - 1
      text = sliding_log_entries(l, k, from, min(high + 1, entries) - from)
    end
    local middle = floor((low + high) / 2)
    local entry, pos = text or sliding_log_entries(l, k, middle, 1), text and middle - from or 0
    if unpack_numbers('<d', entry, pos * size + offset) <= edge then
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

-- Return the number of events up to and including edge, and the number of entries. Return also the
-- instant of the next event, and the last of these entries as a string.
local function sliding_log_expired(l, k, edge)
  local entries, before, stamp, first = sliding_log_count(l, k, 1, edge)
  if entries == l.entries then
    return l.length, entries, nil, before
  elseif l[5] == 0 or entries == 0 then
    return entries, entries, stamp, before
  end
  return sliding_log_check(first - l.first, l.length), entries, stamp, before
end

-- Return the instants of an event and of the next one, and the entry of the next one. Both must exist.
local function sliding_log_pair(l, k, event)
  if l[5] == 0 then
    local one, two = unpack_numbers('<dd', sliding_log_entries(l, k, event, 2))
    return sliding_log_check(one, forever), sliding_log_check(two, forever), event + 1
  end
  local number = l.first + event
  local entries, before, stamp, first = sliding_log_count(l, k, 2, number)
  if not before then not_a_budget() end
  local one = sliding_log_check(unpack_numbers('<d', before), forever)
  if first == number + 1 then
    return one, stamp, entries
  end
  return one, one, entries - 1
end

-- Move entries in pieces of 1000, because Lua is slow with large strings.
local function sliding_log_move(l, k, from, count, to)
  for done = 0, count - 1, 1000 do
    local n = min(count - done, 1000)
    local skip = to < from and done or count - done - n
    sliding_log_set_entries(l, k, to + skip, sliding_log_entries(l, k, from + skip, n))
  end
end

-- Make more places in the string. Either the entries in front of the head move behind the old end,
-- or those from the head on move to the new end.
local function sliding_log_grow(l, k, places, entries)
  local key, size, old, head = keys[k], l.size, l.places, l.head
  redis.call('SETRANGE', key, 55 + places * size, '\0')
  l.places, l.head = places, 0
  local front, behind = max(head + entries - old, 0), old - head
  if front <= min(behind, places - old) then
    sliding_log_move(l, k, 0, front, old)
  else
    sliding_log_move(l, k, head, behind, places - behind)
    head = places - behind
  end
  l.head = head
  redis.call('BITOP', 'OR', key, key) -- SETRANGE allocates twice the length; a copy doesn't, but has no TTL
end

-- Remove the drop oldest entries, append entry count times, and write the header. The ring grows when
-- it is full, and shrinks when few entries are left.
local function sliding_log_push(l, k, now, drop, entry, count, shift, newest, first, after)
  local key, size, places, left = keys[k], l.size, l.places, l.entries - drop
  local entries = left + count
  local retention, quantum = max(l[2], l[3]), l.quantum
  local keep_until, before, same = newest - shift + retention, l.newest - l.shift + retention, false
  if l.entries > 0 and l.writer == l[1] then -- another limit has set another expiry
    same = keep_until - keep_until % quantum == before - before % quantum
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
      text = pack_numbers('<ddddddd', 0, entries, shift, newest, first, after, l[1]) .. text
      if same then
        redis.call('SET', key, text, 'KEEPTTL')
      else
        redis.call('SET', key, text, 'PX', ttl_of(keep_until - keep_until % quantum + 2 * quantum))
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
  redis.call('SETRANGE', key, 0, pack_numbers('<ddddddd', l.head, entries, shift, newest, first, after, l[1]))
  if not same then
    redis.call('PEXPIRE', key, ttl_of(keep_until - keep_until % quantum + 2 * quantum))
  end
end

local function sliding_log_decide(l, k, now, cost)
  local events, window, interval, grid = l[1], l[2], l[3], l[4]
  sliding_log_open(l, k)
  local length, shift = l.length, l.shift
  local newest = -max(interval, grid)
  if length > 0 then
    newest = l.newest - shift
  end
  local step = newest - grid + 1 - now
  if step > step_back then
    newest, shift = newest - step, shift + step
  end
  local eff = max(now, newest - grid + 1)
  local expired
  expired, l.drop, l.oldest = sliding_log_expired(l, k, eff - window + shift)
  local live = length - expired
  local fits = events - live
  local retry = 0
  if cost > fits and cost > 0 and cost <= events then
    local stamp = l.newest
    if cost < events then
      stamp = sliding_log_pair(l, k, expired + live + cost - events - 1)
    end
    retry = stamp - shift + window - now
  end
  local interval_wait = newest + interval - now
  if interval > 0 and interval_wait > 0 then
    fits = -forever
    if cost > 0 then
      retry = max(retry, interval_wait)
    end
  end
  if cost > events then
    retry = forever
  end
  return fits, retry, eff, expired, live, shift
end

local function sliding_log_commit(l, k, now, charge, outcome, eff, expired, live, shift)
  local events, window, interval, grid = l[1], l[2], l[3], l[4]
  if charge > 0 and live == 0 then
    shift = 0
  end
  local stamp = ceil((eff + shift) / grid) * grid
  local oldest, newest, drop, oldest_live = stamp - shift, stamp - shift, l.drop, l.oldest
  if charge == 0 and expired + live > 0 then
    newest = l.newest - shift
  end
  charge = min(charge, events)
  local beyond = live + charge - events
  if beyond > 0 then
    local excess, _ = min(beyond, charge), nil
    if excess > 0 and excess < live then
      _, oldest_live, drop = sliding_log_pair(l, k, expired + excess - 1)
    end
    expired, live, beyond = expired + excess, live - excess, beyond - excess
    if beyond > 0 and beyond < live then
      _, oldest_live = sliding_log_pair(l, k, expired + beyond - 1)
    end
  end
  if live > 0 and live > beyond then
    oldest = oldest_live - shift
  end
  local remaining, more, reset = max(events - live - charge, 0), 0, 0
  if live + charge > 0 then
    more = oldest + window - now
    reset = newest + window - now
  end
  local interval_wait = newest + interval - now
  if interval > 0 and interval_wait > 0 and expired + live + charge > 0 then
    if remaining > 0 then
      more = interval_wait
    end
    remaining, more, reset = 0, max(more, interval_wait), max(reset, interval_wait)
  end
  if charge > 0 then
    local first, after = l.first + expired, l.after + charge
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
      redis.call('SETRANGE', keys[k], 72 + place * 24, pack_numbers('<d', after))
    end
    sliding_log_push(l, k, now, drop, entry, count, shift, stamp, first, after)
  elseif outcome ~= peek and shift ~= l.shift then
    sliding_log_push(l, k, now, 0, '', 0, shift, l.newest, l.first, l.after)
  end
  return charge, stamp, remaining, more, reset
end

-- The expiry stays. At worst the key expires too late.
local function sliding_log_refund(l, k, now, receipt_stamp, _, n)
  sliding_log_open(l, k)
  local low, from, _, before = sliding_log_expired(l, k, receipt_stamp - 1)
  local high = sliding_log_expired(l, k, receipt_stamp)
  n = min(n, high - low)
  if n == 0 then
    return
  elseif n == l.length then
    redis.call('SET', keys[k], pack_numbers('<ddddddd', 0, 0, 0, 0, 0, 0, 0), 'KEEPTTL')
    return
  end
  local head, entries, newest, after, all = l.head, l.entries, l.newest, l.after, n == high - low
  if all and high == l.length then
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
  redis.call('SETRANGE', keys[k], 0, pack_numbers('<ddddddd', head, entries, l.shift, newest, l.first, after, l.writer))
end
