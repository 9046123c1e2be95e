-- Shared by all scripts: integer helpers, and the budgets at the keys of a call.

local floor, ceil, min, max = math.floor, math.ceil, math.min, math.max
local unpack_numbers, pack_numbers = struct.unpack, struct.pack
local forever = 9007199254740992 -- 2^53: see Forever in algorithms.go
local step_back = 1000000 -- 1 s: see stepBack in algorithms.go
local peek, granted, denied = 0, 1, 2 -- what became of a request: see outcome in algorithms.go
local define = {--[[room]]} -- functions, by the number of an algorithm; a call makes those of the algorithms it needs

local function foreign() error('the value at a key is not a budget', 0) end

-- t, or the time of Redis if that is 0
local function the_time(t)
  if t == 0 then
    local time = redis.call('TIME')
    t = time[1] * 1000000 + time[2]
  end
  return t
end

-- A budget is known by the index of its key in KEYS. The operations of a call see each other's
-- changes here. At the end each changed key is written to Redis once.
local now -- the instant of all operations
local stored -- the states that were read, false where there is none
local expiry_before = {--[[room]]} -- when they expire, in quanta; see expiry.go
local changed, changes = {--[[room]]}, 0 -- the keys that have changed, in their order
local text, lifetimes = {--[[room]]}, {--[[room]]} -- their states, and how long they last in ms; false: as before
local slots_at = {} -- slots that were read; see slots.lua
local undo -- what the operation at hand has changed, the states as they were before; nil: it can't fail any more
local keys = KEYS

-- the two or three numbers of a state; 0 for a budget never charged
local function load(l, k, count)
  local state = text[k] or stored[k]
  if not state then return 0, 0, 0 end
  if #state ~= 8 * count then foreign() end
  local a, b, c
  if count == 2 then
    a, b = unpack_numbers('<i8i8', state)
  else
    a, b, c = unpack_numbers('<i8i8i8', state)
    if c < 0 or c > forever then foreign() end
  end
  if a < 0 or b < 0 or a > forever or b > forever then foreign() end
  if not text[k] then expiry_before[k] = floor(l.untouched(l, a, b, c) / l.quantum) end
  return a, b, c
end

-- how long a state is kept, in ms; at least 1, because an untouched state can be old
local function lifetime(expiry, quantum)
  return max(ceil(((expiry + 2) * quantum - now) / 1000), 1)
end

-- Change a state to one that is untouched again at the instant untouched. The key expires one to
-- two spans after that.
local function change(k, state, untouched, span)
  if not text[k] then
    changes = changes + 1
    changed[changes] = k
  end
  if undo then undo[#undo + 1] = { k, text[k], lifetimes[k] } end
  local expiry = floor(untouched / span)
  text[k], lifetimes[k] = state, expiry ~= expiry_before[k] and lifetime(expiry, span)
end

-- Change the numbers of a state.
local function save(l, k, untouched, a, b, c)
  change(k, c and pack_numbers('<i8i8i8', a, b, c) or pack_numbers('<i8i8', a, b), untouched, l.quantum)
end

-- Write what has changed, from the next change on.
local next_change = 1
local function write_changes()
  local call, keys = redis.call, keys
  while next_change <= changes do
    local k = changed[next_change]
    if not lifetimes[k] then
      call('SET', keys[k], text[k], 'KEEPTTL')
    elseif stored[k] then
      call('SET', keys[k], text[k], 'PX', lifetimes[k])
    elseif not call('SET', keys[k], text[k], 'NX', 'PX', lifetimes[k]) then -- MGET shows a list as absent, too
      foreign()
    end
    next_change = next_change + 1
  end
end
