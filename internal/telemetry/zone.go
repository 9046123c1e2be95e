package telemetry

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Outcome is the outcome of a request in a zone, as a label of metrics.
type Outcome int

// The outcomes.
const (
	OutcomeAllowed Outcome = iota
	OutcomeDelayed
	OutcomeDenied
	OutcomeShadowDenied
	OutcomeError
	OutcomeOverridden
	OutcomeBanned
	OutcomeExempt
	OutcomeBadBody
	OutcomeDeniedElsewhere
	outcomeCount
)

var outcomeNames = [outcomeCount]string{
	"allowed", "delayed", "denied", "shadow_denied", "error", "overridden", "banned", "exempt", "bad_body",
	"denied_elsewhere",
}

// String returns the name of the outcome, as metrics and traces have it.
func (o Outcome) String() string { return outcomeNames[o] }

// Outcomes returns the names of all outcomes.
func Outcomes() []string { return slices.Clone(outcomeNames[:]) }

// Counts are numbers of requests by outcome.
type Counts [outcomeCount]int64

// ByOutcome returns the counts by the names of the outcomes.
func (c Counts) ByOutcome() map[string]int64 {
	counts := make(map[string]int64)
	for i, n := range c {
		counts[outcomeNames[i]] = n
	}
	return counts
}

// zoneNumbers are the numbers of the requests of all zones with one name. They stay until the process ends, because
// requests outlive configurations.
type zoneNumbers struct {
	outcomes                                                [outcomeCount]atomic.Int64
	denyCacheHits, bansBegun, reservedEvents, settledEvents atomic.Int64
	inFlight, waitingForLimit, waitingForSlot               atomic.Int64
	waitingForReserved, waitingForBan                       atomic.Int64
	decisionSeconds                                         prometheus.Observer
}

var processZones sync.Map // zone name → *zoneNumbers

// RequestCounts returns the counts of requests by zone name. It omits zones without requests.
func RequestCounts() map[string]Counts {
	all := make(map[string]Counts)
	processZones.Range(func(name, numbers any) bool {
		var counts Counts
		for i := range counts {
			counts[i] = numbers.(*zoneNumbers).outcomes[i].Load()
		}
		all[name.(string)] = counts
		return true
	})
	return all
}

// ZoneMetrics holds the metrics of a zone. It is safe for concurrent use. The zone's first request creates the numbers. So a
// configuration that is rejected leaves no metrics behind.
type ZoneMetrics struct {
	Name     string
	Disabled bool // nothing is counted
	// The options of the zone that have metrics.
	HasSlots, HasDelay, HasBan, HasHold, HasSettle bool
	HasReservedWait                                bool // requests wait for reserved events

	lazyNumbers atomic.Pointer[zoneNumbers]
}

// numbers returns the numbers of the zone. It creates them at the first call.
func (m *ZoneMetrics) numbers() *zoneNumbers {
	if n := m.lazyNumbers.Load(); n != nil {
		return n
	}
	n := &zoneNumbers{decisionSeconds: prometheus.ObserverFunc(func(float64) {})}
	if !m.Disabled {
		n.decisionSeconds = decisionSeconds.WithLabelValues(m.Name)
		known, _ := processZones.LoadOrStore(m.Name, n)
		n = known.(*zoneNumbers)
	}
	m.lazyNumbers.Store(n)
	return n
}

// CountDecision counts a decision of the store, and how long it took.
func (m *ZoneMetrics) CountDecision(outcome Outcome, took time.Duration) {
	m.numbers().decisionSeconds.Observe(took.Seconds())
	m.CountOutcome(outcome)
}

// CountOutcome counts an outcome without a decision of the store.
func (m *ZoneMetrics) CountOutcome(outcome Outcome) { m.numbers().outcomes[outcome].Add(1) }

// CountDenyCacheHit counts a request that was denied without asking Redis.
func (m *ZoneMetrics) CountDenyCacheHit() { m.numbers().denyCacheHits.Add(1) }

// CountCharge counts the charge of a request that has ended: the reserved events, and the settled ones that remain
// charged.
func (m *ZoneMetrics) CountCharge(reserved, settled int64) {
	n := m.numbers()
	n.reservedEvents.Add(reserved)
	n.settledEvents.Add(settled)
}

// CountInFlight counts n more requests that hold a slot. n is -1 for a request that has given it back.
func (m *ZoneMetrics) CountInFlight(n int64) { m.numbers().inFlight.Add(n) }

// CountWaiting counts n more requests that a limit delays. n is -1 for a request whose delay has ended.
func (m *ZoneMetrics) CountWaiting(n int64) { m.numbers().waitingForLimit.Add(n) }

// CountWaitingFor counts n more requests that wait for something else, such as [ForSlot]. n is -1 for a request whose wait
// has ended.
func (m *ZoneMetrics) CountWaitingFor(awaited string, n int64) {
	switch awaited {
	case ForSlot:
		m.numbers().waitingForSlot.Add(n)
	case ForReserved:
		m.numbers().waitingForReserved.Add(n)
	case ForBan:
		m.numbers().waitingForBan.Add(n)
	}
}

// CountBan counts a ban that begins now.
func (m *ZoneMetrics) CountBan() { m.numbers().bansBegun.Add(1) }
