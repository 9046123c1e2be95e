package slots_test

import (
	"container/heap"
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/wire/wiretest"
	"github.com/caddy-rate-limit/caddy-rate-limit/redisstore/internal/slots"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

const (
	millisecond slots.Micros = 1000
	second                   = 1000 * millisecond
	expiry                   = algorithms.SlotsExpiry
	timeout                  = 100 * millisecond
)

// model is a world of instances, each with a Table, and one Redis. It knows every request, and
// panics with a violation when slots are not as promised. All of it follows from the seed.
type model struct {
	*rand.Rand
	limit  int64
	now    slots.Micros
	offset slots.Micros // of Redis' clock
	events events
	redis  map[string][]byte
	copies []map[string][]byte // older states of redis
	alive  []*instance
	born   int
	lossy  int  // how many messages of 100 have an accident
	gives  bool // messages can give slots back, as they do with reserved events; takes overtake them
	keys   map[string]*keyModel
	denied int
	served int
}

// keyModel holds what the model expects of a key.
type keyModel struct {
	requests []*request
	// allowed is how many may be in flight: the limit, and more after Redis lost counts, until
	// each of the instances has written again. unwritten holds since when it has not.
	allowed   int64
	unwritten map[*instance]slots.Micros
}

type instance struct {
	id      wiretest.Holder // one of two tenants of a process
	table   *slots.Table
	dead    bool
	waiting map[string][]*request
	giving  map[string]int64 // slots to give back by the next message, as reserved events are
	setting int              // messages in flight that only set
}

// request is a request that holds a slot, or whose slot is on its way to it.
type request struct {
	at      *instance
	key     string
	running bool // the instance knows
	counted bool // Redis does
	done    func(taken bool, err error)
}

type message struct {
	from     *instance
	key      string
	op       slots.Op
	takes    []*request
	gives    int64
	locals   []*request // not counted yet, and part of a Set
	built    slots.Micros
	until    slots.Micros
	notAfter slots.Micros // until, by Redis' clock
	answered bool         // the reply will arrive
	late     bool
	found    int64
	taken    []*request
	ends     func()
}

type violation string

func (m *model) violated(format string, args ...any) {
	panic(violation(fmt.Sprintf("at %.3fs: ", float64(m.now)/1e6) + fmt.Sprintf(format, args...)))
}

func newModel(seed uint64, limit int64, instances int, keys ...string) *model {
	m := &model{
		Rand: rand.New(rand.NewPCG(seed, 0)), limit: limit, offset: 1e15,
		redis: map[string][]byte{}, keys: map[string]*keyModel{},
	}
	for range instances {
		m.start()
	}
	for _, key := range keys {
		m.keys[key] = &keyModel{allowed: limit, unwritten: map[*instance]slots.Micros{}}
	}
	m.tick()
	return m
}

func (m *model) start() {
	m.born++
	id := wiretest.Holder{Instance: algorithms.Instance{byte(m.born / 2), byte(m.born >> 9)}, Tenant: store.Tenant{ID: uint64(m.born % 2)}}
	m.alive = append(m.alive, &instance{id: id, table: slots.New(algorithms.SlotsExpiry), waiting: map[string][]*request{}, giving: map[string]int64{}})
}

func (m *model) between(a, b slots.Micros) slots.Micros { return a + m.Int64N(b-a+1) }

// Time.

type event struct {
	at, order slots.Micros
	do        func()
}

type events []event

func (e events) Len() int { return len(e) }
func (e events) Less(i, j int) bool {
	return e[i].at < e[j].at || e[i].at == e[j].at && e[i].order < e[j].order
}
func (e events) Swap(i, j int) { e[i], e[j] = e[j], e[i] }
func (e *events) Push(x any)   { *e = append(*e, x.(event)) }
func (e *events) Pop() any {
	last := (*e)[len(*e)-1]
	*e = (*e)[:len(*e)-1]
	return last
}

func (m *model) after(d slots.Micros, do func()) {
	heap.Push(&m.events, event{m.now + d, m.Int64(), do})
}

// pass lets time pass.
func (m *model) pass(d slots.Micros) {
	end := m.now + d
	for m.events[0].at <= end {
		e := heap.Pop(&m.events).(event)
		m.now = e.at
		e.do()
	}
	m.now = end
}

// tick runs 20 times a second for each instance.
func (m *model) tick() {
	for _, i := range m.alive {
		if i.setting == 0 {
			for _, key := range i.table.Due(m.now, 100) {
				m.send(i, key, true)
			}
		}
		for _, k := range m.keys {
			if since, unwritten := k.unwritten[i]; unwritten && !i.table.Knows(nameOf(m, k)) {
				m.written(k, i)
			} else if unwritten && m.now > since+12*second {
				m.violated("instance %v has not written again for 12 s", i.id)
			}
		}
	}
	if m.IntN(100) == 0 {
		m.copies = append(m.copies, copyOf(m.redis))
	}
	m.check()
	m.after(50*millisecond, m.tick)
}

func nameOf(m *model, k *keyModel) string {
	for name, other := range m.keys {
		if other == k {
			return name
		}
	}
	panic("no such key")
}

func copyOf(redis map[string][]byte) map[string][]byte {
	c := map[string][]byte{}
	for key, value := range redis {
		c[key] = slices.Clone(value)
	}
	return c
}

// Requests.

func (m *model) take(i *instance, key string, done func(taken bool, err error)) {
	i.waiting[key] = append(i.waiting[key], &request{at: i, key: key, done: done})
	m.send(i, key, false)
}

// local is a request that another store allows while Redis fails.
func (m *model) local(i *instance, key string) {
	k := m.keys[key]
	k.requests = append(k.requests, &request{at: i, key: key, running: true})
	i.table.Count(key, m.now)
}

func (m *model) finish(r *request) {
	m.forget(r)
	if m.gives && m.IntN(2) == 0 {
		r.at.giving[r.key]++
	} else {
		r.at.table.Leave(r.key, 1, m.now)
	}
	m.send(r.at, r.key, false)
}

func (m *model) forget(r *request) {
	k := m.keys[r.key]
	k.requests = slices.DeleteFunc(k.requests, func(o *request) bool { return o == r })
}

// Messages.

// send builds a message if there is something to send.
func (m *model) send(i *instance, key string, due bool) {
	if i.dead {
		return
	}
	takes := i.waiting[key]
	if due {
		takes = nil
	}
	if len(takes) > 3 {
		takes = takes[:3]
	}
	if wait := i.table.Wait(key, m.now); wait > 0 {
		m.leave(i, key, i.giving[key]) // what is given back never waits
		i.giving[key] = 0
		if wait < algorithms.Forever {
			m.after(wait, func() { m.send(i, key, due) })
		}
		return
	}
	gives := i.giving[key]
	op := i.table.Prepare(key, len(takes) > 0 || gives > 0, m.now)
	if len(takes) == 0 && gives == 0 && !op.Set {
		return
	}
	i.giving[key] = 0
	msg := &message{
		from: i, key: key, op: op, takes: slices.Clone(takes), gives: gives,
		built: m.now, until: m.now + timeout, notAfter: m.now + m.offset + timeout,
	}
	i.waiting[key] = i.waiting[key][len(takes):]
	for _, r := range m.keys[key].requests {
		if op.Set && r.at == i && r.running && !r.counted {
			msg.locals = append(msg.locals, r)
		}
	}
	if due {
		i.setting++
		msg.ends = func() { i.setting-- }
	}
	m.transmit(msg)
	if len(i.waiting[key]) > 0 {
		m.send(i, key, false)
	}
}

// leave tells the table of an instance that n slots are held no more, and that no message says so.
func (m *model) leave(i *instance, key string, n int64) {
	if n > 0 {
		i.table.Leave(key, n, m.now)
	}
}

// transmit decides whether a message and its reply arrive.
func (m *model) transmit(msg *message) {
	there, back := m.between(0, 20*millisecond), m.between(0, 20*millisecond)
	if m.IntN(3) == 0 {
		there, back = there/20, back/20
	}
	fails := m.between(0, timeout)
	accident := 0
	if m.IntN(100) < m.lossy {
		accident = 1 + m.IntN(4)
	}
	switch accident {
	case 0:
		msg.answered = true
		m.after(there, func() {
			m.run(msg)
			m.after(back, func() { m.replied(msg) })
		})
	case 1: // it never arrives
		m.after(fails, func() { m.lost(msg) })
	case 2: // the reply doesn't
		m.after(min(there, fails), func() { m.run(msg) })
		m.after(fails, func() { m.lost(msg) })
	case 3: // it arrives when its connection is gone
		m.after(fails, func() {
			m.lost(msg)
			m.after(m.between(0, timeout-fails), func() { m.run(msg) })
		})
	case 4: // it isn't sent
		m.after(fails/10, func() { m.notRun(msg) })
	}
}

// run runs a message in Redis.
func (m *model) run(msg *message) {
	now := m.now + m.offset
	if msg.late = now > msg.notAfter; msg.late {
		return
	}
	k := m.keys[msg.key]
	s, err := wiretest.ReadSlots(nil, m.redis[msg.key])
	if err != nil {
		m.violated("Redis has %x: %v", m.redis[msg.key], err)
	}
	s, changed := s.Living(now, expiry)
	msg.found = s.Of(msg.from.id)
	if msg.op.Set {
		s, changed = s.Set(msg.from.id, msg.op.Count, now+expiry), true
		for _, r := range msg.locals {
			r.counted = true
		}
		if since, unwritten := k.unwritten[msg.from]; unwritten && msg.built >= since {
			m.written(k, msg.from)
		}
	}
	if msg.gives > 0 {
		s, changed = s.Set(msg.from.id, max(s.Of(msg.from.id)-msg.gives, 0), now+expiry), true
	}
	for _, r := range msg.takes {
		if s.Check(msg.from.id, m.limit, now, 0).Free() {
			s = s.Set(msg.from.id, s.Of(msg.from.id)+1, now+expiry)
			msg.taken = append(msg.taken, r)
			changed = true
			if msg.answered && !msg.from.dead {
				r.counted = true
				k.requests = append(k.requests, r)
				if n := k.counted(); n > k.allowed {
					m.violated("%d requests of %s are in flight, %d may be (limit %d)", n, msg.key, k.allowed, m.limit)
				}
			}
		}
	}
	if changed {
		m.redis[msg.key], _ = s.AppendBinary(nil)
	}
	m.check()
}

// counted returns how many requests of a key are in flight that Redis counts.
func (k *keyModel) counted() (n int64) {
	for _, r := range k.requests {
		if r.counted {
			n++
		}
	}
	return n
}

func (m *model) replied(msg *message) {
	if msg.late {
		m.notRun(msg)
		return
	}
	if msg.from.dead {
		return
	}
	msg.from.table.Replied(msg.op, int64(len(msg.taken))-msg.gives, msg.found, m.now)
	for _, r := range msg.taken {
		r.running = true
	}
	m.ended(msg)
	for _, r := range msg.takes {
		taken := slices.Contains(msg.taken, r)
		if m.served++; !taken {
			m.denied++
		}
		if r.done != nil {
			r.done(taken, nil)
		}
	}
}

var errLost = fmt.Errorf("lost")

func (m *model) lost(msg *message) {
	if msg.from.dead {
		return
	}
	msg.from.table.Lost(msg.op, msg.until, m.now)
	m.leave(msg.from, msg.key, msg.gives)
	m.ended(msg)
	for _, r := range msg.takes {
		if r.done != nil {
			r.done(false, errLost)
		}
	}
}

func (m *model) notRun(msg *message) {
	if msg.from.dead {
		return
	}
	msg.from.table.NotRun(msg.op, m.now)
	msg.from.giving[msg.key] += msg.gives
	msg.from.waiting[msg.key] = append(slices.Clone(msg.takes), msg.from.waiting[msg.key]...)
	m.ended(msg)
}

func (m *model) ended(msg *message) {
	if msg.ends != nil {
		msg.ends()
	}
	m.send(msg.from, msg.key, false)
}

// Disasters.

// loses says that Redis may have lost counts.
func (m *model) loses() {
	for name, k := range m.keys {
		k.allowed = max(k.allowed, k.counted()) + m.limit
		for _, i := range m.alive {
			if i.table.Knows(name) {
				k.unwritten[i] = m.now
			}
		}
		if len(k.unwritten) == 0 {
			k.allowed = m.limit
		}
	}
}

func (m *model) written(k *keyModel, i *instance) {
	if delete(k.unwritten, i); len(k.unwritten) == 0 {
		k.allowed = m.limit
	}
}

func (m *model) kill(i *instance) {
	i.dead = true
	m.alive = slices.DeleteFunc(m.alive, func(o *instance) bool { return o == i })
	for _, k := range m.keys {
		k.requests = slices.DeleteFunc(k.requests, func(r *request) bool { return r.at == i })
		m.written(k, i)
	}
}

func (m *model) empty() {
	m.redis = map[string][]byte{}
	m.loses()
}

func (m *model) restore() {
	if len(m.copies) > 0 {
		m.redis = copyOf(m.copies[len(m.copies)-1-m.IntN(min(len(m.copies), 20))])
		m.loses()
	}
}

func (m *model) jump(d slots.Micros) {
	if m.offset += d; d > 2*second {
		m.loses()
	}
}

// check holds Redis' counts against the requests.
func (m *model) check() {
	for name, k := range m.keys {
		if len(k.unwritten) > 0 {
			continue
		}
		s := m.stored(name)
		for _, i := range m.alive {
			n := int64(0)
			for _, r := range k.requests {
				if r.at == i && r.counted {
					n++
				}
			}
			if s.Of(i.id) < n {
				m.violated("instance %v has %d requests of %s in flight, Redis counts %d", i.id, n, name, s.Of(i.id))
			}
		}
	}
}

func (m *model) stored(name string) wiretest.Slots {
	s, err := wiretest.ReadSlots(nil, m.redis[name])
	if err != nil {
		m.violated("Redis has %x: %v", m.redis[name], err)
	}
	s, _ = s.Living(m.now+m.offset, expiry)
	return s
}
