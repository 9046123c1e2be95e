
-- Change the value at one key for an operator: see Change in package store.
--
-- KEYS    one key
-- ARGV    the kind of change, and its arguments:
--
--   'forget'
--   'ban', 'hold'  now in µs; 0: ask Redis
--                  how long the ban stands, in µs
--                  after, window, duration, max, as four doubles in one string
--   'override'     the text of the override; empty: none
--                  how long the override is in force, in µs; 0: for good
--
-- Reply   now in µs

local key, kind = KEYS[1], ARGV[1]
local begins_ban = kind == 'ban' or kind == 'hold'
now = resolve_now(begins_ban and tonumber(ARGV[2]) or 0)
if begins_ban then
  local ban = {}
  stored = { redis.call('GET', key) }
  ban_read(ban, ARGV[4], 1)
  ban_begin(ban, 1, now, tonumber(ARGV[3]), kind == 'hold')
  write_changes()
elseif kind == 'forget' or ARGV[2] == '' then
  redis.call('DEL', key)
elseif ARGV[3] == '0' then
  redis.call('SET', key, ARGV[2])
else
  redis.call('SET', key, ARGV[2], 'PX', ceil(tonumber(ARGV[3]) / 1000))
end
return now
