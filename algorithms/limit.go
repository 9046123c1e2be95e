package algorithms

import (
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"math"
	"math/bits"
	"sort"
	"strconv"
	"strings"
	"time"
)

// Quota is a limit as it is configured: an algorithm, and how much the limit allows.
type Quota struct {
	// Algorithm is the algorithm's name, for example token_bucket.
	Algorithm string
	// Events is how many events one Window allows; above 0.
	Events int64
	// Window is a span in microseconds; above 0.
	Window Micros
	// Burst is how many events can be taken at once; 0 stands for Events.
	Burst int64
	// Align says where the windows of a fixed_window begin: "first", with the first charge, or
	// "clock", at multiples of Window since the Unix epoch, UTC. "" stands for "first".
	Align string
	// MinInterval is the least time between two charged requests of a sliding_log; 0 is none.
	MinInterval Micros
	// Buckets is the number of parts into which a sliding_log divides a window. With 0 the log
	// remembers every instant.
	Buckets int64
	// Initial is how many events a new budget of a token_bucket or a smooth limit holds, 0 to
	// Burst; nil stands for Burst.
	Initial *int64
	// WarmUp is how long a smooth limit takes from cold to its full rate. With 0 the limit is
	// never cold.
	WarmUp Micros
	// ColdFactor is the cost of an event when a smooth limit is cold. It is in thousandths of the
	// usual cost, 1000 to 1,000,000; 0 stands for 3000.
	ColdFactor int64
	// Period is the period of a calendar: day, week, month or year. The Window of a calendar is 0, or the
	// longest time that a period takes.
	Period string
	// TimeZone is the name of the time zone of a calendar, such as Europe/Berlin. "" stands for UTC.
	TimeZone string
	// StartDay is the day on which the weeks or months of a calendar begin: [Monday] to [Sunday], or 1 to 28. 0
	// stands for Monday, or 1.
	StartDay int64
}

// Limit is a validated Quota with its defaults filled in, ready to be evaluated. A Limit is
// immutable and safe for concurrent use.
type Limit struct {
	Quota
	algorithm *Algorithm

	// events and window are the quota's, divided by their greatest common
	// divisor, which keeps products small.
	events int64
	window Micros
	unit   Micros // of a sliding_window: see slidingWindowUnit
	parts  parts  // of a bucket, or a smooth limit
	// withheld is how many events a new budget lacks.
	withheld    int64
	smooth      smoothNumbers
	calendar    *calendar // nil for other algorithms
	quantum     Micros    // see Expires
	message     string
	work        work
	fingerprint string
}

// NewLimit returns the limit of a quota. Errors name the setting, the value and what to write
// instead.
func NewLimit(q Quota) (*Limit, error) {
	algorithm, err := Lookup(q.Algorithm)
	if err != nil {
		return nil, err
	}
	l, err := newLimit(algorithm, q)
	if errors.Is(err, errBound) {
		err = fmt.Errorf("%s is %w: write rounder numbers (5000 30d rather than 4999 30d), fewer events, a smaller burst, or shorter times",
			algorithm.describe(&q), err)
	}
	return l, err
}

func newLimit(algorithm *Algorithm, q Quota) (*Limit, error) {
	switch {
	case q.Events <= 0:
		return nil, fmt.Errorf("events must be above 0, not %d: write how many events one window allows, "+
			"or respond 403 instead of the limit to deny all requests", q.Events)
	case !algorithm.Calendar && (q.Period != "" || q.TimeZone != ""):
		return nil, fmt.Errorf("%s has no period and no time zone: they belong to calendar", algorithm.Name)
	case !algorithm.Calendar && q.Window <= 0:
		return nil, fmt.Errorf("window must be above 0, not %s: write a duration of at least 1us, such as 1m", describeDuration(q.Window))
	case q.Burst < 0:
		return nil, fmt.Errorf("burst must be above 0, not %d: write how many events can be taken at once, "+
			"or leave it out for %d", q.Burst, q.Events)
	case q.Burst > 0 && !algorithm.Burst:
		return nil, fmt.Errorf("%s takes no burst, not %d: it allows events at once, and no more", algorithm.Name, q.Burst)
	}
	if err := algorithm.checkOptions(&q); err != nil {
		return nil, err
	}
	if q.Events > exact/8 || q.Burst > exact/4 || q.Window > maxSpan {
		return nil, errBound
	}
	l := &Limit{algorithm: algorithm}
	if algorithm.Calendar {
		zone, err := prepareCalendar(&q)
		if err != nil {
			return nil, err
		}
		l.calendar = newCalendar(&q, zone)
		l.calendar.limit = func(ends ...Micros) string { return messageOf(l, ends...) }
	}
	l.Quota = q
	if l.Burst == 0 {
		l.Burst = l.Events
	}
	for _, o := range algorithm.Options {
		if o.normalize != nil {
			o.normalize(&l.Quota)
		}
	}
	d := gcd(q.Events, q.Window)
	l.events, l.window = q.Events/d, q.Window/d
	l.quantum = quantumOf(l)
	l.fingerprint = l.computeFingerprint()
	if err := l.prepare(); err != nil {
		return nil, err
	}
	if l.calendar == nil {
		l.message = messageOf(l)
	}
	return l, nil
}

// prepare computes everything that depends on the burst.
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

// Algorithm returns the limit's algorithm.
func (l *Limit) Algorithm() *Algorithm { return l.algorithm }

// Message returns the limit in the form that scripts read: a text, and the burst, which is 0 for
// algorithms without one. The text is the same for all results of [Limit.Scaled], except with
// Initial. So scripts read the text once, even if clients choose the factor.
//
// The text begins with one byte, the number of the algorithm. Numbers follow as little-endian
// doubles, in the order in which the algorithm's script reads them.
//
// The text of a calendar has the ends of three periods, beginning with the one that now is in. Scripts may
// read it at the instants of [Limit.Periods].
func (l *Limit) Message(now Micros) (text string, burst int64) {
	if l.calendar != nil {
		return l.calendar.around(now).text, 0
	}
	if l.algorithm.Burst {
		burst = l.Burst
	}
	return l.message, burst
}

// Periods returns the start of the period of a calendar at an instant, its end, and the end of the next one. For other
// algorithms, all are 0.
func (l *Limit) Periods(now Micros) (start, end, next Micros) {
	if l.calendar == nil {
		return 0, 0, 0
	}
	p := l.calendar.around(now)
	return p.start, p.ends[0], p.ends[1]
}

// burstAt is the index of the burst among the numbers of a limit that has one.
const burstAt = 2

// messageOf returns the text of [Limit.Message]. Only calendars have ends.
func messageOf(l *Limit, ends ...Micros) string {
	numbers := append(append(l.algorithm.numbers(l), ends...), l.quantum)
	if l.algorithm.Burst {
		numbers[burstAt] = 0
	}
	return string(appendNumbers([]byte{byte(l.algorithm.number)}, numbers...))
}

// Share returns a limit with num/den of the events and of the burst, 0 < num ≤ den, rounded down to
// at least 1.
func (l *Limit) Share(num, den int64) (*Limit, error) {
	if num == den {
		return l, nil
	}
	part := func(n int64) int64 { return max(mulAddDiv(n, num, 0, den), 1) }
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
	for range tries { // its divisor in common with the window can be smaller; those of the next numbers differ
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

// Fingerprint returns 11 URL-safe characters. They differ between limits that differ in algorithm, window, period or an
// option, but not between two ways to write the same limit. Limits that differ only in their events or their burst have the
// same fingerprint, because they can share budgets: each applies its own numbers to what all have charged.
func (l *Limit) Fingerprint() string { return l.fingerprint }

func (l *Limit) computeFingerprint() string {
	text := fmt.Sprint(l.algorithm.Name, " ", l.Window, " ")
	for _, o := range l.algorithm.Options {
		text += o.forKeys(&l.Quota)
	}
	if l.algorithm.Calendar {
		text += " " + l.describePeriod()
	}
	sum := sha256.Sum256([]byte(text))
	return base64.RawURLEncoding.EncodeToString(sum[:8])
}

// CheckDelay returns an error if requests can't be charged up to longest in advance. See
// [ZoneRequest].MaxWait.
func (l *Limit) CheckDelay(longest Micros) error {
	if l.algorithm.maxDelay == nil {
		return fmt.Errorf("%s can't charge in advance, so it can't delay requests: write one of %s", l.algorithm.Name, delaying())
	}
	most := l.MaxDelay()
	if most < 1 {
		return fmt.Errorf("%v is too large to be counted exactly with a delay: write fewer events, or a longer window", l)
	}
	if longest > most {
		return fmt.Errorf("a delay of %s is too long to be counted exactly with %v: write at most %s",
			describeDuration(longest), l, describeDuration(most))
	}
	return nil
}

// RefillTime returns how long an empty budget takes to hold Burst events, if nothing is charged. It is 0 for
// limits that count in windows. For example, with 10 events per second and burst 20 it is 2 s.
func (l *Limit) RefillTime() Micros {
	if l.algorithm.refillIn == nil {
		return 0
	}
	return l.algorithm.refillIn(l)
}

// MaxDelay returns the longest MaxWait that [Limit.CheckDelay] allows.
func (l *Limit) MaxDelay() Micros {
	if l.algorithm.maxDelay == nil {
		return 0
	}
	return max(l.algorithm.maxDelay(l), 0)
}

// delaying returns the names of the algorithms that can charge in advance.
func delaying() string {
	var names []string
	for _, a := range registered {
		if a.maxDelay != nil {
			names = append(names, a.Name)
		}
	}
	return strings.Join(names, ", ")
}

// Scalable reports whether the limit has a burst that [Limit.Scaled] can change.
func (l *Limit) Scalable() bool { return l.algorithm.Burst && l.WarmUp == 0 }

// Scaled returns the limit with its burst divided by factor, in millionths. The burst is rounded
// up: to at least 1, and at most to what can be counted exactly. Both limits have the same
// budgets, because state holds what was used, not what is left. (What a new budget with initial
// lacks depends on the burst.)
func (l *Limit) Scaled(factor int64) *Limit {
	const one = 1_000_000
	if factor == one {
		return l
	}
	scaled := *l
	fits := func(burst int64) bool {
		scaled.Burst = burst
		return scaled.prepare() == nil
	}
	if burst := max(min(mulAddDiv(l.Burst, one, factor-1, factor), exact/4), 1); !fits(burst) { // so it is larger than l's
		fits(l.Burst + int64(sort.Search(int(burst-l.Burst), func(n int) bool { return !fits(l.Burst + int64(n) + 1) })))
	}
	if scaled.Initial != nil { // what is withheld has changed
		scaled.message = messageOf(&scaled)
	}
	return &scaled
}

// String writes the limit as a Caddyfile would.
func (l *Limit) String() string { return l.algorithm.describe(&l.Quota) }

func (a *Algorithm) describe(q *Quota) string {
	s := fmt.Sprintf("%s %d ", q.Algorithm, q.Events)
	if a.Calendar {
		s += q.describePeriod()
	} else {
		s += describeDuration(q.Window)
	}
	if q.Burst != 0 && q.Burst != q.Events {
		s += " " + strconv.FormatInt(q.Burst, 10)
	}
	for _, o := range a.Options {
		s += o.describe(q)
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

// mulAddDiv returns (a·b + c) / d, rounded down, or [math.MaxInt64] if that is less. Products can have any
// size. No argument is negative, and d is above 0.
func mulAddDiv(a, b, c, d int64) int64 {
	high, low := bits.Mul64(uint64(a), uint64(b))
	low, carry := bits.Add64(low, uint64(c), 0)
	if high += carry; high >= uint64(d) {
		return math.MaxInt64
	}
	n, _ := bits.Div64(high, low, uint64(d))
	return int64(min(n, math.MaxInt64))
}

func gcd(a, b int64) int64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}
