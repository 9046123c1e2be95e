package simulate

import (
	"errors"
	"io"
	"math"
	"runtime"
	"runtime/debug"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/accesslog"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/simulate/report"
)

// ReplayOptions say what to replay.
type ReplayOptions struct {
	Log            *accesslog.Log // Replay closes it
	Files          []string       // the names of the files in Log
	Configurations []NamedConfiguration
	Workers        int // goroutines that parse lines and lead requests through routes (default GOMAXPROCS)
	// NewProposer returns the Proposer for the requests of a configuration. If it is nil, Replay proposes no limits.
	NewProposer func(Configuration) Proposer
}

// Proposer is an Observer that proposes limits when it has seen all requests.
type Proposer interface {
	Observer
	// Target returns the share that a proposed limit may deny, as a text.
	Target() string
	// Propose adds its proposals to the zones of the report, by their names.
	Propose(r *report.Configuration)
}

// NamedConfiguration is a configuration and its name, which is that of its file.
type NamedConfiguration struct {
	Name        string
	ZoneOptions string // the options of the only zone; empty if a file has the configuration
	Configuration
}

// maxBrokenLines is how many broken lines a report has. All of them are counted.
const maxBrokenLines = 5

// Replay replays a log through one configuration, or through two to compare them. The report depends only on
// the log and on the configurations.
//
// One goroutine reads the log. Workers parse the lines, and lead the requests through the routes. The caller's
// goroutine puts the requests in order, and decides them.
func Replay(o ReplayOptions) (*report.Report, error) {
	defer runtime.KeepAlive(newBallast())
	r := newReplayer(o)
	if err := r.readLog(); err != nil {
		return nil, err
	}
	return r.finish(), nil
}

// newBallast returns memory that is never used, so it takes no memory of the machine. The garbage collector
// begins when the heap has doubled. With the ballast, a small heap more than doubles before that, and a large
// one grows by hardly more than it would without. A limit on the memory of the process would count the
// ballast. With this limit there is no ballast.
func newBallast() []byte {
	if debug.SetMemoryLimit(-1) < math.MaxInt64 {
		return nil
	}
	return make([]byte, ballastSize)
}

const ballastSize = 256 << 20

// replayer is a run of Replay. Only one goroutine uses it.
type replayer struct {
	ReplayOptions
	log         report.Log
	first, last algorithms.Micros // starts
	order       order
	sides       []side    // one for each configuration
	comparer    *Comparer // nil with one configuration
	decided     int64     // requests
}

// side is the simulation in one configuration.
type side struct {
	decider    *Decider
	statistics *Statistics
	proposer   Proposer // nil without proposals
}

func newReplayer(o ReplayOptions) *replayer {
	r := &replayer{ReplayOptions: o, log: report.Log{Files: o.Files}}
	if r.Workers == 0 {
		r.Workers = runtime.GOMAXPROCS(0)
	}
	r.order = order{window: maxUnsorted, passOn: r.decide}
	if len(o.Configurations) == 2 {
		r.comparer = NewComparer(o.Configurations[0], o.Configurations[1])
	}
	for i, c := range o.Configurations {
		s := side{statistics: NewStatistics(c)}
		observers := []Observer{s.statistics}
		if o.NewProposer != nil {
			s.proposer = o.NewProposer(c)
			observers = append(observers, s.proposer)
		}
		if r.comparer != nil {
			observers = append(observers, []Observer{r.comparer.First(), r.comparer.Second()}[i])
		}
		s.decider = NewDecider(c, observers...)
		r.sides = append(r.sides, s)
	}
	return r
}

// readLog replays the whole log.
func (r *replayer) readLog() error {
	// The channels bound how many batches there are. A batch is in both of them.
	unparsed, ordered := make(chan *batch, 2*r.Workers), make(chan *batch, 2*r.Workers)
	var readError error // may be read when ordered is closed
	go func() {
		defer r.Log.Close()
		defer close(unparsed)
		defer close(ordered)
		for {
			chunk, err := r.Log.Next()
			if err == io.EOF {
				return
			}
			if err != nil {
				readError = err
				return
			}
			b := &batch{chunk: chunk, parsed: make(chan struct{})}
			ordered <- b
			unparsed <- b
		}
	}()
	for range r.Workers {
		go func() {
			w := lineReader{configurations: r.Configurations, parser: r.Log.NewParser()}
			for b := range unparsed {
				w.parse(b)
				close(b.parsed)
			}
		}()
	}
	for b := range ordered {
		<-b.parsed
		r.replay(b)
	}
	return readError
}

// replay replays the requests of a batch.
func (r *replayer) replay(b *batch) {
	r.log.Lines += b.lines
	r.log.OtherLines += b.other
	r.log.BrokenLines += b.broken
	r.log.Broken = append(r.log.Broken, b.firstBroken[:min(len(b.firstBroken), maxBrokenLines-len(r.log.Broken))]...)
	for i := range b.requests {
		v := b.requests[i][0]
		if r.log.Requests == 0 {
			r.first, r.last = v.Start, v.Start
		}
		r.first, r.last = min(r.first, v.Start), max(r.last, v.Start)
		r.log.Requests++
		if v.WasDenied {
			r.log.DeniedBefore++
		}
		r.order.add(b.requests[i])
	}
}

// decide decides the next request in each configuration.
func (r *replayer) decide(visits logged) {
	for i := range r.sides {
		visits[i].Number = r.decided
		r.sides[i].decider.Decide(visits[i])
	}
	r.decided++
}

// finish decides the requests that are left, and returns the report.
func (r *replayer) finish() *report.Report {
	r.order.finish()
	r.log.LateRequests = r.order.late
	if r.log.Requests > 0 {
		r.log.From, r.log.To = timeOf(r.first), timeOf(r.last)
	}
	all := &report.Report{Log: r.log}
	for i, s := range r.sides {
		s.decider.Finish()
		c := s.statistics.Report()
		c.Name, c.ZoneOptions = r.Configurations[i].Name, r.Configurations[i].ZoneOptions
		if s.proposer != nil {
			all.Propose = s.proposer.Target()
			s.proposer.Propose(&c)
		}
		c.NoteDoubts(s.decider.Overflowed())
		all.Configurations = append(all.Configurations, c)
	}
	if r.comparer != nil {
		all.Comparison = r.comparer.Report()
	}
	return all
}

// batch is the lines of a chunk, and what a worker makes of them.
type batch struct {
	chunk  *accesslog.Chunk
	parsed chan struct{} // closed when the rest is there

	requests             []logged
	lines, other, broken int64
	firstBroken          []report.BrokenLine
}

// lineReader parses lines, and leads requests through the routes. It reuses the memory of a request for the next
// one.
type lineReader struct {
	configurations []NamedConfiguration
	parser         *accesslog.Parser
	request        accesslog.Request
}

// parse parses the lines of a batch.
func (r *lineReader) parse(b *batch) {
	b.chunk.Each(func(line accesslog.Line) {
		b.lines++
		visits, err := r.visit(line)
		switch {
		case err == nil:
			b.requests = append(b.requests, visits)
		case errors.Is(err, accesslog.ErrNotAccess):
			b.other++
		default:
			if b.broken++; len(b.firstBroken) < maxBrokenLines {
				b.firstBroken = append(b.firstBroken, report.BrokenLine{File: line.File, Line: line.Number, Error: err.Error()})
			}
		}
	})
	b.chunk = nil
}

// visit leads the request of a line through the routes of all configurations.
func (r *lineReader) visit(line accesslog.Line) (visits logged, err error) {
	if line.Err != nil {
		return visits, line.Err
	}
	if err := r.parser.Parse(line.Text, &r.request); err != nil {
		return visits, err
	}
	for i, c := range r.configurations {
		if visits[i], err = c.Visit(&r.request); err != nil {
			return visits, err
		}
	}
	return visits, nil
}
