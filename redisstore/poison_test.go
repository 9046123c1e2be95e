package redisstore

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/seedtest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/storetest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/wire"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/wire/wiretest"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// poisonNow is the instant of everything that is decided beside a poisoned key.
const poisonNow algorithms.Micros = 1_763_640_000_000_000

// poison is a value that another program may have stored at the key of a budget.
type poison struct {
	name string
	put  func(client *redis.Client, key string) error
	// certain reports that no budget ever holds this value. A value that a budget could hold may be
	// decided by, if only the decision is in range.
	certain bool
	// late reports that a script finds the value only when it writes. Then the other charges of the
	// request stay.
	late bool
}

func text(name, value string, certain bool) poison {
	put := func(c *redis.Client, key string) error { return c.Set(context.Background(), key, value, 0).Err() }
	return poison{name: name, put: put, certain: certain}
}

// notAString returns poisons that MGET shows as absent.
func notAString(late bool) []poison {
	ctx := context.Background()
	return []poison{
		{"a hash", func(c *redis.Client, key string) error { return c.HSet(ctx, key, "a", "1").Err() }, true, late},
		{"a list", func(c *redis.Client, key string) error { return c.RPush(ctx, key, "1").Err() }, true, late},
	}
}

// extremes are numbers beside and far beyond those of a budget.
var extremes = []int64{
	-1, -1 << 53, -1 << 62, -1 << 63, 1<<53 + 2, 1 << 62, 1<<63 - 1,
	1 << 53, 1<<53 - 1, 1 << 52, 0, poisonNow, poisonNow - 1, poisonNow + 3_600_000_000,
}

func isCertain(numbers ...int64) bool {
	for _, n := range numbers {
		if n < 0 || n > 1<<53 {
			return true
		}
	}
	return false
}

func draw(r *rand.Rand, n int) (numbers []int64) {
	for range n {
		numbers = append(numbers, pick(r, extremes...))
	}
	return numbers
}

// random returns n bytes; of two such numbers in a row none is in range.
func random(r *rand.Rand, n int) string {
	var b []byte
	for range n {
		b = append(b, byte('!'+r.IntN(94)))
	}
	return string(b)
}

// poisonedStates returns poisons of a budget or a ban.
func poisonedStates(r *rand.Rand, late bool) []poison {
	state := func(n []int64) string {
		return string(redistest.PackState(algorithms.State{A: n[0], B: n[1], C: n[2], D: n[3]}))
	}
	all := append(notAString(late),
		text("text", "hello", true),
		text("nothing", "", true),
		text("random", random(r, 28), true),
		text("too long", state(draw(r, 4))+"\x00", true),
		text("one number", packed(5), true),
		text("the format before", packed(0, 0, 0), true))
	for range 20 {
		stored := state(draw(r, 4))
		_, ok := algorithms.ParseState(stored)
		all = append(all, text(fmt.Sprintf("%x", stored), stored, !ok))
	}
	for i := range 4 { // each number alone out of range
		for _, bad := range []int64{-1, 1 << 55, 1<<53 + 2} {
			numbers := make([]int64, 4)
			numbers[i] = bad
			all = append(all, text(fmt.Sprint(numbers), state(numbers), true))
		}
	}
	return all
}

// poisonedSlots returns poisons of slots.
func poisonedSlots(r *rand.Rand) []poison {
	one := func(numbers ...int64) string { // count, its expiry, that of the line, its first request, those behind it, marks
		b := []byte(strings.Repeat("i", 23))
		for n, size := range []int{7, 7, 7, 7, 2, 7, 7, 7, 7} {
			b = append(b, packed(append(numbers, 0, 0, 0, 0, 0, 0, 0)[n])[:size]...)
		}
		return string(b)
	}
	return append(notAString(true),
		text("text", "hello", true),
		text("random", random(r, 81), true),
		text("too long", one(1, poisonNow)+"x", true),
		text("a half", one(1, poisonNow)+strings.Repeat("i", 16), true),
		text("too large a count", one(1<<53+2, poisonNow+1), true),
		text("too late an expiry", one(1, 1<<53+2), true),
		text("a line that ends too late", one(1, poisonNow+1, 1<<53+2), true),
		text("a second one that is bad", one(1, poisonNow+1)+one(1<<53+2, poisonNow+1), true),
		text("the largest count", one(1<<53, 1<<53), false),
		text("the longest line", one(0, 0, 1<<53, 1<<56-1, 1<<16-1, 1<<56-1), false),
		text("a line whose last request came first", one(0, 0, poisonNow+1, poisonNow, 5, poisonNow-1), false),
		text("another instance", one(3, poisonNow+1), false),
		text("the same one twice", one(3, poisonNow+1)+one(3, poisonNow+1), false))
}

// poisonedLogs returns poisons of a log. The value has doubles: head, entries, ahead, newest,
// first, after, and places.
func poisonedLogs(r *rand.Rand, l *algorithms.Limit) []poison {
	nan, inf, now := math.NaN(), math.Inf(1), float64(poisonNow)
	log := func(certain bool, numbers ...float64) poison {
		return text(fmt.Sprintf("log %.60v", numbers), packedDoubles(numbers...), certain)
	}
	all := append(notAString(false),
		text("text", "hello", true),
		text("nothing", "", true),
		text("random", random(r, 56), true),
		text("random, longer", random(r, 96), true),
		text("half a header", packedDoubles(0, 0, 0), true),
		text("half a place", packedDoubles(0, 0, 0, 0, 0, 0, 10)+"four", true))
	healthy := []float64{2, 2, 0, now - 1, 0, 0, 10, now - 1, 5, now - 2} // instants that continue
	if l.Buckets > 0 {                                                    // and buckets, of which one has expired
		healthy = []float64{2, 2, 0, now - 1, 7, 12, 10, now - 1, 9, 12, 0, 0, 0, now - 70_000_000, 6, 9}
	}
	all = append(all, log(false, healthy...))
	change := func(certain bool, at int, bad float64) {
		numbers := append([]float64(nil), healthy...)
		numbers[at] = bad
		all = append(all, log(certain, numbers...))
	}
	for at := range 6 {
		for _, bad := range []float64{nan, inf, -1, 0.5, 1e300} {
			change(l.Buckets > 0 || at < 4 || bad != 0.5, at, bad) // the last two are of buckets
		}
	}
	change(true, 0, 3) // a place that is none
	change(true, 1, 4) // more entries than places
	if l.Buckets == 0 {
		for _, bad := range []float64{nan, inf, 1e300, now - 0.5, -1, 0.5} {
			change(false, 7, bad)
			expired := bad < 1 // of which nobody asks more
			all = append(all, log(!expired, 0, 1, 0, now, 0, 0, 10, bad, 0))
		}
		return all
	}
	change(true, 4, 13) // the first event behind the last
	change(true, 4, 11) // less events than entries
	all = append(all, log(true, 2, 2, 0, now-1, 11, 12, 10, now-1, 9, 12, 0, 0, 0, now-2, 6, 9))
	change(true, 1, 0)  // events without entries
	change(true, 8, 5)  // a bucket before the first
	change(true, 8, 14) // a bucket behind the last
	for range 20 {
		numbers := draw(r, 6)
		of := make([]float64, 7)
		for i, n := range numbers {
			of[i] = float64(n)
		}
		all = append(all, log(isCertain(numbers...) || numbers[1] > 0 || numbers[5] > numbers[4] || numbers[0] > 0, of...))
	}
	return all
}

// poisonable is a kind of key that may be poisoned.
type poisonable struct {
	id      string
	limit   *store.Limit
	slots   *store.Slots
	ban     *store.Ban
	poisons func(r *rand.Rand) []poison
}

func (p *poisonable) request(key string, mode algorithms.Mode, limits ...store.Limit) []store.ZoneRequest {
	if p.limit != nil {
		limits = append(limits, *p.limit)
	}
	cost := int64(1)
	if p.ban != nil { // one that is denied: what is absent is found out when a denial is counted
		cost = 11
	}
	return []store.ZoneRequest{{Zone: "z", Key: key, Cost: cost, Mode: mode, Limits: limits, Slots: p.slots, Ban: p.ban}}
}

// features returns what the script has to decide.
func (p *poisonable) features(healthy store.Limit) algorithms.Features {
	return featuresFor(p.request("bad", algorithms.Binary, healthy)).WithSlots()
}

func poisonables(t testing.TB) (all []poisonable) {
	t.Helper()
	quotas := append(storetest.Quotas(10, 60_000_000),
		algorithms.Quota{Algorithm: "sliding_log", Events: 10, Window: 60_000_000, Buckets: 6},
		algorithms.Quota{Algorithm: "smooth", Events: 10, Window: 60_000_000, WarmUp: 60_000_000})
	for _, q := range quotas {
		limit := storetest.Limit(t, "z", q)
		poisons := func(r *rand.Rand) []poison { return poisonedStates(r, true) }
		if q.Algorithm == "sliding_log" {
			poisons = func(r *rand.Rand) []poison { return poisonedLogs(r, limit.Limit) }
		}
		all = append(all, poisonable{id: limit.ID, limit: &limit, poisons: poisons})
	}
	slots := &store.Slots{ID: store.SlotsID("z", ""), Limit: 10}
	ban := storetest.Ban(t, "z", algorithms.Ban{After: 1, Window: 60_000_000, Duration: 60_000_000, Max: 60_000_000})
	return append(all,
		poisonable{id: slots.ID, slots: slots, poisons: poisonedSlots},
		poisonable{id: ban.ID, limit: all[0].limit, ban: ban, poisons: func(r *rand.Rand) []poison {
			return poisonedStates(r, false) // denied requests charge nothing
		}})
}

// poisoned poisons keys of every kind in every way, decides requests with them amid others, and
// corrects them. It returns the first thing that isn't as it should be, or "". It omits the kinds whose scripts lack a text.
func poisoned(t testing.TB, client *redis.Client, seed uint64, text string, mutate func(string) string) string {
	t.Helper()
	script := loader(t, client, mutate)
	healthy := storetest.Limit(t, "h", algorithms.Quota{Algorithm: "token_bucket", Events: 10, Window: 60_000_000})
	r := rand.New(rand.NewPCG(seed, 0))
	for _, of := range poisonables(t) {
		poisons, scripts := of.poisons(r), of.features(healthy).Script()
		if of.ban != nil {
			scripts += algorithms.ChangeScript()
		}
		if !strings.Contains(scripts, text) {
			continue
		}
		for _, p := range poisons {
			for _, mode := range []algorithms.Mode{algorithms.Binary, algorithms.Uniform} {
				if mode == algorithms.Uniform && (of.ban != nil || of.limit != nil && of.limit.Algorithm().BinaryOnly) {
					continue
				}
				client.FlushDB(context.Background())
				c := poisonCase{client: client, of: of, poison: p, mode: mode, healthy: healthy, mutate: mutate, script: script}
				if wrong := c.play(); wrong != "" {
					return fmt.Sprintf("%s in mode %v, seed %d, poisoned by %s: %s", of.id, mode, seed, p.name, wrong)
				}
			}
		}
	}
	return ""
}

// poisonCase is one way to poison one key.
type poisonCase struct {
	client  *redis.Client
	of      poisonable
	poison  poison
	mode    algorithms.Mode
	healthy store.Limit
	mutate  func(string) string
	script  func(algorithms.Features) string
}

var poisonNames = wire.Names{Prefix: "p"}

func (c *poisonCase) run(write func(m *wire.Message)) (*wire.Reply, error) {
	var m wire.Message
	instance := algorithms.Instance{1}
	m.Reset(poisonNames, wire.Head{Now: poisonNow, Instance: instance, SlotsExpiry: 30_000_000})
	write(&m)
	reply, err := c.client.EvalSha(context.Background(), c.script(c.of.features(c.healthy)), m.AppendKeys(nil), m.Argument()).Text()
	if err != nil {
		return nil, err
	}
	return wiretest.ReadReply(reply)
}

// isOfTheKey reports whether an error says that a key holds something else.
func isOfTheKey(err error) bool {
	var e *store.Error
	is := errors.As(toStoreError(context.Background(), err), &e)
	return is && e.Reason == store.ReasonKey
}

func (c *poisonCase) play() string {
	ctx := context.Background()
	key := poisonNames.Name("bad", c.of.id)
	if err := c.poison.put(c.client, key); err != nil {
		return err.Error()
	}
	before := c.client.Dump(ctx, key).Val()
	one := func(key string) []store.ZoneRequest {
		return []store.ZoneRequest{{Zone: "z", Key: key, Cost: 1, Mode: c.mode, Limits: []store.Limit{c.healthy}}}
	}
	takes := [][]store.ZoneRequest{
		one("first"),
		c.of.request("bad", c.mode, c.healthy),
		one("bad"), // which sees nothing of the one before
		c.of.request("bad", c.mode),
		one("last"),
	}
	reply, err := c.run(func(m *wire.Message) {
		for _, requests := range takes {
			m.Take(requests)
		}
	})
	if err != nil {
		return fmt.Sprintf("the call fails: %v", err)
	}
	for i, requests := range takes {
		_, _, err := reply.Take(requests, nil)
		isPoisoned := i == 1 || i == 3
		switch {
		case err != nil && !isOfTheKey(err):
			return fmt.Sprintf("take %d: %v, want an error of the key", i, err)
		case isPoisoned && err == nil && c.poison.certain:
			return fmt.Sprintf("take %d is decided: %+v", i, requests[0].Outcome)
		case isPoisoned:
			continue
		case err != nil:
			return fmt.Sprintf("take %d of another key fails: %v", i, err)
		}
		want := int64(9)
		if i == 2 && (c.poison.late || !c.poison.certain) {
			want = 8
			if requests[0].Outcome.Decisions[0].Remaining == 9 && !c.poison.late { // it has failed
				want = 9
			}
		}
		if got := requests[0].Outcome.Decisions[0].Remaining; got != want {
			return fmt.Sprintf("take %d: %d remaining, want %d", i, got, want)
		}
	}
	if err := reply.End(); err != nil {
		return fmt.Sprintf("the reply is bad: %v", err)
	}
	for _, key := range []string{"first", "last"} {
		if c.client.Exists(ctx, poisonNames.Name(key, c.healthy.ID)).Val() != 1 {
			return "key " + key + " is not charged"
		}
	}
	if !c.poison.certain {
		return ""
	}
	if c.client.Dump(ctx, key).Val() != before {
		return "it was written over"
	}
	if wrong := c.correct(key, takes[4][0], takes[2][0]); wrong != "" {
		return wrong
	}
	if c.client.Dump(ctx, key).Val() != before {
		return "it was written over by a correction"
	}
	return ""
}

// correct gives back and sets the poisoned key, gives back another one, and changes a ban.
func (c *poisonCase) correct(key string, last, beside store.ZoneRequest) string {
	if c.of.ban != nil {
		ban := store.Change{Zone: "z", Key: "bad", Ban: []*store.Ban{c.of.ban}, BanFor: 1000}
		for _, change := range keyChanges(poisonNames, poisonNow, ban) {
			script := c.mutate(algorithms.ChangeScript())
			if err := c.client.Eval(context.Background(), script, change.keys, change.args...).Err(); err == nil {
				return "a ban is set"
			}
		}
		return ""
	}
	look := []store.ZoneRequest{{Zone: "z", Key: "last", Limits: []store.Limit{c.healthy}}}
	lookBeside := []store.ZoneRequest{{Zone: "z", Key: "bad", Limits: []store.Limit{c.healthy}}}
	reply, err := c.run(func(m *wire.Message) {
		if c.of.slots != nil {
			m.SetSlots(poisonNames.CountName("bad", c.of.slots.ID, 0), 3, true)
		} else {
			bad := c.of.request("bad", c.mode, c.healthy)[0]
			bad.Outcome.Decisions = append(beside.Outcome.Decisions[:1:1],
				algorithms.Decision{Charged: 1, Receipt: algorithms.Receipt{A: poisonNow - 1, At: poisonNow - 1}})
			m.Refund(&bad, 1, false)
		}
		m.Refund(&last, 1, false)
		m.Take(look)
		m.Take(lookBeside)
	})
	if err != nil {
		return fmt.Sprintf("the correction fails: %v", err)
	}
	var failed error
	if c.of.slots != nil {
		_, failed = reply.SetSlots()
	} else {
		_, failed = reply.Refund(false)
	}
	// A budget that is absent has nothing to give back.
	if mayPass := c.poison.late && c.of.slots == nil; failed == nil && !mayPass || failed != nil && !isOfTheKey(failed) {
		return fmt.Sprintf("a correction: %v, want an error of the key", failed)
	}
	if _, err := reply.Refund(false); err != nil {
		return fmt.Sprintf("a correction of another key: %v", err)
	}
	if _, _, err := reply.Take(look, nil); err != nil || look[0].Outcome.Decisions[0].Remaining != 10 {
		return fmt.Sprintf("after a correction of another key: %v, %+v", err, look[0].Outcome)
	}
	if _, _, err := reply.Take(lookBeside, nil); err != nil || failed != nil && lookBeside[0].Outcome.Decisions[0].Remaining == 10 {
		return fmt.Sprintf("after a correction that failed: %v, %+v", err, lookBeside[0].Outcome)
	}
	if err := reply.End(); err != nil {
		return fmt.Sprintf("the reply is bad: %v", err)
	}
	return ""
}

// A value that another program has stored at a key fails the operations on that key. It charges and
// fails no other key. A value that no budget ever holds stays as it is.
func TestPoison(t *testing.T) {
	t.Parallel()
	client := redistest.Start(t).Client
	for seed := range seedtest.Cases(t, uint64(3)) {
		if wrong := poisoned(t, client, seed, "", unchanged); wrong != "" {
			t.Error(wrong)
		}
	}
}

func TestPoisonCatchesMutants(t *testing.T) {
	t.Parallel()
	redistest.Long(t)
	client := redistest.Start(t).Client
	every := everyScript()
	for _, m := range []struct{ name, old, new string }{
		{"any length", "if #state ~= 28 then not_a_budget() end", ""},
		{"any first number", "if a > forever or b", "if b"},
		{"any second number", " or b > forever", ""},
		{"any third number", " or c > forever", ""},
		{"any last number", " or d > forever", ""},
		{"numbers that go back", "l.writer = sliding_log_check(first, after), writer", "l.writer = first, writer"},
		{"more buckets than events", "entries > l.length or", "false or"},
		{"events without buckets", "entries == 0 and l.length > 0", "false"},
		{"a bucket before the first", "sliding_log_check(first - l.first, l.length)", "sliding_log_check(max(first - l.first, 0), l.length)"},
		{"a bucket behind the last", "sliding_log_check(first - l.first, l.length)", "sliding_log_check(first - l.first, forever)"},
		{"negative stamps", "n >= 0 and n <= bound", "n <= bound"},
		{"stamps that are too large", "n >= 0 and n <= bound", "n >= 0"},
		{"parts of a stamp", " or n % 1 ~= 0 then", " then"},
		{"no number is one", "not (n >= 0 and n <= bound) or n % 1 ~= 0", "n < 0 or n > bound or n % 1 > 0"},
		{"more entries than places", "sliding_log_check(entries, places)", "sliding_log_check(entries, forever)"},
		{"a place that is none", "sliding_log_check(head, max(places - 1, 0))", "sliding_log_check(head, forever)"},
		{"an empty string is no log", "if redis.call('EXISTS', key) == 1 then not_a_budget() end", ""},
		{"counts of slots that are too large", "max(count, expires, line_expires) > forever", "max(expires, line_expires) > forever"},
		{"slots that expire after time ends", "max(count, expires, line_expires) > forever", "max(count, line_expires) > forever"},
		{"a line that ends after time ends", "max(count, expires, line_expires) > forever", "max(count, expires) > forever"},
		{"absent strings are written over", "pending[k], 'NX', 'PX', pending_ttl[k])", "pending[k], 'PX', pending_ttl[k])"},
		{"a denied write fails nothing", "if keys[own] == name then fail(operation, err) end", ""},
		{"one that fails undoes those before", "      undo_changes()\n", "      changed_count = 0\n"},
		{"a refund that fails gives back in part", "      undo_changes()\n", ""},
	} {
		t.Run(m.name, func(t *testing.T) {
			if !strings.Contains(every, m.old) {
				t.Fatalf("the script no longer holds %q", m.old)
			}
			for seed := range uint64(8) {
				mutate := func(s string) string { return strings.ReplaceAll(s, m.old, m.new) }
				if wrong := poisoned(t, client, seed, m.old, mutate); wrong != "" {
					t.Logf("caught: %s", wrong)
					return
				}
			}
			t.Error("not caught")
		})
	}
}
