-- The beginning of all scripts: shorthands, and the states of the keys of a call.

local floor, ceil, min, max = math.floor, math.ceil, math.min, math.max
local unpack_numbers, pack_numbers = struct.unpack, struct.pack
local forever = 9007199254740992 -- 2^53: see Forever in algorithms.go
local step_back = 1000000 -- 1 s: see stepBack in algorithms.go
local peek, granted, denied, settled = 0, 1, 2, 3 -- see outcome in algorithms.go
local define = {--[[room]]} -- a function per algorithm, by number; a call only defines the algorithms it needs

local function not_a_budget() error('the value at a key is not a budget', 0) end

-- Return now, or the time of Redis if now is 0.
local function resolve_now(now)
  if now == 0 then
    local time = redis.call('TIME')
    now = time[1] * 1000000 + time[2]
  end
  return now
end

-- The tables below are indexed by k, the index of a key in KEYS. The operations of a call see each
-- other's changes in them. At the end each changed key is written to Redis once.
local keys = KEYS
local now -- the instant of all operations, in µs
local stored -- states as read from Redis; false: none
local expiry_before = {--[[room]]} -- expiries of the stored states, in µs; see expiry.go
local changed_keys, changed_count = {--[[room]]}, 0 -- every k that has changed, in order of its first change
local pending, pending_ttl = {--[[room]]}, {--[[room]]} -- changed states and their TTLs in ms; false: the TTL stays
local slots_of = {} -- slots that were read; see slots.lua
local undo_log -- { k, state, TTL } as before each change of the current operation; nil: nothing is undone

-- Return the four numbers of a state, 0 for a budget never charged. The last one says which limit has counted them, or is 0.
local function load(l, k)
  local state = pending[k] or stored[k]
  if not state then return 0, 0, 0, 0 end
  if #state ~= 28 then not_a_budget() end
  local a, b, c, d = unpack_numbers('<I7I7I7I7', state)
  if a > forever or b > forever or c > forever or d > forever then not_a_budget() end
  if not pending[k] and (d == l.counted_by or d - d % 2 == l.counted_by) then -- otherwise the expiry follows from another limit
    local keep_until, quantum = l.keep_until(l, a, b, c, d), l.quantum
    expiry_before[k] = keep_until - keep_until % quantum + 2 * quantum
  end
  return a, b, c, d
end

-- Return the TTL in ms of a state with that expiry. It is at least 1, because the expiry can have passed.
local function ttl_of(expiry) return max(ceil((expiry - now) / 1000), 1) end

-- Change a state. The key expires one to two quanta after keep_until: see expires in expiry.go.
local function change(k, state, keep_until, quantum)
  if not pending[k] then
    changed_count = changed_count + 1
    changed_keys[changed_count] = k
  end
  if undo_log then undo_log[#undo_log + 1] = { k, pending[k], pending_ttl[k] } end
  local expiry = keep_until - keep_until % quantum + 2 * quantum
  pending[k], pending_ttl[k] = state, expiry ~= expiry_before[k] and ttl_of(expiry)
end

-- Change the numbers of a state.
local function save(l, k, a, b, c, d)
  change(k, pack_numbers('<I7I7I7I7', a, b, c, d), l.keep_until(l, a, b, c, d), l.quantum)
end

-- Write the pending states, from next_change on.
local next_change = 1
local function write_changes()
  local call, keys = redis.call, keys
  while next_change <= changed_count do
    local k = changed_keys[next_change]
    if not pending_ttl[k] then
      call('SET', keys[k], pending[k], 'KEEPTTL')
    elseif stored[k] then
      call('SET', keys[k], pending[k], 'PX', pending_ttl[k])
    elseif not call('SET', keys[k], pending[k], 'NX', 'PX', pending_ttl[k]) then -- MGET shows a list as absent, too
      not_a_budget()
    end
    next_change = next_change + 1
  end
end
