package ratelimit

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/httpfields"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

const headerNames = "draft, draft_06, x_ratelimit, x_ratelimit_epoch, sharkey or off"

// checkHeaders checks the option headers.
func checkHeaders(names []string) error {
	for i, name := range names {
		family, known := httpfields.FamilyByName(name)
		switch {
		case !known && name != "draft" && name != "off":
			return fmt.Errorf("headers has no form %q: write %s", name, headerNames)
		case slices.Contains(names[:i], name):
			return fmt.Errorf("headers names %s twice: write it once", name)
		case name == "off" && len(names) > 1:
			return fmt.Errorf("headers off stands alone, not with %s", strings.Join(names, " "))
		}
		for _, earlier := range names[:i] {
			if other, ok := httpfields.FamilyByName(earlier); ok && known && other.SharesFields(family) {
				return fmt.Errorf("headers %s and %s write the same fields: choose one", earlier, name)
			}
		}
	}
	return nil
}

// headerForms is the compiled option headers.
type headerForms struct {
	draft    bool
	families []httpfields.Family
}

func newHeaderForms(names []string) (f headerForms) {
	f.draft = slices.Contains(names, "draft")
	for _, name := range names {
		if family, ok := httpfields.FamilyByName(name); ok {
			f.families = append(f.families, family)
		}
	}
	return f
}

// formatPolicyItems returns the items of RateLimit-Policy for these limits and for the slots.
func (set *limitSet) formatPolicyItems(limits []store.Limit) string {
	var list []byte
	for i, l := range limits {
		list = httpfields.AppendQuotaPolicy(list, set.labels[i], l.Burst, l.Window)
	}
	if set.slots != nil {
		list = httpfields.AppendConcurrencyPolicy(list, set.slotLabel, set.slots.Limit)
	}
	return string(list)
}

// setDraftFields appends the items of the request's zones to RateLimit and RateLimit-Policy.
// Both fields are lists. So items that another handler or a server sent stay valid.
func (state *requestState) setDraftFields(h http.Header) {
	policy := ""
	var room [96]byte
	items := room[:0]
	for i := range state.entries {
		e := &state.entries[i]
		if e.Shadow {
			continue
		}
		own := e.limitSet.policyItems
		if e.zone.factor.varies() {
			own = e.limitSet.formatPolicyItems(e.Limits)
		}
		if policy != "" && own != "" {
			policy += ", "
		}
		policy += own
		items = e.appendRateLimitItems(items, state.allowed)
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

// appendRateLimitItems appends an item of RateLimit for each of the zone's limits, and for its
// slots. Limits and slots that were not asked are left out.
func (e *zoneEntry) appendRateLimitItems(list []byte, allowed bool) []byte {
	for i, d := range e.Outcome.Decisions {
		if !d.NotAsked {
			d.Remaining = min(d.Remaining, e.Limits[i].Burst) // smooth grants one more
			list = appendRateLimitItem(list, e.limitSet.labels[i], d, allowed)
		}
	}
	if e.askedForSlot() {
		list = appendRateLimitItem(list, e.limitSet.slotLabel, e.slotsDecision(), allowed)
	}
	return list
}

// appendRateLimitItem appends an item of RateLimit. On a denial only the limits that deny tell
// when more remains. So Retry-After is never earlier.
func appendRateLimitItem(list []byte, label string, d algorithms.Decision, allowed bool) []byte {
	moreAfter := d.MoreAfter
	switch {
	case !d.Allowed:
		moreAfter = min(moreAfter, d.RetryAfter) // a request that may be delayed can be repeated earlier
	case !allowed:
		moreAfter = 0
	}
	return httpfields.AppendRateLimit(list, label, d.Remaining, moreAfter)
}

// setFamilies sets the families of single-valued fields. They report on the request's tightest
// limit.
func (state *requestState) setFamilies(h http.Header, families []httpfields.Family) {
	if len(families) == 0 {
		return
	}
	d, quota := state.tightestLimit()
	if d.NotAsked {
		return // a ban denies, and no limit was asked
	}
	report := httpfields.Report{
		Limit: quota, Remaining: d.Remaining, ResetAfter: d.ResetAfter, Now: time.Now().UnixMicro(), Denied: !state.allowed,
	}
	if report.Denied {
		_, report.RetryAfter = state.longestDenial()
	}
	for _, f := range families {
		f.Set(h, report)
	}
}

// tightestLimit returns the decision of the limit nearest to exhaustion, of all zones except
// shadows, and how much this limit grants at once. Slots count as a limit. If no limit was
// asked, the decision is NotAsked.
func (state *requestState) tightestLimit() (tightest algorithms.Decision, quota int64) {
	tightest.NotAsked = true
	for i := range state.entries {
		if e := &state.entries[i]; !e.Shadow {
			if d, q := e.tightestLimit(); isTighter(d, tightest) {
				tightest, quota = d, q
			}
		}
	}
	return tightest, quota
}

// tightestLimit does the same for one zone.
func (e *zoneEntry) tightestLimit() (tightest algorithms.Decision, quota int64) {
	tightest, quota = e.tightestWithoutSlots()
	if e.askedForSlot() {
		if d := e.slotsDecision(); isTighter(d, tightest) {
			tightest, quota = d, e.Slots.Limit
		}
	}
	return tightest, quota
}

// tightestWithoutSlots does the same for the limits of one zone, without its slots.
func (e *zoneEntry) tightestWithoutSlots() (tightest algorithms.Decision, quota int64) {
	tightest.NotAsked = true
	for n, d := range e.Outcome.Decisions {
		if isTighter(d, tightest) {
			tightest, quota = d, e.Limits[n].Burst
		}
	}
	tightest.Remaining = min(tightest.Remaining, quota) // smooth grants one more
	return tightest, quota
}

// isTighter reports whether the limit that decided d is nearer to exhaustion than another. A
// limit that denies is nearest. Otherwise the limit with less remaining is nearer, and then the
// limit with the longer reset after.
func isTighter(d, than algorithms.Decision) bool {
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

// addJitter makes the retry after of a denied request later, by a random part of the option jitter.
func (h *Handler) addJitter(wait algorithms.Micros) algorithms.Micros {
	if h.Jitter == 0 || wait >= algorithms.Forever {
		return wait
	}
	jitter := rand.Float64() * h.Jitter * float64(wait)
	return wait + algorithms.Micros(min(jitter, float64(algorithms.Forever-1-wait)))
}
