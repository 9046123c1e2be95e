package faultsim

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/faultsim/simredis"
	"github.com/caddy-rate-limit/caddy-rate-limit/redisstore"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// lossTest is a Redis some messages of which are lost.
type lossTest struct {
	redisstore.Redis
	network *simredis.Network
	server  *simredis.Server
	client  *simredis.Client
}

func newLossTest(t *testing.T) *lossTest {
	t.Helper()
	l := &lossTest{network: newNetwork(t)}
	l.server, l.client = l.network.NewServer("10.0.0.1:6379"), l.network.NewClient(100*time.Microsecond)
	l.Redis = must(redisstore.Open(redisstore.Options{Address: l.server.Address(), Timeout: timeout, Dialer: l.client}, redisstore.Hooks{}))
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// breaksAfter is the time from which on a message counts as stalled, and some more.
const breaksAfter = 40 * time.Millisecond

// loseAbout loses messages that name a key. If they are silent, all are lost, after they have run. If the connection
// breaks, only that of the first one does, after the message has stalled.
func (l *lossTest) loseAbout(key string, how simredis.Loss) {
	l.server.SetTrouble(func(args []string) (trouble simredis.Trouble) {
		if strings.Contains(strings.Join(args, " "), "{"+key+"}") {
			if trouble.Lost = how; how == simredis.LostAfter {
				trouble.Before, how = breaksAfter, simredis.NoLoss
			}
		}
		return trouble
	})
}

// ended is the end of a take.
type ended struct {
	reason string
	after  time.Duration
}

// take takes an event and a slot of a key in the background.
func (l *lossTest) take(t *testing.T, key string) (*store.ZoneRequest, <-chan ended) {
	r := askSlot(key, 100)
	r[0].Cost, r[0].Limits = 1, []store.Limit{limitOf("z", "fixed_window", 100)}
	done, began := make(chan ended, 1), time.Now()
	go func() {
		_, err := l.Take(t.Context(), r)
		done <- ended{reasonOf(err), time.Since(began)}
	}()
	return &r[0], done
}

// takeThree takes from a key three times at once, and returns how each take ended.
func (l *lossTest) takeThree(t *testing.T, key string) (all []ended) {
	var waiting []<-chan ended
	for range 3 {
		_, done := l.take(t, key)
		waiting = append(waiting, done)
	}
	for _, done := range waiting {
		all = append(all, <-done)
	}
	return all
}

// takeOthers takes from another key. A message that is lost may delay it, until the message counts as stalled.
func (l *lossTest) takeOthers(t *testing.T, stop <-chan struct{}) {
	for {
		began, r := time.Now(), ask("other")
		if _, err := l.Take(t.Context(), r); err != nil || time.Since(began) > 30*time.Millisecond {
			t.Errorf("a take of another key: %v after %v", err, time.Since(began))
		}
		select {
		case <-stop:
			return
		case <-time.After(3 * time.Millisecond): // virtual time
		}
	}
}

// A message about a key is lost while takes of the key wait for it, each from another instant on. They fail with the
// message, and are not busy. Takes of other keys are not affected. If the connection breaks long before the message can no
// longer run, later takes fail only if the count of slots is unknown. Later this count is right again.
func TestTakesBehindLostCorrection(t *testing.T) {
	for name, correction := range map[string]store.Correction{"slots": {Leave: true}, "correction": {Refund: 1}} {
		for how, loss := range map[string]simredis.Loss{"silent": simredis.Silent, "broken": simredis.LostAfter} {
			for at := time.Duration(0); at < timeout; at += 13 * time.Millisecond {
				t.Run(fmt.Sprint(name, " ", how, " after ", at), func(t *testing.T) {
					inBubble(t, 0, func(t *testing.T) { takesBehind(t, correction, loss, at) })
				})
			}
		}
	}
}

func takesBehind(t *testing.T, correction store.Correction, loss simredis.Loss, at time.Duration) {
	l := newLossTest(t)
	first, done := l.take(t, "k")
	if got := <-done; got.reason != "" {
		t.Fatal(got)
	}
	var all sync.WaitGroup
	defer all.Wait()
	stop := make(chan struct{})
	defer close(stop)
	all.Go(func() { l.takeOthers(t, stop) })
	time.Sleep(time.Millisecond) // until the first of these has its reply, so none shares the message of the correction
	l.loseAbout("k", loss)
	correction.Request = first
	l.Correct([]store.Correction{correction}, nil)
	time.Sleep(at)
	for n := range 2 * 5 { // a breaker opens after 5 failures
		for _, got := range l.takeThree(t, "k") {
			reason := store.ReasonConnection
			if (at > breaksAfter || n > 0) && !correction.Leave {
				reason = ""
			}
			isSilent := loss == simredis.Silent && (got.reason == store.ReasonTimeout || got.reason == "")
			if got.reason != reason && !isSilent || got.after > timeout+timeout/10 {
				t.Errorf("a take behind the lost message: %+v", got)
			}
		}
		if loss == simredis.Silent {
			break
		}
	}
	l.server.SetTrouble(nil)
	if l.Stats().Failing != 0 {
		t.Error("the breaker is open: the failure counts more than once")
	}
	time.Sleep(time.Second) // until no message is on its way
	again, done := l.take(t, "k")
	if got := <-done; got.reason != "" {
		t.Fatal(got)
	}
	leave(l, *first, *again)
}

// Redis is silent while takes wait behind a message: they fail with the takes in the queue, and the breaker opens.
// The count of slots is set once Redis replies again.
func TestWaitingTakesOfSilentRedis(t *testing.T) {
	for at := time.Duration(0); at < timeout; at += 19 * time.Millisecond {
		t.Run(at.String(), func(t *testing.T) {
			inBubble(t, 0, func(t *testing.T) {
				l := newLossTest(t)
				held, done := l.take(t, "k")
				<-done
				thaw := l.server.Freeze()
				leave(l, *held)
				time.Sleep(at)
				for _, got := range l.takeThree(t, "k") {
					if got.reason != store.ReasonSilent {
						t.Errorf("%+v, want the reason %q", got, store.ReasonSilent)
					}
				}
				within(t, timeout, "the breaker to open", func() bool { return l.Stats().Failing == 1 })
				thaw()
				within(t, 2*time.Second, "the breaker to close", func() bool { return l.Stats().Failing == 0 })
				last, done := l.take(t, "k")
				got := <-done
				if o := last.Outcome; got.reason != "" || o.Slots.InFlight != 1 || o.Decisions[0].Remaining != 98 {
					t.Errorf("%+v, %+v, want 1 in flight and 98 remaining: nothing else was charged", got, o)
				}
				leave(l, *last)
			})
		})
	}
}

// A Redis that accepts no connection is silent, even if new calls keep arriving, and other calls fail.
func TestSilentWithoutConnections(t *testing.T) {
	for _, connected := range []bool{false, true} {
		t.Run(fmt.Sprint(connected), func(t *testing.T) {
			inBubble(t, 0, func(t *testing.T) {
				l := newLossTest(t)
				if connected {
					first, done := l.take(t, "k")
					<-done
					defer leave(l, *first)
				}
				l.client.SetSilent(l.server.Address(), true)
				var all sync.WaitGroup
				reasons := make(chan string, 1000)
				for range 200 {
					all.Go(func() {
						began := time.Now()
						_, err := l.Take(t.Context(), ask("k"))
						reasons <- reasonOf(err)
						if waited := time.Since(began); waited > 2*timeout+50*time.Millisecond {
							t.Errorf("one waited for %v", waited)
						}
					})
					time.Sleep(time.Millisecond) // virtual time
				}
				all.Wait()
				close(reasons)
				counts := make(map[string]int)
				for reason := range reasons {
					counts[reason]++
				}
				if counts[store.ReasonTimeout] == 0 || counts[store.ReasonSilent]+counts[store.ReasonOpen] < 50 ||
					counts[store.ReasonTimeout]+counts[store.ReasonSilent]+counts[store.ReasonOpen] != 200 || l.Stats().Failing != 1 {
					t.Errorf("reasons %v, and %d fail", counts, l.Stats().Failing)
				}
				l.client.SetSilent(l.server.Address(), false)
				within(t, 2*time.Second, "the breaker to close", func() bool { return l.Stats().Failing == 0 })
			})
		})
	}
}
