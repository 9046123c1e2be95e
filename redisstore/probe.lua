-- Run every command that the scripts run, to see whether they may.
-- KEYS: a key for numbers, a key for a log; both in one slot

redis.call('TIME')
redis.call('SET', KEYS[1], '1', 'PX', 1000)
redis.call('GET', KEYS[1])
redis.call('RPUSH', KEYS[2], '1', '2', '3')
redis.call('PEXPIRE', KEYS[2], 1000)
redis.call('LLEN', KEYS[2])
redis.call('LINDEX', KEYS[2], 0)
redis.call('LSET', KEYS[2], 0, '1')
redis.call('LREM', KEYS[2], -1, '3')
redis.call('LTRIM', KEYS[2], 3, -1)
redis.call('DEL', KEYS[2])
return 1
