-- What every script shares: integer helpers, and state made of two numbers.

local floor, ceil, min, max = math.floor, math.ceil, math.min, math.max
local forever = 9007199254740992 -- 2^53: see Forever in algorithms.go
local algorithms = {}

-- expiry of a budget in ms: its reset-after, and a second to spare
local function ttl(reset)
  return ceil(reset / 1000) + 1000
end

-- the two numbers kept at a key; 0, 0 for a budget never charged
local function load(key)
  local state = redis.call('GET', key)
  if not state then return 0, 0 end
  if #state ~= 16 then error('not a budget: ' .. key) end
  local a, b = struct.unpack('<i8i8', state)
  return a, b
end

local function save(key, reset, a, b)
  redis.call('SET', key, struct.pack('<i8i8', a, b), 'PX', ttl(reset))
end
