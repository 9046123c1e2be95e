// Package seedtest says how many random cases a property test tries. An ordinary run has a budget of seconds, so it
// tries few. A long run tries as many as there is time for. The package never draws anything.
package seedtest

import (
	"os"
	"strconv"
	"testing"
)

// times is the environment variable with the number by which a long run multiplies the cases of all property tests.
const times = "RATE_LIMIT_TEST_TIMES"

// Cases returns how many cases a test tries that tries n in an ordinary run. With -short it is a fifth of them.
func Cases[N int | int64 | uint64](t testing.TB, n N) N {
	t.Helper()
	if testing.Short() {
		n = max(n/5, 1)
	}
	text := os.Getenv(times)
	if text == "" {
		return n
	}
	factor, err := strconv.ParseUint(text, 10, 16)
	if err != nil || factor == 0 {
		t.Fatalf("%s is %q: write a whole number, at least 1", times, text)
	}
	return n * N(factor)
}
