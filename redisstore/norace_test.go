//go:build !race

package redisstore_test

// raceEnabled: under the race detector sync.Pool drops some of what is put into it, so allocations
// can't be counted.
const raceEnabled = false
