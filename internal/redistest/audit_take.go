package redistest

import (
	"errors"
	"fmt"
	"reflect"
	"slices"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/wire"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/wire/wiretest"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// expectedTake is a take as the functions in Go decide it, with an entry per zone.
type expectedTake struct {
	requests        []algorithms.ZoneRequest
	names           [][]string       // of the budgets
	slots, reserved []wiretest.Slots // per request that has some
}

// prepareTake returns the requests of a take, with the values of its keys. It returns an error for limits, slots
// and bans that no zone has.
func (r *replay) prepareTake(m execution, take *wiretest.Take) (*expectedTake, error) {
	t := &expectedTake{slots: make([]wiretest.Slots, len(take.Zones)), reserved: make([]wiretest.Slots, len(take.Zones))}
	for i := range take.Zones {
		z := &take.Zones[i]
		q := algorithms.ZoneRequest{Mode: z.Mode, Cost: z.Cost, MaxWait: z.MaxWait, Shadow: z.Shadow, Peek: z.Peek}
		var names []string
		for _, b := range z.Budgets {
			l, err := r.findLimit(m, b)
			if err != nil {
				return nil, err
			}
			if slices.Contains(names, b.Name) || slices.ContainsFunc(t.names, func(of []string) bool { return slices.Contains(of, b.Name) }) {
				return nil, fmt.Errorf("%s is twice in a request", b.Name)
			}
			v := r.valueAt(b.Name)
			v.limit = l
			names, q.Checks = append(names, b.Name), append(q.Checks, algorithms.Check{Limit: l, State: &v.state})
		}
		if z.Slots != "" {
			if !slices.Contains(r.slots[idOf(z.Slots)], z.SlotsLimit) {
				return nil, fmt.Errorf("no zone has %d slots at %s", z.SlotsLimit, z.Slots)
			}
			t.slots[i] = r.livingSlots(m, z.Slots)
			q.Slots = t.slots[i].Check(m.holder(z.Tenant), z.SlotsLimit, m.at, z.Line.Waited)
		}
		if z.Reserved != "" {
			s := r.livingSlots(m, z.Reserved)
			t.reserved[i] = s
			q.Reserved = &algorithms.ReservedCheck{Events: s.InFlight(), Ahead: s.Ahead(m.holder(store.Tenant{}), m.at, z.ReservedLine.Waited)}
		}
		if z.BanName != "" {
			if !slices.Contains(r.bans[idOf(z.BanName)], z.Ban) {
				return nil, fmt.Errorf("no zone has the ban %+v at %s", z.Ban, z.BanName)
			}
			v := r.valueAt(z.BanName)
			v.ban = &z.Ban
			q.Ban = &algorithms.BanCheck{Ban: &z.Ban, State: &v.state}
		}
		t.requests, t.names = append(t.requests, q), append(t.names, names)
	}
	return t, nil
}

// playTake plays a take, and compares its reply with the result in Go.
func (r *replay) playTake(m execution, take *wiretest.Take, reply *wire.Reply) error {
	t, err := r.prepareTake(m, take) // even if values are unknown, the limits must be known
	if err != nil {
		return err
	}
	replied := take.Requests(func(b wiretest.Budget) *algorithms.Limit { l, _ := r.findLimit(m, b); return l })
	allowed, found, err := reply.Take(replied, nil)
	if err != nil && !errors.As(err, new(*store.OverriddenError)) && !errors.As(err, new(wire.ScriptError)) {
		return err
	}
	if err == nil {
		r.countTake(m, allowed, replied, t)
	}
	if m.doubtful {
		return r.unexplainedError(err)
	}
	if ended, err := r.playOverrides(m, take, err); ended {
		return err
	}
	if r.hasSpoiledLog(take) {
		if err == nil {
			return errNotFailed
		}
		return err
	}
	want := algorithms.Take(t.requests, m.at)
	had := r.saveTake(m, take, t)
	if err != nil {
		return err
	}
	if allowed != want || !slices.Equal(found, had) {
		r.addDifference("at %d: Redis says %v, and %d slots of the instance; Go %v and %d: %+v", m.at, allowed, found, want, had, take)
	}
	for i := range replied {
		r.compareOutcome(m, &take.Zones[i], &replied[i].Outcome, &t.requests[i])
	}
	return nil
}

// unexplainedError returns the error of a take on unknown values, unless unknown values can explain it.
func (r *replay) unexplainedError(err error) error {
	if errors.As(err, new(*store.OverriddenError)) {
		r.Overridden++
		return nil
	}
	return err
}

func (r *replay) hasSpoiledLog(take *wiretest.Take) bool {
	for _, z := range take.Zones {
		if slices.ContainsFunc(z.Budgets, func(b wiretest.Budget) bool { return b.Log && r.spoiled[b.Name] }) {
			return true
		}
	}
	return false
}

// countTake counts the outcomes of a take, as Redis replied them.
func (r *replay) countTake(m execution, allowed bool, replied []store.ZoneRequest, t *expectedTake) {
	for i := range replied {
		o := &replied[i].Outcome
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

// playOverrides checks the overrides of a take. ended reports whether the take ended with this check.
func (r *replay) playOverrides(m execution, take *wiretest.Take, replyErr error) (ended bool, err error) {
	var found *store.OverriddenError
	overridden := errors.As(replyErr, &found)
	differs, edge := false, false
	for i, o := range take.Overrides {
		text, mayHaveEnded := r.overrideAt(o.Name, m.at)
		edge = edge || mayHaveEnded
		differs = differs || text != o.Text
		if overridden && found.Overrides[i] != text && (!mayHaveEnded || found.Overrides[i] != "") {
			return true, fmt.Errorf("the override of %s is %q, not %q", o.Name, text, found.Overrides[i])
		}
	}
	failed := errors.As(replyErr, new(wire.ScriptError))
	if failed && edge && !r.hasSpoiledLog(take) { // a spoiled log undoes the operation
		// Redis fails each operation that has a key that it can't write. If no other one has that key, this one was carried out.
		differs = false
		if names := (&wiretest.Operation{Take: take}).Names(); m.failsWithOthers(names, r.spoiled) {
			r.addDoubt(names[0], m.at)
			r.spreadDoubt(names, m.at)
			return true, replyErr
		}
	}
	if overridden != differs && !edge && !failed {
		return true, fmt.Errorf("other overrides: %v, want %v", overridden, differs)
	}
	if overridden {
		r.Overridden++
		return true, nil
	}
	return differs && failed, replyErr
}

// saveTake saves the slots and reserved events of a take, and returns how many of each the instance had before.
func (r *replay) saveTake(m execution, take *wiretest.Take, t *expectedTake) (had []int64) {
	for i := range t.requests {
		q, z := &t.requests[i], &take.Zones[i]
		for j, b := range z.Budgets {
			r.updateExpiry(r.valueAt(b.Name), q.Checks[j].Limit)
		}
		take := func(name string, s wiretest.Slots, tenant store.Tenant, line store.SlotLine, n int64) {
			had = append(had, s.Of(m.holder(tenant)))
			if s, changed := s.Take(m.holder(tenant), line, n, m.at, m.head.SlotsExpiry); changed && !q.Peek {
				r.valueAt(name).slots = s
			}
		}
		if q.Slots != nil {
			taken := int64(0)
			if q.Slots.Taken {
				taken = 1
			}
			take(z.Slots, t.slots[i], z.Tenant, z.Line, taken)
		}
		if q.Reserved != nil {
			take(z.Reserved, t.reserved[i], store.Tenant{}, z.ReservedLine, q.Reserved.Added)
		}
	}
	return had
}

// compareOutcome compares the outcome of a zone in Redis with that in Go.
func (r *replay) compareOutcome(m execution, z *wiretest.Zone, replied *store.Outcome, q *algorithms.ZoneRequest) {
	want := store.Outcome{At: m.at}
	for _, c := range q.Checks {
		want.Decisions = append(want.Decisions, c.Decision)
	}
	want.Slots.Free = true
	if s := q.Slots; s != nil {
		want.Slots = store.SlotsOutcome{Taken: s.Taken, InFlight: s.InFlight, Free: s.Taken || s.Free()}
	}
	if c := q.Reserved; c != nil {
		want.Reserved = store.ReservedOutcome{Events: c.Events, Added: c.Added}
	}
	if q.Ban != nil {
		d := q.Ban.Decision
		want.Ban = store.BanOutcome{Stands: d.Stands, Began: d.Began, EndsAfter: d.EndsAfter}
	}
	want.SetVerdict()
	if reflect.DeepEqual(*replied, want) {
		return
	}
	limits := ""
	for i, c := range q.Checks {
		if !reflect.DeepEqual(replied.Decisions[i], want.Decisions[i]) {
			limits += fmt.Sprintf("\n  %s, %v", z.Budgets[i].Name, c.Limit)
		}
	}
	r.addDifference("at %d, %v cost %d wait %d, %d slots at %q, ban %+v at %q:\n  Redis %+v\n  Go    %+v%s",
		m.at, z.Mode, z.Cost, z.MaxWait, z.SlotsLimit, z.Slots, z.Ban, z.BanName, *replied, want, limits)
}
