package algorithms

import (
	"cmp"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"math/bits"
	"strconv"
	"strings"
	"time"
)

// Quota is a limit as it is written down: an algorithm, and how much it grants.
type Quota struct {
	// Algorithm is the algorithm's name, for example token_bucket.
	Algorithm string
	// Events is how many events one Window grants; above 0.
	Events int64
	// Window is a span in microseconds; above 0.
	Window Micros
	// Burst is how many events can be taken at once; 0 stands for Events.
	Burst int64
	// Align says where the windows of a fixed_window begin: "first" (the first
	// charge; also the meaning of "") or "clock" (multiples of Window since the
	// Unix epoch, UTC).
	Align string
	// MinInterval is the least span between two charged requests of a
	// sliding_log; 0 is none.
	MinInterval Micros
	// Buckets is how many parts of a window a sliding_log tells apart; 0: it
	// remembers every instant.
	Buckets int64
	// Initial is how many events the budget of a token_bucket or a smooth limit
	// holds when nothing is known of it, 0 to Burst; nil stands for Burst.
	Initial *int64
	// WarmUp is how long a smooth limit takes from cold to its full rate; 0: it
	// is never cold.
	WarmUp Micros
	// ColdFactor is how many thousandths of its usual cost an event has when a
	// smooth limit is cold, 1000 to 1,000,000; 0 stands for 3000.
	ColdFactor int64
}

// Limit is a Quota made ready: checked, with the default Burst filled in, and in
// lowest terms. It is immutable and safe for concurrent use.
type Limit struct {
	Quota
	algorithm *Algorithm

	// events and window are the quota's, divided by their greatest common
	// divisor, which keeps products small.
	events int64
	window Micros
	unit   Micros // of a sliding_window: see slidingWindowUnit
	// withheld is how many events a budget lacks that nothing is known of.
	withheld    int64
	smooth      smoothNumbers
	quantum     Micros // see Expires
	message     string
	work        work
	fingerprint string
}

// NewLimit checks a quota and makes it ready. Its errors name the setting, its
// value and what to write instead.
func NewLimit(q Quota) (*Limit, error) {
	algorithm, err := Lookup(q.Algorithm)
	if err != nil {
		return nil, err
	}
	l, err := newLimit(algorithm, q)
	if errors.Is(err, errBound) {
		return nil, fmt.Errorf("%s is too large to be counted exactly: %s", describe(q), nearest(algorithm, q))
	}
	return l, err
}

func newLimit(algorithm *Algorithm, q Quota) (*Limit, error) {
	switch {
	case q.Events <= 0:
		return nil, fmt.Errorf("events must be above 0, not %d: write how many events one window grants", q.Events)
	case q.Window <= 0:
		return nil, fmt.Errorf("window must be above 0, not %s: write a duration of at least 1us, such as 1m", describeDuration(q.Window))
	case q.Burst < 0:
		return nil, fmt.Errorf("burst must be above 0, not %d: write how many events can be taken at once, or leave it out for %d", q.Burst, q.Events)
	case q.Burst > 0 && !algorithm.Burst:
		return nil, fmt.Errorf("%s takes no burst, not %d: it admits up to events at once", algorithm.Name, q.Burst)
	}
	if err := checkOptions(algorithm, q); err != nil {
		return nil, err
	}
	if q.Events > exact/4 || q.Burst > exact/4 || q.Window > longest {
		return nil, errBound
	}
	l := &Limit{Quota: q, algorithm: algorithm}
	if l.Burst == 0 {
		l.Burst = l.Events
	}
	if l.Align == "first" {
		l.Align = ""
	}
	if l.WarmUp > 0 && l.ColdFactor == 0 {
		l.ColdFactor = 3000
	}
	if l.Initial != nil && *l.Initial == l.Burst {
		l.Initial = nil
	}
	d := gcd(q.Events, q.Window)
	l.events, l.window = q.Events/d, q.Window/d
	l.quantum = quantumOf(l)
	l.fingerprint = l.describeForKeys()
	if err := l.prepare(); err != nil {
		return nil, err
	}
	l.message = messageOf(l)
	return l, nil
}

// prepare works out what depends on the burst.
func (l *Limit) prepare() error {
	l.withheld = 0
	if l.Initial != nil {
		l.withheld = max(l.Burst-*l.Initial, 0)
	}
	if err := l.algorithm.bound(l); err != nil {
		return err
	}
	if l.work = counterWork; l.algorithm.work != nil {
		l.work = l.algorithm.work(l)
	}
	return nil
}

// checkOptions judges the options of a quota, each by itself and all together.
func checkOptions(algorithm *Algorithm, q Quota) error {
	for _, option := range []struct {
		name, owner string
		set         bool
	}{
		{"align", "fixed_window", q.Align != ""},
		{"min_interval", "sliding_log", q.MinInterval != 0},
		{"buckets", "sliding_log", q.Buckets != 0},
		{"initial", "token_bucket and smooth", q.Initial != nil},
		{"warm_up", "smooth", q.WarmUp != 0},
		{"cold_factor", "smooth", q.ColdFactor != 0},
	} {
		if option.set && !algorithm.Takes(option.name) {
			return fmt.Errorf("%s has no option %s: it belongs to %s", algorithm.Name, option.name, option.owner)
		}
	}
	burst := cmp.Or(q.Burst, q.Events)
	switch {
	case q.Align != "" && q.Align != "first" && q.Align != "clock":
		return fmt.Errorf("align must be first or clock, not %q", q.Align)
	case q.MinInterval < 0 || q.MinInterval > longest:
		return fmt.Errorf("min_interval must be from 1us to %s, not %s", describeDuration(longest), describeDuration(q.MinInterval))
	case q.Buckets < 0 || q.Buckets > mostBuckets:
		return fmt.Errorf("buckets must be from 1 to %d, not %d: write into how many parts a window is divided, or leave it out to remember every instant", mostBuckets, q.Buckets)
	case q.Initial != nil && (*q.Initial < 0 || *q.Initial > burst):
		return fmt.Errorf("initial must be from 0 to %d, the burst, not %d: write how many events a new budget holds", burst, *q.Initial)
	case q.Initial != nil && q.WarmUp != 0:
		return errors.New("initial and warm_up don't go together: with warm_up a new budget is cold, and holds nothing to begin with")
	case q.Burst != 0 && q.WarmUp != 0:
		return fmt.Errorf("burst and warm_up don't go together: leave out %d; with warm_up, what is saved up while idle is spent slowly, never at once", q.Burst)
	case q.WarmUp < 0:
		return fmt.Errorf("warm_up must be at least 1us, not %s: write how long it takes from cold to the full rate, such as 10s", describeDuration(q.WarmUp))
	case q.ColdFactor != 0 && q.WarmUp == 0:
		return errors.New("cold_factor means nothing without warm_up: write warm_up as well, such as 10s, or leave out cold_factor")
	case q.ColdFactor != 0 && (q.ColdFactor < 1000 || q.ColdFactor > 1_000_000):
		return fmt.Errorf("cold_factor must be from 1 to 1000, not %g: write how many times as much an event costs when cold", float64(q.ColdFactor)/1000)
	}
	return nil
}

// Algorithm returns the limit's algorithm.
func (l *Limit) Algorithm() *Algorithm { return l.algorithm }

// Message returns the limit as scripts are told of it: a text, and the burst, which is 0 for
// algorithms that take none. The text is the same for all that [Limit.Scaled] makes of a limit,
// except with Initial. So scripts read it once, although clients may choose the factor.
//
// The text is the number of the algorithm, one byte, and then numbers as little-endian doubles, in
// the order in which the algorithm's script reads them.
func (l *Limit) Message() (text string, burst int64) {
	if l.algorithm.Burst {
		burst = l.Burst
	}
	return l.message, burst
}

// burstAt is the index of the burst among the numbers of a limit that has one.
const burstAt = 2

// messageOf returns the text of [Limit.Message].
func messageOf(l *Limit) string {
	numbers := append(l.algorithm.numbers(l), l.quantum)
	if l.algorithm.Burst {
		numbers[burstAt] = 0
	}
	return string(appendNumbers([]byte{byte(l.algorithm.number)}, numbers...))
}

// Part returns the limit of somebody who has num/den of it, 0 < num ≤ den: events
// and burst are that part, rounded down to at least 1.
func (l *Limit) Part(num, den int64) (*Limit, error) {
	if num == den {
		return l, nil
	}
	part := func(n int64) int64 { return max(mulDiv(n, num, den, 0, n), 1) }
	q := l.Quota
	q.Events = part(q.Events)
	if q.Burst = 0; l.Scalable() {
		q.Burst = part(l.Burst)
	}
	if q.Initial != nil {
		initial := min(*q.Initial, q.Burst)
		q.Initial = &initial
	}
	events := q.Events
	const tries = 10_000
	for range tries { // its divisor in common with the window can be smaller; those of neighbours differ
		p, err := newLimit(l.algorithm, q)
		if !errors.Is(err, errBound) || q.Events == 1 {
			return p, err
		}
		q.Events--
	}
	common := gcd(l.Events, l.Window)
	q.Events = max(events-events%common, 1)
	return newLimit(l.algorithm, q)
}

// Fingerprint returns 11 URL-safe characters that differ where the algorithm,
// events, window, burst or the limit's own options do, however they were written.
// It is the same for all that [Limit.Scaled] makes of a limit.
func (l *Limit) Fingerprint() string { return l.fingerprint }

func (l *Limit) describeForKeys() string {
	text := fmt.Sprint(l.algorithm.Name, " ", l.Events, " ", l.Window, " ", l.Burst, " ", l.Align)
	for _, option := range []struct {
		name  string
		value int64
	}{{"min_interval", l.MinInterval}, {"buckets", l.Buckets}, {"warm_up", l.WarmUp}, {"cold_factor", l.ColdFactor}} {
		if option.value != 0 {
			text += fmt.Sprint(" ", option.name, " ", option.value)
		}
	}
	if l.Initial != nil {
		text += fmt.Sprint(" initial ", *l.Initial)
	}
	sum := sha256.Sum256([]byte(text))
	return base64.RawURLEncoding.EncodeToString(sum[:8])
}

// CheckDelay judges whether requests can be charged up to longest in advance, as
// [Request].MaxWait has it.
func (l *Limit) CheckDelay(longest Micros) error {
	if l.algorithm.longestDelay == nil {
		return fmt.Errorf("%s can't charge in advance, so it can't hold requests back: write one of %s", l.algorithm.Name, delaying())
	}
	most := l.LongestDelay()
	if most < 1 {
		return fmt.Errorf("%v is too large to be counted exactly beside a delay: write fewer events, or a longer window", l)
	}
	if longest > most {
		return fmt.Errorf("a delay of %s is too long to be counted exactly with %v: write at most %s", describeDuration(longest), l, describeDuration(most))
	}
	return nil
}

// LongestDelay is the longest MaxWait that [Limit.CheckDelay] allows.
func (l *Limit) LongestDelay() Micros {
	if l.algorithm.longestDelay == nil {
		return 0
	}
	return max(l.algorithm.longestDelay(l), 0)
}

// delaying lists the algorithms that can charge in advance.
func delaying() string {
	var names []string
	for _, a := range registered {
		if a.longestDelay != nil {
			names = append(names, a.Name)
		}
	}
	return strings.Join(names, ", ")
}

// Scalable tells whether the limit has a burst that [Limit.Scaled] can change.
func (l *Limit) Scalable() bool { return l.algorithm.Burst && l.WarmUp == 0 }

// Scaled returns the limit with its burst divided by factor, in millionths, and
// rounded up: at least 1, and at most what can be counted exactly. Its budgets are
// those of the limit, for state tells what was used, not what is left. (What a
// budget with initial lacks at first does depend on the burst.)
func (l *Limit) Scaled(factor int64) *Limit {
	const one = 1_000_000
	if factor == one {
		return l
	}
	scaled := *l
	scaled.Burst = max(mulDiv(l.Burst, one, factor, factor-1, exact/4), 1)
	if scaled.prepare() != nil { // then it is larger than l's, which fits
		most, _ := largest(scaled.Quota, func(q *Quota) *int64 { return &q.Burst }, func(q Quota) bool {
			scaled.Burst = q.Burst
			return scaled.prepare() == nil
		})
		scaled.Burst = max(most.Burst, l.Burst)
		_ = scaled.prepare()
	}
	if scaled.Initial != nil { // what is withheld has changed
		scaled.message = messageOf(&scaled)
	}
	return &scaled
}

// String writes the limit as a Caddyfile would.
func (l *Limit) String() string { return describe(l.Quota) }

func describe(q Quota) string {
	s := fmt.Sprintf("%s %d %s", q.Algorithm, q.Events, describeDuration(q.Window))
	if q.Burst != 0 && q.Burst != q.Events {
		s += " " + strconv.FormatInt(q.Burst, 10)
	}
	if q.Align == "clock" {
		s += " aligned to the clock"
	}
	if q.MinInterval != 0 {
		s += " at least " + describeDuration(q.MinInterval) + " apart"
	}
	if q.Buckets != 0 {
		s += fmt.Sprintf(" in %d buckets", q.Buckets)
	}
	if q.Initial != nil {
		s += fmt.Sprintf(" beginning with %d", *q.Initial)
	}
	if q.WarmUp != 0 {
		s += " warming up for " + describeDuration(q.WarmUp)
		if q.ColdFactor != 0 && q.ColdFactor != 3000 {
			s += fmt.Sprintf(" from a cold factor of %g", float64(q.ColdFactor)/1000)
		}
	}
	return s
}

// describeDuration writes a span as time.Duration does, without trailing zero units.
func describeDuration(m Micros) string {
	if m > 1<<63/1000-1 || m < -1<<63/1000 {
		return strconv.FormatInt(m, 10) + "us"
	}
	s := (time.Duration(m) * time.Microsecond).String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// nearest says what to write instead of a quota that can't be counted exactly:
// the same with the nearest number of events that fits (neighbours often share a
// larger divisor with the window), else the largest burst, else less of both.
func nearest(algorithm *Algorithm, q Quota) string {
	fits := func(q Quota) bool { _, err := newLimit(algorithm, q); return err == nil }
	for step := int64(1); step <= min(q.Events/10, 10_000); step++ {
		for _, events := range []int64{q.Events - step, q.Events + step} {
			near := q
			near.Events = events
			if fits(near) {
				return "the nearest that fits is " + describe(near)
			}
		}
	}
	if near, ok := largest(q, func(q *Quota) *int64 { return &q.WarmUp }, fits); ok && q.WarmUp > 0 {
		return "the longest warm_up that fits is " + describeDuration(near.WarmUp)
	}
	if near, ok := largest(q, func(q *Quota) *int64 { return &q.Burst }, fits); ok && algorithm.Burst {
		return "the largest burst that fits is " + strconv.FormatInt(near.Burst, 10)
	}
	if near, ok := largest(q, func(q *Quota) *int64 { return &q.Window }, fits); ok {
		return "the longest window that fits is " + describeDuration(near.Window)
	}
	near, _ := largest(q, func(q *Quota) *int64 { return &q.Events }, fits)
	most := max(near.Events, 1_000_000)
	if algorithm.Name == "sliding_log" && q.Buckets == 0 {
		most = MostLogged
	}
	return fmt.Sprintf("write at most %d events and a window of at most %s", most, describeDuration(longest/1_000_000*1_000_000))
}

// largest looks for a value of one setting, below the present one, that fits
// while one more (by bisection: near enough where divisors make gaps) does not.
func largest(q Quota, field func(*Quota) *int64, fits func(Quota) bool) (Quota, bool) {
	high := *field(&q)
	if high == 0 {
		high = q.Events
	}
	low := int64(0)
	for high-low > 1 {
		*field(&q) = low + (high-low)/2
		if fits(q) {
			low = *field(&q)
		} else {
			high = *field(&q)
		}
	}
	*field(&q) = low
	return q, low > 0
}

// mulDiv returns (a·b + c) / d, rounded down, or most if that is less, with products
// of any size; nothing is negative, and d is above 0.
func mulDiv(a, b, d, c, most int64) int64 {
	high, low := bits.Mul64(uint64(a), uint64(b))
	low, carry := bits.Add64(low, uint64(c), 0)
	if high += carry; high >= uint64(d) {
		return most
	}
	n, _ := bits.Div64(high, low, uint64(d))
	return int64(min(n, uint64(most)))
}

func gcd(a, b int64) int64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}
