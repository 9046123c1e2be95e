// Package report is the answer of a simulation, and writes it as text and JSON. It never computes an outcome.
package report

import (
	"fmt"
	"time"
)

// Report is the answer of a simulation. In JSON, times are RFC 3339 in UTC, spans are seconds, and shares
// are fractions from 0 to 1.
type Report struct {
	Log            Log             `json:"log"`
	Propose        string          `json:"propose,omitempty"`    // the share that a proposed limit may deny
	Configurations []Configuration `json:"configurations"`       // one, or two with --compare
	Comparison     *Comparison     `json:"comparison,omitempty"` // with --compare
}

// Letter returns the letter of a configuration, if there are two.
func (r *Report) Letter(i int) string {
	if len(r.Configurations) < 2 {
		return ""
	}
	return string(rune('A' + i))
}

// Log says what was read.
type Log struct {
	Files       []string     `json:"files"`
	Lines       int64        `json:"lines"`
	Requests    int64        `json:"requests"`
	OtherLines  int64        `json:"other_lines"` // valid lines that are not access log lines, such as messages of Caddy
	BrokenLines int64        `json:"broken_lines"`
	Broken      []BrokenLine `json:"broken,omitempty"` // the first ones
	// LateRequests came further out of order than the window for sorting, and were decided late.
	LateRequests int64 `json:"late_requests"`
	// DeniedBefore had been denied with status 429 by a rate limit when they were logged.
	DeniedBefore int64      `json:"denied_before"`
	From         *time.Time `json:"from,omitempty"` // the first request began
	To           *time.Time `json:"to,omitempty"`   // the last request began
}

// BrokenLine is a line of a log that can't be read.
type BrokenLine struct {
	File  string `json:"file"`
	Line  int64  `json:"line"`
	Error string `json:"error"`
}

// Configuration is the outcome in one configuration.
type Configuration struct {
	Name string `json:"name"` // of the file
	// ZoneOptions are the options of a zone, instead of a file.
	ZoneOptions string `json:"zone_options,omitempty"`
	// LeftOut are the zones that the log says too little about. Only a zone that is partly left out is in Zones, too.
	LeftOut []LeftOut `json:"left_out,omitempty"`
	Tally
	Limited int64 `json:"limited"` // belong to at least one zone
	Delayed int64 `json:"delayed"`
	// BucketSeconds is the length of the buckets of all timelines, the first of which begins at Begins.
	BucketSeconds float64    `json:"bucket_seconds"`
	Begins        *time.Time `json:"begins,omitempty"`
	Timeline      []Tally    `json:"timeline"`
	Zones         []Zone     `json:"zones"`
	Notes         []string   `json:"notes"`
}

// LeftOut is a zone, or some of its requests, that a simulation ignores.
type LeftOut struct {
	Zone     string `json:"zone"`
	Requests int64  `json:"requests"`
	Partly   bool   `json:"partly"` // other requests of the zone are simulated
	Reason   string `json:"reason"`
}

// Text says in a sentence what is left out.
func (l *LeftOut) Text() string {
	if l.Partly {
		return fmt.Sprintf("Zone %s is left out for %s: %s.", l.Zone, Counted(l.Requests, "request"), l.Reason)
	}
	return fmt.Sprintf("Zone %s is left out: %s.", l.Zone, l.Reason)
}

// Outcome is whether a request is denied.
type Outcome uint8

// The outcomes. That of a request is the largest one of its zones.
const (
	Allowed      Outcome = iota
	ShadowDenied         // by a zone in shadow mode, so the request passes
	Denied
)

// Tally counts requests by their outcomes.
type Tally struct {
	Requests     int64 `json:"requests"`
	Denied       int64 `json:"denied"`
	ShadowDenied int64 `json:"shadow_denied,omitempty"`
}

// Count counts a request.
func (t *Tally) Count(o Outcome) {
	t.Requests++
	switch o {
	case Denied:
		t.Denied++
	case ShadowDenied:
		t.ShadowDenied++
	}
}

// Add adds the requests of another tally.
func (t *Tally) Add(other Tally) {
	t.Requests += other.Requests
	t.Denied += other.Denied
	t.ShadowDenied += other.ShadowDenied
}

// AllDenied returns how many requests are denied or shadow denied.
func (t Tally) AllDenied() int64 { return t.Denied + t.ShadowDenied }

// Zone is the outcome in one zone. The reasons and the times of denials include those in shadow mode.
type Zone struct {
	Name   string   `json:"zone"`
	Key    []string `json:"key"`
	Limits []string `json:"limits"`
	Shadow bool     `json:"shadow"`
	Tally
	DeniedByBan      int64      `json:"denied_by_ban"`
	DeniedBySlots    int64      `json:"denied_by_concurrency"`
	Delayed          int64      `json:"delayed"`
	LongestDelay     float64    `json:"longest_delay"` // in seconds
	FirstDenied      *time.Time `json:"first_denied,omitempty"`
	LastDenied       *time.Time `json:"last_denied,omitempty"`
	Keys             int64      `json:"keys"`
	KeysDenied       int64      `json:"keys_denied"`
	KeysShadowDenied int64      `json:"keys_shadow_denied,omitempty"` // and never denied
	// RequestsWithoutKey counts the requests whose key is empty.
	RequestsWithoutKey int64 `json:"requests_without_key,omitempty"`
	// RequestsWithoutRoom counts the requests of keys beyond the largest number of keys.
	RequestsWithoutRoom int64      `json:"requests_without_room,omitempty"`
	TopKeys             []Key      `json:"top_keys"` // the keys with most denied requests
	Demand              []Demand   `json:"demand"`
	Timeline            []Tally    `json:"timeline"`
	Proposals           []Proposal `json:"proposals,omitempty"`
}

// Key is the outcome of a key. First and Last are denials, also in shadow mode.
type Key struct {
	Key string `json:"key"`
	Tally
	// Peaks are the most events in one window, for each window in Demand.
	Peaks []int64   `json:"peaks"`
	First time.Time `json:"first_denied"`
	Last  time.Time `json:"last_denied"`
}

// Demand is how many events the keys asked for in their busiest window of this length. Windows begin at
// multiples of their length since the Unix epoch.
type Demand struct {
	WindowSeconds float64 `json:"window"`
	Quantiles
}

// Quantiles are quantiles over keys.
type Quantiles struct {
	P50 float64 `json:"p50"`
	P95 float64 `json:"p95"`
	P99 float64 `json:"p99"`
	Max float64 `json:"max"`
}

// Proposal is the least limit that denies at most a share of keys or requests.
type Proposal struct {
	Set     string `json:"set,omitempty"`     // of a plan or an override, such as "plan gold"; empty for the limits of all keys
	Current string `json:"current,omitempty"` // the limit as configured; empty if there is none
	Line    string `json:"line,omitempty"`    // the proposed limit, to be pasted into a Caddyfile; empty if there is none
	Reason  string `json:"reason,omitempty"`  // why there is no line
	// Requests and Keys count the requests that the limit decides, and their keys. Requests of other plans
	// don't count.
	Requests int64 `json:"requests"`
	Keys     int64 `json:"keys"`
	// DeniedRequests and DeniedKeys are the denials of Line.
	DeniedRequests int64 `json:"denied_requests"`
	DeniedKeys     int64 `json:"denied_keys"`
	// Next is the next smaller limit. It is nil if there is none.
	Next *CurvePoint `json:"next,omitempty"`
	// Configured is the limit of Current. It is nil if there is none.
	Configured *CurvePoint  `json:"configured,omitempty"`
	Change     *Change      `json:"change,omitempty"` // of the denied keys, by Line
	Gap        *Gap         `json:"gap,omitempty"`    // the widest one; nil if there is none
	Curve      []CurvePoint `json:"curve"`
}

// Change is the difference that a limit makes to the configured limit. Without one, it is all that the limit denies.
type Change struct {
	NewlyDenied  int64       `json:"newly_denied"`   // keys
	NoMoreDenied int64       `json:"no_more_denied"` // keys
	Keys         []DeniedKey `json:"newly_denied_keys"`
}

// DeniedKey is a key that a limit newly denies. The keys with most denied requests come first.
type DeniedKey struct {
	Key       string `json:"key"`
	Requests  int64  `json:"requests"`
	Denied    int64  `json:"denied"`
	UserAgent string `json:"user_agent"` // of its first request; empty if the log doesn't have it
}

// Gap is a range of limits that deny equally many keys, from the least one to the largest one. The next larger limit
// denies fewer keys.
type Gap struct {
	Least   CurvePoint `json:"least"`
	Largest CurvePoint `json:"largest"`
	Middle  CurvePoint `json:"middle"`
	Change  Change     `json:"change"` // by Middle
}

// CurvePoint has the denials of one limit.
type CurvePoint struct {
	Events         int64   `json:"events"`
	Line           string  `json:"line"`
	DeniedRequests int64   `json:"denied_requests"`
	DeniedKeys     int64   `json:"denied_keys"`
	RequestShare   float64 `json:"request_share"`
	KeyShare       float64 `json:"key_share"`
}

// Comparison compares the outcomes of two configurations, request by request.
type Comparison struct {
	DeniedByBoth int64 `json:"denied_by_both"`
	NewlyDenied  int64 `json:"newly_denied"`   // only by the second
	NoMoreDenied int64 `json:"no_more_denied"` // only by the first
	// The clients with a request of this kind, as far as there was room to count them.
	ClientCountNewlyDenied  int64 `json:"client_count_newly_denied"`
	ClientCountNoMoreDenied int64 `json:"client_count_no_more_denied"`
	// The clients with most requests of these, by their addresses as operators see them.
	ClientsNewlyDenied  []ClientChange `json:"clients_newly_denied"`
	ClientsNoMoreDenied []ClientChange `json:"clients_no_more_denied"`
}

// ClientChange is how a change of configuration concerns a client.
type ClientChange struct {
	Client   string   `json:"client"`
	Requests int64    `json:"requests"` // of this kind
	Zones    []string `json:"zones"`    // that deny them, or did
}
