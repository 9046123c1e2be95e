package redisstore_test

import "time"

// ownTime is 0, because only the benchmarks on Linux need it.
func ownTime() time.Duration { return 0 }
