
-- Change what is kept at one key, at an operator's wish: see Change in the package store.
--
-- KEYS     the key
-- ARGV     what is to be done, and with what:
--          'forget'
--          'ban', now in µs (0: ask Redis), how long it stands in µs, the numbers of the ban as in take.lua
--          'override', its text (empty: none), how long it is in force in µs (0: for good)
-- reply    1

local key, what = KEYS[1], ARGV[1]
if what == 'ban' then
  local l = {}
  for i = 4, #ARGV do l[i - 3] = tonumber(ARGV[i]) end
  algorithms.ban.begin(l, key, the_time(tonumber(ARGV[2])), tonumber(ARGV[3]))
elseif what == 'forget' or ARGV[2] == '' then
  redis.call('DEL', key)
elseif ARGV[3] == '0' then
  redis.call('SET', key, ARGV[2])
else
  redis.call('SET', key, ARGV[2], 'PX', ceil(tonumber(ARGV[3]) / 1000))
end
return 1
