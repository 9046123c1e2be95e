package redisstore

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/seedtest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/storetest"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// scripted is a server that answers the script calls with the next of its replies, and with a valid one when there are no
// more. An empty reply closes the connection.
type scripted struct {
	mu sync.Mutex
	script
}

// script says how a server treats what comes, and what has come.
type script struct {
	take  bool          // the calls are takes, else refunds
	fails bool          // TIME
	next  []string      // replies
	calls int           // of the script, and of TIME
	takes time.Duration // until each reply
	asked time.Time     // when the last call of the script came
}

func (s *scripted) DialContext(context.Context, string, string) (net.Conn, error) {
	client, server := net.Pipe()
	go s.serve(server)
	return client, nil
}

func (s *scripted) serve(conn net.Conn) {
	defer conn.Close()
	for in := bufio.NewReader(conn); ; {
		command, err := redistest.ReadCommand(in)
		if err != nil {
			return
		}
		reply, takes := s.answer(command)
		if reply == silence {
			_, _ = io.Copy(io.Discard, conn)
			return
		}
		time.Sleep(takes) // in virtual time
		if _, err := io.WriteString(conn, reply); err != nil || reply == "" {
			return
		}
	}
}

// answer returns the reply to a command, and how long it takes.
func (s *scripted) answer(command []string) (reply string, takes time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	reply = "+OK\r\n"
	switch strings.ToLower(command[0]) {
	case "hello": // an older Redis: the client goes on without it
		reply = "-ERR unknown command\r\n"
	case "time":
		s.calls++
		if reply = "*2\r\n$10\r\n1763640000\r\n$1\r\n0\r\n"; s.fails {
			reply = "-ERR no time\r\n"
		}
	case "evalsha":
		s.calls++
		s.asked = time.Now()
		if reply = s.valid(); len(s.next) > 0 {
			reply, s.next = s.next[0], s.next[1:]
		}
	}
	return reply, s.takes
}

// set sets how the server treats what comes from now on.
func (s *scripted) set(script script) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.script = script
}

// seen returns what has come.
func (s *scripted) seen() script {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.script
}

// scriptedNow is the time of the replies.
const scriptedNow = 1_763_640_000_000_000

// valid is a reply of the script: the take is allowed, or the refund is made.
func (s *script) valid() string {
	numbers := []float64{scriptedNow}
	operation := "\x00\x01" // not late; no error
	if s.take {
		operation += "\x01" // allowed
		numbers = append(numbers, 0, 1, 6_000_000, scriptedNow)
	}
	var packed []byte
	for i, n := range numbers {
		if packed = binary.LittleEndian.AppendUint64(packed, math.Float64bits(n)); i == 0 {
			packed = append(packed, operation...)
		}
	}
	return fmt.Sprintf("$%d\r\n%s\r\n", len(packed), packed)
}

// treatments are the ways in which a Redis treats the script calls of an operation.
var treatments = map[string]func(*script){
	"replies":         func(*script) {},
	"has no script":   func(s *script) { s.next = []string{noScript} },
	"is flushed":      func(s *script) { s.next = []string{noScript, noScript} },
	"keeps no script": func(s *script) { s.next = []string{noScript, noScript, noScript, noScript, noScript} },
	"is a replica":    func(s *script) { s.next = []string{"-READONLY You can't write against a read only replica.\r\n"} },
	"stays loading":   func(s *script) { s.next = []string{"-LOADING later\r\n", "-LOADING later\r\n"} },
	"closes":          func(s *script) { s.next = []string{""} },
	"tells no time":   func(s *script) { s.fails = true },
}

const silence = "silence"

const noScript = "-NOSCRIPT No matching script.\r\n"

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
	s, request := openScripted(t, server, time.Second)
	names := slices.Sorted(maps.Keys(treatments))
	for range 6 {
		name := names[random.IntN(len(names))]
		treatment := script{take: random.IntN(2) == 0}
		treatments[name](&treatment)
		server.set(treatment)
		s.lastReading = clockReading{} // each operation asks for the time
		if fresh {
			s.dropUsed()
		}
		r, err := request("k"), error(nil)
		if treatment.take {
			_, err = s.Take(t.Context(), r)
		} else {
			r[0].Outcome.Decisions = []algorithms.Decision{{Charged: 1}}
			err = s.CorrectAt(t.Context(), 0, []store.Correction{{Request: &r[0], Refund: 1}})
		}
		ends = append(ends, fmt.Sprintf("take %t, Redis %s: %d calls, decisions %+v, error %v", treatment.take, name, server.seen().calls, r[0].Outcome.Decisions, err))
	}
	return ends
}

// dropUsed drops the calls and batches that would be used again.
func (s *Store) dropUsed() {
	for s.endedCalls.Get() != nil {
	}
	for batches.Get().(*batch).made != nil {
	}
}

// The error of a late call depends on the last event since it was queued: a failure is its error, and a reply
// means that Redis is busy. If nothing has happened, this process stood still, and the call is sent.
func TestLateError(t *testing.T) {
	for seed := range seedtest.Cases(t, uint64(200)) {
		random := rand.New(rand.NewPCG(seed, 4))
		synctest.Test(t, func(t *testing.T) {
			s := MustNew(t, Options{Address: "h:1"})
			steps, queuedAt := 1+random.IntN(6), random.IntN(4)
			c, want := s.newTakeCall(t.Context(), 0, []store.ZoneRequest{{Zone: "z", Key: "k"}}), error(nil)
			if seed%2 == 0 {
				c = givesBack("k")
				c.done = make(chan struct{}, 1)
			}
			for i := range steps {
				if time.Sleep(time.Millisecond); i <= queuedAt { // in virtual time
					c.queued, want = time.Now(), nil
					time.Sleep(time.Millisecond) // in virtual time
				}
				switch random.IntN(3) {
				case 0:
					want = errBusy
					s.settleBatch(&batch{replied: true, messages: []*message{{}}})
				case 1:
					want = errors.New(fmt.Sprint("failure ", i))
					s.settleBatch(&batch{messages: []*message{{err: want}}})
				}
			}
			if ended := s.dropExpiredLocked(c, time.Now().Add(time.Hour)); ended != (want != nil) || c.err != want {
				t.Fatalf("seed %d: ended %v with %v, want %v", seed, ended, c.err, want)
			}
		})
	}
}

// A take behind a message without a reply is sent when the message has stalled, also if no other call comes. This is so each
// time.
func TestTakesBehindSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := &scripted{script: script{take: true}}
		s, request := openScripted(t, server, 4*time.Second)
		for n := range 4 {
			if n > 0 { // the first take finds out how far away Redis is
				server.set(script{take: true, next: []string{silence}})
				go func() { _, _ = s.Take(t.Context(), request("silent")) }()
				time.Sleep(time.Millisecond) // in virtual time
			}
			began := time.Now()
			if _, err := s.Take(t.Context(), request("behind")); err != nil || time.Since(began) > maxStall {
				t.Errorf("take %d waited for %v, error %v", n, time.Since(began), err)
			}
			time.Sleep(time.Minute) // in virtual time
		}
	})
}

// openScripted opens a store of a server, and returns what makes requests.
func openScripted(t *testing.T, server *scripted, timeout time.Duration) (s *Store, request func(key string) []store.ZoneRequest) {
	s = MustNew(t, Options{Address: "h:1", Timeout: timeout, Dialer: server})
	t.Cleanup(func() {
		_ = s.Close()
		time.Sleep(time.Minute) // in virtual time: until all connections have ended
	})
	limit := storetest.Limit(t, "z", algorithms.Quota{Algorithm: "gcra", Events: 10, Window: 60_000_000})
	return s, func(key string) []store.ZoneRequest {
		return []store.ZoneRequest{{Zone: "z", Key: key, Cost: 1, Limits: []store.Limit{limit}}}
	}
}
