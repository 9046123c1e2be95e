package redistest

import (
	"cmp"
	"crypto/sha1"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/wire"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// replay is the state of an [Audit.Replay].
type replay struct {
	Report
	// By ID: what operations may be about. The limits of an ID, by budgets without names.
	limits map[string]map[wire.Budget]*algorithms.Limit
	bans   map[string][]algorithms.Ban
	slots  map[string][]int64

	values  map[string]*value // by name
	spoiled map[string]bool   // names of keys that hold something else
	// doubtful are the names of this life of Redis that a call may have changed
	// which was never answered, and from when on.
	doubtful map[string]algorithms.Micros
	// charged is the part of the charges that was not given back yet.
	charged map[receipt]int64
}

// receipt is one of a budget.
type receipt struct {
	budget string
	algorithms.Receipt
}

// played is a call as Replay reads it.
type played struct {
	*call
	kind   callKind
	keys   []string
	argv   []string
	head   wire.Head
	does   []wire.Operation
	reply  string
	failed replyError
	at     algorithms.Micros
}

// callKind says which script a call is of.
type callKind int

const (
	noScript   callKind = iota // a FLUSHALL or a Spoil
	operations                 // operations.lua
	changes                    // change.lua
	probes                     // probe.lua
)

// Replay closes the relay and plays all operations through [algorithms.Take],
// [algorithms.Refund], [algorithms.Slots] and [algorithms.Ban], in the order of their instants
// and at these, each life of Redis on its own. It compares every reply, and at the end the values in
// Redis.
//
// zones say what operations may be about: Limits, with all that factors make of them, Slots and Bans. Other
// ones are differences, too. Zones may be given several times, with other limits, as overrides make them.
func (a *Audit) Replay(zones ...store.Request) *Report {
	a.Close()
	r := &replay{
		limits: make(map[string]map[wire.Budget]*algorithms.Limit), bans: make(map[string][]algorithms.Ban), slots: make(map[string][]int64),
		charged: make(map[receipt]int64),
	}
	r.Charges = make(map[string][]Charge)
	for _, z := range zones {
		r.know(z)
	}
	for name, n := range a.strange {
		r.differ("%d times the command %q, which no store sends", n, name)
	}
	lives := make([][]*played, a.life+1)
	for _, c := range a.calls {
		p, err := read(c)
		if err != nil {
			r.differ("%.300q, replied %.300q: %v", c.command, c.answer, err)
			continue
		}
		lives[c.life] = append(lives[c.life], p)
	}
	for life, calls := range lives {
		// Scripts take longer than a µs, so no two have the same instant.
		slices.SortStableFunc(calls, func(a, b *played) int { return cmp.Compare(a.at, b.at) })
		r.play(calls, life == a.life)
	}
	r.compareStored(a.server.Client)
	return &r.Report
}

// know notes what a zone may ask.
func (r *replay) know(z store.Request) {
	for _, l := range z.Limits {
		if r.limits[l.ID] == nil {
			r.limits[l.ID] = make(map[wire.Budget]*algorithms.Limit)
		}
		text, burst := l.Message()
		r.limits[l.ID][wire.Budget{Limit: text, Burst: burst, Log: l.Algorithm().IsLog()}] = l.Limit
	}
	if z.Ban != nil {
		r.bans[z.Ban.ID] = append(r.bans[z.Ban.ID], *z.Ban.Ban)
	}
	if z.Slots != nil {
		r.slots[z.Slots.ID] = append(r.slots[z.Slots.ID], z.Slots.Limit)
	}
}

// scripts returns the scripts that a store may run, by their SHA-1.
var scripts = sync.OnceValue(func() map[string]callKind {
	known := map[string]callKind{hash(algorithms.ChangeScript()): changes}
	all := algorithms.All()
	for of := range 1 << (len(all) + 2) {
		var set algorithms.Set
		for i, algorithm := range all {
			if of&(1<<i) != 0 {
				set = set.With(algorithm)
			}
		}
		if of&(1<<len(all)) != 0 {
			set = set.WithBan()
		}
		if of&(2<<len(all)) != 0 {
			set = set.WithSlots()
		}
		known[hash(set.Script())] = operations
	}
	return known
})

func hash(script string) string {
	sum := sha1.Sum([]byte(script))
	return hex.EncodeToString(sum[:])
}

var errShort = errors.New("it ends early")

// read reads a call and its reply.
func read(c *call) (*played, error) {
	p := &played{call: c, at: c.sent}
	if c.flush || c.spoiled != "" {
		return p, nil
	}
	if err := p.readCommand(); err != nil || c.answer == nil || p.kind == probes {
		return p, err
	}
	value, _, err := parse(c.answer)
	if err != nil {
		return nil, err
	}
	switch value := value.(type) {
	case replyError:
		p.failed = value
		return p, nil
	case int64:
		p.at = value
		return p, expect(p.kind, changes)
	case string:
		p.reply = value
		reply, err := wire.ReadReply(value)
		if err == nil {
			p.at = reply.Now
		}
		return p, errors.Join(err, expect(p.kind, operations))
	}
	return nil, errors.New("the reply is neither a text nor a number")
}

func expect(kind, want callKind) error {
	if kind != want {
		return errors.New("the reply is one of another script")
	}
	return nil
}

// readCommand reads which script is called, and its arguments.
func (p *played) readCommand() error {
	value, _, err := parse(p.command)
	list, _ := value.([]any)
	if err != nil || len(list) < 3 {
		return errors.Join(err, errShort)
	}
	words := make([]string, len(list))
	for i, word := range list {
		words[i], _ = word.(string)
	}
	sha, n := words[1], words[2]
	if strings.EqualFold(words[0], "eval") {
		sha = hash(sha)
	}
	count, err := strconv.Atoi(n)
	if err != nil || count < 0 || count > len(words)-3 {
		return errShort
	}
	p.keys, p.argv, p.kind = words[3:3+count], words[3+count:], scripts()[sha]
	switch p.kind {
	case operations:
		if len(p.argv) != 1 {
			return fmt.Errorf("%d arguments, where one belongs", len(p.argv))
		}
		p.head, p.does, err = wire.ReadMessage(p.keys, p.argv[0])
		return err
	case changes:
		if len(p.keys) != 1 {
			return fmt.Errorf("%d keys, where one belongs", len(p.keys))
		}
	default:
		for _, key := range p.keys {
			if _, id, _ := strings.Cut(key, "}:"); !strings.HasPrefix(id, ":probe") { // zones have names
				return errors.New("a script that is none of those there are")
			}
		}
		p.kind = probes
	}
	return nil
}

// play plays the calls of one life of Redis.
func (r *replay) play(calls []*played, living bool) {
	r.begin()
	r.doubtful = make(map[string]algorithms.Micros)
	for _, p := range calls {
		if p.answer != nil || p.kind == noScript || p.kind == probes {
			continue
		}
		if r.Unanswered++; living {
			r.differ("never answered, though Redis was not killed: %.300q", p.command)
		}
		for _, name := range p.keys {
			r.doubt(name, p.sent)
		}
	}
	for _, p := range calls {
		if err := r.playCall(p); err != nil {
			r.differ("%.300q, replied %.300q: %v", p.command, p.answer, err)
		}
	}
}

// notRun are the errors by which Redis, or a node of a cluster, says that it has not run a script.
var notRun = []string{"NOSCRIPT", "LOADING", "MOVED", "ASK", "TRYAGAIN", "CLUSTERDOWN"}

func (r *replay) playCall(p *played) error {
	switch {
	case p.flush:
		r.begin()
	case p.spoiled != "":
		delete(r.values, p.spoiled)
		r.spoiled[p.spoiled] = true
	case p.kind == probes, p.answer == nil:
	case p.failed != "":
		r.NotRun++
		if word, _, _ := strings.Cut(string(p.failed), " "); !slices.Contains(notRun, word) {
			return errors.New("an error that nothing explains")
		}
	case p.kind == changes:
		r.Calls++
		return r.change(p)
	default:
		r.Calls++
		return r.message(p)
	}
	return nil
}

// begin forgets all values.
func (r *replay) begin() {
	r.Eras++
	r.values = make(map[string]*value)
	r.spoiled = make(map[string]bool)
}

func (r *replay) doubt(name string, from algorithms.Micros) {
	if known, ok := r.doubtful[name]; !ok || from < known {
		r.doubtful[name] = from
	}
}

// doubtfulAt reports whether one of the values isn't known for sure. Then the others aren't either, from now on.
func (r *replay) doubtfulAt(names []string, at algorithms.Micros) bool {
	if !slices.ContainsFunc(names, func(name string) bool { from, ok := r.doubtful[name]; return ok && from <= at }) {
		return false
	}
	for _, name := range names {
		r.doubt(name, at)
	}
	r.Doubtful++
	return true
}

// message plays a message, operation by operation.
func (r *replay) message(p *played) error {
	reply, err := wire.ReadReply(p.reply)
	late := p.head.NotAfter > 0 && p.at > p.head.NotAfter
	switch {
	case err != nil:
		return err
	case p.head.Now != 0:
		return errors.New("at an instant that Redis was told")
	case reply.Late != late:
		return fmt.Errorf("late is %v, at %d when the last instant is %d", reply.Late, p.at, p.head.NotAfter)
	case late:
		r.Late++
		return reply.End()
	}
	for _, name := range p.keys {
		if r.spoiled[name] { // operations of one message see each other's changes; nobody else does
			delete(r.values, name)
		}
	}
	for i := range p.does {
		if err := r.operation(p, &p.does[i], reply); err != nil {
			return err
		}
	}
	return reply.End()
}

// operation plays an operation.
func (r *replay) operation(p *played, o *wire.Operation, reply *wire.Reply) error {
	names := o.Names()
	for _, name := range names {
		r.expire(name, p.at)
	}
	m := moment{at: p.at, head: p.head, doubtful: r.doubtfulAt(names, p.at)}
	var err error
	switch {
	case o.Take != nil:
		err = r.take(m, o.Take, reply)
	case o.Set != nil:
		err = r.set(m, o.Set, reply)
	default:
		err = r.refund(m, o.Refund, reply)
	}
	failed, is := errors.AsType[wire.ScriptError](err)
	if !is {
		return err
	}
	if r.Failed++; !slices.ContainsFunc(names, func(name string) bool { return r.spoiled[name] }) {
		return fmt.Errorf("an error that nothing explains: %w", failed)
	}
	return nil
}
