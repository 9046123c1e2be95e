-- What every script shares: integer helpers, and state made of two or three numbers.

local floor, ceil, min, max = math.floor, math.ceil, math.min, math.max
local forever = 9007199254740992 -- 2^53: see Forever in algorithms.go
local algorithms = {}

-- expiry of a budget in ms: its reset-after, and a second to spare
local function ttl(reset)
  return ceil(reset / 1000) + 1000
end

-- the numbers kept at a key, two unless count says otherwise; 0 for a budget never charged
local function load(key, count)
  local state = redis.call('GET', key)
  if not state then return 0, 0, 0 end
  count = count or 2
  if #state ~= 8 * count then error('the value at a key is not a budget') end
  if count == 2 then return struct.unpack('<i8i8', state) end
  return struct.unpack('<i8i8i8', state)
end

local function save(key, reset, a, b, c)
  local state = c and struct.pack('<i8i8i8', a, b, c) or struct.pack('<i8i8', a, b)
  redis.call('SET', key, state, 'PX', ttl(reset))
end
