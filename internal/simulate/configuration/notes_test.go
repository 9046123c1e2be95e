package configuration

import (
	"errors"
	"slices"
	"strings"
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

// Notes name a text that is taken as the client. An empty client_ip is no reason for a note.
func TestNotesAboutClients(t *testing.T) {
	for _, test := range []struct {
		request accesslog.Request
		want    []string // the beginnings of the notes
	}{
		{accesslog.Request{RemoteIP: "@", ClientIP: ""}, nil},
		{accesslog.Request{RemoteIP: "192.0.2.1", LacksClientIP: true}, []string{"requests in the log have no client_ip"}},
		{accesslog.Request{RemoteIP: "web1", LacksClientIP: true}, []string{
			"requests in the log have no client_ip",
			`requests in the log have no address of the client: the client is taken from a text such as "web1"`,
		}},
	} {
		n := newNotes()
		n.usesClient = true
		n.seeRequest(&test.request)
		got := n.logNotes()
		if !slices.EqualFunc(got, test.want, strings.HasPrefix) {
			t.Errorf("%+v: the notes are %q, want %q", test.request, got, test.want)
		}
	}
}
