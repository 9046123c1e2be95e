
-- Change the value at one key for an operator: see Change in package store.
--
-- KEYS     the key
-- ARGV     the change, and its arguments:
--          'forget'
--          'ban', now in µs (0: ask Redis), how long it stands in µs, the numbers of the ban, packed
--          'override', its text (empty: none), how long it is in force in µs (0: for good)
-- reply    now in µs

local key, what = KEYS[1], ARGV[1]
now = the_time(what == 'ban' and tonumber(ARGV[2]) or 0)
if what == 'ban' then
  local l = {}
  stored = { redis.call('GET', key) }
  ban_read(l, ARGV[4], 1)
  ban_begin(l, 1, now, tonumber(ARGV[3]))
  write_changes()
elseif what == 'forget' or ARGV[2] == '' then
  redis.call('DEL', key)
elseif ARGV[3] == '0' then
  redis.call('SET', key, ARGV[2])
else
  redis.call('SET', key, ARGV[2], 'PX', ceil(tonumber(ARGV[3]) / 1000))
end
return now
