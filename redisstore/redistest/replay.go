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
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// Report is what [Audit.Replay] has found.
type Report struct {
	Calls      int // script calls that Redis answered
	Granted    int // requests
	Refused    int
	Refunds    int // budgets that were given something back
	Late       int // calls that charged nothing, because nobody waited any more
	Failed     int // requests that an error in the script kept from being decided
	NotRun     int // calls that Redis answered with an error
	Unanswered int // calls that were under way when Redis was killed
	Doubtful   int // requests that these may have come before
	Eras       int // how often all budgets began afresh, from 1

	// Charges are those of the requests that were granted, by the names of the
	// budgets, in their order.
	Charges map[string][]Charge
	// Differences are the first ones between what Redis said and what the
	// functions say, of so many.
	Differences []string
	Different   int
}

// String is a table of the numbers.
func (r *Report) String() string {
	var b strings.Builder
	for _, line := range []struct {
		name string
		n    int
	}{
		{"script calls", r.Calls},
		{"requests granted", r.Granted},
		{"refused", r.Refused},
		{"failed", r.Failed},
		{"budgets refunded", r.Refunds},
		{"calls too late", r.Late},
		{"calls not run", r.NotRun},
		{"calls unanswered", r.Unanswered},
		{"requests in doubt", r.Doubtful},
		{"eras", r.Eras},
		{"differences", r.Different},
	} {
		fmt.Fprintf(&b, "  %-18s %5d\n", line.name, line.n)
	}
	return b.String()
}

// Charge is what one request that was granted has taken from one budget.
type Charge struct {
	Era    int
	At     algorithms.Micros
	Events int64
}

// Zone and Key are what the name of a budget says.
func Zone(budget string) string {
	_, id := nameParts(budget)
	zone, _, _ := strings.Cut(id, ":")
	return zone
}

// Key is the key in the name of a budget, as it is encoded there.
func Key(budget string) string {
	key, _ := nameParts(budget)
	return key
}

func nameParts(budget string) (key, id string) {
	_, rest, _ := strings.Cut(budget, ":{")
	key, id, _ = strings.Cut(rest, "}:")
	return key, id
}

// replay is the state of a [Audit.Replay].
type replay struct {
	Report
	scripts map[string]string // by SHA-1: take or refund
	limits  map[string][]*algorithms.Limit
	budgets map[string]*budget
	// doubtful are the budgets of this life of Redis that a call may have charged
	// which was never answered, and from when on.
	doubtful map[string]algorithms.Micros
	// charged is what was not given back yet of the charges that receipts are of.
	charged map[receipt]int64
}

// receipt is one of a budget.
type receipt struct {
	budget   string
	a, b, at int64
}

// budget is a budget in Go.
type budget struct {
	state   algorithms.State
	expires algorithms.Micros // of a limit that lingers
}

// played is a call as Replay reads it.
type played struct {
	*call
	script     string
	keys, argv []string
	reply      []any
	failed     replyError
	at         algorithms.Micros
}

// Replay closes the relay and plays all calls through [algorithms.Take] and
// [algorithms.Refund], in the order of their instants and at these, each life of
// Redis on its own. limits are those of all zones, with what factors make of them:
// a call whose numbers are those of none of them differs, too.
//
// A limit with initial needs a window longer than the test: how long Redis knows a
// budget that is full is not for Replay to say.
func (a *Audit) Replay(limits ...store.Limit) *Report {
	a.Close()
	r := &replay{scripts: scripts(), limits: make(map[string][]*algorithms.Limit), charged: make(map[receipt]int64)}
	r.Charges = make(map[string][]Charge)
	for _, l := range limits {
		r.limits[l.ID] = append(r.limits[l.ID], l.Limit)
	}
	for name, n := range a.strange {
		r.differ("%d times the command %q, which no store sends", n, name)
	}
	lives := make([][]*played, a.life+1)
	for _, c := range a.calls {
		p, err := r.read(c)
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
	return &r.Report
}

// scripts returns what the scripts that a store may run are for, by their SHA-1.
var scripts = sync.OnceValue(func() map[string]string {
	known := make(map[string]string)
	all := algorithms.All()
	for of := range 1 << len(all) {
		var set algorithms.Set
		for i, algorithm := range all {
			if of&(1<<i) != 0 {
				set = set.With(algorithm)
			}
		}
		known[hash(set.TakeScript())], known[hash(set.RefundScript())] = "take", "refund"
	}
	return known
})

func hash(script string) string {
	sum := sha1.Sum([]byte(script))
	return hex.EncodeToString(sum[:])
}

func (r *replay) differ(format string, args ...any) {
	const most = 20
	if r.Different++; r.Different <= most {
		r.Differences = append(r.Differences, fmt.Sprintf(format, args...))
	}
}

// read reads a call and what Redis replied.
func (r *replay) read(c *call) (*played, error) {
	p := &played{call: c, at: c.sent}
	if c.flush {
		return p, nil
	}
	value, _, err := parse(c.command)
	list, _ := value.([]any)
	if err != nil || len(list) < 3 {
		return nil, errors.Join(err, errShort)
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
		return nil, errShort
	}
	p.keys, p.argv, p.script = words[3:3+count], words[3+count:], r.scripts[sha]
	if p.script == "" {
		if slices.ContainsFunc(p.keys, func(k string) bool { return !strings.Contains(k, ":{%}::probe") }) {
			return nil, errors.New("a script that is none of those there are")
		}
		p.script = "probe"
	}
	if c.answer == nil || p.script == "probe" {
		return p, nil
	}
	value, _, err = parse(c.answer)
	if err != nil {
		return nil, err
	}
	switch value := value.(type) {
	case replyError:
		p.failed = value
	case []any:
		if p.reply = value; len(value) == 0 {
			return nil, errShort
		}
		at, ok := value[0].(int64)
		if !ok {
			return nil, errors.New("the reply doesn't begin with an instant")
		}
		p.at = at
	default:
		return nil, errors.New("the reply is no list")
	}
	return p, nil
}

var errShort = errors.New("it ends early")

// play plays the calls of one life of Redis.
func (r *replay) play(calls []*played, living bool) {
	r.begin()
	r.doubtful = make(map[string]algorithms.Micros)
	for _, p := range calls {
		if p.flush || p.answer != nil || p.script == "probe" {
			continue
		}
		if r.Unanswered++; living {
			r.differ("never answered, though Redis was not killed: %.300q", p.command)
		}
		for _, key := range p.keys {
			r.doubt(key, p.sent)
		}
	}
	for _, p := range calls {
		var err error
		switch {
		case p.flush:
			r.begin()
		case p.failed != "":
			if r.NotRun++; !strings.HasPrefix(string(p.failed), "NOSCRIPT") && !strings.HasPrefix(string(p.failed), "LOADING") {
				err = errors.New("an error that nothing explains")
			}
		case p.answer == nil || p.script == "probe":
		case p.script == "take":
			r.Calls++
			err = r.take(p)
		case p.script == "refund":
			r.Calls++
			err = r.refund(p)
		}
		if err != nil {
			r.differ("%.300q, replied %.300q: %v", p.command, p.answer, err)
		}
	}
}

// begin forgets all budgets.
func (r *replay) begin() {
	r.Eras++
	r.budgets = make(map[string]*budget)
}

func (r *replay) doubt(budget string, from algorithms.Micros) {
	if known, ok := r.doubtful[budget]; !ok || from < known {
		r.doubtful[budget] = from
	}
}

// doubtfulAt tells whether it is not known what one of the budgets holds. Then it
// isn't of the others any more.
func (r *replay) doubtfulAt(budgets []string, at algorithms.Micros) bool {
	if !slices.ContainsFunc(budgets, func(b string) bool { from, ok := r.doubtful[b]; return ok && from <= at }) {
		return false
	}
	for _, b := range budgets {
		r.doubt(b, at)
	}
	return true
}

// list reads one value after another; what isn't there is 0, and noted.
type list[T any] struct {
	values []T
	short  bool
}

func (l *list[T]) next() (v T) {
	if len(l.values) == 0 {
		l.short = true
		return v
	}
	v, l.values = l.values[0], l.values[1:]
	return v
}

func number(l *list[string]) int64 {
	n, err := strconv.ParseInt(l.next(), 10, 64)
	l.short = l.short || err != nil
	return n
}

// told is what ARGV says of a limit.
type told struct {
	algorithm string
	args      []int64
}

func readLimits(argv *list[string]) (limits []told) {
	for range number(argv) {
		l := told{algorithm: argv.next()}
		for range min(number(argv), 100) {
			l.args = append(l.args, number(argv))
		}
		if limits = append(limits, l); argv.short {
			break
		}
	}
	return limits
}

// limit returns the limit that a budget's name and what ARGV says stand for.
func (r *replay) limit(name string, limits []told, n int64) (*algorithms.Limit, error) {
	if n < 1 || n > int64(len(limits)) {
		return nil, fmt.Errorf("there is no limit %d", n)
	}
	is := limits[n-1]
	_, id := nameParts(name)
	for _, l := range r.limits[id] {
		if l.Algorithm().Name == is.algorithm && slices.Equal(l.Args(), is.args) {
			return l, nil
		}
	}
	return nil, fmt.Errorf("%s is no budget of a limit with %v", name, is)
}

// budget returns the budget of a name, untouched if nothing is known of it.
func (r *replay) budget(name string, l *algorithms.Limit, at algorithms.Micros) (*budget, error) {
	b := r.budgets[name]
	if b == nil {
		b = new(budget)
		r.budgets[name] = b
	}
	if l.Linger() > 0 && b.expires > 0 && b.expires <= at {
		return nil, fmt.Errorf("%s may be known to Redis or not: give it a longer window", name)
	}
	return b, nil
}

// ask is what a zone asks.
type ask struct {
	algorithms.Request
	limits []int64
}

func readAsks(argv *list[string]) (asks []ask) {
	for range number(argv) {
		mode := argv.next()
		a := ask{Request: algorithms.Request{Cost: number(argv)}}
		var err error
		if a.Mode, err = algorithms.ParseMode(mode); err != nil {
			a.MaxWait, err = strconv.ParseInt(mode, 10, 64)
			argv.short = argv.short || err != nil
		}
		checks := number(argv)
		if a.Shadow = checks < 0; a.Shadow {
			checks = -checks
		}
		for range min(checks, 1000) {
			a.limits = append(a.limits, number(argv))
		}
		if asks = append(asks, a); argv.short {
			break
		}
	}
	return asks
}

// take plays a call of the script that take.lua makes.
func (r *replay) take(p *played) error {
	argv, reply := &list[string]{values: p.argv}, &list[any]{values: p.reply}
	now, last := number(argv), number(argv)
	limits := readLimits(argv)
	asks := readAsks(argv)
	reply.next()
	late := reply.next() != int64(0)
	switch {
	case now != 0:
		return errors.New("at an instant that Redis was told")
	case late != (last > 0 && p.at > last):
		return fmt.Errorf("late is %v, at %d when the last instant is %d", late, p.at, last)
	case late:
		r.Late++
		return nil
	}
	keys := &list[string]{values: p.keys}
	for len(argv.values) > 0 {
		var zones []ask
		for done := false; !done && !argv.short; {
			n := number(argv)
			if done = n < 0; done {
				n = -n
			}
			if n < 1 || n > int64(len(asks)) {
				return fmt.Errorf("there is no ask %d", n)
			}
			zones = append(zones, asks[n-1])
		}
		if argv.short {
			break
		}
		if err := r.group(p.at, limits, zones, keys, reply); err != nil {
			return err
		}
	}
	if argv.short || keys.short || reply.short || len(keys.values)+len(reply.values) > 0 {
		return errors.New("ARGV, KEYS and the reply are not of one length")
	}
	return nil
}

// group plays one request of a call.
func (r *replay) group(at algorithms.Micros, limits []told, zones []ask, keys *list[string], reply *list[any]) error {
	var names []string
	var shadows []bool
	requests := make([]algorithms.Request, 0, len(zones))
	for _, z := range zones {
		q := z.Request
		for _, n := range z.limits {
			name := keys.next()
			l, err := r.limit(name, limits, n)
			if err != nil {
				return err
			}
			b, err := r.budget(name, l, at)
			if err != nil {
				return err
			}
			if slices.Contains(names, name) {
				return fmt.Errorf("%s stands twice in a request", name)
			}
			names, shadows = append(names, name), append(shadows, q.Shadow)
			q.Checks = append(q.Checks, algorithms.Check{Limit: l, State: &b.state})
		}
		requests = append(requests, q)
	}
	doubtful := r.doubtfulAt(names, at)
	if reply.next() != int64(1) {
		r.Failed++
		if _, ok := reply.next().(string); !ok {
			return errors.New("no text where that of an error belongs")
		}
		return nil
	}
	said := make([][8]int64, len(names))
	granted := true
	for i := range said {
		for j := range said[i] {
			n, ok := reply.next().(int64)
			if !ok {
				return errors.New("no number where one belongs")
			}
			said[i][j] = n
		}
		granted = granted && (said[i][0] > 0 || shadows[i])
		r.charged[receipt{names[i], said[i][2], said[i][3], at}] += said[i][1]
	}
	if granted {
		r.Granted++
		for i, name := range names {
			r.Charges[name] = append(r.Charges[name], Charge{Era: r.Eras, At: at, Events: said[i][1]})
		}
	} else {
		r.Refused++
	}
	if doubtful {
		r.Doubtful++
		return nil
	}
	algorithms.Take(requests, at)
	i := 0
	for _, q := range requests {
		for _, c := range q.Checks {
			if want := numbers(c.Decision); said[i] != want {
				r.differ("at %d, %s, %v, %v cost %d wait %d:\n  Redis %v\n  Go    %v\n  (room, charged, receipt, remaining, more, retry or wait, reset)",
					at, names[i], c.Limit, q.Mode, q.Cost, q.MaxWait, said[i], want)
			}
			r.budgets[names[i]].expires = at + c.Decision.ResetAfter + c.Limit.Linger()
			i++
		}
	}
	return nil
}

// numbers are those of a decision as take.lua replies them.
func numbers(d algorithms.Decision) [8]int64 {
	room, retry := int64(0), d.RetryAfter
	if d.Wait > 0 {
		room, retry = 2, d.Wait
	} else if d.Allowed {
		room = 1
	}
	return [8]int64{room, d.Charged, d.Receipt.A, d.Receipt.B, d.Remaining, d.MoreAfter, retry, d.ResetAfter}
}

// refund plays a call of the script that refund.lua makes.
func (r *replay) refund(p *played) error {
	argv := &list[string]{values: p.argv}
	if number(argv) != 0 {
		return errors.New("at an instant that Redis was told")
	}
	limits := readLimits(argv)
	if len(p.reply) != 1+len(p.keys) {
		return errShort
	}
	for i, name := range p.keys {
		n, of := number(argv), receipt{name, number(argv), number(argv), number(argv)}
		events := number(argv)
		l, err := r.limit(name, limits, n)
		if err != nil {
			return err
		}
		b, err := r.budget(name, l, p.at)
		if err != nil {
			return err
		}
		if r.charged[of] -= events; r.charged[of] < 0 {
			return fmt.Errorf("%s is given back more than was charged", name)
		}
		if p.reply[1+i] != int64(1) {
			r.Failed++
		} else if !r.doubtfulAt(p.keys[i:i+1], p.at) {
			r.Refunds++
			algorithms.Refund(l, &b.state, p.at, algorithms.Receipt{A: of.a, B: of.b, At: of.at}, events)
		}
	}
	if argv.short || len(argv.values) > 0 {
		return errShort
	}
	return nil
}
