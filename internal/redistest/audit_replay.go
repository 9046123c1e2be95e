package redistest

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/wire"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/wire/wiretest"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// replay is the state of an [Audit.Replay].
type replay struct {
	Report
	// The limits, bans and slots that operations may be about, by ID. The limits of an ID are
	// found by a Budget without a name.
	limits map[string]map[wiretest.Budget]*algorithms.Limit
	bans   map[string][]algorithms.Ban
	slots  map[string][]int64

	values  map[string]*value // by the name of the key
	spoiled map[string]bool   // the names of the keys that are spoiled
	// doubtful has the names of the keys whose values are unknown, and the instants since when. A
	// call without an answer may have changed these values. It is about one Redis process.
	doubtful map[string]algorithms.Micros
	// charged is the number of events that were charged and not given back.
	charged map[receipt]int64
	took    algorithms.Micros // from when the relay sent the current call to its instant
	lasted  algorithms.Micros // from this instant to when the relay had the reply
}

// receipt is the receipt of a charge to a budget.
type receipt struct {
	budget string
	algorithms.Receipt
}

// Replay closes the relay, repeats all recorded operations in Go, and returns a report. It plays the
// operations in the order of their instants, and at these instants, through [algorithms.Take],
// [algorithms.Refund], [wiretest.Slots] and [algorithms.Ban]. It compares every reply of Redis with the
// result in Go, and finally the values in Redis with those in Go. Each Redis process starts without values.
//
// zones have all Limits, Slots and Bans that operations may be about, including limits scaled by a factor.
// Any other limit is a difference, too. A zone may be given several times, for example with the limits of
// an override.
func (a *Audit) Replay(zones ...store.ZoneRequest) *Report {
	a.Close()
	r := &replay{
		limits: make(map[string]map[wiretest.Budget]*algorithms.Limit), bans: make(map[string][]algorithms.Ban), slots: make(map[string][]int64),
		charged: make(map[receipt]int64),
	}
	r.Charges = make(map[string][]Charge)
	for _, z := range zones {
		r.addZone(z)
	}
	for name, n := range a.unknownCommands {
		r.addDifference("%d times the command %q, which no store sends", n, name)
	}
	byProcess := make([][]*parsedCall, a.process+1)
	for _, c := range a.calls {
		p, err := parseCall(c)
		if err != nil {
			r.addDifference("%.300q, replied %.300q: %v", c.command, c.reply, err)
			continue
		}
		byProcess[c.process] = append(byProcess[c.process], p)
	}
	for process, calls := range byProcess {
		// Scripts take longer than a µs, so no two have the same instant.
		slices.SortStableFunc(calls, func(a, b *parsedCall) int { return cmp.Compare(a.at, b.at) })
		r.playProcess(calls, process == a.process)
	}
	r.compareStored(a.server.Client)
	return &r.Report
}

// addZone adds the limits, ban and slots of a zone.
func (r *replay) addZone(z store.ZoneRequest) {
	for _, l := range z.Limits {
		if r.limits[l.ID] == nil {
			r.limits[l.ID] = make(map[wiretest.Budget]*algorithms.Limit)
		}
		text, burst := l.Message(0)
		r.limits[l.ID][wiretest.Budget{Limit: text, Burst: burst, Log: l.Algorithm().IsLog()}] = l.Limit
	}
	if z.Ban != nil {
		r.bans[z.Ban.ID] = append(r.bans[z.Ban.ID], *z.Ban.Ban)
	}
	if z.Slots != nil {
		r.slots[z.Slots.ID] = append(r.slots[z.Slots.ID], z.Slots.Limit)
	}
	if z.ReservedID != "" {
		r.slots[z.ReservedID] = nil // counted as slots are, without a limit
	}
}

// playProcess plays the calls of one Redis process. running reports whether the process was not killed.
func (r *replay) playProcess(calls []*parsedCall, running bool) {
	r.clearValues()
	r.doubtful = make(map[string]algorithms.Micros)
	for _, p := range calls {
		if p.reply != nil || p.kind == noScript || p.kind == probeScript {
			continue
		}
		if r.Unanswered++; running {
			r.addDifference("never answered, though Redis was not killed: %.300q", p.command)
		}
		for _, name := range p.keys {
			r.addDoubt(name, p.sentAt)
		}
	}
	for _, p := range calls {
		if err := r.playCall(p); err != nil {
			r.addDifference("%.300q, replied %.300q: %v", p.command, p.reply, err)
		}
	}
}

// notRun has the first words of the errors by which Redis, or a node of a cluster, reports that it did not run
// a script.
var notRun = []string{"NOSCRIPT", "LOADING", "MOVED", "ASK", "TRYAGAIN", "CLUSTERDOWN"}

func (r *replay) playCall(p *parsedCall) error {
	r.took, r.lasted = p.at-p.sentAt, p.endedAt-p.at
	switch {
	case p.flushed:
		r.clearValues()
	case p.spoiled != "":
		delete(r.values, p.spoiled)
		r.spoiled[p.spoiled] = true
	case p.kind == probeScript, p.reply == nil:
	case p.failed != "":
		r.NotRun++
		if word, _, _ := strings.Cut(string(p.failed), " "); !slices.Contains(notRun, word) {
			return errors.New("an error that nothing explains")
		}
	case p.kind == changeScript:
		r.Calls++
		return r.playChange(p)
	default:
		r.Calls++
		return r.playMessage(p)
	}
	return nil
}

// clearValues forgets all values, because Redis has none.
func (r *replay) clearValues() {
	r.Eras++
	r.values = make(map[string]*value)
	r.spoiled = make(map[string]bool)
}

func (r *replay) addDoubt(name string, from algorithms.Micros) {
	if since, ok := r.doubtful[name]; !ok || from < since {
		r.doubtful[name] = from
	}
}

// spreadDoubt reports whether the value of a key is unknown. If so, the values of the other keys of the
// operation are unknown, too, from now on.
func (r *replay) spreadDoubt(names []string, at algorithms.Micros) bool {
	if !slices.ContainsFunc(names, func(name string) bool { from, ok := r.doubtful[name]; return ok && from <= at }) {
		return false
	}
	for _, name := range names {
		r.addDoubt(name, at)
	}
	r.Doubtful++
	return true
}

// playMessage plays a message, operation by operation.
func (r *replay) playMessage(p *parsedCall) error {
	reply, err := wiretest.ReadReply(p.packedReply)
	late := p.at < p.head.NotBefore || p.head.NotAfter > 0 && p.at > p.head.NotAfter
	switch {
	case err != nil:
		return err
	case p.head.Now != 0:
		return errors.New("at an instant that Redis was told")
	case reply.Late != late:
		return fmt.Errorf("late is %v, at %d when the first and the last instant are %d and %d",
			reply.Late, p.at, p.head.NotBefore, p.head.NotAfter)
	case late:
		r.Late++
		return reply.End()
	}
	for _, name := range p.keys {
		if r.spoiled[name] { // only operations of the same message see a change of a spoiled key
			delete(r.values, name)
		}
	}
	for i := range p.operations {
		if err := r.playOperation(p, &p.operations[i], reply); err != nil {
			return err
		}
	}
	return reply.End()
}

// playOperation plays an operation.
func (r *replay) playOperation(p *parsedCall, o *wiretest.Operation, reply *wire.Reply) error {
	names := o.Names()
	for _, name := range names {
		r.dropExpired(name, p.at)
	}
	m := execution{at: p.at, head: p.head, keys: p.keys, doubtful: r.spreadDoubt(names, p.at)}
	var err error
	switch {
	case o.Take != nil:
		err = r.playTake(m, o.Take, reply)
	case o.Set != nil:
		err = r.playSet(m, o.Set, reply)
	default:
		err = r.playRefund(m, o, reply)
	}
	var failed wire.ScriptError
	is := errors.As(err, &failed)
	if !is {
		return err
	}
	if r.Failed++; !slices.ContainsFunc(names, func(name string) bool { return r.spoiled[name] }) {
		return fmt.Errorf("an error that nothing explains: %w", failed)
	}
	return nil
}
