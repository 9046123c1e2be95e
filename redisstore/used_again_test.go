package redisstore_test

import (
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/seedtest"
	"github.com/caddy-rate-limit/caddy-rate-limit/redisstore"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// scripted is a server that answers the script calls with the next of its replies, and with a valid one when there are no
// more. An empty reply closes the connection.
type scripted struct {
	misbehaving
	mu   sync.Mutex
	take bool     // the calls are takes of request, else refunds
	next []string // replies
}

func (s *scripted) behave(c net.Conn) {
	s.mu.Lock()
	reply := bulk(replyTo(1, now)[:10]) // not late, and no error
	if s.take {
		reply = bulk(replyTo(1, now))
	}
	if len(s.next) > 0 {
		reply, s.next = s.next[0], s.next[1:]
	}
	s.mu.Unlock()
	if reply == silence {
		stall(c)
	} else if _, _ = io.WriteString(c, reply); reply == "" { // the client reads by now
		_ = c.Close()
	}
}

// set sets how the server treats what comes from now on.
func (s *scripted) set(take bool, next ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.take, s.next = take, next
}

// open opens a store of the server in a bubble.
func (s *scripted) open(t *testing.T, timeout time.Duration) *redisstore.Store {
	return openPipes(t, &pipes{m: &s.misbehaving, behave: s.behave}, redisstore.Options{Timeout: timeout})
}

const (
	silence  = "silence"
	noScript = "-NOSCRIPT No matching script.\r\n"
	noTime   = "tells no time"
)

// treatments are the replies of a Redis to the script calls of an operation.
var treatments = map[string][]string{
	"replies":         nil,
	"has no script":   {noScript},
	"is flushed":      {noScript, noScript},
	"keeps no script": {noScript, noScript, noScript, noScript, noScript},
	"is a replica":    {"-READONLY You can't write against a read only replica.\r\n"},
	"stays loading":   {"-LOADING later\r\n", "-LOADING later\r\n"},
	"closes":          {""},
	noTime:            nil,
}

// Calls and batches are used again. After any history, the next operation ends as with new ones.
func TestUsedAgain(t *testing.T) {
	for seed := range seedtest.Cases(t, uint64(60)) {
		var used, fresh []string
		synctest.Test(t, func(t *testing.T) { used = useAgain(t, seed, false) })
		synctest.Test(t, func(t *testing.T) { fresh = useAgain(t, seed, true) })
		for i := range used {
			if used[i] != fresh[i] {
				t.Fatalf("seed %d, after\n%s\nused again: %s\nnew:        %s", seed, strings.Join(used[:i], "\n"), used[i], fresh[i])
			}
		}
	}
}

// useAgain makes a few operations, and returns what has become of each. If fresh is true, each has a new call and a new batch.
func useAgain(t *testing.T, seed uint64, fresh bool) (ends []string) {
	random := rand.New(rand.NewPCG(seed, 3))
	server := new(scripted)
	s := server.open(t, time.Second)
	names := slices.Sorted(maps.Keys(treatments))
	for range 6 {
		name, take := names[random.IntN(len(names))], random.IntN(2) == 0
		server.set(take, treatments[name]...)
		if server.replies = nil; name == noTime {
			server.replies = map[string]string{"time": "-ERR no time\r\n"}
		}
		redisstore.ForgetClock(s) // each operation asks for the time
		if fresh {
			redisstore.DropUsed(s)
		}
		r, err := request(t, "k"), error(nil)
		if take {
			_, err = s.Take(t.Context(), r)
		} else {
			r[0].Outcome.Decisions = []algorithms.Decision{{Charged: 1}}
			err = s.CorrectAt(t.Context(), 0, []store.Correction{{Request: &r[0], Refund: 1}})
		}
		ends = append(ends, fmt.Sprintf("take %t, Redis %s: %d commands, decisions %+v, error %v", take, name, server.commands.Swap(0), r[0].Outcome.Decisions, err))
	}
	return ends
}

// A take behind a message without a reply is sent when the message has stalled, also if no other call comes. This is so each
// time.
func TestTakesBehindSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := &scripted{take: true}
		s := server.open(t, 4*time.Second)
		for n := range 4 {
			if n > 0 { // the first take finds out how far away Redis is
				server.set(true, silence)
				go func() { _, _ = s.Take(t.Context(), request(t, "silent")) }()
				time.Sleep(time.Millisecond) // in virtual time
			}
			began := time.Now()
			if _, err := s.Take(t.Context(), request(t, "behind")); err != nil || time.Since(began) > redisstore.MaxStall {
				t.Errorf("take %d waited for %v, error %v", n, time.Since(began), err)
			}
			time.Sleep(time.Minute) // in virtual time
		}
	})
}
