
-- slots: how many requests of a key are in flight, a count for each instance; see slots.go. The
-- state is a string of 32 bytes per instance: 16 of identity, count, expires (µs).
--
-- A message comes from one instance. So the count of that instance is kept apart. The states of
-- the others, as stored, are in before and after.
local slots_form, slots_size, most_slots = '<c16i8i8', 32, 2147483647

-- the living counts of a key. With stepped_back they must be stored even if nothing else changes.
local function slots_read(k, instance, now, lifetime)
  local s = slots_at[k]
  if s then return s end
  local state = text[k] or stored[k] or ''
  if #state % slots_size ~= 0 then foreign() end
  s = {
    count = 0, expires = 0, others = 0, last = 0, last_stored = false, before = false, after = '',
    stepped_back = false, takes = false, free = false,
  }
  local kept = ''
  for at = 1, #state, slots_size do
    local id, count, expires = unpack_numbers(slots_form, state, at)
    if count < 0 or count > most_slots or expires < 0 or expires > forever then foreign() end
    s.last_stored = max(s.last_stored or 0, expires)
    if expires > now + lifetime then
      expires, s.stepped_back = now + lifetime, true
    end
    if expires > now and count > 0 then
      if id == instance and not s.before then
        s.count, s.expires, s.before, kept = count, expires, kept, ''
      else
        s.others, s.last = s.others + count, max(s.last, expires)
        kept = kept .. pack_numbers(slots_form, id, count, expires)
      end
    end
  end
  if s.before then
    s.after = kept
  else
    s.before = kept
  end
  if s.last_stored and not text[k] then expiry_before[k] = floor(s.last_stored / (lifetime / 3)) end
  slots_at[k] = s
  return s
end

-- Note the state that is to be stored. It expires with the last count.
local function slots_save(s, k, instance, now, lifetime)
  local last, state = s.last, nil
  if s.count > 0 then
    last = max(last, s.expires)
    state = s.before .. pack_numbers(slots_form, instance, s.count, s.expires) .. s.after
  else
    state = s.before .. s.after
  end
  change(k, state, max(last, now), lifetime / 3)
end

-- Make count the count of the instance.
local function slots_set(s, k, instance, count, now, lifetime)
  s.count, s.expires = count, now + lifetime
  slots_save(s, k, instance, now, lifetime)
end
