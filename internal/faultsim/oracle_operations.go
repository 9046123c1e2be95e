package faultsim

import (
	"maps"
	"slices"
	"strings"
	"time"
)

// glance is when something looked at the values that operators give keys: a request, or a list.
type glance struct {
	from, to time.Time
	instance int
	by       *record // nil: a list
}

func (q *record) glance() glance {
	to := q.answered()
	if q.killed {
		to = to.Add(hop) // Redis may still decide
	}
	return glance{q.sent, to, q.instance, q}
}

func (op *operation) glance() glance { return glance{op.sent, op.ended, op.instance, nil} }

// mayRemember reports whether the glance may be one at a denial that the instance remembered.
func (g *glance) mayRemember() bool { return g.by != nil && g.by.status == 429 }

// remembered is how long an instance remembers a denial.
const remembered = time.Second

// sawAfter reports whether a glance certainly saw what an operator had done by an instant, through the same instance or
// another one.
func (g *glance) sawAfter(done time.Time, sameInstance bool) bool {
	if g.mayRemember() && !sameInstance {
		done = done.Add(remembered)
	}
	return !g.from.Before(done)
}

// isDone reports whether the effect of an operation is certain until an instant.
func (o *oracle) isDone(op *operation, until time.Time) bool {
	return op.err == nil && !o.isDisturbed(op.sent, op.ended) && o.count(op.sent, until, o.forgets) == 0
}

// forgets reports whether bans or overrides may be gone after a fault, or end at another time: a node with another clock may
// take the key.
func (o *oracle) forgets(f *fault) bool {
	return f.loses || steps(f) || moves(f) && o.count(o.began, o.end(f), steps) > 0
}

// moves reports whether keys move, one after the other. An instance that can't ask for the override of a key then uses the
// last one that it has seen.
func moves(f *fault) bool { return f.kind == "slots move" }

// operations returns what operators did to a key of a zone, in the order of time.
func (o *oracle) operations(zone int, key string, kinds ...string) (all []*operation) {
	for _, op := range o.scenario.operated {
		if op.zone == zone && op.key == key && slices.Contains(kinds, op.kind) {
			all = append(all, op)
		}
	}
	return all
}

// values returns the values that a glance may have seen, after operations on a key.
func (o *oracle) values(operations []*operation, g glance) []string {
	values := map[string]bool{"": true}
	certain := !o.isDisturbed(g.from, g.to) && o.count(g.from, g.to, moves) == 0
	for _, op := range operations {
		if op.sent.After(g.to) {
			break
		}
		done := certain && o.isDone(op, g.to)
		if done && g.sawAfter(op.ended, op.instance == g.instance) {
			clear(values)
		}
		values[op.value()] = true
		if op.lasts > 0 && !g.to.Before(op.sent.Add(op.lasts)) {
			values[""] = true
			if done && g.sawAfter(op.ended.Add(op.lasts+2*time.Millisecond), false) {
				clear(values)
				values[""] = true
			}
		}
	}
	return slices.Collect(maps.Keys(values))
}

// mayBeBanned reports whether a ban may have denied at a glance, by an operator or after denials.
func (o *oracle) mayBeBanned(n int, key string, g glance) bool {
	operations := o.operations(n, key, bans, unbans)
	if slices.Contains(o.values(operations, g), banned) {
		return true
	}
	counted := o.began // since when denials count
	for _, op := range operations {
		if o.isDone(op, g.to) && g.sawAfter(op.ended, op.instance == g.instance) {
			counted = op.sent
		}
	}
	z, denials := o.scenario.zones[n], int64(0)
	for _, q := range o.requestsOf(n, key) {
		if q != g.by && q.sent.Before(g.to) && !q.ended.Before(counted) && (slices.Contains(q.denied, z.name) || !o.isCertain(q)) {
			denials++
		}
	}
	return denials >= z.ban.After
}

// checkBan checks that the first ban of a key stands.
func (o *oracle) checkBan(n int, key string, requests []*record) {
	z := o.scenario.zones[n]
	var denials []*record
	for _, q := range requests {
		if slices.Contains(q.denied, z.name) {
			denials = append(denials, q)
		}
	}
	after := int(z.ban.After)
	if len(denials) < after {
		return
	}
	slices.SortFunc(denials, func(a, b *record) int { return a.sent.Compare(b.sent) })
	began := denials[after-1].sent
	known := denials[0].ended
	for _, q := range denials[:after] {
		if q.ended.After(known) {
			known = q.ended
		}
	}
	stands := began.Add(time.Duration(z.ban.Duration) * time.Microsecond)
	if known.Sub(denials[0].sent) > time.Duration(z.ban.Window)*time.Microsecond || o.isDisturbed(o.began, stands) ||
		o.count(o.began, stands, o.forgets) > 0 {
		return
	}
	if operations := o.operations(n, key, bans, unbans); len(operations) > 0 && operations[0].sent.Before(stands) {
		return
	}
	for _, q := range requests {
		if q.sent.After(known) && q.answered().Before(stands) && !q.passed.IsZero() {
			o.add("zone %s, key %s: banned from %v, but passed: %v", z.name, key, known.Sub(o.began), q)
		}
	}
}

// checkBans checks that no request passes while an operator has banned its key.
func (o *oracle) checkBans(n int, key string, requests []*record) {
	operations := o.operations(n, key, bans, unbans)
	for _, q := range requests {
		if q.passed.IsZero() || len(operations) == 0 {
			continue
		}
		if values := o.values(operations, q.glance()); len(values) == 1 && values[0] == banned {
			o.add("zone %s: banned by an operator, but passed: %v", o.scenario.zones[n].name, q)
		}
	}
}

// checkOperations checks that what operators do fails only with Redis, and what they see in lists.
func (o *oracle) checkOperations() {
	for _, op := range o.scenario.operated {
		switch {
		case op.err != nil:
			moved := op.key == "" && o.count(op.sent, op.ended, moves) > 0
			if !o.isDisturbed(op.sent, op.ended) && o.count(op.sent, op.ended, killed) == 0 && !moved {
				o.add("an operator failed, although nothing was wrong: %v", op)
			}
		case op.listed != nil:
			o.checkList(op)
		case op.ended.Sub(op.sent) > crowded || op.ended.Sub(op.sent) > hop && !o.isDisturbed(op.sent, op.ended):
			o.add("an operator waited for too long: %v", op)
		}
	}
}

// checkList checks that a list has what is in force while it is made, and nothing else.
func (o *oracle) checkList(list *operation) {
	untold := slices.ContainsFunc(o.scenario.faults, func(f *fault) bool { return f.untold && !o.start(f).After(list.ended) })
	if untold || o.isDisturbed(list.sent, list.ended) || o.count(list.sent, list.ended, moves) > 0 {
		return // it may be of the old primary, or miss a key that moves
	}
	zone := o.instances[0].limiter.Zones[list.zone]
	for n := range o.scenario.keys {
		key := keyName(n)
		var values []string
		if list.kind == listsBans {
			if values = o.values(o.operations(list.zone, key, bans, unbans), list.glance()); o.mayBeBanned(list.zone, key, list.glance()) {
				values = append(values, banned)
			}
		} else {
			for _, text := range o.values(o.operations(list.zone, key, overrides, endsOverride), list.glance()) {
				if text != "" {
					set, _, _ := zone.CompileOverride(text)
					text = strings.Join(set.LimitTexts(), ", ")
				}
				values = append(values, text)
			}
		}
		if !slices.Contains(values, list.listed[key]) {
			o.add("key %s should be listed with one of %q: %v", key, values, list)
		}
	}
}
