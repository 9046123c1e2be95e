// Package wire is the language between a store and the script in Redis: messages, which hold
// operations, and replies. operations.lua documents both.
package wire

import (
	"encoding/binary"
	"math"

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
	headSize      = 8 + 8 + 16 + 8 + 2 + 4
	operationHead = 1 + 1 + 1 + 4 + 2 + 2
)

// Message is a list of operations for one call of the script. It is written operation by
// operation, and its memory is reused. The zero Message needs a Reset.
type Message struct {
	names Names
	body  []byte
	// The keys of strings and of logs.
	strings, logs keys
	// The limits that the operations refer to, and the position of each. Equal limits are one,
	// however many times they were made.
	limits  []byte
	limitAt map[string]int
}

// keys are the names of keys, one behind the other in text. [Message.AppendKeys] makes strings of
// them.
type keys struct {
	text []byte
	ends []int
}

func (k *keys) reset() { k.text, k.ends = k.text[:0], k.ends[:0] }

func (k *keys) end() { k.ends = append(k.ends, len(k.text)) }

// Head is the content of the head of a message.
type Head struct {
	// Now is the instant of all operations; 0 stands for the time of Redis.
	Now algorithms.Micros
	// NotAfter is the last instant at which the operations may be carried out; 0 stands for no
	// bound.
	NotAfter algorithms.Micros
	// Instance is the instance whose slots the message takes and sets. A count lives for
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
	m.number(h.Now)
	m.number(h.NotAfter)
	m.body = append(m.body, h.Instance[:]...)
	m.number(h.SlotsExpiry)
	m.body = append(m.body, 0, 0, 0, 0, 0, 0) // see Argument
	m.limits = m.limits[:0]
	clear(m.limitAt)
}

// SetNotAfter changes the last instant of the head.
func (m *Message) SetNotAfter(t algorithms.Micros) {
	binary.LittleEndian.PutUint64(m.body[8:], math.Float64bits(float64(t)))
}

// Take appends an operation that does what [store.Store.Take] does.
func (m *Message) Take(requests []store.Request) {
	done := m.operation(kindTake, 0, len(requests))
	for i := range requests {
		if r := &requests[i]; r.Override != nil {
			m.body[done.body+1]++
			m.body = binary.LittleEndian.AppendUint32(m.body, uint32(len(r.Override.Text)))
			m.body = append(m.body, r.Override.Text...)
			m.key(&m.strings, r.Key, store.OverrideID(r.Zone))
		}
	}
	for i := range requests {
		m.zone(&requests[i], requests[i].Mode, requests[i].Cost, requests[i].MaxWait)
	}
	m.finish(done)
}

// Charge appends an operation that charges n events to the limits of a request, as far as there
// is room.
func (m *Message) Charge(r *store.Request, n int64) {
	done := m.operation(kindTake, 0, 1)
	limits := store.Request{Zone: r.Zone, Key: r.Key, Limits: r.Limits}
	m.zone(&limits, algorithms.Force, n, 0)
	m.finish(done)
}

func (m *Message) zone(r *store.Request, mode algorithms.Mode, cost int64, maxWait algorithms.Micros) {
	slots, ban := byte(0), byte(0)
	if r.Slots != nil {
		if slots = 1; r.Peek {
			slots = 2
		}
	}
	if r.Ban != nil {
		ban = 1
	}
	m.body = append(m.body, byte(mode), flag(r.Shadow), byte(len(r.Limits)), slots, ban)
	m.number(cost)
	m.number(maxWait)
	for i := range r.Limits {
		m.limit(r.Key, &r.Limits[i])
	}
	if r.Slots != nil {
		m.number(r.Slots.Limit)
		m.key(&m.strings, r.Key, r.Slots.ID)
	}
	if r.Ban != nil {
		m.body = r.Ban.AppendMessage(m.body)
		m.key(&m.strings, r.Key, r.Ban.ID)
	}
}

func flag(is bool) byte {
	if is {
		return 1
	}
	return 0
}

// Refund appends an operation that gives n events back to every limit of a request, but at most
// the events that were charged. If nothing was charged, it appends nothing and returns false.
func (m *Message) Refund(r *store.Request, n int64) bool {
	number := 0
	for _, d := range r.Outcome.Decisions {
		if d.Charged > 0 {
			number++
		}
	}
	if number == 0 {
		return false
	}
	done := m.operation(kindRefund, number, 0)
	for i, d := range r.Outcome.Decisions {
		if d.Charged == 0 {
			continue
		}
		m.limit(r.Key, &r.Limits[i])
		m.number(d.Receipt.A)
		m.number(d.Receipt.B)
		m.number(d.Receipt.At)
		m.number(min(n, d.Charged))
	}
	m.finish(done)
	return true
}

// Set appends an operation that sets the count of the instance in the slots of a name.
func (m *Message) Set(name string, count int64) {
	done := m.operation(kindSet, 0, 0)
	m.number(count)
	m.strings.text = append(m.strings.text, name...)
	m.strings.end()
	m.finish(done)
}

// limit appends a limit with its burst, and the key of its budget.
func (m *Message) limit(key string, l *store.Limit) {
	text, burst := l.Message()
	at, ok := m.limitAt[text]
	if !ok {
		at = len(m.limits)
		m.limits = append(m.limits, text...)
		if m.limitAt == nil {
			m.limitAt = make(map[string]int)
		}
		m.limitAt[text] = at
	}
	m.body = binary.LittleEndian.AppendUint32(m.body, uint32(at))
	m.number(burst)
	if l.Algorithm().IsLog() {
		m.key(&m.logs, key, l.ID)
	} else {
		m.key(&m.strings, key, l.ID)
	}
}

func (m *Message) key(k *keys, key, id string) {
	k.text = m.names.AppendName(k.text, key, id)
	k.end()
}

func (m *Message) number(n int64) {
	m.body = binary.LittleEndian.AppendUint64(m.body, math.Float64bits(float64(n)))
}

// mark is the position where an operation begins.
type mark struct{ body, strings, logs int }

// operation begins an operation. The meaning of a and b depends on its kind.
func (m *Message) operation(kind byte, a, b int) mark {
	begin := mark{len(m.body), len(m.strings.ends), len(m.logs.ends)}
	m.body = append(m.body, kind, byte(a), byte(b), 0, 0, 0, 0, 0, 0, 0, 0)
	return begin
}

// finish writes the length of an operation, and the numbers of its keys, into its head.
func (m *Message) finish(begin mark) {
	head := m.body[begin.body:]
	binary.LittleEndian.PutUint32(head[3:], uint32(len(head)-operationHead))
	binary.LittleEndian.PutUint16(head[7:], uint16(len(m.strings.ends)-begin.strings))
	binary.LittleEndian.PutUint16(head[9:], uint16(len(m.logs.ends)-begin.logs))
}

// AppendKeys appends the names of the keys, in the order of KEYS.
func (m *Message) AppendKeys(names []string) []string {
	for _, k := range []*keys{&m.strings, &m.logs} {
		text, begin := string(k.text), 0
		for _, end := range k.ends {
			names = append(names, text[begin:end])
			begin = end
		}
	}
	return names
}

// Argument returns the message itself, the only argument of the script. It is valid until the
// next change.
func (m *Message) Argument() []byte {
	binary.LittleEndian.PutUint16(m.body[headSize-6:], uint16(len(m.logs.ends)))
	binary.LittleEndian.PutUint32(m.body[headSize-4:], uint32(len(m.body)-headSize))
	return append(m.body, m.limits...)
}
