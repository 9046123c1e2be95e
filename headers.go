package ratelimit

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// The fields, as net/http keys its headers.
const (
	policyHeader     = "Ratelimit-Policy"
	limitHeader      = "Ratelimit"
	retryAfterHeader = "Retry-After"
)

// family is a set of single-valued fields.
type family struct {
	limit, remaining, reset, clear string // the names, of all that anybody sends as this set
	form                           familyForm
}

// familyForm is which of a family's fields are sent, and what they mean.
type familyForm int

const (
	inSeconds  familyForm = iota // limit, remaining, and reset: seconds until the budget is as good as untouched
	sinceEpoch                   // the same, but reset counts from the Unix epoch
	sharkey                      // remaining, clear: seconds until untouched, and on a denial reset: when to come back
)

var families = map[string]family{
	"draft_06":          {"Ratelimit-Limit", "Ratelimit-Remaining", "Ratelimit-Reset", "", inSeconds},
	"x_ratelimit":       xRateLimit(inSeconds),
	"x_ratelimit_epoch": xRateLimit(sinceEpoch),
	"sharkey":           xRateLimit(sharkey),
}

func xRateLimit(form familyForm) family {
	return family{"X-Ratelimit-Limit", "X-Ratelimit-Remaining", "X-Ratelimit-Reset", "X-Ratelimit-Clear", form}
}

const headerNames = "draft, draft_06, x_ratelimit, x_ratelimit_epoch, sharkey or off"

func checkHeaders(names []string) error {
	for i, name := range names {
		one, known := families[name]
		switch {
		case !known && name != "draft" && name != "off":
			return fmt.Errorf("headers has no form %q: write %s", name, headerNames)
		case slices.Contains(names[:i], name):
			return fmt.Errorf("headers names %s twice: write it once", name)
		case name == "off" && len(names) > 1:
			return fmt.Errorf("headers off stands alone, not with %s", strings.Join(names, " "))
		}
		for _, other := range names[:i] {
			if known && families[other].remaining == one.remaining {
				return fmt.Errorf("headers %s and %s write the same fields: choose one", other, name)
			}
		}
	}
	return nil
}

// headerForms is the option headers made ready.
type headerForms struct {
	draft    bool
	families []family
}

func newHeaderForms(names []string) (f headerForms) {
	f.draft = slices.Contains(names, "draft")
	for _, name := range names {
		if one, ok := families[name]; ok {
			f.families = append(f.families, one)
		}
	}
	return f
}

// maxInteger is the largest integer a structured field can hold (RFC 9651).
const maxInteger = 999_999_999_999_999

// policyField returns the items of RateLimit-Policy for these limits and the slots: per limit
// its name, q for what it can grant at once, w for its window in whole seconds.
func (t *limitSet) policyField(limits []store.Limit) string {
	var b []byte
	for i, l := range limits {
		b = appendItem(b, t.labels[i])
		b = append(b, ";q="...)
		b = strconv.AppendInt(b, min(l.Burst, maxInteger), 10)
		b = append(b, ";w="...)
		b = strconv.AppendInt(b, seconds(l.Window), 10)
	}
	if t.slots != nil {
		b = appendSlotPolicy(b, t.slotLabel, t.slots.Limit)
	}
	return string(b)
}

// appendItem appends the beginning of an item to a list of them.
func appendItem(b []byte, label string) []byte {
	if len(b) > 0 {
		b = append(b, ", "...)
	}
	return strconv.AppendQuote(b, label) // plain: names hold neither quotes nor backslashes
}

// appendItems appends the answers of a zone as items of RateLimit. Limits and slots that were
// not asked are left out.
func (e *entry) appendItems(b []byte, allowed bool) []byte {
	for i, d := range e.Outcome.Decisions {
		if !d.NotAsked {
			d.Remaining = min(d.Remaining, e.Limits[i].Burst) // smooth grants one more
			b = appendDecision(b, e.limitSet.labels[i], d, allowed)
		}
	}
	if e.asksSlots() {
		b = appendDecision(b, e.limitSet.slotLabel, e.slotsDecision(), allowed)
	}
	return b
}

// appendDecision appends a decision as an item of RateLimit: r for what remains, t for the
// seconds until there is more. On a denial only those that deny carry t, so that Retry-After is
// never earlier.
func appendDecision(b []byte, label string, d algorithms.Decision, allowed bool) []byte {
	b = appendItem(b, label)
	b = append(b, ";r="...)
	b = strconv.AppendInt(b, min(d.Remaining, maxInteger), 10)
	more := d.MoreAfter
	if !d.Allowed {
		more = min(more, d.RetryAfter) // it may come back sooner, to be held
	}
	if more > 0 && (allowed || !d.Allowed) {
		b = append(b, ";t="...)
		b = strconv.AppendInt(b, seconds(more), 10)
	}
	return b
}

// seconds rounds up to whole seconds.
func seconds(m algorithms.Micros) int64 {
	const second = 1_000_000
	return m/second + min(m%second, 1)
}

// setDraftFields adds the items of a request's zones to the fields, after any that are
// there: both are lists, and another handler's or server's items stay valid.
func (state *requestState) setDraftFields(h http.Header) {
	policy := ""
	var room [96]byte
	b := room[:0]
	for i := range state.entries {
		e := &state.entries[i]
		if e.Shadow {
			continue
		}
		if policy != "" {
			policy += ", "
		}
		if e.zone.factor.varies() {
			policy += e.limitSet.policyField(e.Limits)
		} else {
			policy += e.limitSet.policy
		}
		b = e.appendItems(b, state.allowed)
	}
	state.fieldRoom = [2]string{policy, string(b)}
	addField(h, policyHeader, state.fieldRoom[0:1:1])
	if len(b) > 0 { // else a ban refuses, and no limit was asked
		addField(h, limitHeader, state.fieldRoom[1:2:2])
	}
}

// addField adds a value; the slice becomes the header's.
func addField(h http.Header, name string, value []string) {
	if there := h[name]; there != nil {
		value = append(there, value...)
	}
	h[name] = value
}

// setRetryAfter says when to come back, in whole seconds, at least 1, later by a
// random part of jitter.
func setRetryAfter(h http.Header, wait algorithms.Micros, jitter float64) {
	if wait == algorithms.Forever {
		return
	}
	if jitter > 0 {
		wait += algorithms.Micros(min(rand.Float64()*jitter*float64(wait), float64(algorithms.Forever/2)))
	}
	h[retryAfterHeader] = []string{strconv.FormatInt(max(seconds(wait), 1), 10)}
}

func (state *requestState) setFamilies(h http.Header, families []family) {
	for _, f := range families {
		state.setFamily(h, f)
	}
}

// setFamily writes a family of single-valued fields for the limit nearest to
// exhaustion, unless they are there already with less remaining, or with as much and
// this is no denial: of two limiters the tighter one's set is sent, whole.
func (state *requestState) setFamily(h http.Header, f family) {
	d, quota := state.nearest()
	if d.NotAsked {
		return // a ban denies, and no limit was asked
	}
	d.Remaining, quota = min(d.Remaining, maxInteger), min(quota, maxInteger)
	if there := h[f.remaining]; len(there) > 0 {
		n, err := strconv.ParseInt(strings.TrimSpace(there[0]), 10, 64)
		if err == nil && (n < d.Remaining || n == d.Remaining && state.allowed) {
			return
		}
	}
	for _, name := range []string{f.limit, f.reset, f.clear} {
		delete(h, name)
	}
	h[f.remaining] = []string{strconv.FormatInt(d.Remaining, 10)}
	switch f.form {
	case inSeconds:
		h[f.limit] = []string{strconv.FormatInt(quota, 10)}
		h[f.reset] = []string{strconv.FormatInt(seconds(d.ResetAfter), 10)}
	case sinceEpoch:
		h[f.limit] = []string{strconv.FormatInt(quota, 10)}
		h[f.reset] = []string{strconv.FormatInt(seconds(time.Now().UnixMicro()+d.ResetAfter), 10)}
	case sharkey:
		h[f.clear] = []string{milliseconds(d.ResetAfter)}
		if _, wait := state.longestDenial(); !state.allowed && wait < algorithms.Forever {
			h[f.reset] = []string{milliseconds(wait)}
		}
	}
}

// nearest returns the decision of the limit nearest to exhaustion, of all zones,
// and how much that limit grants at once: of those that deny, or else of all,
// the one with the least remaining, or else the longest reset. Slots count as a limit, and
// shadows don't count. If no limit was asked, neither was the decision.
func (state *requestState) nearest() (nearest algorithms.Decision, quota int64) {
	nearest.NotAsked = true
	for i := range state.entries {
		if e := &state.entries[i]; !e.Shadow {
			if d, q := e.nearest(); nearer(d, nearest) {
				nearest, quota = d, q
			}
		}
	}
	return nearest, quota
}

// nearest is nearest for one zone.
func (e *entry) nearest() (nearest algorithms.Decision, quota int64) {
	nearest, quota = e.nearestLimit()
	if e.asksSlots() {
		if d := e.slotsDecision(); nearer(d, nearest) {
			nearest, quota = d, e.Slots.Limit
		}
	}
	return nearest, quota
}

// nearestLimit is nearest without slots.
func (e *entry) nearestLimit() (nearest algorithms.Decision, quota int64) {
	nearest.NotAsked = true
	for n, d := range e.Outcome.Decisions {
		if nearer(d, nearest) {
			nearest, quota = d, e.Limits[n].Burst
		}
	}
	nearest.Remaining = min(nearest.Remaining, quota) // smooth grants one more
	return nearest, quota
}

func nearer(d, than algorithms.Decision) bool {
	switch {
	case d.NotAsked || than.NotAsked:
		return !d.NotAsked
	case d.Allowed != than.Allowed:
		return !d.Allowed
	case d.Remaining != than.Remaining:
		return d.Remaining < than.Remaining
	}
	return d.ResetAfter > than.ResetAfter
}

// milliseconds writes seconds with three decimals, rounded up.
func milliseconds(m algorithms.Micros) string {
	const milli = 1000
	ms := m/milli + min(m%milli, 1)
	return fmt.Sprintf("%d.%03d", ms/1000, ms%1000)
}
