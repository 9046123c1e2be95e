// Package wire writes the messages to the script in Redis, and reads its replies. A message holds operations.
// operations.lua documents the formats of both. The package never sends a message.
package wire

import (
	"cmp"
	"encoding/binary"
	"math"
	"slices"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// The kinds of operations.
const (
	kindTake   = 1
	kindRefund = 2
	kindSet    = 3
)

// headSize is the size of the head of a message, and operationHead that of an operation.
const (
	headSize      = 8 + 8 + 8 + 7 + 8 + 2 + 4
	operationHead = 1 + 2 + 2 + 4 + 2 + 2
)

// Message is a list of operations for one call of the script. Each method with the name of an
// operation appends one. The memory of a Message is reused. The zero Message needs a Reset.
type Message struct {
	names Names
	body  []byte
	// The keys of strings and of logs.
	strings, logs keyNames
	// The limits that the operations refer to, and the position of each. Equal limits are written
	// once.
	limits  []byte
	limitAt map[string]int

	now         algorithms.Micros // see Head.Expected
	notBefore   algorithms.Micros
	notAfter    algorithms.Micros // without calendars
	limitsUntil algorithms.Micros // the last instant at which all calendars are right; 0: there is none

	largestCount int // see Fits
}

// keyNames are names of keys, concatenated in text. [Message.AppendKeys] makes strings of them.
type keyNames struct {
	text []byte
	ends []int
}

func (k *keyNames) reset() { k.text, k.ends = k.text[:0], k.ends[:0] }

func (k *keyNames) end() { k.ends = append(k.ends, len(k.text)) }

// Head is the content of the head of a message.
type Head struct {
	// Now is the instant of all operations; 0 stands for the time of Redis.
	Now algorithms.Micros
	// NotBefore and NotAfter are the first and the last instant at which the script may run the operations; 0 stands
	// for no bound. Calendars narrow them: to the period that Expected is in, and the next one.
	NotBefore, NotAfter algorithms.Micros
	// Expected is about the instant at which the script will run; 0 stands for Now.
	Expected algorithms.Micros
	// Instance is the instance whose slots the message takes and sets. Its counts live for
	// SlotsExpiry.
	Instance    algorithms.Instance
	SlotsExpiry algorithms.Micros
}

// Reset begins a new message.
func (m *Message) Reset(names Names, h Head) {
	m.names = names
	m.strings.reset()
	m.logs.reset()
	m.body = m.body[:0]
	m.now, m.notBefore, m.notAfter, m.limitsUntil = cmp.Or(h.Expected, h.Now), h.NotBefore, h.NotAfter, 0
	m.appendNumber(h.Now)
	m.body = append(m.body, make([]byte, 2*8)...) // see Argument
	m.body = append(m.body, h.Instance[:]...)
	m.appendNumber(h.SlotsExpiry)
	m.body = append(m.body, 0, 0, 0, 0, 0, 0) // see Argument
	m.limits = m.limits[:0]
	clear(m.limitAt)
	m.largestCount = 0
}

// Take appends the operation of [store.Store.Take].
func (m *Message) Take(requests []store.ZoneRequest) {
	done, overrides := m.beginOperation(kindTake, 0, len(requests)), 0
	for i := range requests {
		if r := &requests[i]; r.Override != nil {
			overrides++
			m.body = binary.LittleEndian.AppendUint32(m.body, uint32(len(r.Override.Text)))
			m.body = append(m.body, r.Override.Text...)
			m.appendKey(&m.strings, r.Key, store.OverrideID(r.Zone))
		}
	}
	m.putCount(done.body+1, overrides)
	for i := range requests {
		m.appendZone(&requests[i])
	}
	m.endOperation(done)
}

// Charge appends an operation that makes the Charge of a correction.
func (m *Message) Charge(c *store.Correction) {
	done, r := m.beginOperation(kindTake, 0, 1), c.ChargeRequest()
	m.appendZone(&r)
	m.endOperation(done)
}

func (m *Message) appendZone(r *store.ZoneRequest) {
	kind := boolByte(r.Shadow) + 2*boolByte(r.Peek)
	m.body = append(m.body, byte(r.Mode), kind, 0, 0, boolByte(r.Slots != nil)+2*boolByte(r.ReservedID != ""), boolByte(r.Ban != nil))
	m.putCount(len(m.body)-4, len(r.Limits))
	m.appendNumber(r.Cost)
	m.appendNumber(r.MaxWait)
	for i := range r.Limits {
		m.appendLimit(r.Key, &r.Limits[i])
	}
	if r.Slots != nil {
		m.appendNumber(r.Slots.Limit)
		m.appendLine(r.Line, !r.WaitsForReserved, r.Tenant)
		m.appendKey(&m.strings, r.Key, r.Slots.ID)
	}
	if r.ReservedID != "" {
		m.appendLine(r.Line, r.WaitsForReserved, store.Tenant{})
		m.appendKey(&m.strings, r.Key, r.ReservedID)
	}
	if r.Ban != nil {
		m.body = r.Ban.AppendMessage(m.body)
		m.appendKey(&m.strings, r.Key, r.Ban.ID)
	}
}

// appendLine appends where a request of a tenant stands. If it waits for something else, it appends only for how long.
func (m *Message) appendLine(l store.SlotLine, forThis bool, t store.Tenant) {
	if !forThis {
		l = store.SlotLine{Waited: l.Waited}
	}
	hasWaited := l != store.SlotLine{}
	m.body = append(m.body, boolByte(hasWaited)+2*boolByte(t.ID != 0))
	if t.ID != 0 {
		m.body = binary.LittleEndian.AppendUint16(appendTenant(m.body, t.ID), uint16(t.Weight))
	}
	if !hasWaited {
		return
	}
	m.appendNumber(l.Waited)
	m.appendNumber(l.Waiting)
	for _, waited := range l.Marks {
		m.appendNumber(waited)
	}
}

func boolByte(is bool) byte {
	if is {
		return 1
	}
	return 0
}

// Refund appends an operation that refunds n events to every limit of a request, but at most the
// charged events. With release it also ends the reservation of the request. If there is nothing to do, it appends nothing.
func (m *Message) Refund(r *store.ZoneRequest, n int64, release bool) {
	number, reservations := 0, int(boolByte(release))
	for _, d := range r.Outcome.Decisions {
		if d.Charged > 0 && n > 0 {
			number++
		}
	}
	if number+reservations == 0 {
		return
	}
	done := m.beginOperation(kindRefund, number, reservations)
	for i, d := range r.Outcome.Decisions {
		if d.Charged == 0 || n == 0 {
			continue
		}
		m.appendLimit(r.Key, &r.Limits[i])
		m.appendNumber(d.Receipt.A)
		m.appendNumber(d.Receipt.B)
		m.appendNumber(d.Receipt.At)
		m.appendNumber(min(n, d.Charged))
	}
	if release {
		m.appendNumber(r.Outcome.Reserved.Added)
		m.appendKey(&m.strings, r.Key, r.ReservedID)
	}
	m.endOperation(done)
}

// SetSlots appends an operation that sets this instance's count of slots, which [Names.CountName] names. With endsLine it also
// says that no request of the tenant waits for them any more in this instance.
func (m *Message) SetSlots(countName string, count int64, endsLine bool) {
	done := m.beginOperation(kindSet, 0, 0)
	m.appendNumber(count)
	at := len(countName) - tenantSize
	m.body = append(append(m.body, boolByte(endsLine)), countName[at:]...)
	m.strings.text = append(m.strings.text, countName[:at]...)
	m.strings.end()
	m.endOperation(done)
}

// appendLimit appends a limit with its burst, and the key of its budget.
func (m *Message) appendLimit(key string, l *store.Limit) {
	text, burst := l.Message(m.now)
	at, ok := m.limitAt[text]
	if !ok {
		m.boundPeriods(l)
		at = len(m.limits)
		m.limits = append(m.limits, text...)
		if m.limitAt == nil {
			m.limitAt = make(map[string]int)
		}
		m.limitAt[text] = at
	}
	m.body = binary.LittleEndian.AppendUint32(m.body, uint32(at))
	m.appendNumber(burst)
	if l.Algorithm().IsLog() {
		m.appendKey(&m.logs, key, l.ID)
	} else {
		m.appendKey(&m.strings, key, l.ID)
	}
}

// boundPeriods bounds the instants at which the script may read a calendar.
func (m *Message) boundPeriods(l *store.Limit) {
	if start, _, end := l.Periods(m.now); end > 0 {
		m.notBefore, m.limitsUntil = max(m.notBefore, start), earliest(m.limitsUntil, end-1)
	}
}

func (m *Message) appendKey(k *keyNames, key, id string) {
	k.text = m.names.AppendName(k.text, key, id)
	k.end()
}

func (m *Message) appendNumber(n int64) {
	m.body = binary.LittleEndian.AppendUint64(m.body, math.Float64bits(float64(n)))
}

// operationStart holds the positions at which an operation begins.
type operationStart struct{ body, strings, logs int }

// beginOperation begins an operation. The meaning of a and b depends on its kind.
func (m *Message) beginOperation(kind byte, a, b int) operationStart {
	begin := operationStart{len(m.body), len(m.strings.ends), len(m.logs.ends)}
	m.body = append(m.body, kind, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
	m.putCount(begin.body+1, a)
	m.putCount(begin.body+3, b)
	return begin
}

// endOperation completes the head of an operation: its length, and the numbers of its keys.
func (m *Message) endOperation(begin operationStart) {
	binary.LittleEndian.PutUint32(m.body[begin.body+5:], uint32(len(m.body)-begin.body-operationHead))
	m.putCount(begin.body+9, len(m.strings.ends)-begin.strings)
	m.putCount(begin.body+11, len(m.logs.ends)-begin.logs)
}

// putCount writes a count at a position of the body.
func (m *Message) putCount(at, n int) {
	m.largestCount = max(m.largestCount, n)
	binary.LittleEndian.PutUint16(m.body[at:], uint16(n))
}

// Fits reports whether the format has room for all counts and lengths of the message. If it has no room, the
// message is wrong, and must not be sent.
func (m *Message) Fits() bool {
	return max(m.largestCount, len(m.logs.ends)) <= math.MaxUint16 && uint64(len(m.body)+len(m.limits)) <= math.MaxUint32
}

// AppendKeys appends the names of the keys in the order of KEYS.
func (m *Message) AppendKeys(names []string) []string {
	for _, k := range []*keyNames{&m.strings, &m.logs} {
		text, begin := string(k.text), 0
		for _, end := range k.ends {
			names = append(names, text[begin:end])
			begin = end
		}
	}
	return names
}

// Argument returns the last argument of the script. It is valid until the next change of the
// Message.
func (m *Message) Argument() []byte {
	binary.LittleEndian.PutUint64(m.body[8:], math.Float64bits(float64(m.notBefore)))
	binary.LittleEndian.PutUint64(m.body[16:], math.Float64bits(float64(earliest(m.notAfter, m.limitsUntil))))
	binary.LittleEndian.PutUint16(m.body[headSize-6:], uint16(len(m.logs.ends)))
	binary.LittleEndian.PutUint32(m.body[headSize-4:], uint32(len(m.body)-headSize))
	m.body = slices.Grow(m.body, len(m.limits)) // also for the next message
	return append(m.body, m.limits...)
}

// earliest returns the earlier one of two instants, of which 0 is none.
func earliest(a, b algorithms.Micros) algorithms.Micros {
	if a == 0 || b == 0 {
		return max(a, b)
	}
	return min(a, b)
}
