
-- slots: mirrored by Slots in package wiretest, which only tests need. Reserved events are counted in the same way.
--
-- state   81 bytes per instance and tenant: id of the instance (7 bytes), tenant (7; 0: without tenants), weight (2; 0: unknown),
--         when it last got a slot (7; µs), count (7), expires (7; µs), when its line of waiting requests expires (7; µs), and the line
-- line    37 bytes: when the first request came (7; µs; 0: it has left), how many wait behind it (2), and when 4 of these
--         came (7 each; µs): see SlotLine in store.go
--
-- An operation is about one tenant of one instance, so these numbers are kept apart. others_state has
-- those of the others that live, in their stored form.
local slots_format, slots_size = '<c7c7I2I7I7I7I7c37', 81
local no_tenant, no_rivals = ('\0'):rep(7), {}
local line_format, no_line = '<I7I2I7I7I7I7', ('\0'):rep(37)
local line_expiry, line_renewal, line_slack = 1000000, 300000, 25000 -- see LineExpiry, LineRenewal and LineSlack in slots.go

-- Add the numbers of an instance to those of a rival, which is another tenant.
local function slots_add_rival(s, tenant, weight, granted, count, line)
  local first, behind, mark = unpack_numbers('<I7I2I7', line)
  s.rivals = s.rivals or {}
  local r = s.rivals[tenant] or { weight = 1, granted = 0, held = 0, waiting = 0, came = forever }
  s.rivals[tenant], r.weight, r.granted = r, max(r.weight, weight), max(r.granted, granted)
  r.held, r.waiting = r.held + count, r.waiting + behind
  if first > 0 then
    r.waiting, r.came = r.waiting + 1, min(r.came, first)
  elseif behind > 0 then
    r.came = min(r.came, mark)
  end
end

-- Return the living numbers of a key, for a tenant. If stepped_back is true, they must be stored even if nothing
-- else changes: see Slots.Living.
local function slots_read(k, instance, tenant, now, slots_expiry)
  local s = slots_of[k]
  if s and s.tenant == tenant then return s end
  local state = pending[k] or stored[k] or ''
  if #state % slots_size ~= 0 then not_a_budget() end
  s = {
    tenant = tenant, weight = 0, granted = 0, count = 0, expires = 0, line_expires = 0, line = no_line,
    others_weight = 1, granted_elsewhere = 0, held_elsewhere = 0, -- and rivals, if there are any
    others = 0, others_expire = 0, others_state = '', others_lines = '',
    stored_expiry = s and s.stored_expiry or 0, stepped_back = false,
  }
  local latest, latest_line = now + slots_expiry, now + line_expiry
  for pos = 1, #state, slots_size do
    local id, of, weight, granted, count, expires, line_expires, line = unpack_numbers(slots_format, state, pos)
    if max(count, expires, line_expires) > forever then not_a_budget() end
    s.stored_expiry = max(s.stored_expiry, expires, line_expires)
    if expires > latest or line_expires > latest_line then
      expires, line_expires, s.stepped_back = min(expires, latest), min(line_expires, latest_line), true
    end
    if expires <= now then count, expires = 0, 0 end
    if line_expires <= now then line_expires, line = 0, no_line end
    granted = max(expires, line_expires) > 0 and min(granted, now) or 0
    if id == instance and of == tenant then
      s.weight, s.granted, s.count, s.expires, s.line_expires, s.line = weight, granted, count, expires, line_expires, line
    elseif max(expires, line_expires) > 0 then
      s.others, s.others_expire = s.others + count, max(s.others_expire, expires, line_expires)
      s.others_state = s.others_state .. pack_numbers(slots_format, id, of, weight, granted, count, expires, line_expires, line)
      if of ~= tenant then
        slots_add_rival(s, of, weight, granted, count, line)
      else
        s.others_weight, s.granted_elsewhere = max(s.others_weight, weight), max(s.granted_elsewhere, granted)
        s.held_elsewhere = s.held_elsewhere + count
        if line_expires > 0 then s.others_lines = s.others_lines .. line end
      end
    end
  end
  local expiry, quantum = s.stored_expiry, floor(slots_expiry / 3)
  if expiry > 0 and not pending[k] then expiry_before[k] = expiry - expiry % quantum + 2 * quantum end
  slots_of[k] = s
  return s
end

local function slots_total(s) return s.others + s.count end

-- Return how many waiting requests get a slot before another one. Of its tenant these are the requests of other instances that
-- came before. Only some in a line are known. So up to a quarter of its requests may have come later.
--
-- A free slot goes to the tenant that holds the least for its weight. So the level of the n-th waiting request of a tenant, the
-- start tag of start-time fair queuing (Goyal, Vin, Cheng: SIGCOMM 1996), is (held + n - 1) / weight. At the same level, the
-- tenant is first that has waited longer, since its last slot. floor and ceil are exact, because weights are small.
local function slots_ahead(s, came, weight)
  local ahead, since = 0, max(came, s.granted, s.granted_elsewhere) - line_slack
  came = came - line_slack
  for pos = 1, #s.others_lines, #no_line do
    local first, behind, m1, m2, m3, m4 = unpack_numbers(line_format, s.others_lines, pos)
    local before = behind
    for n, mark in ipairs({ m4, m3, m2, m1 }) do
      if came <= mark then before = floor(behind * (4 - n) / 4) end
    end
    ahead = ahead + before
    if first > 0 and first < came then ahead = ahead + 1 end
  end
  local held, rivals_ahead = s.held_elsewhere + s.count + ahead, 0
  for _, r in pairs(s.rivals or no_rivals) do
    local level = held * r.weight / max(s.others_weight, weight) -- a rival that holds less comes first
    local before = (max(r.came, r.granted) < since and floor(level) + 1 or ceil(level)) - r.held
    rivals_ahead = rivals_ahead + max(min(before, r.waiting), 0)
  end
  return ahead + rivals_ahead
end

-- Change the state to the numbers in s. It expires with the last of them. If there is none, the expiry stays, because the
-- next request of the key would move it again.
local function slots_save(s, k, instance, now, slots_expiry)
  local expires, state = s.others_expire, s.others_state
  if max(s.expires, s.line_expires) > 0 then
    expires = max(expires, s.expires, s.line_expires)
    state = state .. pack_numbers(slots_format, instance, s.tenant, s.weight, s.granted, s.count, s.expires, s.line_expires, s.line)
  elseif state == '' then
    expires = max(s.stored_expiry, now)
  end
  change(k, state, expires, floor(slots_expiry / 3))
end

-- Make count the count of the instance's tenant.
local function slots_set(s, count, now, slots_expiry)
  s.count, s.expires = count, count > 0 and now + slots_expiry or 0
  if max(count, s.line_expires) == 0 then s.granted = 0 end
end

-- Add n to the count of the instance, and write where the line stands to which the request belongs. n is 0 if the request
-- doesn't pass.
local function slots_take(count, n, instance, now, slots_expiry)
  local s, passes, waiting, weight = count.slots, n > 0, count.waiting, count.weight
  local changes = passes or s.stepped_back
  if passes then
    slots_set(s, min(s.count + n, forever), now, slots_expiry)
    s.weight, s.granted = weight, now
  end
  if waiting > 0 then
    local first, behind = unpack_numbers('<I7I2', s.line)
    local is_new = first < count.came - line_slack or first > count.came + line_slack
    if passes or is_new or behind ~= waiting - 1 or weight ~= s.weight or s.line_expires < now + line_expiry - line_renewal then
      changes, s.weight, s.line_expires, s.line = true, weight, now + line_expiry, count.line
      if passes then s.line = pack_numbers('<I7', 0) .. count.line:sub(8) end
      if passes and waiting == 1 then s.line_expires, s.line = 0, no_line end
    end
  end
  if changes then slots_save(s, count.key, instance, now, slots_expiry) end
end
