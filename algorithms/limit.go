package algorithms

import (
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
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
	unit   Micros  // of a sliding_window: see slidingWindowUnit
	args   []int64 // what the algorithm's script is told
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
	case q.Align != "" && !algorithm.Takes("align"):
		return nil, fmt.Errorf("%s has no option align: it belongs to fixed_window", algorithm.Name)
	case q.Align != "" && q.Align != "first" && q.Align != "clock":
		return nil, fmt.Errorf("align must be first or clock, not %q", q.Align)
	case q.MinInterval != 0 && !algorithm.Takes("min_interval"):
		return nil, fmt.Errorf("%s has no option min_interval: it belongs to sliding_log", algorithm.Name)
	case q.MinInterval < 0 || q.MinInterval > longest:
		return nil, fmt.Errorf("min_interval must be from 1us to %s, not %s", describeDuration(longest), describeDuration(q.MinInterval))
	case q.Events > exact/4 || q.Burst > exact/4 || q.Window > longest:
		return nil, errBound
	}
	l := &Limit{Quota: q, algorithm: algorithm}
	if l.Burst == 0 {
		l.Burst = l.Events
	}
	if l.Align == "first" {
		l.Align = ""
	}
	d := gcd(q.Events, q.Window)
	l.events, l.window = q.Events/d, q.Window/d
	if err := algorithm.bound(l); err != nil {
		return nil, err
	}
	l.args = algorithm.args(l)
	return l, nil
}

// Algorithm returns the limit's algorithm.
func (l *Limit) Algorithm() *Algorithm { return l.algorithm }

// Args returns what the algorithm's script is told of this limit. Don't change it.
func (l *Limit) Args() []int64 { return l.args }

// Fingerprint returns 11 URL-safe characters that differ where the algorithm,
// events, window, burst or the limit's own options do, however they were written.
func (l *Limit) Fingerprint() string {
	text := fmt.Sprint(l.algorithm.Name, " ", l.Events, " ", l.Window, " ", l.Burst, " ", l.Align)
	if l.MinInterval != 0 {
		text += fmt.Sprint(" min_interval ", l.MinInterval)
	}
	sum := sha256.Sum256([]byte(text))
	return base64.RawURLEncoding.EncodeToString(sum[:8])
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
	if near, ok := largest(q, func(q *Quota) *int64 { return &q.Burst }, fits); ok && algorithm.Burst {
		return "the largest burst that fits is " + strconv.FormatInt(near.Burst, 10)
	}
	if near, ok := largest(q, func(q *Quota) *int64 { return &q.Window }, fits); ok {
		return "the longest window that fits is " + describeDuration(near.Window)
	}
	near, _ := largest(q, func(q *Quota) *int64 { return &q.Events }, fits)
	return fmt.Sprintf("write at most %d events and a window of at most %s", max(near.Events, 1_000_000), describeDuration(longest/1_000_000*1_000_000))
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

func gcd(a, b int64) int64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}
