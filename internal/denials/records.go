package denials

import (
	"crypto/rand"
	"strings"
	"sync"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/adminapi"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/keys"
)

// processRecords are the recent denials of this process. They survive reloads.
var processRecords records

// LookUp returns the record of a denial by its ID, as an operator may have typed it. LookUp returns nil if this process
// has no such record, or has dropped it.
func LookUp(id string) *Record { return processRecords.lookUp(id) }

// records are recent denials by their IDs, for operators who get an ID from a client. The zero
// value is ready, and has no records. It is safe for concurrent use.
type records struct {
	mu             sync.Mutex
	byID           map[string]*Record
	oldest, newest *Record
	bytes          int         // of the texts of all records
	timer          *time.Timer // runs while there are records
}

const (
	// maxRecords and maxRecordBytes bound the records. New ones push out the oldest.
	maxRecords     = 10_000
	maxRecordBytes = 16 << 20
	// recordAge is how long a denial is known. Denials share an ID for up to a minute, so
	// each of them is known for ten minutes.
	recordAge = 10*time.Minute + idTicks*time.Second
	// maxRecordedKey is how many bytes of a key a record has.
	maxRecordedKey = 1024
)

// Record is a denial as operators see it, and the keys of the request. It refers to nothing of
// its configuration, which can end before the record.
type Record struct {
	adminapi.Denial
	Zones []RecordedZone // all zones of the request
	next  *Record
}

// RecordedZone is a zone that the denied request met.
type RecordedZone struct {
	Zone        string
	Key         keys.Shown // as [Source.RecordedKey] returns it
	Alternative int        // of the zone's key, from 0
	Plan        string     // the value that chose the limits; "" if no value of the plan did
	Factor      int64      // in millionths; 0 for a look-up of a ban
	Cost        int64
}

// RecordedKey returns a key as a [Record] has it.
func (s *Source) RecordedKey(key string) keys.Shown {
	return keys.NewShown(s.HashSecret, key, maxRecordedKey)
}

// newRecord returns the record of a denial. With hash_keys it has no texts that
// keys are made of, as the log.
func newRecord(d *Denial, zones []RecordedZone) *Record {
	record := &Record{Zones: zones, Denial: adminapi.Denial{
		ID: d.id, At: time.Now(), Shadow: d.Shadow, Method: strings.Clone(d.Method),
		Decision: adminapi.Decision{Zone: d.Zone, Reason: d.Reason, Limit: d.limitDescription()},
	}}
	if d.Wait < algorithms.Forever {
		seconds := float64(d.Wait) / 1e6
		record.RetryAfter = &seconds
	}
	if !d.Source.hashesKeys() {
		record.Host, record.Path, record.ClientIP = strings.Clone(d.Host), strings.Clone(d.Path), strings.Clone(clipText(d.ClientIP))
	}
	return record
}

// textBytes returns the size of the texts that come from the request.
func (r *Record) textBytes() int {
	n := len(r.Method) + len(r.Host) + len(r.Path) + len(r.ClientIP)
	for _, z := range r.Zones {
		n += len(z.Key.Text)
	}
	return n
}

// add adds a record, and drops those that are too old or too many.
func (r *records) add(record *Record) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.newest == nil {
		r.byID, r.oldest = make(map[string]*Record), record
	} else {
		r.newest.next = record
	}
	r.newest, r.byID[record.ID] = record, record
	r.bytes += record.textBytes()
	r.dropLocked(time.Now())
	if r.timer == nil {
		r.timer = time.AfterFunc(recordAge, r.expire)
	}
}

// dropLocked drops the oldest records until the rest is young and small enough.
func (r *records) dropLocked(now time.Time) {
	for r.oldest != nil && (len(r.byID) > maxRecords || r.bytes > maxRecordBytes || now.Sub(r.oldest.At) >= recordAge) {
		r.bytes -= r.oldest.textBytes()
		delete(r.byID, r.oldest.ID)
		r.oldest = r.oldest.next
	}
	if r.oldest == nil {
		r.newest, r.byID = nil, nil // a map doesn't shrink
	}
}

// expire drops records that are too old, now and later.
func (r *records) expire() {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	r.dropLocked(now)
	r.timer = nil
	if r.oldest != nil {
		r.timer = time.AfterFunc(recordAge-now.Sub(r.oldest.At), r.expire)
	}
}

// lookUp returns the record with an ID as an operator may have typed it, or nil.
func (r *records) lookUp(id string) *Record {
	proper := strings.NewReplacer("o", "0", "i", "1", "l", "1").Replace(strings.ToLower(strings.TrimSpace(id)))
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.byID[proper]
}

// randomID returns a new denial ID. Nobody can guess it. It has no letters that look like digits.
func randomID() string {
	const alphabet = "0123456789abcdefghjkmnpqrstvwxyz" // of 32
	var id [10]byte
	_, _ = rand.Read(id[:]) // never fails
	for i, random := range id {
		id[i] = alphabet[random%32]
	}
	return string(id[:])
}
