package configuration

import (
	"errors"
	"slices"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/accesslog"
)

// The note about errors has that of the earliest request, whichever goroutine comes first.
func TestEarliestError(t *testing.T) {
	requests := []*accesslog.Request{{Start: 2, URI: "/b"}, {Start: 1, URI: "/d"}, {Start: 1, URI: "/c"}}
	for range len(requests) {
		requests = append(requests[1:], requests[0])
		backwards := slices.Clone(requests)
		slices.Reverse(backwards)
		for _, order := range [][]*accesslog.Request{requests, backwards} {
			n := newNotes()
			for _, r := range order {
				n.seeError(r, errors.New("the error of "+r.URI))
			}
			if got, want := n.firstError.text, "the error of /c"; got != want {
				t.Errorf("%q, want %q", got, want)
			}
		}
	}
}
