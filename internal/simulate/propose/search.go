package propose

import (
	"cmp"
	"iter"
	"math"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/simulate/report"
)

// question asks which of the candidates denies at most a share of recorded requests.
type question struct {
	stream     *stream
	candidates *candidates
	target     Target
	points     int   // about how many points the curve has
	current    int64 // the events of the present limit; 0 if there is none
	// least is the least number of events with which anything can pass.
	least int64
	// highest, if not 0, is the largest number of events worth proposing.
	highest int64
	workers int
}

// tally counts requests and their keys.
type tally struct{ requests, keys int64 }

func (t *tally) add(other tally) { t.requests, t.keys = t.requests+other.requests, t.keys+other.keys }

// judged is a limit, and what it denies.
type judged struct {
	*candidate
	denied tally
}

// fill answers the question with a proposal. It first judges some of all candidates, and then between the
// last one that denies too much and the first one that doesn't. If all deny too much, the proposal has no line.
func (q *question) fill(p *report.Proposal) {
	s := &search{question: q, peaks: make([]int64, q.stream.zone.keys.Len())}
	s.measure()
	curve := s.extend(s.judgeAll(s.grid()))
	p.Requests, p.Keys = s.total.requests, s.total.keys
	var current *judged // nil if there is none, or if it can't be judged
	if at := slices.IndexFunc(curve, func(j judged) bool { return j.events == q.current }); at >= 0 {
		current = &curve[at]
		p.Configured = s.point(current)
	}
	p.Gap = s.widestGap(current, curve)
	fewEnough := func(j judged) bool { return q.target.allows(j.denied, s.total) }
	if at := slices.IndexFunc(curve, fewEnough); at >= 0 {
		chosen := &curve[at]
		if at > 0 {
			var below *judged
			below, chosen = s.narrow(curve[at-1], *chosen, fewEnough)
			p.Next = s.point(below)
			curve = withJudged(curve, *chosen)
		}
		p.Line, p.DeniedRequests, p.DeniedKeys = chosen.line, chosen.denied.requests, chosen.denied.keys
		p.Change = s.change(current, chosen)
	}
	for i := range curve {
		p.Curve = append(p.Curve, *s.point(&curve[i]))
	}
}

// point returns the denials of a limit.
func (s *search) point(j *judged) *report.CurvePoint {
	return &report.CurvePoint{
		Events: j.events, Line: j.line, DeniedRequests: j.denied.requests, DeniedKeys: j.denied.keys,
		RequestShare: float64(j.denied.requests) / float64(max(s.total.requests, 1)),
		KeyShare:     float64(j.denied.keys) / float64(max(s.total.keys, 1)),
	}
}

// withJudged returns a curve with one more point.
func withJudged(curve []judged, j judged) []judged {
	at, found := slices.BinarySearchFunc(curve, j, func(a, b judged) int { return cmp.Compare(a.events, b.events) })
	if found {
		return curve
	}
	return slices.Insert(slices.Clone(curve), at, j)
}

// search is the state of the search for the answer to a question.
type search struct {
	*question
	peaks   []int64 // of the keys; 0 for a key without requests
	highest int64   // of the peaks
	total   tally
}

// grid returns the limits of the curve: from one that denies nearly everybody to one that denies nobody,
// in equal ratios, and the current one.
func (s *search) grid() (limits []*candidate) {
	first, ok := s.candidates.atLeast(1)
	if !ok {
		return nil
	}
	limits = append(limits, first)
	top := s.candidates.eventsFor(max(s.highest, 1))
	if s.question.highest > 0 {
		top = s.question.highest
	}
	last, ok := s.candidates.atLeast(top)
	if !ok {
		if last, ok = s.candidates.atMost(top); !ok {
			return limits
		}
	}
	low := float64(min(max(s.least, 1), last.events))
	ratio := math.Pow(float64(last.events)/low, 1/float64(s.points-1))
	for i := range s.points {
		at := int64(low * math.Pow(ratio, float64(i)))
		if r, ok := s.candidates.atMost(min(at, last.events)); ok {
			limits = append(limits, r)
		}
	}
	limits = append(limits, last)
	if r, ok := s.candidates.with(s.current); s.current > 0 && ok {
		limits = append(limits, r)
	}
	return inOrder(limits)
}

// inOrder sorts limits by their events, and drops repeated ones.
func inOrder(limits []*candidate) []*candidate {
	slices.SortFunc(limits, func(a, b *candidate) int { return cmp.Compare(a.events, b.events) })
	return slices.CompactFunc(limits, func(a, b *candidate) bool { return a.events == b.events })
}

// extend adds larger limits to the curve, while the largest one denies too much, and larger ones deny
// less. Limits that deny by time alone can need more events than the peak.
func (s *search) extend(curve []judged) []judged {
	const factor, tries = 8, 14
	for range tries {
		if s.question.highest > 0 || len(curve) == 0 || !s.candidates.isEndless() {
			return curve
		}
		last := curve[len(curve)-1]
		if s.target.allows(last.denied, s.total) || last.events > largestEvents/factor {
			return curve
		}
		r, ok := s.candidates.atMost(last.events * factor)
		if !ok || r.events <= last.events {
			return curve
		}
		curve = append(curve, s.judgeAll([]*candidate{r})...)
	}
	return curve
}

// narrow returns two adjacent candidates between a and b. Like b, the second one denies few enough. Like a,
// the first one doesn't.
func (s *search) narrow(a, b judged, fewEnough func(judged) bool) (below, chosen *judged) {
	const parts = 8
	from := a.events // no limit is left from here down to a
	for b.events-from > 1 {
		var between []*candidate
		width := max((b.events-from)/parts, 1)
		reached := from
		for n := from + width; n < b.events && len(between) < parts; n += width {
			reached = n
			if r, ok := s.candidates.atMost(n); ok && r.events > from {
				between = append(between, r)
			}
		}
		if len(between) == 0 {
			from = reached
			continue
		}
		judgedOnes := s.judgeAll(inOrder(between))
		passes := slices.IndexFunc(judgedOnes, fewEnough)
		switch {
		case passes < 0:
			a, from = judgedOnes[len(judgedOnes)-1], reached
		case passes == 0:
			b = judgedOnes[0]
		default:
			a, b = judgedOnes[passes-1], judgedOnes[passes]
			from = a.events
		}
	}
	return &a, &b
}

// measure finds the peaks of all keys, and counts requests and keys.
func (s *search) measure() {
	var mu sync.Mutex
	s.eachBucket(1, func(bucket, _ int) {
		meter := s.candidates.meter()
		var total tally
		highest := int64(0)
		for key := range s.keysOf(bucket) {
			meter.reset()
			requests := int64(0)
			s.stream.each(key, func(e request) {
				meter.add(e)
				requests++
			})
			s.peaks[key] = meter.peak()
			highest = max(highest, meter.peak())
			total.add(tally{requests: requests, keys: min(requests, 1)})
		}
		mu.Lock()
		defer mu.Unlock()
		s.total.add(total)
		s.highest = max(s.highest, highest)
	})
}

// judgeAll counts what limits deny.
func (s *search) judgeAll(limits []*candidate) []judged {
	all := make([]judged, len(limits))
	for i, r := range limits {
		all[i].candidate = r
	}
	var mu sync.Mutex
	s.eachBucket(len(limits), func(bucket, part int) {
		for i := part; i < len(limits); i += s.parts(bucket, len(limits)) {
			replay := newLimitReplay(limits[i].limit, s.candidates.maxWait)
			var denied tally
			for key := range s.keysOf(bucket) {
				if limits[i].largestPeak < s.peaks[key] {
					denied.add(s.deniedTo(key, replay))
				}
			}
			mu.Lock()
			all[i].denied.add(denied)
			mu.Unlock()
		}
	})
	return all
}

// deniedTo counts what a limit denies to one key.
func (s *search) deniedTo(key uint32, r *limitReplay) (denied tally) {
	r.reset()
	s.stream.each(key, func(e request) {
		if r.denies(e) {
			denied.requests++
		}
	})
	denied.keys = min(denied.requests, 1)
	return denied
}

// keysOf returns the keys of a bucket.
func (s *search) keysOf(bucket int) iter.Seq[uint32] {
	return func(yield func(uint32) bool) {
		for key := bucket; key < len(s.peaks); key += bucketCount {
			if !yield(uint32(key)) {
				return
			}
		}
	}
}

// parts returns into how many parts the work on n limits is divided for a bucket. It is more than 1 for a
// bucket with many more requests than others, such as that of a zone with one key.
func (s *search) parts(bucket, n int) int {
	if s.stream.buckets[bucket] > 4*s.stream.requests/bucketCount {
		return max(n, 1)
	}
	return 1
}

// eachBucket calls do for the parts of each bucket, in several goroutines. n is the number of limits.
func (s *search) eachBucket(n int, do func(bucket, part int)) {
	type task struct{ bucket, part int }
	var tasks []task
	for bucket := range bucketCount {
		if s.stream.buckets[bucket] > 0 {
			for part := range s.parts(bucket, n) {
				tasks = append(tasks, task{bucket, part})
			}
		}
	}
	var next atomic.Int64
	var running sync.WaitGroup
	for range cmp.Or(s.workers, runtime.GOMAXPROCS(0)) {
		running.Go(func() {
			for at := next.Add(1) - 1; at < int64(len(tasks)); at = next.Add(1) - 1 {
				do(tasks[at].bucket, tasks[at].part)
			}
		})
	}
	running.Wait()
}
