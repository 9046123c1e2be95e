package redisstore

import (
	"cmp"
	"context"
	_ "embed"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/wire"
	"github.com/caddy-rate-limit/caddy-rate-limit/redisstore/internal/nodes"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// sendBatch makes one round trip for a batch, and ends its calls. The batch stays in flight until finishAndNext.
func (s *Store) sendBatch(b *batch) {
	b.conns, b.began = s.acquire(), time.Now()
	defer s.release(b.conns)
	b.deadline = b.began.Add(s.options.Timeout)
	s.split(b)
	failure := s.writeAndSend(b)
	for _, m := range b.messages {
		if m.err = cmp.Or(failure, m.loadErr); m.err == nil {
			m.err = m.command.Err()
		}
		b.replied = b.replied || isReply(m.err)
		s.readReply(b, m)
		m.chooseRetries(s.options.Timeout)
	}
	s.settleBatch(b)
	for _, m := range b.messages {
		m.endCalls()
	}
}

// writeAndSend writes the messages, and makes the round trip. After an error nothing was sent.
func (s *Store) writeAndSend(b *batch) error {
	ctx, cancel := context.WithDeadline(context.Background(), b.deadline)
	defer cancel()
	expected, notAfter, err := s.instants(ctx, b)
	if err != nil {
		return err
	}
	head := wire.Head{Now: b.now(), Expected: expected, NotAfter: notAfter, Instance: s.keys.instance, SlotsExpiry: s.keys.expiry}
	var features algorithms.Features
	for _, m := range b.messages {
		features |= m.writeMessage(s.names(), head)
		if !m.Fits() { // such a call is alone, because it is more work than a message may have
			return errTooLarge
		}
	}
	b.script = s.scriptFor(features)
	s.sendAndLoad(ctx, b)
	return nil
}

// readReply reads the reply to a message, if there is one. Without a valid reply, m.err is the error of all its calls.
func (s *Store) readReply(b *batch, m *message) {
	if m.err == nil {
		if m.err = b.parseReply(m, m.command.Val()); b.now() == 0 && m.reply.Now > 0 {
			s.observeClock(m.reply.Now, b.began)
		}
	}
	if m.err != nil {
		m.err = &store.SharedError{Err: nodes.AsRedirect(m.err)}
	}
}

// chooseRetries moves the calls that are sent again from the calls to the retries. The timeout is that of the store.
func (m *message) chooseRetries(timeout time.Duration) {
	m.calls = slices.DeleteFunc(m.calls, func(c *pendingCall) bool {
		again := m.sendsAgain(c, timeout)
		if again {
			c.err = nil
			m.retries = append(m.retries, c)
		}
		return again
	})
}

// sendsAgain reports whether a call is sent again. It certainly did not run.
func (m *message) sendsAgain(c *pendingCall, timeout time.Duration) bool {
	if m.err == nil && c.err == nil { // most calls
		return false
	}
	// A replica denies every write of a script.
	notRun := m.err != nil && m.certainlyNotRun() || isFromReplica("", c.err)
	// A process that is busy, or new to Redis, can need the whole timeout for a connection. A take that Redis can't work
	// on isn't sent again: on_store_error decides it at once.
	unconnected := isTimeout(m.err) && !m.isSent()
	switch {
	case errors.Is(m.err, errLate): // dropExpiredLocked ends the repetitions
		return c.setName == "" // a later turn sets the count
	case time.Since(c.queued) >= c.maxQueued(timeout):
		return false
	case redis.HasErrorPrefix(m.err, "NOSCRIPT"): // the script of the next message can be another one, which Redis lacks, too
		c.missed++
		return c.missed <= 3
	case unconnected, c.corrections != nil && notRun:
		c.resent++
		return c.resent == 1
	}
	return false
}

// endCalls ends the calls of a message.
func (m *message) endCalls() {
	for _, c := range m.calls {
		switch {
		case m.err != nil:
			c.fail(m.err)
		case c.reports != nil:
			go func() { // which may write a log, for which no other call waits
				for _, report := range c.reports {
					report()
				}
				c.end(c.allowed, c.err)
			}()
		default:
			c.end(c.allowed, c.err)
		}
	}
}

// lost returns the failure of a message that may have run, or nil for other messages.
func (m *message) lost() error {
	if m.err == nil || m.certainlyNotRun() {
		return nil
	}
	return m.err
}

// isSent reports whether the message may have been sent.
func (m *message) isSent() bool { return !m.payload.sent.IsZero() }

// certainlyNotRun reports whether the message certainly did not run.
func (m *message) certainlyNotRun() bool {
	if !m.isSent() || m.loadErr != nil || errors.Is(m.err, errLate) || errors.As(m.err, new(nodes.Redirect)) {
		return true
	}
	return slices.ContainsFunc([]string{"NOSCRIPT", "LOADING", "CLUSTERDOWN", "READONLY", "MASTERDOWN", "NOAUTH", "NOPERM"},
		func(prefix string) bool { return redis.HasErrorPrefix(m.err, prefix) })
}

// scriptFor returns a script with features. The script also covers those of all earlier calls, so
// that Redis keeps few scripts.
func (s *Store) scriptFor(features algorithms.Features) *redis.Script {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lastScript == nil || s.scriptFeatures|features != s.scriptFeatures {
		s.scriptFeatures |= features
		s.lastScript = redis.NewScript(s.scriptFeatures.Script())
	}
	return s.lastScript
}

// sendAndLoad makes the script calls of a batch in one round trip. If Redis does not have the script, nothing ran:
// sendAndLoad then loads the script, and the calls are made again in another batch.
func (s *Store) sendAndLoad(ctx context.Context, b *batch) {
	b.roundTrip(ctx)
	s.observeRoundTrip(b)
	if slices.ContainsFunc(b.messages, (*message).lacksScript) {
		loading, cancel := context.WithTimeout(context.Background(), s.options.Timeout)
		defer cancel()
		err := b.script.Load(loading, b.conns).Err()
		for _, m := range b.messages {
			if m.lacksScript() {
				m.loadErr = err
			}
		}
	}
	if slices.ContainsFunc(b.messages, func(m *message) bool { return isFromReplica(m.command.Val(), m.command.Err()) }) {
		s.reconnect(b.conns)
	}
}

// lacksScript reports whether Redis did not have the script.
func (m *message) lacksScript() bool { return redis.HasErrorPrefix(m.command.Err(), "NOSCRIPT") }

// observeRoundTrip reports how long a round trip took, and how many calls it carried out.
func (s *Store) observeRoundTrip(b *batch) {
	if first := b.messages[0]; first.isSent() && isReply(first.command.Err()) {
		s.observeDistance(time.Since(first.payload.sent), b.isProbe)
	}
	requests, replied := 0, false
	for _, m := range b.messages {
		if !m.lacksScript() {
			requests += len(m.calls)
			replied = replied || isReply(m.command.Err())
		}
	}
	if replied && s.hooks.RoundTrip != nil {
		s.hooks.RoundTrip(time.Since(b.began), requests)
	}
}

// roundTrip makes the script calls in one round trip. Their commands hold the results.
func (b *batch) roundTrip(ctx context.Context) {
	for _, m := range b.messages {
		m.makeCommand(ctx, b.script)
	}
	if len(b.messages) == 1 && !b.isAsking() {
		_ = b.conns.Process(ctx, b.messages[0].command)
		return
	}
	pipeline := b.conns.Pipeline()
	for _, m := range b.messages {
		if b.isAsking() {
			_ = pipeline.Process(ctx, redis.NewCmd(ctx, "asking"))
		}
		_ = pipeline.Process(ctx, m.command)
	}
	if _, err := pipeline.Exec(ctx); err != nil {
		for _, m := range b.messages { // without a connection, the client sets no errors
			if m.command.Err() == nil && m.command.Val() == "" {
				m.command.SetErr(err)
			}
		}
	}
}

// isFromReplica reports whether a replica sent the reply or the error. It was the primary until a
// moment ago, or a host name stands for another Redis by now. The client closes a connection on
// such an error, but not on such an error inside a script.
func isFromReplica(reply string, err error) bool {
	if err != nil {
		reply = err.Error()
	}
	return strings.Contains(reply, "READONLY") || strings.Contains(reply, "MASTERDOWN")
}

// repeatable is a call of a script that may run more than once.
type repeatable struct {
	script string
	keys   []string
	args   []any
	asking bool // follows an ASK redirect of another node of the cluster
}

// eval runs the script. If Redis does not have the script, eval loads it and runs it in one pipeline. So both
// reach the same server: a pool can have connections to a server that was the primary.
func (r repeatable) eval(ctx context.Context, conns *connections) (err error) {
	for _, load := range []bool{false, true} {
		pipeline := conns.Pipeline()
		r.queue(ctx, pipeline, load)
		if _, err = pipeline.Exec(ctx); !redis.HasErrorPrefix(err, "NOSCRIPT") { // the first error of its commands
			break
		}
	}
	return nodes.AsRedirect(err)
}

// queue adds the call to a pipeline. If load is true, it first adds the loading of the script.
func (r repeatable) queue(ctx context.Context, pipeline redis.Pipeliner, load bool) *redis.Cmd {
	if load {
		pipeline.ScriptLoad(ctx, r.script)
	}
	if r.asking {
		_ = pipeline.Process(ctx, redis.NewCmd(ctx, "asking"))
	}
	return redis.NewScript(r.script).EvalSha(ctx, pipeline, r.keys, r.args...)
}

// probe.lua runs every command of the scripts; see [Store.Check].
//
//go:embed probe.lua
var probeScript string

var changeScript = algorithms.ChangeScript()
