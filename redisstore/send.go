package redisstore

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/wire"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// send makes one round trip for a batch, and ends its calls. With asking, the batch follows an
// ASK redirect of another node of the cluster.
func (s *Store) send(b *batch, asking bool) {
	began := time.Now()
	deadline := began.Add(s.options.Timeout)
	ctx, cancel := context.WithDeadline(context.Background(), deadline)
	defer cancel()
	conns := s.acquire()
	defer s.release(conns)

	head := wire.Head{Instance: s.slotCounts.instance, SlotsExpiry: s.slotCounts.expiry}
	if b.alone() {
		head.Now = b.calls[0].now
	}
	n := b.divide(s.names(), s.options.Cluster)
	parts := b.scriptCalls[:n]
	var failed error
	if head.NotAfter, failed = s.notAfter(ctx, conns, head.Now, deadline); failed == nil {
		var set algorithms.Set
		for _, p := range parts {
			set |= p.write(s.names(), head)
		}
		deadline = s.run(ctx, conns, asking, s.script(set), head.Now, deadline, parts)
	}
	answered := false
	for _, p := range parts {
		p.err = failed
		if failed == nil {
			p.err = asRedirect(p.command.Err())
		}
		if p.err == nil {
			if p.err = b.read(p, p.command.Val()); head.Now == 0 && p.reply.Now > 0 {
				s.observeClock(p.reply.Now, began)
			}
		}
		answered = answered || !isTimeout(p.err)
		s.slotCounts.recordResult(p, p.err, deadline)
	}
	var again []*pendingCall
	for _, p := range parts {
		again = append(again, p.takeAgain()...)
	}
	s.messageEnded(b, again, answered)
	for _, p := range parts {
		s.endCalls(p, began)
	}
	b.release()
}

// takeAgain takes the calls out of the part that certainly did not run and may be sent again.
func (p *scriptCall) takeAgain() (again []*pendingCall) {
	if p.err == nil {
		return nil
	}
	late := errors.Is(p.err, errLate)
	// A process that is busy, or new to Redis, can need the whole time for a connection.
	unconnected := isTimeout(p.err) && !p.payload.sent
	p.calls = slices.DeleteFunc(p.calls, func(c *pendingCall) bool {
		if late && c.setName != "" { // its turn comes again
			return false
		}
		may := late || (unconnected || c.corrections != nil && p.notRun()) && time.Since(c.queued) < c.maxWait() && !c.resent
		if may {
			c.resent = true
			again = append(again, c)
		}
		return may
	})
	return again
}

// endCalls ends the calls of a part. If they got no reply in time, and no other message got one,
// Redis is silent.
func (s *Store) endCalls(p *scriptCall, began time.Time) {
	err := p.err
	if err != nil && len(p.calls) > 1 {
		err = &store.SharedError{Err: err}
	}
	silent := isTimeout(err) && len(p.calls) > 0
	for _, c := range p.calls {
		if err == nil {
			c.end(c.allowed, c.err)
		} else {
			c.end(false, err)
		}
	}
	if silent {
		s.failQueue(began, &store.SharedError{Err: &store.Error{Reason: store.ReasonSilent, Err: err}})
	}
}

// notRun reports whether the message of the part certainly did not run.
func (p *scriptCall) notRun() bool {
	return !p.payload.sent || certainlyNotRun(p.err)
}

// certainlyNotRun reports whether an error says that Redis did not run a script.
func certainlyNotRun(err error) bool {
	if errors.Is(err, errLate) {
		return true
	}
	if _, is := errors.AsType[notLoaded](err); is {
		return true
	}
	if _, is := errors.AsType[redirect](err); is {
		return true
	}
	for _, prefix := range []string{"NOSCRIPT", "LOADING", "CLUSTERDOWN", "READONLY", "MASTERDOWN", "NOAUTH", "NOPERM"} {
		if redis.HasErrorPrefix(err, prefix) {
			return true
		}
	}
	return false
}

// script returns a script for a set. The script also covers all sets of earlier calls, so that
// Redis keeps few scripts.
func (s *Store) script(set algorithms.Set) *redis.Script {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.scripts == nil || s.set|set != s.set {
		s.set |= set
		s.scripts = redis.NewScript(s.set.Script())
	}
	return s.scripts
}

// run makes the script calls of parts in one round trip. If Redis doesn't have the script, which
// proves that nothing ran, run loads it and makes the same calls again, with as much time as before.
// It returns the instant after which none of them can run any more.
func (s *Store) run(ctx context.Context, conns *connections, asking bool, script *redis.Script, now algorithms.Micros, deadline time.Time, parts []*scriptCall) time.Time {
	began := time.Now()
	execute(ctx, conns, asking, script, parts)
	var missing []*scriptCall
	for _, p := range parts {
		if err := p.command.Err(); err != nil && redis.HasErrorPrefix(err, "NOSCRIPT") {
			missing = append(missing, p)
		}
	}
	if len(missing) > 0 {
		err := s.load(conns, script, began)
		deadline = time.Now().Add(s.options.Timeout)
		ctx, cancel := context.WithDeadline(context.Background(), deadline)
		defer cancel()
		var last algorithms.Micros
		if err == nil {
			last, err = s.notAfter(ctx, conns, now, deadline)
		}
		for _, p := range missing {
			if err != nil {
				p.command.SetErr(notLoaded{err})
			}
			p.SetNotAfter(last)
		}
		if err == nil {
			execute(ctx, conns, asking, script, missing)
		}
	}
	for _, p := range parts {
		if isDemoted(p.command.Val(), p.command.Err()) {
			s.reconnect(conns)
			break
		}
	}
	return deadline
}

// notLoaded is why a script could not be loaded that Redis had not. Nothing ran.
type notLoaded struct{ error }

func (e notLoaded) Unwrap() error { return e.error }

// load loads the script. If another message has tried to load it since an instant, load returns
// the result of that.
func (s *Store) load(conns *connections, script *redis.Script, since time.Time) error {
	s.loading.Lock()
	defer s.loading.Unlock()
	if s.loaded.After(since) && s.loadedHash == script.Hash() {
		return s.loadedErr
	}
	ctx, cancel := context.WithTimeout(context.Background(), s.options.Timeout)
	defer cancel()
	s.loadedErr = script.Load(ctx, conns).Err()
	s.loaded, s.loadedHash = time.Now(), script.Hash()
	return s.loadedErr
}

func execute(ctx context.Context, conns *connections, asking bool, script *redis.Script, parts []*scriptCall) {
	for _, p := range parts {
		p.prepareCommand(ctx, script)
	}
	if len(parts) == 1 && !asking {
		_ = conns.Process(ctx, parts[0].command)
		return
	}
	pipeline := conns.Pipeline()
	for _, p := range parts {
		if asking {
			_ = pipeline.Process(ctx, redis.NewCmd(ctx, "asking"))
		}
		_ = pipeline.Process(ctx, p.command)
	}
	if _, err := pipeline.Exec(ctx); err != nil {
		for _, p := range parts { // without a connection, the client leaves the commands as they are
			if p.command.Err() == nil && p.command.Val() == "" {
				p.command.SetErr(err)
			}
		}
	}
}

// isDemoted reports whether a replica sent the reply or the error: it was a master until a moment
// ago, or a name stands for another Redis by now. The client closes a connection on such an error,
// but not on such an error in a script.
func isDemoted(reply string, err error) bool {
	if err != nil {
		reply = err.Error()
	}
	return strings.Contains(reply, "READONLY") || strings.Contains(reply, "MASTERDOWN")
}

// evalRepeatable runs a script that may run more than once. If Redis doesn't have the script, eval loads it.
func evalRepeatable(ctx context.Context, conns *connections, asking bool, script *redis.Script, keys []string, args ...any) error {
	run := func() error {
		pipeline := conns.Pipeline()
		if asking {
			_ = pipeline.Process(ctx, redis.NewCmd(ctx, "asking"))
		}
		done := script.EvalSha(ctx, pipeline, keys, args...)
		_, err := pipeline.Exec(ctx)
		return asRedirect(cmp.Or(done.Err(), err))
	}
	err := run()
	if redis.HasErrorPrefix(err, "NOSCRIPT") {
		if err = script.Load(ctx, conns).Err(); err == nil {
			err = run()
		}
	}
	return err
}
