package limiter

import (
	"net/http"
	"slices"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/httpfields"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// HeaderForms is the compiled option headers.
type HeaderForms struct {
	draft    bool
	families []httpfields.Family
}

// NewHeaderForms returns the forms with these names, which are checked.
func NewHeaderForms(names []string) (f HeaderForms) {
	f.draft = slices.Contains(names, "draft")
	for _, name := range names {
		if family, ok := httpfields.FamilyByName(name); ok {
			f.families = append(f.families, family)
		}
	}
	return f
}

// formatPolicyItems returns the items of RateLimit-Policy for these limits at an instant, and for the slots.
func (set *LimitSet) formatPolicyItems(limits []store.Limit, now algorithms.Micros) string {
	var list []byte
	for i, l := range limits {
		list = httpfields.AppendQuotaPolicy(list, set.labels[i], l.Burst, policyWindow(l.Limit, now))
	}
	if set.Slots != nil {
		list = httpfields.AppendConcurrencyPolicy(list, set.labels[len(limits)], set.Slots.Limit)
	}
	return string(list)
}

// policyWindow returns the time in which a limit grants its quota, in seconds. It is the window, rounded up, the
// present period of a calendar, or the time in which the quota refills. If the latter is no whole number of seconds,
// policyWindow returns 0: rounded, it would promise another rate.
func policyWindow(l *algorithms.Limit, now algorithms.Micros) (seconds int64) {
	const second = 1_000_000
	start, end, _ := l.Periods(now)
	switch refill := l.RefillTime(); {
	case l.Algorithm().Calendar:
		return httpfields.Seconds(end - start)
	case refill == 0:
		return httpfields.Seconds(l.Window)
	case refill%second == 0:
		return refill / second
	}
	return 0
}

// setDraftFields appends the items of the request's zones to RateLimit and RateLimit-Policy.
// Both fields are lists. So items of another limiter or of a server stay valid.
func (state *State) setDraftFields(h http.Header) {
	policy := ""
	var room [96]byte
	items := room[:0]
	for i := range state.Entries {
		e := &state.Entries[i]
		if e.isHidden() {
			continue
		}
		own := e.LimitSet.policyItems
		if e.Zone.Factor != "" || e.LimitSet.hasCalendar {
			own = e.LimitSet.formatPolicyItems(e.Limits, e.Outcome.At)
		}
		if policy != "" && own != "" {
			policy += ", "
		}
		policy += own
		items = e.appendRateLimitItems(items, state.Allowed)
	}
	state.fieldRoom = [2]string{policy, string(items)}
	if policy != "" { // empty if the zones have only a ban
		appendField(h, httpfields.RateLimitPolicy, state.fieldRoom[0:1:1])
	}
	if len(items) > 0 { // empty if a ban denies, because then no limit is asked
		appendField(h, httpfields.RateLimit, state.fieldRoom[1:2:2])
	}
}

// appendField appends values to a header field. The header keeps the slice.
func appendField(h http.Header, name string, values []string) {
	if present := h[name]; present != nil {
		values = append(present, values...)
	}
	h[name] = values
}

// decisionOf returns the decision of one of the zone's limits, and how much the limit grants at once. Slots are one more
// limit, behind the others. If the limit was not asked, the decision is NotAsked.
func (e *Entry) decisionOf(limit int) (d algorithms.Decision, quota int64) {
	switch {
	case limit < len(e.Outcome.Decisions):
		d, quota = e.Outcome.Decisions[limit], e.Limits[limit].Burst
		d.Remaining = min(d.Remaining, quota) // smooth grants one more
		return d, quota
	case limit == len(e.Limits) && e.AskedForSlot():
		return e.SlotsDecision(), e.Slots.Limit
	}
	return algorithms.Decision{NotAsked: true}, 0
}

// appendRateLimitItems appends an item of RateLimit for each of the zone's limits that was asked. On a denial only the
// limits that deny tell when more remains. So Retry-After is never earlier.
func (e *Entry) appendRateLimitItems(list []byte, allowed bool) []byte {
	for i := range len(e.Limits) + 1 {
		d, _ := e.decisionOf(i)
		switch {
		case d.NotAsked:
			continue
		case !d.Allowed:
			d.MoreAfter = min(d.MoreAfter, d.RetryAfter) // a request that may be delayed can be repeated earlier
		case !allowed:
			d.MoreAfter = 0
		}
		list = httpfields.AppendRateLimit(list, e.LimitSet.labels[i], d.Remaining, d.MoreAfter)
	}
	return list
}

// setFamilies sets the families of single-valued fields. They report on the request's tightest
// limit.
func (state *State) setFamilies(h http.Header, families []httpfields.Family) {
	if len(families) == 0 {
		return
	}
	d, quota := state.tightestLimit()
	if d.NotAsked {
		return // a ban denies, and no limit was asked
	}
	report := httpfields.Report{
		Limit: quota, Remaining: d.Remaining, ResetAfter: d.ResetAfter, Now: time.Now().UnixMicro(), Denied: !state.Allowed,
	}
	if report.Denied {
		_, report.RetryAfter = state.LongestDenial()
	}
	for _, f := range families {
		f.Set(h, report)
	}
}

// isHidden reports whether clients don't see the budgets of the entry.
func (e *Entry) isHidden() bool { return e.Shadow || e.Zone.Hidden }

// tightestLimit returns the decision of the limit nearest to exhaustion, of all zones that clients see, and how much this
// limit grants at once. Slots count as a limit. If no limit was asked, the decision is NotAsked.
func (state *State) tightestLimit() (tightest algorithms.Decision, quota int64) {
	tightest.NotAsked = true
	for i := range state.Entries {
		if e := &state.Entries[i]; !e.isHidden() {
			if d, q := e.tightestOf(len(e.Limits) + 1); isTighter(d, tightest) {
				tightest, quota = d, q
			}
		}
	}
	return tightest, quota
}

// tightestOf does the same for the first n limits of one zone.
func (e *Entry) tightestOf(n int) (tightest algorithms.Decision, quota int64) {
	tightest.NotAsked = true
	for i := range n {
		if d, q := e.decisionOf(i); isTighter(d, tightest) {
			tightest, quota = d, q
		}
	}
	return tightest, quota
}

// isTighter reports whether the limit that decided d is nearer to exhaustion than the other. A
// limit that denies is nearest. Otherwise the limit with less remaining is nearer, and then the
// limit with the longer reset after.
func isTighter(d, other algorithms.Decision) bool {
	switch {
	case d.NotAsked || other.NotAsked:
		return !d.NotAsked
	case d.Allowed != other.Allowed:
		return !d.Allowed
	case d.Remaining != other.Remaining:
		return d.Remaining < other.Remaining
	}
	return d.ResetAfter > other.ResetAfter
}
