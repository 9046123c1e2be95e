//go:build !race

package caddytest

// RaceEnabled is true under the race detector.
const RaceEnabled = false
