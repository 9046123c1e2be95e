package redisstore

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/seedtest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/wire"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/wire/wiretest"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// The parity test plays the same seeded program (some limits, 40 requests on a
// timeline) through the Go functions and through the composed Lua script on a
// real Redis. Every decision, the state at the end and when it expires must be the same.

var parityNames = wire.Names{Prefix: "parity"}

// parityMessage is some steps that travel together.
type parityMessage struct {
	wire.Message
	steps []step
}

// messages divides the steps into messages, and writes these.
func (p *program) messages() (messages []*parityMessage) {
	for _, s := range p.steps {
		if !s.joined {
			m := new(parityMessage)
			m.Reset(parityNames, wire.Head{Now: s.now, Expected: p.expected(s.now), Instance: s.instance, SlotsExpiry: p.expiry})
			messages = append(messages, m)
		}
		p.write(messages[len(messages)-1], s)
	}
	return messages
}

// expected returns the instant at which a message was expected to run: now, or just before the newest period of the
// calendars.
func (p *program) expected(now algorithms.Micros) algorithms.Micros {
	newest := algorithms.Micros(0)
	for _, q := range p.requests {
		for _, l := range q.Limits {
			start, _, _ := l.Periods(now)
			newest = max(newest, start)
		}
	}
	if newest > 0 && now%2 == 0 {
		return newest - 1
	}
	return now
}

// write appends a step to a message.
func (p *program) write(m *parityMessage, s step) {
	m.steps = append(m.steps, s)
	if s.poison != nil {
		m.Take(p.poisonedRequests(s))
	}
	m.Take(p.asks(s, s.zones))
	c := s.correction
	if c.left == nil {
		return
	}
	for _, z := range p.steps[c.of].zones {
		q := p.requestAt(p.steps[c.of], z)
		q.Outcome = p.steps[c.of].want[z]
		_, releases := c.released[z]
		m.Refund(&q, c.refund, releases)
		if p.chargesAnew(z, c) {
			m.Charge(&store.Correction{Request: &q, Charge: c.charge})
		}
		if set, sets := c.left[z]; sets {
			m.SetSlots(parityNames.CountName(q.Key, q.Slots.ID, p.steps[c.of].tenants[z].ID), set.left, set.endsLine)
		}
	}
}

// features returns what the script has to decide.
func (p *program) features() algorithms.Features {
	features := featuresFor(p.requests)
	for _, s := range p.steps {
		if s.poison != nil {
			features |= featuresFor(p.poisonedRequests(s))
		}
	}
	return features
}

// difference replays the program on Redis in one pipeline and returns the first
// thing that isn't as in Go, or "".
func (p *program) difference(client *redis.Client, load func(algorithms.Features) string) (string, error) {
	ctx := context.Background()
	script := load(p.features())
	if p.startFrom != nil {
		if err := putState(client, p.requests[0], *p.startFrom); err != nil {
			return "", err
		}
	}
	for z, state := range p.startBans {
		q := p.requests[z]
		if err := putNumbers(client, parityNames.Name(q.Key, q.Ban.ID), q.Ban.Expires(&state), state); err != nil {
			return "", err
		}
	}
	messages := p.messages()
	pipe := client.Pipeline()
	for n, key := range p.poisons {
		if name := p.poisonedName(n); key.isList {
			pipe.RPush(ctx, name, "1")
		} else {
			pipe.Set(ctx, name, key.value, 0)
		}
	}
	var replies, late []*redis.Cmd
	for i, m := range messages {
		now := m.steps[0].now
		for _, c := range keyChanges(parityNames, now, m.steps[0].change) {
			pipe.Eval(ctx, algorithms.ChangeScript(), c.keys, c.args...)
		}
		argument := slices.Clone(m.Argument())
		bounded := func(at int, bound algorithms.Micros) []byte {
			argument := slices.Clone(argument)
			binary.LittleEndian.PutUint64(argument[at:], math.Float64bits(float64(bound)))
			return argument
		}
		const notBefore, notAfter = 8, 16
		switch i % 5 {
		case 0: // which changes nothing
			late = append(late, pipe.EvalSha(ctx, script, m.AppendKeys(nil), bounded(notAfter, now-1)))
			late = append(late, pipe.EvalSha(ctx, script, m.AppendKeys(nil), bounded(notBefore, now+1)))
			argument = bounded(notAfter, now)
		case 1:
			argument = bounded(notBefore, now)
		}
		if keys := m.AppendKeys(nil); i%3 == 1 { // as a node of a cluster gets keys of several hash slots
			replies = append(replies, pipe.EvalSha(ctx, script, nil, append(texts(keys), argument)...))
		} else {
			replies = append(replies, pipe.EvalSha(ctx, script, keys, argument))
		}
	}
	if _, err := pipe.Exec(ctx); err != nil {
		return "", err
	}
	for i, reply := range replies {
		text, err := reply.Text()
		if err != nil {
			return "", err
		}
		if diff := p.differs(messages[i], text); diff != "" {
			return fmt.Sprintf("message %d at %d: %s", i, messages[i].steps[0].now, diff), nil
		}
	}
	for _, reply := range late {
		if text, err := reply.Text(); err != nil {
			return "", err
		} else if r, err := wiretest.ReadReply(text); err != nil || !r.Late || r.End() != nil {
			return fmt.Sprintf("a late message: %+v, %v", r, err), nil
		}
	}
	return p.statesDiffer(client)
}

func texts(keys []string) (all []any) {
	for _, key := range keys {
		all = append(all, key)
	}
	return all
}

func (p *program) poisonedName(n int) string {
	r := p.poisons[n].request
	switch {
	case r.Slots != nil:
		return parityNames.Name(r.Key, r.Slots.ID)
	case r.Ban != nil:
		return parityNames.Name(r.Key, r.Ban.ID)
	}
	return parityNames.Name(r.Key, r.Limits[0].ID)
}

// differs compares the reply to a message.
func (p *program) differs(m *parityMessage, text string) string {
	r, err := wiretest.ReadReply(text)
	if err != nil {
		return err.Error()
	}
	if want := m.steps[0].now; r.Now != want || r.Late {
		return fmt.Sprintf("is of %d, want %d; late %v", r.Now, want, r.Late)
	}
	for i, s := range m.steps {
		if diff := p.stepDiffers(s, r); diff != "" {
			return fmt.Sprintf("step %d: %s", i, diff)
		}
	}
	if err := r.End(); err != nil {
		return err.Error()
	}
	return ""
}

func (p *program) stepDiffers(s step, r *wire.Reply) string {
	if s.poison != nil {
		var inScript wire.ScriptError
		requests := p.poisonedRequests(s)
		if _, _, err := r.Take(requests, nil); !errors.As(err, &inScript) {
			return fmt.Sprintf("with poisoned key %d: %+v, %v, want a failure of the key", s.poison.key, requests, err)
		}
	}
	requests := p.asks(s, s.zones)
	_, found, failed := r.Take(requests, nil)
	if diff := p.correctionDiffers(s.correction, r); diff != "" {
		return diff
	}
	var others *store.OverriddenError
	is := errors.As(failed, &others)
	if is && s.overridden && slices.Equal(others.Overrides, s.others) {
		return ""
	} else if is || s.overridden {
		return fmt.Sprintf("asked by the overrides %q: %v, want %q", s.asked, failed, s.others)
	}
	if failed != nil {
		return failed.Error()
	}
	if !slices.Equal(found, s.found) {
		return fmt.Sprintf("slots of the instance: Go %d, Lua %d", s.found, found)
	}
	for i, z := range s.zones {
		if got, want := requests[i].Outcome, s.want[z]; !reflect.DeepEqual(got, want) {
			return fmt.Sprintf("zone %d, cost %d, %d slots:\n  Go  %+v\n  Lua %+v", z, s.costs[z], s.slots[z], want, got)
		}
	}
	return ""
}

func (p *program) correctionDiffers(c correction, r *wire.Reply) string {
	if c.left == nil {
		return ""
	}
	for _, z := range p.steps[c.of].zones {
		want, releases := c.released[z]
		if releases || c.refund > 0 && slices.ContainsFunc(p.steps[c.of].want[z].Decisions, isCharged) {
			if found, err := r.Refund(releases); err != nil || found != want {
				return fmt.Sprintf("a refund: Go finds %d reserved events, Lua %d, %v", want, found, err)
			}
		}
		if p.chargesAnew(z, c) {
			q := p.requestAt(p.steps[c.of], z)
			charge := store.Correction{Request: &q}
			requests := []store.ZoneRequest{charge.ChargeRequest()}
			if allowed, _, err := r.Take(requests, nil); err != nil || !allowed || !slices.Equal(requests[0].Outcome.Decisions, c.charged[z]) {
				return fmt.Sprintf("a charge: %v, %v: Go %+v, Lua %+v", allowed, err, c.charged[z], requests[0].Outcome.Decisions)
			}
		}
		if set, sets := c.left[z]; sets {
			if found, err := r.SetSlots(); err != nil || found != set.found {
				return fmt.Sprintf("a slot: Go finds %d, Lua %d, %v", set.found, found, err)
			}
		}
	}
	return ""
}

// In these tests the TTL of a key tells its expiry: so many ms for each second. Redis forgets in true time, of which a busy
// machine may take seconds where a program takes a microsecond.
const spareMS = 1_000_000

// loader loads each composed script once, changed by mutate, and returns its hash.
func loader(t testing.TB, client *redis.Client, mutate func(string) string) func(algorithms.Features) string {
	t.Helper()
	known := make(map[algorithms.Features]string)
	load := func(script string) string {
		const lifetime = "return max(ceil((expiry - now) / 1000), 1) end\n"
		if strings.Count(script, lifetime) != 1 {
			t.Fatalf("the script no longer holds %q", lifetime)
		}
		lasting := strings.Replace(mutate(script), lifetime, fmt.Sprintf("return floor(expiry / 1000000 + 1) * %d end\n", spareMS), 1)
		hash, err := client.ScriptLoad(context.Background(), lasting).Result()
		if err != nil {
			t.Fatalf("load: %v", err)
		}
		return hash
	}
	return func(features algorithms.Features) string {
		hash, ok := known[features]
		if !ok {
			hash = load(features.Script())
			known[features] = hash
		}
		return hash
	}
}

func unchanged(script string) string { return script }

func TestParity(t *testing.T) {
	t.Parallel()
	programs := seedtest.Cases(t, 1000)
	_, client := redistest.Running(t)
	script := loader(t, client, unchanged)
	first := uint64(time.Now().UnixNano())
	for i := range programs {
		// Half of the seeds are always the same, half are new each time.
		p := newProgram(uint64(i) + first*uint64(i%2))
		if diff, err := p.difference(client, script); err != nil || diff != "" {
			t.Fatalf("%v\n%s %v", p, diff, err)
		}
	}
	t.Logf("%d programs of %d requests", programs, programSteps)
}

// FuzzParity plays the program of any seed.
func FuzzParity(f *testing.F) {
	client := redistest.Shared(f).Client
	script := loader(f, client, unchanged)
	for seed := range uint64(50) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed uint64) {
		client.FlushDB(context.Background())
		p := newProgram(seed)
		if diff, err := p.difference(client, script); err != nil || diff != "" {
			t.Fatalf("%v\n%s %v", p, diff, err)
		}
	})
}
