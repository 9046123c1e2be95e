package redisstore

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/redisstore/redistest"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
	"github.com/caddy-rate-limit/caddy-rate-limit/store/storetest"
)

// poisonNow is the instant of everything that is decided beside a poisoned key.
const poisonNow algorithms.Micros = 1_763_640_000_000_000

// poison is what another program may have stored at the key of a budget.
type poison struct {
	name string
	put  func(client *redis.Client, key string) error
	// certain tells that no budget ever holds this. What one might hold may be decided by,
	// if only the decision is in range.
	certain bool
}

func text(name, value string, certain bool) poison {
	return poison{name, func(c *redis.Client, key string) error { return c.Set(context.Background(), key, value, 0).Err() }, certain}
}

func list(certain bool, elements ...string) poison {
	return poison{fmt.Sprintf("list %.60q", elements), func(c *redis.Client, key string) error {
		for _, e := range elements {
			if err := c.RPush(context.Background(), key, e).Err(); err != nil {
				return err
			}
		}
		return nil
	}, certain}
}

func packed(numbers ...int64) string {
	var b []byte
	for _, n := range numbers {
		b = binary.LittleEndian.AppendUint64(b, uint64(n))
	}
	return string(b)
}

// poisons returns what a limit's key may hold, drawn by a seed: of size numbers, or, if that
// is 0, a log. Without a limit it is that of slots.
func poisons(l *algorithms.Limit, size int, seed uint64) (all []poison) {
	r := rand.New(rand.NewPCG(seed, 0))
	all = append(all,
		text("text", "hello", true),
		text("nothing", "", true),
		poison{"a hash", func(c *redis.Client, key string) error { return c.HSet(context.Background(), key, "a", "1").Err() }, true},
	)
	extremes := []int64{-1, -1 << 53, -1 << 62, -1 << 63, 1<<53 + 2, 1 << 62, 1<<63 - 1, 1 << 53, 1<<53 - 1, 1 << 52, 0, poisonNow, poisonNow - 1, poisonNow + 3_600_000_000}
	certain := func(numbers ...int64) bool {
		for _, n := range numbers {
			if n < 0 || n > 1<<53 {
				return true
			}
		}
		return false
	}
	draw := func(n int) (numbers []int64) {
		for range n {
			numbers = append(numbers, pick(r, extremes...))
		}
		return numbers
	}
	random := func(n int) string {
		var b []byte
		for range n {
			b = append(b, byte('!'+r.IntN(94))) // of two such strings in a row, no number is in range
		}
		return string(b)
	}
	if size > 0 {
		all = append(all, list(true, "1"), text("random", random(8*size), true), text("too long", packed(draw(5-size)...), true))
		for range 20 {
			numbers := draw(size)
			all = append(all, text(fmt.Sprint(numbers), packed(numbers...), certain(numbers...)))
		}
		for i := range size { // each number alone out of range
			for _, bad := range []int64{-1, 1 << 62} {
				numbers := []int64{0, 0, 0}[:size]
				numbers[i] = bad
				all = append(all, text(fmt.Sprint(numbers), packed(numbers...), true))
			}
		}
		return all
	}
	all = append(all, text("numbers", packed(1, 2), true), list(true, "hello"), list(true, ""), list(true, random(23)), list(true, random(24), random(24)))
	if l == nil || l.Buckets == 0 {
		return append(all,
			list(true, "nan"), list(true, "inf"), list(true, "-1"), list(true, "1e300"), list(true, "1.5"), list(true, fmt.Sprint(poisonNow-1, ".25")),
			list(true, fmt.Sprint(poisonNow-1), "x"), list(true, packed(poisonNow, 0, 1)), list(true, fmt.Sprint(int64(-poisonNow))),
			list(false, fmt.Sprint(int64(1)<<53)), list(false, "5", "3"), list(false, fmt.Sprint(poisonNow), "0"))
	}
	all = append(all,
		list(true, fmt.Sprint(poisonNow-1)), list(true, packed(poisonNow, 0)), list(true, packed(poisonNow, 0, 1)+"x"),
		list(true, packed(poisonNow, 5, 5)), list(true, packed(poisonNow, 7, 5)), list(true, packed(poisonNow, 0, 1<<62)),
		// The numbers of neighbours do not go on.
		list(true, packed(1, 5, 6), packed(poisonNow, 1, 2)),
		list(true, packed(1, 5, 6), packed(poisonNow, 0, 9)),
		list(true, packed(1, 5, 6), packed(poisonNow, 90, 91), packed(poisonNow, 6, 7)),
		list(false, packed(1<<53, 0, 1)), list(false, packed(poisonNow, 0, 1<<53)))
	for range 20 {
		numbers := draw(3)
		all = append(all, list(certain(numbers...) || numbers[1] >= numbers[2], packed(numbers...)))
	}
	return all
}

// poisoned poisons a key of every algorithm in every way, decides a request with it amid
// others, and gives back and renews a charge of it. It returns the first thing that isn't as
// it should be, or "".
func poisoned(t testing.TB, client *redis.Client, seed uint64, mutate func(string) string) string {
	t.Helper()
	ctx := context.Background()
	names := format{keyNames{prefix: "p"}, 60_000_000}
	healthy := storetest.Limit(t, "h", algorithms.Quota{Algorithm: "token_bucket", Events: 10, Window: 60_000_000})
	quotas := append(storetest.Quotas(10, 60_000_000),
		algorithms.Quota{Algorithm: "sliding_log", Events: 10, Window: 60_000_000, Buckets: 6},
		algorithms.Quota{Algorithm: "smooth", Events: 10, Window: 60_000_000, WarmUp: 60_000_000})
	type budget struct {
		limit store.Limit
		slots *store.Slots
		ban   *store.Ban
		id    string
		size  int // how many numbers it is; 0 is a log
	}
	var budgets []budget
	for _, q := range quotas {
		limit := storetest.Limit(t, "z", q)
		size := 2
		switch q.Algorithm {
		case "sliding_log":
			size = 0
		case "sliding_window":
			size = 3
		}
		budgets = append(budgets, budget{limit: limit, id: limit.ID, size: size})
	}
	slots := &store.Slots{ID: store.SlotsID("z", ""), Limit: 10}
	ban := storetest.Ban(t, "z", algorithms.Ban{After: 1, Window: 60_000_000, Duration: 60_000_000, Most: 60_000_000})
	budgets = append(budgets, budget{slots: slots, id: slots.ID}, budget{ban: ban, id: ban.ID, size: 3})
	for _, of := range budgets {
		limits := []store.Limit{healthy}
		var refunds []credit
		if of.limit.Limit != nil {
			limits = append(limits, of.limit)
			refunds = []credit{{"bad", of.id, of.limit.Limit, algorithms.Receipt{A: poisonNow - 1}, 1}}
		} else if of.slots != nil {
			refunds = []credit{{"bad", of.id, slotLimit(10), algorithms.Receipt{A: poisonNow - 1}, 1}}
		}
		one := func(key string, mode algorithms.Mode) []store.Request {
			return []store.Request{{Zone: "z", Key: key, Cost: 1, Mode: mode, Limits: []store.Limit{healthy}}}
		}
		bad := one("bad", algorithms.Binary)
		bad[0].Limits, bad[0].Slots, bad[0].Ban = limits, of.slots, of.ban
		set := algorithmsOf(bad)
		sha := client.ScriptLoad(ctx, mutate(set.TakeScript())).Val()
		refund := client.ScriptLoad(ctx, mutate(set.RefundScript())).Val()
		renew := client.ScriptLoad(ctx, mutate(set.RenewScript())).Val()
		for _, p := range poisons(of.limit.Limit, of.size, seed) {
			for _, mode := range []algorithms.Mode{algorithms.Binary, algorithms.Uniform} {
				if mode == algorithms.Uniform && of.limit.Limit != nil && of.limit.Algorithm().BinaryOnly {
					continue
				}
				what := fmt.Sprintf("%s in mode %v, seed %d, poisoned by %s", of.id, mode, seed, p.name)
				client.FlushDB(ctx)
				key := names.name("bad", of.id)
				if err := p.put(client, key); err != nil {
					t.Fatal(err)
				}
				before := client.Dump(ctx, key).Val()
				bad[0].Mode = mode
				groups := [][]store.Request{one("first", mode), bad, one("last", mode)}
				keys, argv := names.encode(poisonNow, 0, groups...)
				values, err := client.EvalSha(ctx, sha, keys, argv...).Slice()
				if err != nil {
					return fmt.Sprintf("%s: the call fails: %v", what, err)
				}
				r := reader{reply: values}
				r.decodeHead()
				var failed [3]error
				for i := range groups {
					_, failed[i] = r.decodeGroup(groups[i])
				}
				if err := r.end(); err != nil {
					return fmt.Sprintf("%s: the reply is bad: %v", what, err)
				}
				for _, i := range []int{0, 2} {
					if failed[i] != nil || groups[i][0].Outcome.Decisions[0].Remaining != 9 {
						return fmt.Sprintf("%s: another request: %v, %+v", what, failed[i], groups[i][0].Outcome.Decisions)
					}
				}
				if failed[1] == nil && p.certain {
					return fmt.Sprintf("%s: decided as %+v", what, groups[1][0].Outcome.Decisions)
				}
				if e, ok := classify(ctx, failed[1]).(*store.Error); failed[1] != nil && (!ok || e.Reason != store.ReasonKey) {
					return fmt.Sprintf("%s: %v, want an error of the key", what, failed[1])
				}
				if p.certain && client.Dump(ctx, key).Val() != before {
					return what + ": it was written over"
				}
				if p.certain && of.ban == nil {
					keys, argv := names.encodeRefund(refunds, poisonNow)
					given, err := client.EvalSha(ctx, refund, keys, argv...).Slice()
					if err != nil || len(given) != 2 || given[1] == int64(1) {
						return fmt.Sprintf("%s: giving back says %v, %v", what, given, err)
					}
					keys, argv = names.encodeRefund(refunds, poisonNow, 0)
					renewed, err := client.EvalSha(ctx, renew, keys, argv...).Slice()
					if err != nil || len(renewed) != 4 || renewed[2] != int64(0) {
						return fmt.Sprintf("%s: renewing says %v, %v", what, renewed, err)
					}
					if client.Dump(ctx, key).Val() != before {
						return what + ": it was written over by giving back or renewing"
					}
				}
				if p.certain && client.Exists(ctx, names.name("bad", healthy.ID)).Val() != 0 {
					return what + ": the request was charged to another limit"
				}
			}
		}
	}
	return ""
}

// Whatever another program has stored at a key fails the requests of that key, and charges
// and fails no other. What no budget ever holds stays as it is.
func TestPoison(t *testing.T) {
	client := redistest.Start(t).Client
	for seed := range uint64(8) {
		if wrong := poisoned(t, client, seed, func(s string) string { return s }); wrong != "" {
			t.Error(wrong)
		}
	}
}

func TestPoisonCatchesMutants(t *testing.T) {
	client := redistest.Start(t).Client
	var all strings.Builder
	for _, a := range algorithms.All() {
		all.WriteString(algorithms.Set(0).With(a).TakeScript())
	}
	for _, m := range []struct{ name, old, new string }{
		{"any length", "if #state ~= 8 * count then foreign() end", ""},
		{"negative numbers", "min(a, b, c) < 0 or ", ""},
		{"numbers that are too large", " or max(a, b, c) > forever then", " then"},
		{"the last number alone", "min(a, b, c) < 0 or max(a, b, c) > forever", "c < 0 or c > forever"},
		{"the first number alone", "min(a, b, c) < 0 or max(a, b, c) > forever", "a < 0 or a > forever"},
		{"numbers that go back", "if first >= after then foreign() end", ""},
		{"a bucket before the first", "if number < first or number - first > held then foreign() end", ""},
		{"a bucket behind the last", "number < first or number - first > held", "number < first"},
		{"negative stamps", "n >= 0 and ", ""},
		{"stamps that are too large", " and n <= forever)", ")"},
		{"parts of a stamp", " or n % 1 ~= 0 then", " then"},
		{"no number is one", "(n >= 0 and n <= forever)", "(n < 0 or n > forever)"},
	} {
		t.Run(m.name, func(t *testing.T) {
			if !strings.Contains(all.String(), m.old) {
				t.Fatalf("the script no longer holds %q", m.old)
			}
			for seed := range uint64(8) {
				if wrong := poisoned(t, client, seed, func(s string) string { return strings.ReplaceAll(s, m.old, m.new) }); wrong != "" {
					t.Logf("caught: %s", wrong)
					return
				}
			}
			t.Error("not caught")
		})
	}
}

// A number of a reply that no budget gives fails the request it is of. Those behind it are
// read as ever.
func TestForeignNumbers(t *testing.T) {
	l, err := algorithms.NewLimit(algorithms.Quota{Algorithm: "gcra", Events: 5, Window: 1000})
	if err != nil {
		t.Fatal(err)
	}
	for at := range 8 {
		for _, bad := range []int64{-1, -1 << 63, 1<<53 + 1, 1<<63 - 1} {
			values := []any{int64(9), int64(0)}
			for group := range 3 {
				values = append(values, int64(1))
				for i := range 8 {
					n := int64(1)
					if group == 1 && i == at {
						n = bad
					}
					values = append(values, n)
				}
			}
			r := reader{reply: values}
			r.decodeHead()
			for group := range 3 {
				requests := []store.Request{{Limits: []store.Limit{{Limit: l}}}}
				allowed, failed := r.decodeGroup(requests)
				if at == 0 { // it isn't made from what a key holds: this is no reply of ours
					continue
				}
				if allowed == (group == 1) || (failed != nil) != (group == 1) {
					t.Errorf("number %d is %d: group %d is allowed: %v, fails with %v", at, bad, group, allowed, failed)
				}
				if e, ok := classify(t.Context(), failed).(*store.Error); group == 1 && (!ok || e.Reason != store.ReasonKey) {
					t.Errorf("number %d is %d: %v, want an error of the key", at, bad, failed)
				}
			}
			if err := r.end(); (err != nil) != (at == 0) {
				t.Errorf("number %d is %d: the reply: %v", at, bad, err)
			}
		}
	}
}
