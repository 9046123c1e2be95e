package ratelimit

import (
	"errors"
	"fmt"
	"strings"

	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
)

// Plan chooses limits by a value, such as what a customer has paid for.
type Plan struct {
	// The value: text with placeholders, such as {http.auth.user.plan}.
	By string `json:"by,omitempty"`

	// The terms for each value.
	Values map[string]*LimitSet `json:"values,omitempty"`

	// The terms for any other value, and for none (default: the zone's limits).
	Default *LimitSet `json:"default,omitempty"`
}

func (p *Plan) describe() string {
	if p == nil {
		return "none"
	}
	text := fmt.Sprintf("by %q %s", p.By, describeLimitSets(p.Values))
	if p.Default != nil {
		text += " default " + p.Default.describe()
	}
	return text
}

// check judges a plan as a whole.
func (p *Plan) check(limits bool) error {
	switch {
	case p.By == "":
		return errors.New("plan has nothing to go by: write for example plan {http.auth.user.plan}")
	case !strings.Contains(p.By, "{"):
		return fmt.Errorf("plan %q has no placeholder, and is the same for all requests: write for example plan {http.auth.user.plan}", p.By)
	case len(p.Values) == 0:
		return errors.New("plan has no values: write at least one in its block, with limits in braces or as in free unlimited")
	case limits && p.Default != nil:
		return errors.New("the limits of the zone are for values that plan doesn't list, and so is default: write one of the two")
	case !limits && p.Default == nil:
		return errors.New("plan has no default, and the zone no limits: write default with limits in braces, or default unlimited, for all other values")
	}
	return checkBraces("plan", p.By)
}

// unmarshalPlan reads plan <placeholder> { <value> unlimited|{ <limits> } ... }.
func unmarshalPlan(d *caddyfile.Dispenser) (*Plan, error) {
	p := &Plan{Values: make(map[string]*LimitSet)}
	if !d.NextArg() {
		return nil, errors.New("plan takes what to go by: write for example plan {http.auth.user.plan}")
	}
	p.By = d.Val()
	if d.NextArg() {
		return nil, fmt.Errorf("plan takes one value to go by, not %q too: write its plans in braces", d.Val())
	}
	for nesting := d.Nesting(); d.NextBlock(nesting); {
		name := d.Val()
		t, err := unmarshalLimitSet(d, "a plan")
		if err == nil && (p.Values[name] != nil || name == "default" && p.Default != nil) {
			err = errors.New("it is there twice: write it once")
		}
		if err != nil {
			return nil, placed(d, fmt.Errorf("plan %q: %w", name, err))
		}
		if name == "default" {
			p.Default = t
		} else {
			p.Values[name] = t
		}
	}
	return p, nil
}
