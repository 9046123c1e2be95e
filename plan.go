package ratelimit

import (
	"errors"
	"fmt"
	"strings"

	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
)

// Plan chooses limits by a value, such as the plan that a customer pays for.
type Plan struct {
	// The value that chooses the limits: text with placeholders, such as {http.auth.user.plan}.
	// It is required.
	By string `json:"by,omitempty"`

	// The limits for each value of by. At least one is required.
	Values map[string]*LimitSet `json:"values,omitempty"`

	// The limits for all other values, also for the empty one (default: the zone's limits).
	Default *LimitSet `json:"default,omitempty"`
}

// planText returns the plan as text, for the comparison of zones of one name. It leaves out the
// default, which is compared as the limits of the zone.
func (z *zone) planText() string {
	if z.config.Plan == nil {
		return "none"
	}
	return fmt.Sprintf("by %q %s", z.config.Plan.By, describeLimitSets(z.planSets))
}

// check checks the plan apart from its limits. zoneHasLimits reports whether the zone has limits
// besides.
func (p *Plan) check(zoneHasLimits bool) error {
	switch {
	case p.By == "":
		return errors.New("plan has no value: write for example plan {http.auth.user.plan}")
	case !strings.Contains(p.By, "{"):
		return fmt.Errorf("plan %q has no placeholder, so it is the same for all requests: "+
			"write for example plan {http.auth.user.plan}", p.By)
	case len(p.Values) == 0:
		return errors.New("plan has no plans: write at least one in its block, with limits in braces or as in free unlimited")
	case zoneHasLimits && p.Default != nil:
		return errors.New("both default and the limits of the zone are for values that plan doesn't list: write one of the two")
	case !zoneHasLimits && p.Default == nil:
		return errors.New("plan has no default, and the zone has no limits: " +
			"write default with limits in braces, or default unlimited, for all other values")
	}
	return checkBraces("plan", p.By)
}

// unmarshalPlan reads plan <placeholder> { <value> unlimited|{ <limits> } ... }.
func unmarshalPlan(d *caddyfile.Dispenser) (*Plan, error) {
	p := &Plan{Values: make(map[string]*LimitSet)}
	if !d.NextArg() {
		return nil, errors.New("plan takes a value: write for example plan {http.auth.user.plan}")
	}
	p.By = d.Val()
	if d.NextArg() {
		return nil, fmt.Errorf("plan takes one value, not also %q: write the plans in braces", d.Val())
	}
	for nesting := d.Nesting(); d.NextBlock(nesting); {
		name := d.Val()
		set, err := unmarshalLimitSet(d, "a plan")
		if err == nil && (p.Values[name] != nil || name == "default" && p.Default != nil) {
			err = errors.New("it is given twice: write it once")
		}
		if err != nil {
			return nil, withPosition(d, fmt.Errorf("plan %q: %w", name, err))
		}
		if name == "default" {
			p.Default = set
		} else {
			p.Values[name] = set
		}
	}
	return p, nil
}
