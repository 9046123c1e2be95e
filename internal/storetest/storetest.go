// Package storetest is the conformance suite of [store.Store]. [Run] runs it on a store, or on a store
// that wraps another one. The other functions make limits and requests for tests of single stores.
//
// Tests whose names begin with "fault" are about faults of other rate limiters. The instants of the
// suite are invented, except in tests of a store's own clock. Windows are long, because Redis drops keys
// by its own clock.
package storetest

import (
	"context"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// Store is a store with a method for each instant of the caller's choice.
type Store interface {
	store.Store
	// TakeAt is Take at an instant of the caller's choice, in microseconds.
	TakeAt(ctx context.Context, now algorithms.Micros, requests []store.ZoneRequest) (allowed bool, err error)
	// CorrectAt is Correct at an instant of the caller's choice, in microseconds. It returns
	// once the corrections are made.
	CorrectAt(ctx context.Context, now algorithms.Micros, corrections []store.Correction) error
	// ChangeAt is Change at an instant of the caller's choice, in microseconds.
	ChangeAt(ctx context.Context, now algorithms.Micros, c store.Change) error
}

const (
	second = 1_000_000
	minute = 60 * second

	// start is the first instant of the suite: a whole number of minutes.
	start = 1_763_640_000 * second
)

// test is a test of the suite.
type test struct {
	name string
	run  func(*testing.T, Store)
}

// changeTest returns a test of an operator's change. It is skipped for a store that gets no changes.
func changeTest(name string, run func(*testing.T, Store)) test {
	return test{name, func(t *testing.T, s Store) {
		if d, ok := s.(*Decorated); ok && d.Alone {
			t.Skip("this store gets no changes")
		}
		run(t, s)
	}}
}

// GivesBack marks a [Store] that doesn't decide several keys in one step: it charges some keys, and gives
// the charges back if another key denies. A smooth limit keeps such a charge if another request came in
// between.
type GivesBack interface{ GivesBack() }

// Run runs the suite. Each call of open returns a store without budgets.
func Run(t *testing.T, open func(t *testing.T) Store) {
	tests := []test{
		{"decides", testDecides},
		{"all or none", testAllOrNone},
		{"shadows have no vote", testShadow},
		{"peek changes nothing", testPeek},
		{"peeks at several keys", testPeekOfKeys},
		{"cost above burst never passes", testCostAboveBurst},
		{"a changed limit keeps what was used", testChangedLimit},
		{"keys are kept apart", testKeys},
		{"strange keys", testStrangeKeys},
		{"decisions reuse their memory", testDecisionsMemory},
		{"charges in advance", testInAdvance},
		{"a budget can begin with less", testInitial},
		{"gives back", testRefund},
		{"gives back once dropped", testRefundAfterReset},
		{"charges in addition", testCharge},
		{"claims a share once", testClaim},
		{"claims no reserved events", testClaimReserved},
		{"corrects several", testCorrectSeveral},
		{"corrects by its own clock", testCorrectOwnClock},
		{"reserved events", testReserved},
		{"slots", testSlots},
		{"slots of several zones", testSlotsOfZones},
		{"slots beside limits and bans", testSlotsWithLimits},
		{"a changed number of slots", testChangedSlots},
		{"many slots", testManySlots},
		{"peeks take no slot", testSlotsPeek},
		{"slots under concurrency", testSlotsConcurrency},
		{"bans", testBan},
		{"bans for its own denials", testBanCountsOwnDenials},
		{"bans that are only looked up", testBanLookup},
		{"bans under concurrency", testBanConcurrency},
		changeTest("overrides", testOverrides),
		changeTest("overrides of several keys", testOverridesOfKeys),
		changeTest("overrides end", testOverrideEnds),
		changeTest("overrides change under concurrency", testOverrideConcurrency),
		changeTest("forgets", testForget),
		changeTest("bans by hand", testBanByHand),
		changeTest("lists bans", testListBans),
		changeTest("lists what bans are", testListedBan),
		changeTest("lists strange names", testListStrangeNames),
		changeTest("lists under concurrency", testListConcurrency),
		changeTest("lists no ended overrides", testListEndedOverrides),
		{"exact under concurrency", testConcurrency},
		{"exact under concurrency with refunds", testConcurrencyRefund},
		{"exact under concurrency over several keys", testConcurrencyKeys},
		{"its own clock", testOwnClock},
	}
	for _, test := range append(tests, faults...) {
		t.Run(test.name, func(t *testing.T) { test.run(t, open(t)) })
	}
}
