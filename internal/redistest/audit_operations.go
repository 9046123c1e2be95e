package redistest

import (
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/wire"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/wire/wiretest"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// execution is the circumstances under which an operation ran.
type execution struct {
	at       algorithms.Micros
	head     wire.Head
	keys     []string // of the message
	doubtful bool     // reports whether the values of the keys are unknown
}

// holder returns a tenant of the instance that sent the message.
func (m *execution) holder(t store.Tenant) wiretest.Holder {
	return wiretest.Holder{Instance: m.head.Instance, Tenant: t}
}

// failsWithOthers reports whether another operation of the message has a spoiled key among the names, too.
func (m *execution) failsWithOthers(names []string, spoiled map[string]bool) bool {
	return slices.ContainsFunc(names, func(name string) bool {
		return spoiled[name] && slices.Contains(m.keys[slices.Index(m.keys, name)+1:], name)
	})
}

var errNotFailed = errors.New("the operation should have failed, because a key is spoiled")

// findLimit returns the limit of a budget.
func (r *replay) findLimit(m execution, b wiretest.Budget) (*algorithms.Limit, error) {
	name := b.Name
	b.Name = ""
	known := r.limits[idOf(name)]
	if l := known[b]; l != nil {
		return l, nil
	}
	for _, l := range known { // the text of a calendar depends on the instant
		if text, _ := l.Message(m.head.NotBefore); l.Algorithm().Calendar && text == b.Limit {
			return l, nil
		}
	}
	return nil, fmt.Errorf("%s is no budget of a limit with %x and a burst of %d", name, b.Limit, b.Burst)
}

// livingSlots returns the counts of slots that have not expired.
func (r *replay) livingSlots(m execution, name string) wiretest.Slots {
	counts, steppedBack := slices.Clone(r.valueAt(name).slots).Living(m.at, m.head.SlotsExpiry)
	if steppedBack {
		r.addDifference("%s: a count of slots expires in more than %d", name, m.head.SlotsExpiry)
	}
	return counts
}

// playRefund plays a refund, with its release.
func (r *replay) playRefund(m execution, o *wiretest.Operation, reply *wire.Reply) error {
	had, err := reply.Refund(o.Release != nil)
	if o.Release != nil && !m.doubtful {
		counts := r.livingSlots(m, o.Release.Name)
		holder := m.holder(store.Tenant{})
		want := counts.Of(holder)
		r.valueAt(o.Release.Name).slots = counts.Set(holder, max(want-o.Release.Events, 0), m.at+m.head.SlotsExpiry)
		if err == nil && had != want {
			return fmt.Errorf("the instance had reserved %d at %s, Go says %d", had, o.Release.Name, want)
		}
	}
	for _, refund := range o.Refund {
		l, wrong := r.findLimit(m, refund.Budget)
		if wrong != nil {
			return wrong
		}
		of := receipt{refund.Name, refund.Receipt}
		if r.charged[of] -= refund.Events; r.charged[of] < 0 {
			return fmt.Errorf("%s is given back %d more than was charged", refund.Name, -r.charged[of])
		}
		if m.doubtful {
			continue
		}
		if refund.Log && r.spoiled[refund.Name] {
			if err == nil {
				return errNotFailed
			}
			return err
		}
		v := r.valueAt(refund.Name)
		v.limit = l
		algorithms.Refund(l, &v.state, m.at, refund.Receipt, refund.Events)
		r.updateExpiry(v, l)
		if err == nil {
			r.Refunds++
		}
	}
	return err
}

// playSet plays a set.
func (r *replay) playSet(m execution, set *wiretest.Set, reply *wire.Reply) error {
	had, err := reply.SetSlots()
	if _, known := r.slots[idOf(set.Name)]; !known {
		return fmt.Errorf("no zone has slots at %s", set.Name)
	}
	if err == nil {
		r.Sets++
	}
	if m.doubtful {
		return err
	}
	counts := r.livingSlots(m, set.Name)
	holder := m.holder(store.Tenant{ID: set.Tenant})
	want := counts.Of(holder)
	counts = counts.Set(holder, set.Count, m.at+m.head.SlotsExpiry)
	if set.EndsLine {
		counts = counts.EndLine(holder)
	}
	r.valueAt(set.Name).slots = counts
	if err == nil && had != want {
		return fmt.Errorf("the instance had %d slots at %s, Go says %d", had, set.Name, want)
	}
	return err
}

// playChange plays an operator's change.
func (r *replay) playChange(p *parsedCall) error {
	r.Changes++
	name, argument := p.keys[0], func(i int) string {
		if i < len(p.argv) {
			return p.argv[i]
		}
		return ""
	}
	number := func(i int) int64 {
		n, _ := strconv.ParseInt(argument(i), 10, 64)
		return n
	}
	switch argument(0) {
	case "forget":
		delete(r.values, name)
		delete(r.spoiled, name)
	case "ban", "hold":
		if number(1) != 0 {
			return errors.New("at an instant that Redis was told")
		}
		bans := r.bans[idOf(name)]
		i := slices.IndexFunc(bans, func(b algorithms.Ban) bool { return string(b.AppendMessage(nil)) == argument(3) })
		if i < 0 {
			return fmt.Errorf("no zone has the ban %x at %s", argument(3), name)
		}
		v := r.valueAt(name)
		v.ban = &bans[i]
		if argument(0) == "hold" {
			bans[i].Hold(&v.state, p.at, number(2))
		} else {
			bans[i].Begin(&v.state, p.at, number(2))
		}
	case "override":
		delete(r.values, name)
		delete(r.spoiled, name)
		if argument(1) != "" {
			v := r.valueAt(name)
			if v.text = argument(1); number(2) > 0 {
				v.expires, v.edge, v.late = p.at+number(2), r.expiryEdge(), r.lasted
			}
		}
	default:
		return fmt.Errorf("the unknown change %q", argument(0))
	}
	return nil
}
