package limiter

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/denials"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/errtest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/lines"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/storetest"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// notifyTest is a limiter whose zone plan has calendars, and reports 45, 80 and 100 % of them. Each instance of it is in a
// bubble with a fake clock.
type notifyTest struct {
	*slotTest
	limits []store.Limit
	logged *observer.ObservedLogs
}

func newNotifyTest(t *testing.T, budgets store.Store, periods ...string) *notifyTest {
	t.Helper()
	core, logged := observer.New(zapcore.InfoLevel)
	n := &notifyTest{slotTest: newSlotTest(budgets, time.Second), logged: logged}
	n.handler.DenialSource = &denials.Source{Logger: zap.New(core), LogsKeys: true}
	n.handler.Denials = denials.NewLog(new(denials.Events))
	t.Cleanup(n.handler.Denials.Close)
	n.addZone(t, "plan", time.Hour, 100)
	n.zones["plan"].Notify = []int64{45, 80, 100}
	for _, period := range periods {
		n.limits = append(n.limits, storetest.Limit(t, "plan", algorithms.Quota{Algorithm: "calendar", Events: 10, Period: period}))
	}
	return n
}

// ask returns a request of a cost to the zone plan.
func (n *notifyTest) ask(key string, cost int64) slotAsk {
	return slotAsk{zone: "plan", key: key, limits: n.limits, cost: cost}
}

// request decides a request, and ends it.
func (n *notifyTest) request(t *testing.T, asks ...slotAsk) {
	t.Helper()
	state, err := n.decide(t.Context(), asks...)
	errtest.None(t, err)
	state.sendCorrections()
}

// want checks the reports since the last call.
func (n *notifyTest) want(t *testing.T, when string, want ...string) {
	t.Helper()
	var got []string
	for _, e := range n.logged.TakeAll() {
		f := e.ContextMap()
		got = append(got, fmt.Sprintf("%v %v%% %v", f["key"], f["percent"], f["limit"]))
		if until, err := time.Parse(time.RFC3339, fmt.Sprint(f["until"])); err != nil || !until.After(time.Now()) {
			t.Errorf("%s: a period ends at %v", when, f["until"])
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("%s: the reports are %q, want %q", when, got, want)
	}
}

// Only events that are used are reported, each share once, however much a denied request asks for.
func TestNotifyReportsWhatIsUsed(t *testing.T) {
	for mode, reported := range map[algorithms.Mode][]string{
		algorithms.Binary:  nil,
		algorithms.Uniform: {"a 45% calendar 10 year", "a 80% calendar 10 year", "a 100% calendar 10 year"}, // denials are charged
	} {
		t.Run(mode.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNotifyTest(t, inMemory(), "year")
				large := n.ask("a", 1000)
				large.mode = mode
				n.request(t, large)
				n.want(t, "after a request that is too large", reported...)
				if mode == algorithms.Uniform {
					return
				}
				for range 4 {
					n.request(t, n.ask("a", 1))
				}
				n.want(t, "with 4 of 10 used")
				n.request(t, n.ask("a", 7))
				n.want(t, "after the first denial")
				n.request(t, n.ask("a", 1))
				n.want(t, "with 5 of 10 used", "a 45% calendar 10 year")
				n.request(t, n.ask("a", 4))
				n.want(t, "with 9 of 10 used", "a 80% calendar 10 year")
				n.request(t, n.ask("a", 3), n.ask("b", 3))
				n.want(t, "while 9 of 10 are used, and one of two keys denies")
				n.request(t, n.ask("a", 1), n.ask("b", 8))
				n.want(t, "with two keys", "a 100% calendar 10 year", "b 45% calendar 10 year", "b 80% calendar 10 year")
				n.request(t, n.ask("a", 1))
				n.want(t, "after that")
			})
		})
	}
}

// Decisions that are made again while a request waits for a slot lose no report, also of a shadow that charges each of them.
func TestNotifyBehindSlotLine(t *testing.T) {
	for _, mode := range []algorithms.Mode{algorithms.Binary, algorithms.Uniform} {
		t.Run(mode.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNotifyTest(t, inMemory(), "year")
				n.addZone(t, "slots", time.Hour, 100)
				n.zones["plan"].Delay = nil
				slots := slotAsk{zone: "slots", key: "k", slots: 1}
				first, _ := n.decide(t.Context(), slots)
				time.AfterFunc(time.Minute, first.sendCorrections)
				shadow := n.ask("a", 8)
				shadow.shadow, shadow.mode = true, mode
				n.request(t, slots, shadow)
				n.want(t, "after the wait", "a 45% calendar 10 year", "a 80% calendar 10 year")
			})
		})
	}
}

// Reserved events aren't used yet. A share is reported when a response makes them final, or when the reservation is old.
func TestNotifyOfReserved(t *testing.T) {
	for _, shadow := range []bool{false, true} {
		t.Run(fmt.Sprint("shadow ", shadow), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNotifyTest(t, inMemory(), "year", "month", "day")
				reports := func(shares ...string) (reports []string) {
					for _, period := range []string{"year", "month", "day"} {
						for _, share := range shares {
							reports = append(reports, fmt.Sprintf("a %s%% calendar 10 %s", share, period))
						}
					}
					return reports
				}
				begin := func(cost int64) *State {
					ask := n.ask("a", cost)
					ask.reserves, ask.shadow = true, shadow
					state, err := n.decide(t.Context(), ask)
					if err != nil || !state.Allowed {
						t.Fatal(state.Allowed, err)
					}
					state.limitReservations()
					return state
				}
				settle := func(state *State, trueCost int64) {
					e := &state.Entries[0]
					e.TrueCost, e.Settled = trueCost, true
					state.sendCorrections()
				}
				first, second := begin(5), begin(5)
				n.want(t, "while all is reserved")
				settle(first, 1)
				settle(second, 2)
				n.want(t, "with 3 of 10 used")
				first, second = begin(3), begin(2)
				settle(first, 3)
				n.want(t, "with 6 of 10 used, and 2 reserved", reports("45")...)
				time.Sleep(maxReservation) // virtual time
				synctest.Wait()
				n.want(t, "with 8 of 10 used", reports("80")...)
				settle(second, 0)
				settle(begin(2), 4)
				n.want(t, "with 10 of 10 used", reports("100")...)
			})
		})
	}
}

// A client that disconnects while its request is delayed gets its charge back, so nothing is reported.
func TestNotifyOfClientThatLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNotifyTest(t, inMemory(), "year")
		n.addZone(t, "slow", time.Hour, 100)
		n.zones["plan"].Delay = nil
		n.zones["slow"].Delay = &lines.DelayPolicy{MaxDelay: time.Hour.Microseconds(), MaxPlaces: 10, Places: NewDelayPlaces()}
		limit := storetest.Limit(t, "slow", algorithms.Quota{Algorithm: "fixed_window", Events: 1, Window: time.Minute.Microseconds()})
		slow := slotAsk{zone: "slow", key: "k", limits: []store.Limit{limit}}
		n.request(t, slow)
		ctx, leave := context.WithTimeout(t.Context(), time.Second)
		defer leave()
		state, err := n.decide(ctx, slow, n.ask("a", 8))
		state.sendCorrections()
		n.want(t, fmt.Sprint("after ", err))
		n.request(t, slow, n.ask("a", 5))
		n.want(t, "after a request that waited", "a 45% calendar 10 year")
	})
}

// Keys without room in the memory share a budget. None of them is reported for what the others have used.
func TestNotifyNamesNoInnocentKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNotifyTest(t, store.NewMemory(1), "year")
		n.request(t, n.ask("first", 1))
		for key := range 12 {
			n.request(t, n.ask(fmt.Sprint("late ", key), 1))
		}
		n.want(t, "with a shared budget")
		n.request(t, n.ask("first", 4))
		n.want(t, "with room", "first 45% calendar 10 year")
	})
}
