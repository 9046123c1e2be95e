package redistest

import (
	"bufio"
	"context"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
)

// Audit is a relay between any number of clients and one Redis. It keeps every
// script call and its reply, also where no client waited for that any more.
// [Audit.Replay] holds them against the functions in Go. It knows nothing of the
// clients but their commands.
//
// It passes on whole commands; one that a client didn't send to its end is dropped.
type Audit struct {
	// Addr is where clients connect.
	Addr string

	server   *Server
	listener net.Listener
	links    sync.WaitGroup
	late     atomic.Int64 // ns, each way
	trouble  atomic.Int64 // calls per million

	mu      sync.Mutex
	open    map[*link]struct{}
	life    int // how often Redis was killed
	calls   []*call
	strange map[string]int // commands that no store sends
}

// call is a script call, a FLUSHALL, or a Spoil.
type call struct {
	life    int               // of the Redis it went to
	sent    algorithms.Micros // when it was passed on, by the clock of this machine, which is that of Redis
	command []byte
	answer  []byte // nil if Redis was gone before there was one
	flush   bool
	spoiled string // the name of a key that holds something else since
}

// StartAudit starts a relay before a Redis.
func StartAudit(t testing.TB, server *Server) *Audit {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	a := &Audit{
		Addr: l.Addr().String(), server: server, listener: l,
		open: make(map[*link]struct{}), strange: make(map[string]int),
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

// Close ends the relay, once all that Redis was asked is answered.
func (a *Audit) Close() {
	_ = a.listener.Close()
	a.Cut()
	const patience = 10 * time.Second // with a Redis that was left frozen
	timer := time.AfterFunc(patience, func() { a.each(func(l *link) { _ = l.redis.Close() }) })
	defer timer.Stop()
	a.links.Wait()
}

// Kill kills the Redis, with all budgets.
func (a *Audit) Kill(t testing.TB) {
	t.Helper()
	a.server.Kill(t)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.life++
}

// Flush removes all keys, at an instant that is known.
func (a *Audit) Flush(t testing.TB) {
	t.Helper()
	const script = "local now = redis.call('TIME') redis.call('FLUSHALL') return now[1] * 1000000 + now[2]"
	at, err := a.server.Client.Eval(context.Background(), script, nil).Int64()
	if err != nil {
		t.Fatal(err)
	}
	a.note(&call{life: a.lives(), sent: at, flush: true})
}

// Spoil replaces the value at a key by one that is no budget, at an instant that is known.
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
	a.note(&call{life: a.lives(), sent: at, spoiled: name})
}

// Cut closes all clients' connections.
func (a *Audit) Cut() { a.each(func(l *link) { _ = l.client.Close() }) }

// Delay makes everything take so much longer, each way, from now on.
func (a *Audit) Delay(oneWay time.Duration) { a.late.Store(int64(oneWay)) }

// Trouble makes a part of all script calls go wrong from now on: the client's
// connection is closed before the call is passed on, before its reply is, or in the
// middle of that.
func (a *Audit) Trouble(part float64) { a.trouble.Store(int64(part * 1_000_000)) }

func (a *Audit) each(do func(*link)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for l := range a.open {
		do(l)
	}
}

func (a *Audit) lives() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.life
}

func (a *Audit) note(c *call) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.calls = append(a.calls, c)
}

// wait waits as long as Delay has it.
func (a *Audit) wait() {
	if late := a.late.Load(); late > 0 {
		time.Sleep(time.Duration(late))
	}
}

// link is one client's connection and that to Redis.
type link struct {
	audit         *Audit
	client, redis net.Conn
	life          int

	mu      sync.Mutex
	pending []pending // what Redis was sent and has not answered, in this order
	left    bool      // nothing will be added to it
}

// pending is a command that Redis was sent.
type pending struct {
	call *call // nil for what isn't recorded
	cut  float64
}

// What may befall a client, by pending.cut: the part of the reply after which its
// connection is closed.
const (
	notCut    = 2
	cutBefore = -1 // not even the call is passed on
)

func (a *Audit) connect(client net.Conn) {
	life := a.lives()
	redis, err := net.Dial("tcp", a.server.Addr)
	if err != nil {
		_ = client.Close()
		return
	}
	l := &link{audit: a, client: client, redis: redis, life: life}
	a.mu.Lock()
	a.open[l] = struct{}{}
	reborn := a.life != life // then it is not known which of them answered
	a.mu.Unlock()
	if reborn {
		_ = client.Close()
	}
	a.links.Go(l.commands)
	l.replies()
	a.mu.Lock()
	delete(a.open, l)
	a.mu.Unlock()
}

// commands passes on what the client sends.
func (l *link) commands() {
	in := bufio.NewReader(l.client)
	for {
		message, err := appendMessage(nil, in)
		if err != nil {
			break
		}
		p := pending{call: l.audit.record(message), cut: notCut}
		l.audit.wait()
		if p.call != nil {
			p.call.life, p.call.sent = l.life, time.Now().UnixMicro()
			p.cut = l.audit.draw()
		}
		if p.cut == cutBefore {
			break
		}
		l.mu.Lock()
		l.pending = append(l.pending, p)
		l.mu.Unlock()
		if _, err := l.redis.Write(message); err != nil {
			break
		}
	}
	_ = l.client.Close()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.left = true; len(l.pending) == 0 {
		_ = l.redis.Close()
	}
}

// record makes a record of a script call; of another command it returns nil.
func (a *Audit) record(message []byte) *call {
	value, _, _ := parse(message)
	words, _ := value.([]any)
	name := ""
	if len(words) > 0 {
		name, _ = words[0].(string)
	}
	switch name = strings.ToLower(name); name {
	case "evalsha", "eval":
		return &call{command: message}
	case "hello", "auth", "select", "client", "ping", "time", "info", "script", "cluster", "asking":
	default:
		a.mu.Lock()
		defer a.mu.Unlock()
		a.strange[name]++
	}
	return nil
}

// draw says what befalls the client of a call.
func (a *Audit) draw() float64 {
	switch {
	case rand.Int64N(1_000_000) >= a.trouble.Load():
		return notCut
	case rand.IntN(3) == 0:
		return cutBefore
	}
	return max(rand.Float64()-0.3, 0)
}

// replies passes on what Redis answers, and reads on when the client has left.
func (l *link) replies() {
	in := bufio.NewReader(l.redis)
	for last := false; !last; {
		message, err := appendMessage(nil, in)
		if err != nil {
			break
		}
		p := pending{cut: notCut}
		l.mu.Lock()
		if len(l.pending) > 0 {
			p, l.pending = l.pending[0], l.pending[1:]
		}
		last = l.left && len(l.pending) == 0
		l.mu.Unlock()
		if p.call != nil {
			p.call.answer = slices.Clone(message) // without spare room
			l.audit.note(p.call)
		}
		l.audit.wait()
		if p.cut != notCut {
			_, _ = l.client.Write(message[:int(p.cut*float64(len(message)))])
			_ = l.client.Close()
			continue
		}
		_ = l.client.SetWriteDeadline(time.Now().Add(time.Second))
		_, _ = l.client.Write(message)
	}
	_ = l.client.Close()
	_ = l.redis.Close()
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, p := range l.pending {
		if p.call != nil {
			l.audit.note(p.call)
		}
	}
	l.pending = nil
}
