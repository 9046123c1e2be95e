-- What every script shares: integer helpers, and state made of two or three numbers.

local floor, ceil, min, max = math.floor, math.ceil, math.min, math.max
local forever = 9007199254740992 -- 2^53: see Forever in algorithms.go
local step_back = 1000000 -- 1 s: see stepBack in algorithms.go
local algorithms = {}

-- expiry of a budget in ms: its reset-after, and a second to spare
local function ttl(reset)
  return ceil(max(reset, 0) / 1000) + 1000
end

local function foreign() error('the value at a key is not a budget', 0) end

-- two or three packed numbers; numbers that no script writes are an error
local function unpack_state(state, count)
  if #state ~= 8 * count then foreign() end
  local a, b, c = struct.unpack(count == 2 and '<i8i8' or '<i8i8i8', state)
  if min(a, b, c) < 0 or max(a, b, c) > forever then foreign() end
  return a, b, c
end

-- the numbers kept at a key, two unless count says otherwise; 0 for a budget never charged
local function load(key, count)
  local state = redis.call('GET', key)
  if not state then return 0, 0, 0 end
  return unpack_state(state, count or 2)
end

local function save(key, reset, a, b, c)
  local state = c and struct.pack('<i8i8i8', a, b, c) or struct.pack('<i8i8', a, b)
  redis.call('SET', key, state, 'PX', ttl(reset))
end

-- now, or the time of Redis if that is 0
local function the_time(now)
  if now == 0 then
    local time = redis.call('TIME')
    now = time[1] * 1000000 + time[2]
  end
  return now
end

-- The limits that stand in ARGV from i on, by their number as text, and where they
-- end. Per limit: its algorithm, how many numbers follow, the numbers.
local function read_limits(i, count)
  local limits = {}
  for n = 1, count do
    local algorithm, numbers = algorithms[ARGV[i]], tonumber(ARGV[i + 1])
    local l = { decide = algorithm.decide, commit = algorithm.commit, refund = algorithm.refund,
      bans = algorithm.bans, log = algorithm.log }
    for j = 1, numbers do l[j] = tonumber(ARGV[i + 1 + j]) end
    limits[tostring(n)] = l
    i = i + 2 + numbers
  end
  return limits, i
end

-- Give back n events of a charge, unless its instant is more than a second ahead of now.
local function give_back(l, key, now, a, b, at, n)
  if at - now <= step_back or l.log then l.refund(l, key, now, a, b, n) end
end
