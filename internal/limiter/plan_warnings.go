package limiter

import (
	"regexp"
	"slices"
	"strings"

	"go.uber.org/zap"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/keys"
)

// The values of a plan share what a key has used, so that a customer who gets another plan doesn't begin again. If the request
// itself chooses the value, requests with different numbers share a budget.

// requestPart matches placeholders of what is requested: neither the client nor a proxy says with them who the customer is.
// Header fields, cookies and bodies can name a customer or a plan, so they are none of them.
var requestPart = regexp.MustCompile(`^http\.request\.(orig_)?(method|proto|scheme|host|hostport|port|uri)(_escaped)?(\..*)?$`)

// knownPart matches placeholders whose values are known to differ from those of [requestPart]. Other ones, such as a variable
// or the destination of a map, may well be made of the method or the path.
var knownPart = regexp.MustCompile(`^http\.(request\.|auth\.|rate_limit\.request\.|vars\.client_ip$)`)

// sameRequestPart replaces the parts of names that don't change which part of the request a placeholder has.
var sameRequestPart = strings.NewReplacer("orig_", "", "prefixed_", "", "_escaped", "",
	"hostport", "host", ".request.port", ".request.host")

// WarnOfPlan warns about a zone whose plan depends on what is requested, while its key doesn't.
func (z *Zone) WarnOfPlan() {
	if !z.plansDiffer() {
		return
	}
	names, _ := keys.Placeholders(z.PlanBy.Text) // checked before
	for _, name := range names {
		i := slices.IndexFunc(z.Keys, func(t keys.Template) bool { return !decides(&t, name) })
		if i < 0 || !requestPart.MatchString(name) {
			continue
		}
		instead := "write a zone with match for each value"
		if key := &z.Keys[i]; !key.Address || !key.HasPrefix() { // a prefix applies to an address alone
			instead += `, or add the placeholder to key, as in key "` + strings.TrimPrefix(keys.Shorten(key.Text+"|{"+name+"}"), "|") + `"`
		}
		z.Logger.Warn("the limits of a plan depend on what is requested, but the key of the zone doesn't, "+
			"so the values of the plan share what a key has used: "+instead,
			zap.String("zone", z.Name), zap.String("placeholder", "{"+name+"}"))
		return
	}
}

// decides reports whether requests with the same key surely, or maybe, have the same value of a placeholder.
func decides(key *keys.Template, name string) bool {
	inKey, _ := keys.Placeholders(key.Text) // checked before
	part := sameRequestPart.Replace(name)
	return slices.ContainsFunc(inKey, func(other string) bool {
		whole := sameRequestPart.Replace(other)
		return !knownPart.MatchString(other) || part == whole || strings.HasPrefix(part, whole+".")
	})
}

// plansDiffer reports whether two values of the plan have different limits that share budgets.
func (z *Zone) plansDiffer() bool {
	known := make(map[string]string) // the limits of a fingerprint in a set
	for _, set := range z.SetsWithoutOverrides() {
		own := make(map[string]string)
		for _, l := range set.Limits {
			own[l.Fingerprint()] += l.String() + "\n"
		}
		for fingerprint, limits := range own {
			if other, there := known[fingerprint]; there && other != limits {
				return true
			}
			known[fingerprint] = limits
		}
	}
	return false
}
