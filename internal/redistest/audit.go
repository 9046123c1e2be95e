package redistest

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
)

// Audit is a relay between any number of clients and one Redis. It records every script call with its
// reply, even if the client has disconnected. [Audit.Replay] then repeats all operations with the functions in Go,
// and compares the results.
//
// The code of an audit is in the files audit*.go:
//
//	audit.go             the relay, and the faults that it can cause
//	audit_link.go        one connection through the relay
//	audit_calls.go       reads recorded calls and replies
//	audit_replay.go      repeats the calls in order
//	audit_take.go        repeats a take
//	audit_operations.go  repeats refunds, sets of slots, and operators' changes
//	audit_values.go      the values that keys hold, in Go
//	audit_report.go      the result
//
// The relay passes on whole commands. It drops a command that a client sends only in part. All methods are
// safe for concurrent use.
type Audit struct {
	// Addr is where clients connect.
	Addr string

	server    *Server
	listener  net.Listener
	links     sync.WaitGroup
	delay     atomic.Int64 // in ns, in each direction
	faultRate atomic.Int64 // calls per million

	mu              sync.Mutex
	open            map[*link]struct{}
	process         int // the number of the Redis process: how often Redis was killed
	calls           []*call
	unknownCommands map[string]int // the commands that no store sends, with their number
}

// call is a recorded script call, or a Flush or Spoil.
type call struct {
	process int               // the number of the Redis process
	sentAt  algorithms.Micros // by the clock of this machine, which is also the clock of Redis
	command []byte
	reply   []byte            // nil if Redis was killed before it answered
	endedAt algorithms.Micros // when the relay had the reply
	flushed bool
	spoiled string // the name of the key, for a Spoil
}

// StartAudit starts an Audit for a Redis. It ends with the test.
func StartAudit(t testing.TB, server *Server) *Audit {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	a := &Audit{
		Addr: l.Addr().String(), server: server, listener: l,
		open: make(map[*link]struct{}), unknownCommands: make(map[string]int),
	}
	a.links.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			a.links.Go(func() { a.connect(client) })
		}
	})
	t.Cleanup(a.Close)
	return a
}

// Close closes all clients' connections, and ends the relay when Redis has answered all calls.
func (a *Audit) Close() {
	_ = a.listener.Close()
	a.Cut()
	const maxWait = 10 * time.Second // for a Redis that was left frozen
	timer := time.AfterFunc(maxWait, func() { a.each(func(l *link) { _ = l.redis.Close() }) })
	defer timer.Stop()
	a.links.Wait()
}

// Kill kills the Redis. All budgets are lost.
func (a *Audit) Kill(t testing.TB) {
	t.Helper()
	a.server.Kill(t)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.process++
}

// Flush removes all keys, and records the instant.
func (a *Audit) Flush(t testing.TB) {
	t.Helper()
	const script = "local now = redis.call('TIME') redis.call('FLUSHALL') return now[1] * 1000000 + now[2]"
	at, err := a.server.Client.Eval(context.Background(), script, nil).Int64()
	if err != nil {
		t.Fatal(err)
	}
	a.note(&call{process: a.currentProcess(), sentAt: at, flushed: true})
}

// Spoil replaces the value of a key by one that is no budget, and records the instant.
func (a *Audit) Spoil(t testing.TB, name string) {
	t.Helper()
	const script = `
		local now = redis.call('TIME')
		redis.call('DEL', KEYS[1])
		redis.call('HSET', KEYS[1], 'a', 1)
		return now[1] * 1000000 + now[2]`
	at, err := a.server.Client.Eval(context.Background(), script, []string{name}).Int64()
	if err != nil {
		t.Fatal(err)
	}
	a.note(&call{process: a.currentProcess(), sentAt: at, spoiled: name})
}

// Cut closes all clients' connections.
func (a *Audit) Cut() { a.each(func(l *link) { _ = l.client.Close() }) }

// Delay delays all commands and replies from now on.
func (a *Audit) Delay(oneWay time.Duration) { a.delay.Store(int64(oneWay)) }

// Trouble makes a part of all script calls fail from now on. For example, 0.1 is every tenth call. The
// client's connection is closed before the call is passed on, before the reply, or in the middle of the
// reply.
func (a *Audit) Trouble(part float64) { a.faultRate.Store(int64(part * 1_000_000)) }

func (a *Audit) each(do func(*link)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for l := range a.open {
		do(l)
	}
}

func (a *Audit) currentProcess() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.process
}

func (a *Audit) note(c *call) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.calls = append(a.calls, c)
}
