package redisstore

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/redis/go-redis/v9"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// format is how requests are written for the scripts.
type format struct {
	keyNames
	expiry algorithms.Micros // of a slot
}

// ask is what a zone asks: about its limits and its ban, or about its slots.
type ask struct {
	*store.Request
	slots bool
}

// slotLimit stands among limits for slots, so many of them.
type slotLimit int64

// encode writes the KEYS and ARGV of a script call for several groups, each of
// them the requests of one Take, as take.lua documents them. last is the last instant
// at which they may be decided; 0 is any.
func (f format) encode(now, last algorithms.Micros, groups ...[]store.Request) (keys []string, argv []any) {
	var limits []any
	var asks []ask  // no two that ask the same
	var zones []any // of all groups, by the number of what they ask
	var name []byte
	for _, requests := range groups {
		for i := range requests {
			if r := &requests[i]; r.Override != nil {
				keys = append(keys, f.override(r.Zone, r.Key))
				zones = append(zones, "="+r.Override.Text)
			}
		}
		for i := range requests {
			r := &requests[i]
			last := i == len(requests)-1
			zones = append(zones, askNumber(&asks, ask{r, false}, last && r.Slots == nil))
			name = f.appendStart(name[:0], r.Key)
			for _, l := range r.Limits {
				keys = append(keys, string(append(name, l.ID...)))
			}
			if r.Ban != nil {
				keys = append(keys, string(append(name, r.Ban.ID...)))
			}
			if r.Slots != nil {
				zones = append(zones, askNumber(&asks, ask{r, true}, last))
				keys = append(keys, string(append(name, r.Slots.ID...)))
			}
		}
	}
	tail := make([]any, 0, 1+4*len(asks)+len(zones))
	tail = append(tail, len(asks))
	for _, a := range asks {
		var mode, cost any = a.Mode.String(), a.Cost
		checks := len(a.Limits)
		switch {
		case a.slots:
			mode, cost, checks = "slots", 1, 1
			if a.Peek {
				cost = 0
			}
		case a.MaxWait > 0:
			mode = a.MaxWait
		}
		if a.Ban != nil && !a.slots {
			checks++
		}
		if a.Shadow {
			checks = -checks
		}
		tail = append(tail, mode, cost, checks)
		if a.slots {
			tail = append(tail, number(&limits, slotLimit(a.Slots.Limit)))
			continue
		}
		for _, l := range a.Limits {
			tail = append(tail, number(&limits, l.Limit))
		}
		if a.Ban != nil {
			tail = append(tail, number(&limits, a.Ban.Ban))
		}
	}
	return keys, f.arguments([]any{now, last}, limits, append(tail, zones...))
}

// askNumber returns the place in the list of an ask that is the same, from 1, and adds
// this one if there is none. That of the last ask of a group is negative.
func askNumber(asks *[]ask, a ask, last bool) int {
	n := slices.IndexFunc(*asks, a.is) + 1
	if n == 0 {
		*asks = append(*asks, a)
		n = len(*asks)
	}
	if last {
		return -n
	}
	return n
}

// is reports whether two asks are the same.
func (a ask) is(b ask) bool {
	if a.slots || b.slots {
		return a.slots == b.slots && a.Shadow == b.Shadow && a.Peek == b.Peek && a.Slots.Limit == b.Slots.Limit
	}
	return a.Mode == b.Mode && a.Cost == b.Cost && a.MaxWait == b.MaxWait && a.Shadow == b.Shadow && a.ban() == b.ban() &&
		slices.EqualFunc(a.Limits, b.Limits, func(a, b store.Limit) bool { return a.Limit == b.Limit })
}

func (a ask) ban() *algorithms.Ban {
	if a.Ban == nil {
		return nil
	}
	return a.Ban.Ban
}

// credit is what was charged to one budget, or a slot that was taken, and can be given back.
type credit struct {
	key, id string
	of      any // a *algorithms.Limit or a slotLimit
	receipt algorithms.Receipt
	events  int64
}

// encodeRefund writes the KEYS and ARGV of a script call that gives credits back, as
// refund.lua and renew.lua document them. head is what ARGV begins with: instants.
func (f format) encodeRefund(credits []credit, head ...any) (keys []string, argv []any) {
	var limits, tail []any
	for _, c := range credits {
		keys = append(keys, f.name(c.key, c.id))
		tail = append(tail, number(&limits, c.of), c.receipt.A, c.receipt.B, c.receipt.At, c.events)
	}
	return keys, f.arguments(head, limits, tail)
}

var change = redis.NewScript(algorithms.ChangeScript())

// encodeChange writes a script call for each key of a change, as change.lua documents them.
func (f format) encodeChange(now algorithms.Micros, c store.Change) (commands []command) {
	one := func(id string, argv ...any) {
		commands = append(commands, command{script: change, keys: []string{f.name(c.Key, id)}, argv: argv})
	}
	for _, id := range c.Forget {
		one(id, "forget")
	}
	for _, b := range c.Ban {
		_, args := f.spell(b.Ban)
		argv := []any{"ban", now, c.BanFor}
		for _, n := range args {
			argv = append(argv, n)
		}
		one(b.ID, argv...)
	}
	if c.Override != nil {
		one(store.OverrideID(c.Zone), "override", *c.Override, c.OverrideFor)
	}
	return commands
}

// spell returns the algorithm of a limit, a ban or slots, and the numbers that scripts are told.
func (f format) spell(of any) (algorithm string, args []int64) {
	switch of := of.(type) {
	case *algorithms.Ban:
		return "ban", []int64{of.After, of.Window, of.Duration, of.Most}
	case slotLimit:
		return "sliding_log", []int64{int64(of), f.expiry, 0, 1}
	default:
		l := of.(*algorithms.Limit)
		return l.Algorithm().Name, l.Args()
	}
}

// arguments puts the limits between the head and what refers to them.
func (f format) arguments(head, limits, tail []any) []any {
	argv := make([]any, 0, len(head)+1+5*len(limits)+len(tail))
	argv = append(append(argv, head...), len(limits))
	for _, l := range limits {
		algorithm, args := f.spell(l)
		argv = append(argv, algorithm, len(args))
		for _, n := range args {
			argv = append(argv, n)
		}
	}
	return append(argv, tail...)
}

// number returns the place of a limit, a ban or slots in the list, from 1, and adds it if
// need be.
func number(limits *[]any, l any) int {
	n := slices.Index(*limits, l) + 1
	if n == 0 {
		*limits = append(*limits, l)
		n = len(*limits)
	}
	return n
}

// replyError says in what a reply is not one of our scripts'.
type replyError string

func (e replyError) Error() string { return "redisstore: reply " + string(e) }

const errShort = replyError("ends early")

// reader reads the integers of a script's reply. Anything else is an error.
type reader struct {
	reply []any
	now   algorithms.Micros // the instant of the decisions, once the head is decoded
	taken []credit          // the slots of the groups decoded so far
	err   error             // set if no script of this package can have sent the reply
	// foreign is set if the numbers read last can't come from a budget. The reply itself is
	// valid, but another program has stored the value at the key.
	foreign error
}

func (r *reader) next() any {
	if len(r.reply) == 0 {
		r.fail(errShort)
	}
	if r.err != nil {
		return nil
	}
	v := r.reply[0]
	r.reply = r.reply[1:]
	return v
}

// integer reads a number from 0 to most.
func (r *reader) integer(most int64) int64 {
	v := r.next()
	n, ok := v.(int64)
	if r.err == nil && (!ok || n < 0 || n > most) {
		r.fail(replyError(fmt.Sprintf("holds %.100s where a number from 0 to %d belongs", fmt.Sprint(v), most)))
		return 0
	}
	return n
}

// number reads a number computed from the value at a key. A number that is not from 0 to
// Forever is foreign.
func (r *reader) number() int64 {
	v := r.next()
	n, ok := v.(int64)
	switch {
	case r.err != nil:
	case !ok:
		r.fail(replyError(fmt.Sprintf("holds %.100s where a number belongs", fmt.Sprint(v))))
	case n < 0 || n > algorithms.Forever:
		r.foreign = scriptError(fmt.Sprintf("the value at a key is not a budget: it gives %d", n))
	default:
		return n
	}
	return 0
}

// text reads a text.
func (r *reader) text() string {
	text, ok := r.next().(string)
	if !ok {
		r.fail(replyError("holds a number where a text belongs"))
	}
	return text
}

func (r *reader) fail(err error) {
	if r.err == nil {
		r.err = err
	}
}

// decodeHead reads what precedes the groups: the instant of the decisions, and
// whether it was too late for them; then there are none.
func (r *reader) decodeHead() (now algorithms.Micros, late bool) {
	r.now = r.integer(algorithms.Forever)
	return r.now, r.integer(1) == 1
}

// decodeGroup reads one group into the outcomes of its requests. A non-nil
// failed is the error that kept this group, and it alone, from being decided.
func (r *reader) decodeGroup(requests []store.Request) (allowed bool, failed error) {
	switch said := r.integer(2); {
	case r.err != nil:
		return false, nil
	case said == 0:
		return false, scriptError(r.text())
	case said == 2:
		overrides := make([]string, len(requests))
		for i := range requests {
			if requests[i].Override != nil {
				overrides[i] = r.text()
			}
		}
		return false, &store.OverriddenError{Overrides: overrides}
	}
	allowed, r.foreign = true, nil
	before := len(r.taken)
	for i := range requests {
		q := &requests[i]
		o := &q.Outcome
		*o = store.Outcome{Decisions: o.Decisions[:0], Slots: store.SlotsOutcome{Free: true}}
		for range q.Limits {
			o.Decisions = append(o.Decisions, r.decision())
		}
		if q.Ban != nil {
			d := r.decision()
			o.Ban = store.BanOutcome{Stands: !d.Allowed, Began: d.Allowed && d.MoreAfter > 0, EndsAfter: d.MoreAfter}
		}
		if q.Slots != nil {
			d := r.decision()
			o.Slots = store.SlotsOutcome{Free: d.Allowed && d.Remaining-d.Charged < q.Slots.Limit, Taken: d.Charged > 0, InFlight: d.Remaining}
			if o.Slots.Taken {
				r.taken = append(r.taken, credit{q.Key, q.Slots.ID, slotLimit(q.Slots.Limit), d.Receipt, 1})
			}
		}
		o.SetVerdict()
		allowed = allowed && (o.Verdict == store.Allowed || q.Shadow)
	}
	if r.err != nil || r.foreign != nil {
		r.taken = r.taken[:before]
	}
	return allowed && r.err == nil && r.foreign == nil, r.foreign
}

// decision reads what is said of one check.
func (r *reader) decision() algorithms.Decision {
	room := r.integer(2)
	d := algorithms.Decision{
		Allowed:    room > 0,
		Charged:    r.number(),
		Receipt:    algorithms.Receipt{A: r.number(), B: r.number()},
		Remaining:  r.number(),
		MoreAfter:  r.number(),
		RetryAfter: r.number(),
		ResetAfter: r.number(),
	}
	if room == 2 {
		d.Wait, d.RetryAfter = d.RetryAfter, 0
	}
	if d.Charged > 0 {
		d.Receipt.At = r.now
	}
	return d
}

// decodeRenewal notes the new receipts of slots. A non-nil failed is the error that kept some
// of them, and them alone, from being renewed.
func (r *reader) decodeRenewal(slots []*slot) (failed error) {
	for _, s := range slots {
		if r.integer(1) == 0 {
			failed = cmp.Or(failed, error(scriptError(r.text())))
			continue
		}
		r.foreign = nil
		charged, a, b := r.number(), r.number(), r.number()
		if r.err != nil {
			return r.err
		}
		if r.foreign != nil {
			failed = cmp.Or(failed, r.foreign)
			continue
		}
		s.events, s.receipt = charged, algorithms.Receipt{A: a, B: b, At: r.now}
	}
	return failed
}

// end refuses what follows the last group.
func (r *reader) end() error {
	if r.err == nil && len(r.reply) > 0 {
		r.fail(replyError(fmt.Sprintf("holds %d values too many", len(r.reply))))
	}
	return r.err
}
