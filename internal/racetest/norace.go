//go:build !race

// Package racetest says whether tests run under the race detector.
package racetest

// Enabled is true under the race detector. There sync.Pool drops some of what is put into it, so allocations can't be
// counted.
const Enabled = false
