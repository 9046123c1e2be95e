package redisstore

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/redis/go-redis/v9"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// encode writes the KEYS and ARGV of a script call for several groups, each of
// them the requests of one Take, as take.lua documents them. last is the last instant
// at which they may be decided; 0 is any.
func encode(names keyNames, now, last algorithms.Micros, groups ...[]store.Request) (keys []string, argv []any) {
	var limits []*algorithms.Limit
	var asks []*store.Request // no two that ask the same
	var zones []any           // of all groups, by the number of what they ask
	var name []byte
	for _, requests := range groups {
		for i := range requests {
			if r := &requests[i]; r.Overridable {
				keys = append(keys, names.override(r.Zone, r.Key))
				zones = append(zones, "="+r.Override)
			}
		}
		for i := range requests {
			r := &requests[i]
			ask := askNumber(&asks, r)
			if i == len(requests)-1 {
				ask = -ask
			}
			zones = append(zones, ask)
			name = names.appendStart(name[:0], r.Key)
			for _, l := range r.Limits {
				keys = append(keys, string(append(name, l.ID...)))
			}
		}
	}
	tail := make([]any, 0, 1+4*len(asks)+len(zones))
	tail = append(tail, len(asks))
	for _, r := range asks {
		var mode any = r.Mode.String()
		if r.MaxWait > 0 {
			mode = r.MaxWait
		}
		checks := len(r.Limits)
		if r.Shadow {
			checks = -checks
		}
		tail = append(tail, mode, r.Cost, checks)
		for _, l := range r.Limits {
			tail = append(tail, number(&limits, l.Limit))
		}
	}
	return keys, arguments([]any{now, last}, limits, append(tail, zones...))
}

// askNumber returns the place in the list of a request that asks the same, from 1,
// and adds this one if there is none.
func askNumber(asks *[]*store.Request, r *store.Request) int {
	for i, known := range *asks {
		if known.Mode == r.Mode && known.Cost == r.Cost && known.MaxWait == r.MaxWait && known.Shadow == r.Shadow && slices.EqualFunc(known.Limits, r.Limits, sameLimit) {
			return i + 1
		}
	}
	*asks = append(*asks, r)
	return len(*asks)
}

func sameLimit(a, b store.Limit) bool { return a.Limit == b.Limit }

// encodeRefund writes the KEYS and ARGV of a script call that gives back n events,
// or as many as were charged, of each limit of the requests, as refund.lua and renew.lua
// document them. head is what ARGV begins with: instants.
func encodeRefund(names keyNames, requests []store.Request, n int64, head ...any) (keys []string, argv []any) {
	var limits []*algorithms.Limit
	var tail []any
	for i := range requests {
		r := &requests[i]
		for j, d := range r.Decisions {
			if d.Charged > 0 {
				keys = append(keys, names.name(r.Key, r.Limits[j].ID))
				tail = append(tail, number(&limits, r.Limits[j].Limit), d.Receipt.A, d.Receipt.B, d.Receipt.At, min(n, d.Charged))
			}
		}
	}
	return keys, arguments(head, limits, tail)
}

var change = redis.NewScript(algorithms.ChangeScript())

// encodeChange writes a script call for each key of a change, as change.lua documents them.
func encodeChange(names keyNames, now algorithms.Micros, c store.Change) (commands []command) {
	one := func(limitID string, argv ...any) {
		commands = append(commands, command{script: change, keys: []string{names.name(c.Key, limitID)}, argv: argv})
	}
	for _, l := range c.Forget {
		one(l.ID, "forget")
	}
	for _, l := range c.Ban {
		argv := []any{"ban", now, c.BanFor}
		for _, n := range l.Args() {
			argv = append(argv, n)
		}
		one(l.ID, argv...)
	}
	if c.Override != nil {
		one(store.OverrideID(c.Zone), "override", *c.Override, c.OverrideFor)
	}
	return commands
}

// arguments puts the limits between the head and what refers to them.
func arguments(head []any, limits []*algorithms.Limit, tail []any) []any {
	argv := make([]any, 0, len(head)+1+5*len(limits)+len(tail))
	argv = append(append(argv, head...), len(limits))
	for _, l := range limits {
		args := l.Args()
		argv = append(argv, l.Algorithm().Name, len(args))
		for _, n := range args {
			argv = append(argv, n)
		}
	}
	return append(argv, tail...)
}

// number returns the place of a limit in the list, from 1, and adds it if need be.
func number(limits *[]*algorithms.Limit, l *algorithms.Limit) int {
	for i, known := range *limits {
		if known == l {
			return i + 1
		}
	}
	*limits = append(*limits, l)
	return len(*limits)
}

// replyError says in what a reply is not one of our scripts'.
type replyError string

func (e replyError) Error() string { return "redisstore: reply " + string(e) }

const errShort = replyError("ends early")

// reader reads the integers of a script's reply. Anything else is an error.
type reader struct {
	reply []any
	now   algorithms.Micros // the instant of the decisions, once the head is decoded
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

// decodeGroup reads one group into the decisions of its requests. A non-nil
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
			if requests[i].Overridable {
				overrides[i] = r.text()
			}
		}
		return false, &store.OverriddenError{Overrides: overrides}
	}
	allowed, r.foreign = true, nil
	for i := range requests {
		q := &requests[i]
		q.Decisions = q.Decisions[:0]
		for range q.Limits {
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
			allowed = allowed && (d.Allowed || q.Shadow)
			q.Decisions = append(q.Decisions, d)
		}
	}
	return allowed && r.err == nil && r.foreign == nil, r.foreign
}

// decodeRenewal reads what was charged anew into the decisions of requests. A non-nil
// failed is the error that kept some of them, and them alone, from being renewed.
func (r *reader) decodeRenewal(requests []store.Request) (failed error) {
	for i := range requests {
		for j := range requests[i].Decisions {
			d := &requests[i].Decisions[j]
			if d.Charged == 0 {
				continue
			}
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
			d.Charged, d.Receipt = charged, algorithms.Receipt{}
			if charged > 0 {
				d.Receipt = algorithms.Receipt{A: a, B: b, At: r.now}
			}
		}
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
