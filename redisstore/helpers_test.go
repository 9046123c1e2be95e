package redisstore_test

import "testing"

// long marks a test of faults of Redis, a soak or a flood, which -short skips.
func long(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("it takes long")
	}
}
