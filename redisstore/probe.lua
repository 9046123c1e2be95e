-- Run every command that the scripts run, to see whether they may.
-- KEYS: two keys of one slot

redis.call('TIME')
redis.call('SET', KEYS[1], '1', 'PX', 1000)
redis.call('SET', KEYS[1], '1', 'NX', 'PX', 1000)
redis.call('SET', KEYS[1], '1', 'KEEPTTL')
redis.call('GET', KEYS[1])
redis.call('MGET', KEYS[1])
redis.call('EXISTS', KEYS[1])
redis.call('SETRANGE', KEYS[2], 0, '12')
redis.call('PEXPIRE', KEYS[2], 1000)
redis.call('GETRANGE', KEYS[2], 0, 0)
redis.call('STRLEN', KEYS[2])
redis.call('BITOP', 'OR', KEYS[2], KEYS[2])
redis.call('DEL', KEYS[1], KEYS[2])
return 1
