package redistest

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/storetest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/wire/wiretest"
	"github.com/caddy-rate-limit/caddy-rate-limit/redisstore"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// auditedClient sends requests to a store that connects through an audit.
type auditedClient struct {
	t                   *testing.T
	a                   *Audit
	s                   *redisstore.Store
	limit, other, tight store.Limit
	slots               *store.Slots
	ban                 *store.Ban
}

func newAuditedClient(t *testing.T, a *Audit) *auditedClient {
	const hour = 3_600_000_000 // nothing comes back while a test runs
	return &auditedClient{
		t: t, a: a, s: openStore(t, a, time.Minute),
		limit: storetest.Limit(t, "z", algorithms.Quota{Algorithm: "gcra", Events: 4, Window: hour}),
		other: storetest.Limit(t, "z", algorithms.Quota{Algorithm: "sliding_log", Events: 5, Window: hour}),
		tight: storetest.Limit(t, "b", algorithms.Quota{Algorithm: "token_bucket", Events: 1, Window: hour}),
		slots: &store.Slots{ID: store.SlotsID("s", ""), Limit: 2},
		ban: &store.Ban{ID: store.BanID("b", ""), Ban: &algorithms.Ban{
			After: 2, Window: hour, Duration: hour, Max: 4 * hour,
		}},
	}
}

// zones returns the zones of the requests, for Replay.
func (f *auditedClient) zones() []store.ZoneRequest {
	return []store.ZoneRequest{
		{Limits: []store.Limit{f.limit, f.other, f.tight}, Ban: f.ban, Slots: f.slots},
	}
}

func (f *auditedClient) take(r store.ZoneRequest) store.ZoneRequest {
	f.t.Helper()
	r.Key = "k"
	requests := []store.ZoneRequest{r}
	if _, err := f.s.Take(f.t.Context(), requests); err != nil && !store.IsOverridden(err) {
		f.t.Fatal(err)
	}
	return requests[0]
}

func (f *auditedClient) takeLimits(cost int64, limits ...store.Limit) store.ZoneRequest {
	f.t.Helper()
	return f.take(store.ZoneRequest{Zone: "z", Cost: cost, Limits: limits})
}

func (f *auditedClient) takeSlot() store.ZoneRequest {
	return f.take(store.ZoneRequest{Zone: "s", Slots: f.slots})
}

func (f *auditedClient) takeBan() store.ZoneRequest {
	return f.take(store.ZoneRequest{Zone: "b", Cost: 1, Limits: []store.Limit{f.tight}, Ban: f.ban})
}

func (f *auditedClient) takeOverride(text string) store.ZoneRequest {
	return f.take(store.ZoneRequest{Zone: "o", Cost: 1, Override: &store.Override{Text: text}})
}

// leave gives back a slot, and waits until Redis has the new count.
func (f *auditedClient) leave(r store.ZoneRequest) {
	answered := func() (n int) {
		f.a.mu.Lock()
		defer f.a.mu.Unlock()
		for _, c := range f.a.calls {
			if c.reply != nil {
				n++
			}
		}
		return n
	}
	before := answered()
	f.correct(r, 0, 0)
	WaitFor(f.t, "Redis to have the new count", func() bool { return answered() > before })
}

func (f *auditedClient) correct(r store.ZoneRequest, refund, charge int64) {
	f.t.Helper()
	if err := correctAll(f.s, []store.ZoneRequest{r}, refund, charge); err != nil {
		f.t.Fatal(err)
	}
}

func (f *auditedClient) change(c store.Change) {
	f.t.Helper()
	c.Key = "k"
	if err := f.s.Change(f.t.Context(), c); err != nil {
		f.t.Fatal(err)
	}
}

func (f *auditedClient) override(text string) { f.change(store.Change{Zone: "o", Override: &text}) }

// doAll sends some requests of every kind. The last call of each kind changes a value, because only the values
// at the end show an error in it.
func (f *auditedClient) doAll() {
	f.takeLimits(1, f.limit)
	f.correct(f.takeLimits(1, f.limit), 1, 0)
	f.takeLimits(2, f.limit, f.other)
	f.correct(f.takeLimits(2, f.other), 2, 1)
	f.takeLimits(1, f.limit, f.other)
	f.takeLimits(1, f.limit, f.other) // which is denied
	slot := f.takeSlot()
	f.takeSlot()
	f.takeSlot() // which is denied
	f.leave(slot)
	f.takeSlot()
	for range 4 { // allowed, two denials, and a ban
		f.takeBan()
	}
	f.change(store.Change{Zone: "b", Forget: []string{f.tight.ID}})
	f.takeBan()
	f.change(store.Change{Zone: "b", Forget: []string{f.ban.ID}})
	f.takeBan()
	f.change(store.Change{Zone: "b", Ban: []*store.Ban{f.ban}, BanFor: 90_000_000})
	f.takeBan()
	f.takeOverride("")
	f.override("a")
	f.takeOverride("") // which fails
	f.takeOverride("a")
	f.override("b")
}

// replyField is a field of a reply: the offset, and the size of 1 or 8 bytes.
type replyField struct{ at, size int }

// limitOf returns the limit of a budget.
func (f *auditedClient) limitOf(b wiretest.Budget) *algorithms.Limit {
	for _, l := range f.zones()[0].Limits {
		if text, _ := l.Message(0); text == b.Limit {
			return l.Limit
		}
	}
	f.t.Fatalf("a limit nobody has: %+v", b)
	return nil
}

// outcomes returns all that a reply says.
func (f *auditedClient) outcomes(p *parsedCall, text string) (all []any) {
	r, err := wiretest.ReadReply(text)
	all = append(all, err, r.Late)
	for _, o := range p.operations {
		switch {
		case o.Take != nil:
			requests := o.Take.Requests(f.limitOf)
			allowed, found, err := r.Take(requests, nil)
			all = append(all, requests, allowed, found, err)
		case o.Set != nil:
			count, err := r.SetSlots()
			all = append(all, count, err)
		default:
			all = append(all, r.Refund())
		}
	}
	return all
}

// replyFields returns all fields of the reply to a message.
func (f *auditedClient) replyFields(p *parsedCall) (all []replyField) {
	at := 0
	add := func(sizes ...int) {
		for _, size := range sizes {
			all = append(all, replyField{at, size})
			at += size
		}
	}
	add(8, 1)
	for _, o := range p.operations {
		status := p.packedReply[at]
		switch add(1); {
		case o.Set != nil:
			add(8)
		case o.Take != nil && status == 2:
			for range o.Take.Overrides {
				at += 4 + int(binary.LittleEndian.Uint32([]byte(p.packedReply[at:])))
			}
		case o.Take != nil:
			for _, z := range o.Take.Zones {
				for _, b := range z.Budgets {
					add(1, 8, 8)
					add(slices.Repeat([]int{8}, f.limitOf(b).Algorithm().BalanceSize())...)
				}
				if z.Slots != "" {
					add(1, 8, 8)
				}
				if z.BanName != "" {
					add(1, 1, 8)
				}
			}
		}
	}
	return all
}

// corrupt returns the reply with another number or flag in the field.
func (s replyField) corrupt(reply string) string {
	b := []byte(reply)
	if s.size == 1 {
		b[s.at] ^= 1
		return string(b)
	}
	n := math.Float64frombits(binary.LittleEndian.Uint64(b[s.at:]))
	binary.LittleEndian.PutUint64(b[s.at:], math.Float64bits(n+1))
	return string(b)
}

// changesState reports whether a call changed a value, according to its reply.
func (f *auditedClient) changesState(p *parsedCall) bool {
	for _, o := range p.operations {
		if o.Take == nil {
			return true
		}
		r, _ := wiretest.ReadReply(p.packedReply)
		z := o.Take.Zones[0]
		if allowed, _, err := r.Take(o.Take.Requests(f.limitOf), nil); err == nil && allowed && len(z.Budgets)+len(z.Slots) > 0 {
			return true
		}
	}
	return p.kind == changeScript
}

// instantShows reports whether a wrong instant of a call shows in a later reply or a value. It doesn't for slots,
// because the next operation sets a new instant.
func (f *auditedClient) instantShows(p *parsedCall) bool {
	return f.changesState(p) && !slices.ContainsFunc(p.operations, func(o wiretest.Operation) bool {
		return len(o.Refund) > 0 || o.Set != nil || o.Take != nil && o.Take.Zones[0].Slots != ""
	})
}

// The audit finds every wrong number in a reply, and every call that is left out, repeated or unanswered.
func TestAuditCanFail(t *testing.T) {
	server := Start(t)
	a := StartAudit(t, server)
	f := newAuditedClient(t, a)
	f.doAll()
	r := a.Replay(f.zones()...)
	t.Logf("\n%v", r)
	if r.Different > 0 || r.Granted != 13 || r.Denied != 7 || r.Refunds != 2 ||
		r.Slots != 3 || r.Bans != 1 || r.Overridden != 1 || r.Changes != 5 {
		t.Fatalf("this happened:\n%v%s", r, strings.Join(r.Differences, "\n"))
	}
	recorded := a.calls
	found := 0
	find := func(what string, zones ...store.ZoneRequest) {
		t.Helper()
		if r := a.Replay(zones...); r.Different == 0 {
			t.Errorf("not found: %s", what)
		}
		found++
		a.calls = recorded
	}
	unanswered := true
	for i, c := range recorded {
		if bytes.HasPrefix(c.reply, []byte("-NOSCRIPT")) {
			continue
		}
		p, err := parseCall(c)
		if err != nil {
			t.Fatal(err)
		}
		replace := func(answer []byte) {
			other := *c
			other.reply = answer
			a.calls = slices.Clone(recorded)
			a.calls[i] = &other
		}
		if p.kind == operationsScript {
			for _, s := range f.replyFields(p) {
				if s.at == 0 && !f.instantShows(p) {
					continue // it is the same a moment later
				}
				corrupt := s.corrupt(p.packedReply)
				if reflect.DeepEqual(f.outcomes(p, corrupt), f.outcomes(p, p.packedReply)) {
					continue // a balance that means the same
				}
				replace(fmt.Appendf(nil, "$%d\r\n%s\r\n", len(p.packedReply), corrupt))
				find(fmt.Sprintf("field %d of %q changed, the reply to %+v", s.at, p.packedReply, p.operations), f.zones()...)
			}
			replace(fmt.Appendf(nil, "$%d\r\n%s\r\n", len(p.packedReply)-1, p.packedReply[:len(p.packedReply)-1]))
			find("a reply cut off", f.zones()...)
		}
		if f.changesState(p) {
			a.calls = slices.Delete(slices.Clone(recorded), i, i+1)
			find(fmt.Sprintf("left out: %+v %q", p.operations, p.argv), f.zones()...)
		}
		if f.changesState(p) && p.kind == operationsScript {
			a.calls = slices.Insert(slices.Clone(recorded), i, c)
			find(fmt.Sprintf("twice: %+v", p.operations), f.zones()...)
		}
		replace(nil)
		if unanswered { // it was on its way when Redis was killed, and may have charged
			unanswered, a.process = false, 1
			if r := a.Replay(f.zones()...); r.Different > 0 || r.Doubtful == 0 || r.Unanswered != 1 {
				t.Errorf("%.200q unanswered:\n%v%s", c.command, r, strings.Join(r.Differences, "\n"))
			}
			a.process = 0
		}
		find("a call that was never answered", f.zones()...)
	}
	find("a limit nobody has", store.ZoneRequest{Limits: []store.Limit{f.other, f.tight}, Ban: f.ban, Slots: f.slots})
	find("a ban nobody has", store.ZoneRequest{Limits: []store.Limit{f.limit, f.other, f.tight}, Slots: f.slots})
	find("slots nobody has", store.ZoneRequest{Limits: []store.Limit{f.limit, f.other, f.tight}, Ban: f.ban})
	t.Logf("%d planted faults", found)
}

// The audit finds a Redis or a store that misbehaves.
func TestAuditFindsMisbehaviour(t *testing.T) {
	server := Start(t)
	remove := func(id string) { server.Client.Del(t.Context(), "caddy_rl:{k}:"+id) }
	for name, misbehave := range map[string]func(*Audit, *auditedClient, *redis.Client){
		"a budget removed": func(_ *Audit, f *auditedClient, _ *redis.Client) {
			f.takeLimits(1, f.limit)
			remove(f.limit.ID)
			f.takeLimits(1, f.limit)
		},
		"a log removed": func(_ *Audit, f *auditedClient, _ *redis.Client) {
			f.takeLimits(1, f.other)
			remove(f.other.ID)
			f.takeLimits(1, f.other)
		},
		"a slot granted above the limit": func(_ *Audit, f *auditedClient, _ *redis.Client) {
			f.takeSlot()
			f.takeSlot()
			remove(f.slots.ID)
			f.takeSlot()
		},
		"a slot given back by nobody": func(_ *Audit, f *auditedClient, _ *redis.Client) {
			f.takeSlot()
			remove(f.slots.ID)
		},
		"a ban that doesn't hold": func(_ *Audit, f *auditedClient, _ *redis.Client) {
			for range 3 {
				f.takeBan()
			}
			remove(f.ban.ID)
			f.takeBan()
		},
		"a ban by an operator that doesn't hold": func(_ *Audit, f *auditedClient, _ *redis.Client) {
			f.change(store.Change{Zone: "b", Ban: []*store.Ban{f.ban}, BanFor: 90_000_000})
			remove(f.ban.ID)
			f.takeBan()
		},
		"an override ignored": func(_ *Audit, f *auditedClient, _ *redis.Client) {
			f.override("a")
			remove(store.OverrideID("o"))
			f.takeOverride("")
		},
		"an override that nobody set": func(_ *Audit, f *auditedClient, _ *redis.Client) {
			server.Client.Set(t.Context(), "caddy_rl:{k}:"+store.OverrideID("o"), "a", 0)
			f.takeOverride("a")
		},
		"a command of its own": func(_ *Audit, f *auditedClient, through *redis.Client) {
			through.Set(t.Context(), "caddy_rl:{k}:"+f.limit.ID, "x", 0)
		},
		"another script": func(_ *Audit, f *auditedClient, through *redis.Client) {
			mutant := strings.Replace(algorithms.Features(0).With(f.limit.Algorithm()).Script(), "math.floor", "math.ceil", 1)
			through.Eval(t.Context(), mutant, []string{"caddy_rl:{k}:" + f.limit.ID}, "")
		},
		"an instant of its own": func(_ *Audit, f *auditedClient, _ *redis.Client) {
			r := []store.ZoneRequest{{Zone: "z", Key: "k", Cost: 1, Limits: []store.Limit{f.limit}}}
			_, _ = f.s.TakeAt(t.Context(), time.Now().UnixMicro(), r)
		},
		"a refund done twice": func(_ *Audit, f *auditedClient, _ *redis.Client) {
			r := f.takeLimits(1, f.limit)
			f.correct(r, 1, 0)
			f.correct(r, 1, 0)
		},
		"a restart": func(_ *Audit, f *auditedClient, _ *redis.Client) {
			f.takeLimits(1, f.limit)
			server.Kill(t)
			server.Restart(t)
			_, _ = f.s.Take(t.Context(), []store.ZoneRequest{{Zone: "z", Key: "k", Cost: 1, Limits: []store.Limit{f.limit}}})
		},
	} {
		server.Client.FlushAll(t.Context())
		a := StartAudit(t, server)
		f := newAuditedClient(t, a)
		through := redis.NewClient(&redis.Options{Addr: a.Addr})
		misbehave(a, f, through)
		_ = through.Close()
		if r := a.Replay(f.zones()...); r.Different == 0 {
			t.Errorf("not found: %s", name)
		} else {
			t.Logf("%s: %.200q", name, r.Differences[0])
		}
	}
}
