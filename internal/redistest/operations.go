package redistest

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/wire"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// moment is when an operation ran.
type moment struct {
	at       algorithms.Micros
	head     wire.Head
	doubtful bool // it isn't known what the keys held
}

var errNotFailed = errors.New("it should have failed: a key holds something else")

// limit returns the limit of a budget.
func (r *replay) limit(b wire.Budget) (*algorithms.Limit, error) {
	name := b.Name
	b.Name = ""
	if l := r.limits[id(name)][b]; l != nil {
		return l, nil
	}
	return nil, fmt.Errorf("%s is no budget of a limit with %x and a burst of %d", name, b.Limit, b.Burst)
}

// taken is a take as the functions in Go decide it.
type taken struct {
	requests []algorithms.Request
	names    [][]string         // of the budgets
	living   []algorithms.Slots // per request that has some
}

// prepare makes the requests of a take, on the values at its keys.
func (r *replay) prepare(m moment, take *wire.Take) (*taken, error) {
	t := &taken{living: make([]algorithms.Slots, len(take.Zones))}
	for i := range take.Zones {
		z := &take.Zones[i]
		q := algorithms.Request{Mode: z.Mode, Cost: z.Cost, MaxWait: z.MaxWait, Shadow: z.Shadow}
		var names []string
		for _, b := range z.Budgets {
			l, err := r.limit(b)
			if err != nil {
				return nil, err
			}
			if slices.Contains(names, b.Name) || slices.ContainsFunc(t.names, func(of []string) bool { return slices.Contains(of, b.Name) }) {
				return nil, fmt.Errorf("%s stands twice in a request", b.Name)
			}
			v := r.value(b.Name)
			v.limit = l
			names, q.Checks = append(names, b.Name), append(q.Checks, algorithms.Check{Limit: l, State: &v.state})
		}
		if z.Slots != "" {
			if !slices.Contains(r.slots[id(z.Slots)], z.SlotsLimit) {
				return nil, fmt.Errorf("no zone has %d slots at %s", z.SlotsLimit, z.Slots)
			}
			t.living[i] = r.living(m, z.Slots)
			q.Slots = &algorithms.SlotsCheck{Limit: z.SlotsLimit, InFlight: t.living[i].InFlight(), Peek: z.Peek}
		}
		if z.BanName != "" {
			if !slices.Contains(r.bans[id(z.BanName)], z.Ban) {
				return nil, fmt.Errorf("no zone has the ban %+v at %s", z.Ban, z.BanName)
			}
			v := r.value(z.BanName)
			v.ban = &z.Ban
			q.Ban = &algorithms.BanCheck{Ban: &z.Ban, State: &v.state}
		}
		t.requests, t.names = append(t.requests, q), append(t.names, names)
	}
	return t, nil
}

// living returns the living counts of slots.
func (r *replay) living(m moment, name string) algorithms.Slots {
	living, steppedBack := slices.Clone(r.value(name).slots).Living(m.at, m.head.SlotsExpiry)
	if steppedBack {
		r.differ("%s: a count of slots expires in more than %d", name, m.head.SlotsExpiry)
	}
	return living
}

// take plays a take.
func (r *replay) take(m moment, take *wire.Take, reply *wire.Reply) error {
	said := take.Requests()
	allowed, found, err := reply.Take(said, nil)
	if err != nil {
		if _, overridden := errors.AsType[*store.OverriddenError](err); !overridden {
			if _, failed := errors.AsType[wire.ScriptError](err); !failed {
				return err
			}
		}
	}
	t, wrong := r.prepare(m, take) // also where the outcome is in doubt, the zones must be known
	if wrong != nil {
		return wrong
	}
	if err == nil {
		r.count(m, allowed, said, t)
	}
	if m.doubtful {
		return r.inDoubt(err)
	}
	if ended, err := r.overrides(m, take, err); ended {
		return err
	}
	if r.anySpoiledLog(take) {
		if err == nil {
			return errNotFailed
		}
		return err
	}
	want := algorithms.Take(t.requests, m.at)
	had := r.commit(m, take, t)
	if err != nil {
		return err
	}
	if allowed != want || !slices.Equal(found, had) {
		r.differ("at %d: Redis says %v, and %d slots of the instance; Go %v and %d: %+v", m.at, allowed, found, want, had, take)
	}
	for i := range said {
		r.compare(m, &take.Zones[i], &said[i].Outcome, &t.requests[i])
	}
	return nil
}

// inDoubt returns the error of an operation if it is one that the state can't explain.
func (r *replay) inDoubt(err error) error {
	if _, overridden := errors.AsType[*store.OverriddenError](err); overridden {
		r.Overridden++
		return nil
	}
	return err
}

func (r *replay) anySpoiledLog(take *wire.Take) bool {
	for _, z := range take.Zones {
		if slices.ContainsFunc(z.Budgets, func(b wire.Budget) bool { return b.Log && r.spoiled[b.Name] }) {
			return true
		}
	}
	return false
}

// count counts what Redis said of a take that it decided.
func (r *replay) count(m moment, allowed bool, said []store.Request, t *taken) {
	for i := range said {
		o := &said[i].Outcome
		for j, d := range o.Decisions {
			if d.Charged > 0 {
				r.charged[receipt{t.names[i][j], d.Receipt}] += d.Charged
			}
			if name := t.names[i][j]; allowed {
				r.Charges[name] = append(r.Charges[name], Charge{Era: r.Eras, At: m.at, Events: d.Charged})
			}
		}
		if o.Slots.Taken {
			r.Slots++
		}
		if o.Ban.Began {
			r.Bans++
		}
	}
	if allowed {
		r.Granted++
	} else {
		r.Denied++
	}
}

// overrides plays the check of overrides. ended reports whether nothing else was done.
func (r *replay) overrides(m moment, take *wire.Take, said error) (ended bool, err error) {
	found, overridden := errors.AsType[*store.OverriddenError](said)
	others, edge := false, false
	for i, o := range take.Overrides {
		text, may := r.override(o.Name, m.at)
		edge = edge || may
		others = others || text != o.Text
		if overridden && found.Overrides[i] != text && (!may || found.Overrides[i] != "") {
			return true, fmt.Errorf("the override of %s is %q, not %q", o.Name, text, found.Overrides[i])
		}
	}
	_, failed := errors.AsType[wire.ScriptError](said)
	if overridden != others && !edge && !failed {
		return true, fmt.Errorf("other overrides: %v, want %v", overridden, others)
	}
	if overridden {
		r.Overridden++
		return true, nil
	}
	return others && failed, said
}

// commit stores the slots of a take that was decided, and returns how many the instance had.
func (r *replay) commit(m moment, take *wire.Take, t *taken) (had []int64) {
	for i := range t.requests {
		q, z := &t.requests[i], &take.Zones[i]
		for j, b := range z.Budgets {
			r.value(b.Name).changed(q.Checks[j].Limit)
		}
		if q.Slots == nil {
			continue
		}
		n := t.living[i].Of(m.head.Instance)
		had = append(had, n)
		if q.Slots.Taken {
			r.value(z.Slots).slots = t.living[i].Set(m.head.Instance, n+1, m.at+m.head.SlotsExpiry)
		}
	}
	return had
}

// compare compares what Redis and the functions say of a zone.
func (r *replay) compare(m moment, z *wire.Zone, said *store.Outcome, q *algorithms.Request) {
	var want store.Outcome
	for _, c := range q.Checks {
		want.Decisions = append(want.Decisions, c.Decision)
	}
	want.Slots.Free = true
	if s := q.Slots; s != nil {
		want.Slots = store.SlotsOutcome{Taken: s.Taken, InFlight: s.InFlight, Free: s.Taken || s.InFlight < s.Limit}
	}
	if q.Ban != nil {
		d := q.Ban.Decision
		want.Ban = store.BanOutcome{Stands: d.Stands, Began: d.Began, EndsAfter: d.EndsAfter}
	}
	want.SetVerdict()
	if reflect.DeepEqual(*said, want) {
		return
	}
	limits := ""
	for i, c := range q.Checks {
		if !reflect.DeepEqual(said.Decisions[i], want.Decisions[i]) {
			limits += fmt.Sprintf("\n  %s, %v", z.Budgets[i].Name, c.Limit)
		}
	}
	r.differ("at %d, %v cost %d wait %d, %d slots at %q, ban %+v at %q:\n  Redis %+v\n  Go    %+v%s",
		m.at, z.Mode, z.Cost, z.MaxWait, z.SlotsLimit, z.Slots, z.Ban, z.BanName, *said, want, limits)
}

// refund plays a refund.
func (r *replay) refund(m moment, refunds []wire.Refund, reply *wire.Reply) error {
	err := reply.Done()
	for _, one := range refunds {
		l, wrong := r.limit(one.Budget)
		if wrong != nil {
			return wrong
		}
		of := receipt{one.Name, one.Receipt}
		if r.charged[of] -= one.Events; r.charged[of] < 0 {
			return fmt.Errorf("%s is given back %d more than was charged", one.Name, -r.charged[of])
		}
		if m.doubtful {
			continue
		}
		if one.Log && r.spoiled[one.Name] {
			if err == nil {
				return errNotFailed
			}
			return err
		}
		v := r.value(one.Name)
		v.limit = l
		algorithms.Refund(l, &v.state, m.at, one.Receipt, one.Events)
		v.changed(l)
		if err == nil {
			r.Refunds++
		}
	}
	return err
}

// set plays a set.
func (r *replay) set(m moment, set *wire.Set, reply *wire.Reply) error {
	had, err := reply.Set()
	if _, known := r.slots[id(set.Name)]; !known {
		return fmt.Errorf("no zone has slots at %s", set.Name)
	}
	if err == nil {
		r.Sets++
	}
	if m.doubtful {
		return err
	}
	living := r.living(m, set.Name)
	want := living.Of(m.head.Instance)
	r.value(set.Name).slots = living.Set(m.head.Instance, set.Count, m.at+m.head.SlotsExpiry)
	if err == nil && had != want {
		return fmt.Errorf("the instance had %d slots at %s, Go says %d", had, set.Name, want)
	}
	return err
}

// change plays a change at an operator's wish.
func (r *replay) change(p *played) error {
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
	case "ban":
		if number(1) != 0 {
			return errors.New("at an instant that Redis was told")
		}
		known := r.bans[id(name)]
		i := slices.IndexFunc(known, func(b algorithms.Ban) bool { return string(b.AppendMessage(nil)) == argument(3) })
		if i < 0 {
			return fmt.Errorf("no zone has the ban %x at %s", argument(3), name)
		}
		v := r.value(name)
		v.ban = &known[i]
		known[i].Begin(&v.state, p.at, number(2))
	case "override":
		delete(r.values, name)
		delete(r.spoiled, name)
		if argument(1) != "" {
			v := r.value(name)
			if v.text = argument(1); number(2) > 0 {
				v.expires = p.at + number(2)
			}
		}
	default:
		return fmt.Errorf("the unknown change %q", argument(0))
	}
	return nil
}
