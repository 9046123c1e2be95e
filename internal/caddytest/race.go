//go:build race

package caddytest

// RaceEnabled: under the race detector sync.Pool drops some of what is put into
// it, so allocations can't be counted.
const RaceEnabled = true
