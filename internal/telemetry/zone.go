package telemetry

import (
	"slices"
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

// Zone holds the metrics of a zone. It is safe for concurrent use. The zone's first request creates the counters. So a
// configuration that is rejected, or gets no requests, leaves no metrics behind.
type Zone struct {
	Name         string
	Disabled     bool // nothing is counted
	HasBan       bool // the zone has the option ban
	HasSettle    bool // the zone has the option settle
	lazyCounters atomic.Pointer[zoneCounters]
}

// zoneCounters are the counters of a zone.
type zoneCounters struct {
	outcomes        [outcomeCount]prometheus.Counter
	decisionSeconds prometheus.Observer
	denyCacheHits   prometheus.Counter
	bansBegun       prometheus.Counter // nil if the zone has no ban
	reservedEvents  prometheus.Counter // nil if the zone has no settle
	settledEvents   prometheus.Counter // like reservedEvents
	gauges          *zoneGauges
}

// counters returns the counters. It creates them at the first call.
func (m *Zone) counters() *zoneCounters {
	if c := m.lazyCounters.Load(); c != nil {
		return c
	}
	c := &zoneCounters{
		decisionSeconds: process.decision.WithLabelValues(m.Name),
		denyCacheHits:   process.denyCacheHits.WithLabelValues(m.Name),
		gauges:          gaugesOf(m.Name),
	}
	if m.HasBan {
		c.bansBegun = process.bansBegun.WithLabelValues(m.Name)
	}
	if m.HasSettle {
		c.reservedEvents = process.reservedEvents.WithLabelValues(m.Name)
		c.settledEvents = process.settledEvents.WithLabelValues(m.Name)
	}
	for i, label := range outcomeNames {
		c.outcomes[i] = process.requests.WithLabelValues(m.Name, label)
	}
	m.lazyCounters.Store(c)
	return c
}

// CountDecision counts a decision of the store, and how long it took.
func (m *Zone) CountDecision(outcome Outcome, took time.Duration) {
	if m.Disabled {
		return
	}
	c := m.counters()
	c.decisionSeconds.Observe(took.Seconds())
	c.outcomes[outcome].Inc()
}

// CountOutcome counts an outcome without a decision of the store.
func (m *Zone) CountOutcome(outcome Outcome) {
	if !m.Disabled {
		m.counters().outcomes[outcome].Inc()
	}
}

// CountDenyCacheHit counts a request that was denied without asking Redis.
func (m *Zone) CountDenyCacheHit() {
	if !m.Disabled {
		m.counters().denyCacheHits.Inc()
	}
}

// CountCharge counts the charge of a request that has ended: the reserved events, and the settled ones that remain
// charged.
func (m *Zone) CountCharge(reserved, settled int64) {
	if m.HasSettle && !m.Disabled {
		c := m.counters()
		c.reservedEvents.Add(float64(reserved))
		c.settledEvents.Add(float64(settled))
	}
}

// CountInFlight counts n more requests that hold a slot. n is -1 for a request that has given it back.
func (m *Zone) CountInFlight(n int64) {
	if !m.Disabled {
		m.counters().gauges.inFlight.Add(n)
	}
}

// CountWaiting counts n more requests that a limit delays. n is -1 for a request whose delay has ended.
func (m *Zone) CountWaiting(n int64) {
	if !m.Disabled {
		m.counters().gauges.waitingForLimit.Add(n)
	}
}

// CountWaitingForSlot counts n more requests that wait for a slot. n is -1 for a request whose wait has ended.
func (m *Zone) CountWaitingForSlot(n int64) {
	if !m.Disabled {
		m.counters().gauges.waitingForSlot.Add(n)
	}
}

// CountBan counts a ban that begins now.
func (m *Zone) CountBan() {
	if m.HasBan && !m.Disabled {
		m.counters().bansBegun.Inc()
	}
}
