package ratelimit

import (
	"crypto/rand"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/adminapi"
)

// processDenials are the recent denials of this process. They survive reloads.
var processDenials denialRecords

// denialRecords are recent denials by their IDs, for operators who get an ID from a client. The zero
// value is ready, and has no records. It is safe for concurrent use.
type denialRecords struct {
	mu             sync.Mutex
	byID           map[string]*denialRecord
	oldest, newest *denialRecord
	bytes          int         // of the texts of all records
	timer          *time.Timer // runs while there are records
}

const (
	// maxDenialRecords and maxDenialRecordBytes bound the records. New ones push out the oldest.
	maxDenialRecords     = 10_000
	maxDenialRecordBytes = 16 << 20
	// denialRecordAge is how long a denial is known. Denials share an ID for up to a minute, so
	// each of them is known for ten minutes.
	denialRecordAge = 10*time.Minute + denialIDTicks*time.Second
	// maxRecordedKey is how many bytes of a key a record has.
	maxRecordedKey = 1024
)

// denialRecord is a denial as operators see it, and the keys of the request. It refers to nothing of
// its configuration, which can end before the record.
type denialRecord struct {
	adminapi.Denial
	zones []recordedZone
	next  *denialRecord
}

// recordedZone is a zone that the denied request met.
type recordedZone struct {
	zone        string
	key         shownKey // of up to maxRecordedKey bytes
	alternative int      // of the zone's key, from 0
	plan        string   // the value that chose the limits; "" if no value of the plan did
	factor      int64    // as in [zoneEntry]
	cost        int64
}

// newDenialRecord returns the record of a denial. The entries are all zones of the request. With
// hash_keys the record has no texts that keys are made of, as the log.
func newDenialRecord(d *denial, entries []zoneEntry) *denialRecord {
	record := &denialRecord{Denial: adminapi.Denial{
		ID: d.id, At: time.Now(), Shadow: d.shadow, Method: strings.Clone(d.method),
		Decision: adminapi.Decision{Zone: d.zone, Reason: d.reason, Limit: d.limitDescription()},
	}}
	if d.wait < algorithms.Forever {
		seconds := fractionalSeconds(d.wait)
		record.RetryAfter = &seconds
	}
	secret := d.handler.hashSecret
	if secret == "" {
		record.Host, record.Path, record.ClientIP = strings.Clone(d.host), strings.Clone(d.path), strings.Clone(clipText(d.clientIP))
	}
	for i := range entries {
		e := &entries[i]
		record.zones = append(record.zones, recordedZone{
			e.zone.name, newShownKey(secret, e.Key, maxRecordedKey), e.alternative, e.planValue(), e.factor, e.Cost,
		})
	}
	return record
}

// planValue returns the value of the zone's plan that chose the limits of the request.
func (e *zoneEntry) planValue() string {
	if e.zone.policy != nil {
		for value, set := range e.zone.planSets {
			if set == e.limitSet {
				return value
			}
		}
	}
	return ""
}

// textBytes returns the size of the texts that come from the request.
func (r *denialRecord) textBytes() int {
	n := len(r.Method) + len(r.Host) + len(r.Path) + len(r.ClientIP)
	for _, z := range r.zones {
		n += len(z.key.text)
	}
	return n
}

// add adds a record, and drops those that are too old or too many.
func (r *denialRecords) add(record *denialRecord) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.newest == nil {
		r.byID, r.oldest = make(map[string]*denialRecord), record
	} else {
		r.newest.next = record
	}
	r.newest, r.byID[record.ID] = record, record
	r.bytes += record.textBytes()
	r.dropLocked(time.Now())
	if r.timer == nil {
		r.timer = time.AfterFunc(denialRecordAge, r.expire)
	}
}

// dropLocked drops the oldest records until the rest is young and small enough.
func (r *denialRecords) dropLocked(now time.Time) {
	for r.oldest != nil && (len(r.byID) > maxDenialRecords || r.bytes > maxDenialRecordBytes || now.Sub(r.oldest.At) >= denialRecordAge) {
		r.bytes -= r.oldest.textBytes()
		delete(r.byID, r.oldest.ID)
		r.oldest = r.oldest.next
	}
	if r.oldest == nil {
		r.newest, r.byID = nil, nil // a map doesn't shrink
	}
}

// expire drops records that are too old, now and later.
func (r *denialRecords) expire() {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	r.dropLocked(now)
	r.timer = nil
	if r.oldest != nil {
		r.timer = time.AfterFunc(denialRecordAge-now.Sub(r.oldest.At), r.expire)
	}
}

// lookUp returns the record with an ID as an operator may have typed it.
func (r *denialRecords) lookUp(id string) (*denialRecord, error) {
	proper := strings.NewReplacer("o", "0", "i", "1", "l", "1").Replace(strings.ToLower(strings.TrimSpace(id)))
	r.mu.Lock()
	defer r.mu.Unlock()
	if record := r.byID[proper]; record != nil {
		return record, nil
	}
	return nil, adminError(http.StatusNotFound, "the denial ID %.64q is unknown here: another instance denied the request, "+
		"the denial is older than ten minutes, or newer denials took its place; "+
		"ask the instance that denied the request, or describe the request with url", id)
}

// newDenialID returns a new denial ID. Nobody can guess it. It has no letters that look like digits.
func newDenialID() string {
	const alphabet = "0123456789abcdefghjkmnpqrstvwxyz" // of 32
	var id [10]byte
	_, _ = rand.Read(id[:]) // never fails
	for i, random := range id {
		id[i] = alphabet[random%32]
	}
	return string(id[:])
}
