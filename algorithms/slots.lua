
-- slots: mirrored by Slots in package wiretest, which only tests need.
--
-- state   32 bytes per instance: id (16 bytes), count, expires (µs)
--
-- A message comes from one instance, so the count of that instance is kept apart. before and after
-- are the living counts of the other instances in front of it and behind it, in their stored form.
local slots_format, slots_size, max_slots = '<c16i8i8', 32, 2147483647

-- Return the living counts of a key. If stepped_back is true, they must be stored even if nothing
-- else changes: see Slots.Living.
local function slots_read(k, instance, now, slots_expiry)
  local s = slots_of[k]
  if s then return s end
  local state = pending[k] or stored[k] or ''
  if #state % slots_size ~= 0 then not_a_budget() end
  s = { count = 0, expires = 0, others = 0, others_expire = 0, stored_expiry = 0, before = '', after = '', stepped_back = false }
  local living, latest = '', now + slots_expiry
  for pos = 1, #state, slots_size do
    local id, count, expires = unpack_numbers(slots_format, state, pos)
    if count < 0 or count > max_slots or expires < 0 or expires > forever then not_a_budget() end
    if expires > s.stored_expiry then s.stored_expiry = expires end
    if expires > latest then
      expires, s.stepped_back = latest, true
    end
    if expires > now and count > 0 then
      if id == instance and s.expires == 0 then
        s.count, s.expires, s.before, living = count, expires, living, ''
      else
        s.others, s.others_expire = s.others + count, max(s.others_expire, expires)
        living = living .. pack_numbers(slots_format, id, count, expires)
      end
    end
  end
  if s.expires > 0 then
    s.after = living
  else
    s.before = living
  end
  local expiry, quantum = s.stored_expiry, floor(slots_expiry / 3)
  if expiry > 0 and not pending[k] then expiry_before[k] = expiry - expiry % quantum + 2 * quantum end
  slots_of[k] = s
  return s
end

-- Change the state to the counts in s. It expires with the last count. If there is none, the expiry stays, because the
-- next request of the key would move it again.
local function slots_save(s, k, instance, now, slots_expiry)
  local expires, state = s.others_expire, ''
  if s.count > 0 then
    expires = max(expires, s.expires)
    state = pack_numbers(slots_format, instance, s.count, s.expires)
  end
  if s.others > 0 then
    state = s.before .. state .. s.after
  elseif s.count == 0 then
    expires = max(s.stored_expiry, now)
  end
  change(k, state, expires, floor(slots_expiry / 3))
end

-- Make count the count of the instance.
local function slots_set(s, k, instance, count, now, slots_expiry)
  s.count, s.expires = count, now + slots_expiry
  slots_save(s, k, instance, now, slots_expiry)
end
