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
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// sendBatch makes one round trip for a batch, and ends its calls. With asking, the batch follows an
// ASK redirect of another node of the cluster.
func (s *Store) sendBatch(b *batch, asking bool) {
	began := time.Now()
	deadline := began.Add(s.options.Timeout)
	ctx, cancel := context.WithDeadline(context.Background(), deadline)
	defer cancel()
	conns := s.acquire()
	defer s.release(conns)

	head := wire.Head{Instance: s.slotCounts.instance, SlotsExpiry: s.slotCounts.expiry}
	if b.isAlone() {
		head.Now = b.calls[0].now
	}
	n := b.split(s.names(), s.options.Cluster)
	scriptCalls := b.scriptCalls[:n]
	var failure error
	if head.NotAfter, failure = s.notAfter(ctx, conns, head.Now, deadline); failure == nil {
		var set algorithms.Set
		for _, sc := range scriptCalls {
			set |= sc.writeMessage(s.names(), head)
			if !sc.Fits() { // such a call is alone, because it is more work than a message may have
				failure = errTooLarge
			}
		}
		if failure == nil {
			deadline = s.runScript(ctx, conns, asking, s.scriptFor(set), head.Now, deadline, scriptCalls)
		}
	}
	replied := false
	for _, sc := range scriptCalls {
		sc.err = failure
		if failure == nil {
			sc.err = sc.command.Err()
		}
		replied = replied || isReply(sc.err)
		if sc.err == nil {
			if sc.err = b.readReply(sc, sc.command.Val()); head.Now == 0 && sc.reply.Now > 0 {
				s.observeClock(sc.reply.Now, began)
			}
		}
		if sc.err != nil {
			sc.err = &store.SharedError{Err: asRedirect(sc.err)}
		}
	}
	var retries []*pendingCall
	for _, sc := range scriptCalls {
		retries = append(retries, sc.removeRetries()...)
	}
	s.endBatch(scriptCalls, retries, replied, began)
	for _, sc := range scriptCalls {
		s.slotCounts.recordReply(sc, deadline)
		sc.endCalls()
	}
	b.release()
}

// removeRetries removes and returns the calls that certainly did not run and may be sent again.
func (sc *scriptCall) removeRetries() (retries []*pendingCall) {
	if sc.err == nil {
		return nil
	}
	late := errors.Is(sc.err, errLate)
	// A process that is busy, or new to Redis, can need the whole timeout for a connection.
	unconnected := isTimeout(sc.err) && !sc.payload.sent
	sc.calls = slices.DeleteFunc(sc.calls, func(c *pendingCall) bool {
		if late && c.setName != "" { // a later turn sets the count
			return false
		}
		retry := late || (unconnected || c.corrections != nil && sc.certainlyNotRun()) && time.Since(c.queued) < c.maxQueued() && !c.resent
		if retry {
			c.resent = true
			retries = append(retries, c)
		}
		return retry
	})
	return retries
}

// endCalls ends the calls of a script call.
func (sc *scriptCall) endCalls() {
	for _, c := range sc.calls {
		if sc.err == nil {
			c.end(c.allowed, c.err)
		} else {
			c.end(false, sc.err)
		}
	}
}

// lost returns the failure of a message that may have run, or nil for other messages.
func (sc *scriptCall) lost() error {
	if sc.err == nil || sc.certainlyNotRun() {
		return nil
	}
	return sc.err
}

// certainlyNotRun reports whether the message certainly did not run.
func (sc *scriptCall) certainlyNotRun() bool {
	return !sc.payload.sent || certainlyNotRun(sc.err)
}

// certainlyNotRun reports whether an error proves that Redis did not run a script.
func certainlyNotRun(err error) bool {
	if errors.Is(err, errLate) {
		return true
	}
	if errors.As(err, new(loadError)) {
		return true
	}
	if errors.As(err, new(redirect)) {
		return true
	}
	for _, prefix := range []string{"NOSCRIPT", "LOADING", "CLUSTERDOWN", "READONLY", "MASTERDOWN", "NOAUTH", "NOPERM"} {
		if redis.HasErrorPrefix(err, prefix) {
			return true
		}
	}
	return false
}

// scriptFor returns a script for a set. The script also covers the sets of all earlier calls, so
// that Redis keeps few scripts.
func (s *Store) scriptFor(set algorithms.Set) *redis.Script {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lastScript == nil || s.scriptSet|set != s.scriptSet {
		s.scriptSet |= set
		s.lastScript = redis.NewScript(s.scriptSet.Script())
	}
	return s.lastScript
}

// runScript makes script calls in one round trip. If Redis does not have the script, nothing ran:
// runScript then loads the script and makes the same calls again, within a new timeout. It returns
// the instant after which no call can run any more.
func (s *Store) runScript(
	ctx context.Context, conns *connections, asking bool, script *redis.Script,
	now algorithms.Micros, deadline time.Time, scriptCalls []*scriptCall,
) time.Time {
	began := time.Now()
	roundTrip(ctx, conns, asking, script, scriptCalls)
	s.observeRoundTrip(scriptCalls, began)
	var missing []*scriptCall
	for _, sc := range scriptCalls {
		if err := sc.command.Err(); err != nil && redis.HasErrorPrefix(err, "NOSCRIPT") {
			missing = append(missing, sc)
		}
	}
	if len(missing) > 0 {
		err := s.loadScript(conns, script, began)
		deadline = time.Now().Add(s.options.Timeout)
		ctx, cancel := context.WithDeadline(context.Background(), deadline)
		defer cancel()
		var notAfter algorithms.Micros
		if err == nil {
			notAfter, err = s.notAfter(ctx, conns, now, deadline)
		}
		for _, sc := range missing {
			if err != nil {
				sc.command.SetErr(loadError{err})
			}
			sc.SetNotAfter(notAfter)
		}
		if err == nil {
			again := time.Now()
			roundTrip(ctx, conns, asking, script, missing)
			s.observeRoundTrip(missing, again)
		}
	}
	for _, sc := range scriptCalls {
		if isFromReplica(sc.command.Val(), sc.command.Err()) {
			s.reconnect(conns)
			break
		}
	}
	return deadline
}

// loadError is the error of loading a script that Redis did not have. Nothing ran.
type loadError struct{ error }

func (e loadError) Unwrap() error { return e.error }

// loadScript loads the script. If another batch has tried to load the script after since,
// loadScript returns the result of that attempt.
func (s *Store) loadScript(conns *connections, script *redis.Script, since time.Time) error {
	s.loadMu.Lock()
	defer s.loadMu.Unlock()
	if s.loadTried.After(since) && s.loadHash == script.Hash() {
		return s.loadErr
	}
	ctx, cancel := context.WithTimeout(context.Background(), s.options.Timeout)
	defer cancel()
	s.loadErr = script.Load(ctx, conns).Err()
	s.loadTried, s.loadHash = time.Now(), script.Hash()
	return s.loadErr
}

// roundTrip makes script calls in one round trip. Their commands hold the results.
func roundTrip(ctx context.Context, conns *connections, asking bool, script *redis.Script, scriptCalls []*scriptCall) {
	for _, sc := range scriptCalls {
		sc.makeCommand(ctx, script)
	}
	if len(scriptCalls) == 1 && !asking {
		_ = conns.Process(ctx, scriptCalls[0].command)
		return
	}
	pipeline := conns.Pipeline()
	for _, sc := range scriptCalls {
		if asking {
			_ = pipeline.Process(ctx, redis.NewCmd(ctx, "asking"))
		}
		_ = pipeline.Process(ctx, sc.command)
	}
	if _, err := pipeline.Exec(ctx); err != nil {
		for _, sc := range scriptCalls { // without a connection, the client sets no errors
			if sc.command.Err() == nil && sc.command.Val() == "" {
				sc.command.SetErr(err)
			}
		}
	}
}

// observeRoundTrip calls [Hooks.RoundTrip] for a round trip that began at an instant, if a reply came. It
// skips script calls for which Redis lacks the script, because they are made again.
func (s *Store) observeRoundTrip(scriptCalls []*scriptCall, began time.Time) {
	if s.hooks.RoundTrip == nil {
		return
	}
	requests, replied := 0, false
	for _, sc := range scriptCalls {
		err := sc.command.Err()
		if redis.HasErrorPrefix(err, "NOSCRIPT") {
			continue
		}
		requests += len(sc.calls)
		replied = replied || isReply(err)
	}
	if replied {
		s.hooks.RoundTrip(time.Since(began), requests)
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

// evalRepeatable runs a script that may run more than once. If Redis does not have the script,
// evalRepeatable loads it.
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

// probe.lua runs every command of the scripts; see [Store.Check].
//
//go:embed probe.lua
var probeLua string

var probeScript = redis.NewScript(probeLua)

var changeScript = redis.NewScript(algorithms.ChangeScript())
