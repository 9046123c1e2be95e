package redisstore_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"net"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/errtest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
	"github.com/caddy-rate-limit/caddy-rate-limit/redisstore"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// misbehaving is a server that receives script calls, counts them, and then misbehaves.
type misbehaving struct {
	addr     string
	calls    atomic.Int64
	commands atomic.Int64      // of any kind
	replies  map[string]string // by the first words of a command, instead of the usual replies
}

// startMisbehaving starts a server that calls behave with the connection after each script call.
func startMisbehaving(t *testing.T, behave func(net.Conn)) *misbehaving {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	errtest.None(t, err)
	t.Cleanup(func() { _ = l.Close() })
	m := &misbehaving{addr: l.Addr().String()}
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			t.Cleanup(func() { _ = conn.Close() })
			go m.serve(conn, behave)
		}
	}()
	return m
}

func (m *misbehaving) serve(conn net.Conn, behave func(net.Conn)) {
	defer conn.Close()
	in := bufio.NewReader(conn)
	for {
		command, err := redistest.ReadCommand(in)
		if err != nil {
			return
		}
		m.commands.Add(1)
		words := strings.ToLower(strings.Join(command[:min(len(command), 2)], " "))
		reply, found := m.replies[words]
		if !found {
			reply, found = m.replies[strings.ToLower(command[0])]
		}
		if found {
			_, _ = io.WriteString(conn, reply)
			continue
		}
		switch strings.ToLower(command[0]) {
		case "evalsha":
			m.calls.Add(1)
			behave(conn)
		case "time":
			_, _ = io.WriteString(conn, "*2\r\n$10\r\n1763640000\r\n$1\r\n0\r\n")
		case "hello": // an older Redis: the client continues without it
			_, _ = io.WriteString(conn, "-ERR unknown command\r\n")
		default:
			_, _ = io.WriteString(conn, "+OK\r\n")
		}
	}
}

const now = 1_763_640_000_000_000 // of the replies

// replyTo returns a reply to a take of request: it is allowed, and one event is used.
func replyTo(charged, at float64) string {
	b := binary.LittleEndian.AppendUint64(nil, math.Float64bits(now))
	b = append(b, 0, 1, 1)
	const unit = 360_000_000_000 // in which an event of request comes back
	for _, n := range []float64{0, charged, unit, at} {
		b = binary.LittleEndian.AppendUint64(b, math.Float64bits(n))
	}
	return string(b)
}

// failedReply returns the reply to an operation that failed.
func failedReply(text string) string {
	reply := []byte(replyTo(0, 0)[:9])
	reply = binary.LittleEndian.AppendUint32(append(reply, 0), uint32(len(text)))
	return string(reply) + text
}

// stall reads and replies nothing, until the other side closes the connection.
func stall(c net.Conn) { _, _ = io.Copy(io.Discard, c) }

func bulk(text string) string { return fmt.Sprintf("$%d\r\n%s\r\n", len(text), text) }

// A script call that may have charged or refunded is never sent again. A correction that certainly
// did not run is sent once more.
func TestChargedAtMostOnce(t *testing.T) {
	reply := func(text string) func(net.Conn) {
		return func(c net.Conn) { _, _ = io.WriteString(c, text) }
	}
	const resets = "resets"
	valid := replyTo(1, now)
	tests := []struct {
		name         string
		behave       func(net.Conn)
		takes, backs int64
	}{
		{"closes", func(c net.Conn) { _ = c.Close() }, 1, 1},
		{resets, func(c net.Conn) { _ = c.Close() }, 1, 1},
		{"stalls", stall, 1, 1},
		{"half a reply", func(c net.Conn) { _, _ = io.WriteString(c, bulk(valid)[:40]); _ = c.Close() }, 1, 1},
		{"garbage", reply("!what\r\n"), 1, 1},
		{"another type", reply("*0\r\n"), 1, 1},
		{"null", reply("$-1\r\n"), 1, 1},
		{"nothing", reply(bulk("")), 1, 1},
		{"too short", reply(bulk(valid[:len(valid)-1])), 1, 1},
		{"too long", reply(bulk(valid + "\x00")), 1, 1},
		{"a text that is too long", reply("$9223372036854775000\r\n"), 1, 1},
		{"a list that is too long", reply("*9223372036854775000\r\n"), 1, 1},
		{"negative", reply(bulk(replyTo(1, -1))), 1, 1},
		{"not a number", reply(bulk(replyTo(1, math.NaN()))), 1, 1},
		{"half an event", reply(bulk(replyTo(1, 0.5))), 1, 1},
		{"an unknown status", reply(bulk(valid[:9] + "\x03" + valid[10:])), 1, 1},
		{"TRYAGAIN", reply("-TRYAGAIN later\r\n"), 1, 2},
		{"LOADING", reply("-LOADING Redis is loading the dataset in memory\r\n"), 1, 2},
		{"READONLY", reply("-READONLY You can't write against a read only replica.\r\n"), 1, 2},
		{"READONLY inside the script", reply(bulk(failedReply("READONLY You can't write against a read only replica."))), 1, 2},
		{"OOM inside the script", reply(bulk(failedReply("OOM command not allowed"))), 1, 1},
		{"CLUSTERDOWN", reply("-CLUSTERDOWN The cluster is down\r\n"), 1, 2},
		{"ERR max clients", reply("-ERR max number of clients reached\r\n"), 1, 1},
		{"NOSCRIPT, also after it was loaded", reply("-NOSCRIPT No matching script.\r\n"), 4, 4},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			redisstore.InBubble(t, func(t *testing.T) {
				m := new(misbehaving)
				s := openPipes(t, &pipes{m: m, behave: test.behave, resets: test.name == resets}, redisstore.Options{Timeout: time.Second}) // virtual time
				settled := func() int64 {
					time.Sleep(time.Minute) // simulated: for a call that must not come
					return m.calls.Swap(0)
				}
				if allowed, err := s.Take(t.Context(), request(t, "k")); err == nil || allowed {
					t.Errorf("Take = %v, %v", allowed, err)
				}
				if got := settled(); got != test.takes {
					t.Errorf("Take called the script %d times, want %d", got, test.takes)
				}
				charged := request(t, "k")
				charged[0].Outcome.Decisions = []algorithms.Decision{{Charged: 1}}
				if err := refund(s, charged, 1); err == nil {
					t.Error("Correct reported no failure")
				}
				if got := settled(); got != test.backs {
					t.Errorf("Correct called the script %d times, want %d", got, test.backs)
				}
			})
		})
	}
}

// pipes opens connections to a misbehaving server, in simulated time.
type pipes struct {
	m      *misbehaving
	behave func(net.Conn)
	resets bool // the end of a connection is a reset
}

func (p *pipes) DialContext(context.Context, string, string) (net.Conn, error) {
	client, server := net.Pipe()
	go p.m.serve(server, p.behave)
	if p.resets {
		return resetConn{client}, nil
	}
	return client, nil
}

// resetConn is a connection whose end is a reset.
type resetConn struct{ net.Conn }

func (c resetConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if err == io.EOF {
		err = &net.OpError{Op: "read", Net: "tcp", Err: syscall.ECONNRESET}
	}
	return n, err
}

// openPipes opens a store of a misbehaving server in a bubble.
func openPipes(t *testing.T, p *pipes, o redisstore.Options) *redisstore.Store {
	t.Helper()
	o.Address, o.Dialer = "h:1", p
	s := redisstore.MustNew(t, o)
	t.Cleanup(func() {
		_ = s.Close()
		time.Sleep(time.Second) // simulated: until the server notices
	})
	return s
}

// The deadline holds even if Redis never replies, or replies without end.
func TestDeadline(t *testing.T) {
	slowly := func(begin, part string) func(net.Conn) {
		return func(c net.Conn) {
			_, err := io.WriteString(c, begin)
			for err == nil {
				time.Sleep(time.Millisecond) // simulated
				_, err = io.WriteString(c, part)
			}
		}
	}
	for name, behave := range map[string]func(net.Conn){
		"silence":  stall,
		"a text":   slowly("$10000000\r\n", "x"),
		"a line":   slowly("+", "x"),
		"messages": slowly("", ">1\r\n+x\r\n"),
	} {
		t.Run(name, func(t *testing.T) {
			redisstore.InBubble(t, func(t *testing.T) {
				const timeout = 50 * time.Millisecond
				s := openPipes(t, &pipes{m: new(misbehaving), behave: behave}, redisstore.Options{Timeout: timeout})
				began := time.Now()
				_, err := s.Take(t.Context(), request(t, "k"))
				if waited := time.Since(began); err == nil || waited > timeout+timeout/5 {
					t.Errorf("Take returned %v after %v", err, waited)
				}
			})
		})
	}
}

// panicking opens connections that panic when they read the reply to a script call.
type panicking struct{}

func (panicking) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	c, err := (&net.Dialer{}).DialContext(ctx, network, address)
	return &panickingConn{Conn: c}, err
}

type panickingConn struct {
	net.Conn
	panics bool
}

func (c *panickingConn) Write(b []byte) (int, error) {
	c.panics = bytes.Contains(b, []byte("evalsha"))
	return c.Conn.Write(b)
}

func (c *panickingConn) Read(b []byte) (int, error) {
	if c.panics {
		panic("can't read this")
	}
	return c.Conn.Read(b)
}

// A panic of the client fails its calls, which may have charged.
func TestPanic(t *testing.T) {
	t.Parallel()
	m := startMisbehaving(t, func(c net.Conn) { _, _ = io.WriteString(c, bulk(replyTo(1, now))) })
	s := open(t, redisstore.Options{Address: m.addr, Dialer: panicking{}})
	_, err := s.Take(context.Background(), request(t, "k"))
	wantReason(t, "Take", err, store.ReasonReply)
	charged := request(t, "k")
	charged[0].Outcome.Decisions = []algorithms.Decision{{Charged: 1}}
	wantReason(t, "Correct", refund(s, charged, 1), store.ReasonReply)
	wantReason(t, "Check", s.Check(context.Background()), store.ReasonReply)
	redistest.WaitForState(t, "a call each", func() (any, bool) { n := m.calls.Load(); return n, n == 3 })
}

// A call in flight when its configuration ends still gets its reply.
func TestCloseWaitsForCalls(t *testing.T) {
	redisstore.InBubble(t, func(t *testing.T) {
		const takes = 300 * time.Millisecond
		s := openPipes(t, &pipes{m: new(misbehaving), behave: func(c net.Conn) {
			time.Sleep(takes) // simulated: Close comes before the reply
			_, _ = io.WriteString(c, bulk(replyTo(1, now)))
		}}, redisstore.Options{Timeout: time.Second}) // virtual time
		time.AfterFunc(takes/2, func() { _ = s.Close() })
		r := request(t, "k")
		if allowed, err := s.Take(t.Context(), r); err != nil || !allowed || r[0].Outcome.Decisions[0].Remaining != 9 {
			t.Errorf("Take during Close: allowed %v, error %v, %+v", allowed, err, r[0].Outcome.Decisions)
		}
	})
}
