package denials

import (
	"crypto/rand"
	"sync"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/keyhash"
)

// Log reports denials to the log and the events app without flooding them. For each zone
// and key it reports the first denial at once, and later ones together once a second.
// It is safe for concurrent use.
type Log struct {
	report func(Denial)

	mu     sync.Mutex
	recent map[logKey]*Denial // their counts are not yet reported
	keys   map[bool]int       // how many of recent are denials or bans (false), and shares of limits (true)
	timer  *time.Timer        // runs while recent isn't empty
	closed bool
}

// maxLogKeys bounds the keys of recent, and so the lines that are logged per second. Denials of other keys are counted
// together, per zone. Shares of limits have the same bound to themselves, because each is reported only once.
const maxLogKeys = 1000

// idTicks is how many seconds the denials of a key in the table have the same ID. So an ID has few lines in the log.
const idTicks = 60

// logKey identifies the denials that are reported together. The flags are as in [Denial].
type logKey struct {
	zone              string
	key               keyhash.Hash
	percent           int64
	limit             *algorithms.Limit // of which percent are used; otherwise nil
	shadow, ban, hold bool
	overflow          bool
}

// NewLog returns a log that also emits an event for each line.
func NewLog(events *Events) *Log {
	return newLog(func(d Denial) { d.report(events) })
}

func newLog(report func(Denial)) *Log {
	return &Log{report: report, recent: make(map[logKey]*Denial), keys: make(map[bool]int)}
}

// Record reports a denial, now or within a second. It returns the ID of the denial.
func (l *Log) Record(d Denial) (id string) {
	d.count, d.at = 1, time.Now()
	d.Method, d.Host, d.Path = clipText(d.Method), clipText(d.Host), clipText(d.Path)
	if l.add(&d) {
		l.report(d)
	}
	return d.id
}

// add adds a denial to the recent ones. It reports whether the denial must be reported now. The key of d becomes
// the key as it is logged.
func (l *Log) add(d *Denial) (reportNow bool) {
	group := logKey{zone: d.Zone, key: keyHashes.Sum(d.Key), percent: d.Percent, shadow: d.Shadow, ban: d.Ban, hold: d.isHold()}
	isShare := d.Percent > 0
	if isShare {
		group.limit = d.Limit
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	known := l.recent[group]
	if !l.closed && known == nil && l.keys[isShare] >= maxLogKeys {
		group = logKey{zone: d.Zone, percent: d.Percent, shadow: d.Shadow, ban: d.Ban, hold: d.isHold(), overflow: true}
		known, d.overflow = l.recent[group], true
	}
	switch {
	case d.overflow:
		d.Key = ""
	case known != nil && known.Source == d.Source:
		d.Key = known.Key
	default:
		d.Key = d.Source.loggedKey(d.Key)
	}
	if known != nil && !l.closed {
		d.id, d.ticks = known.id, known.ticks
	}
	if d.id == "" && !d.overflow && !d.Ban && !isShare {
		d.id = randomID()
	}
	if l.closed {
		return true
	}
	if known != nil {
		d.count += known.count
		d.cloneTexts(known)
		*known = *d
		return false
	}
	first := *d
	first.count = 0
	first.cloneTexts(&Denial{})
	l.recent[group] = &first
	l.keys[isShare]++
	if l.timer == nil {
		l.timer = time.AfterFunc(time.Second, l.reportRecent)
	}
	return true
}

// reportRecent reports the denials since the last call, and forgets the keys without any.
func (l *Log) reportRecent() {
	l.mu.Lock()
	var due []Denial
	for id, d := range l.recent {
		if d.count == 0 {
			delete(l.recent, id)
			l.keys[id.percent > 0]--
			continue
		}
		due = append(due, *d)
		d.count = 0
		if d.ticks++; d.ticks >= idTicks {
			d.id, d.ticks = "", 0
		}
	}
	l.timer = nil
	if len(l.recent) > 0 {
		l.timer = time.AfterFunc(time.Second, l.reportRecent)
	}
	l.mu.Unlock()
	for _, d := range due {
		l.report(d)
	}
}

// Close reports the recent denials. Later denials are reported at once.
func (l *Log) Close() {
	l.mu.Lock()
	l.closed = true
	if l.timer != nil {
		l.timer.Stop()
	}
	l.mu.Unlock()
	l.reportRecent()
}

// randomID returns a new denial ID. It has no letters that look like digits.
func randomID() string {
	const alphabet = "0123456789abcdefghjkmnpqrstvwxyz" // of 32
	var id [10]byte
	_, _ = rand.Read(id[:]) // never fails
	for i, random := range id {
		id[i] = alphabet[random%32]
	}
	return string(id[:])
}
