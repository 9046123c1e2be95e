package redisstore

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/redisstore/redistest"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// The parity test plays the same seeded program (some limits, 40 requests on a
// timeline) through the Go functions and through the composed Lua script on a
// real Redis. Every decision, and the state at the end, must be the same.

const programSteps = 40

var parityNames = keyNames{prefix: "parity"}

// ready makes the requests those of a step.
func (p *program) ready(s step) {
	for z := range p.requests {
		q := &p.requests[z]
		q.Cost, q.MaxWait = s.costs[z], maxWait(*q, s.wait)
		if q.Override != nil {
			q.Override = &store.Override{Text: s.asked[z]}
		}
		if q.Slots != nil {
			q.Slots = &store.Slots{ID: q.Slots.ID, Limit: s.slots[z]}
		}
	}
}

// difference replays the program on Redis in one pipeline and returns the first
// thing that isn't as in Go, or "".
func (p *program) difference(client *redis.Client, load func(algorithms.Set) loaded) (string, error) {
	ctx := context.Background()
	set := algorithmsOf(p.requests)
	if p.startFrom != nil {
		if err := putState(client, p.requests[0], *p.startFrom); err != nil {
			return "", err
		}
	}
	pipe := client.Pipeline()
	var replies, refunds []*redis.Cmd
	for _, s := range p.steps {
		p.ready(s)
		for _, c := range p.format.encodeChange(s.now, s.change) {
			pipe.Eval(ctx, algorithms.ChangeScript(), c.keys, c.argv...)
		}
		keys, argv := p.format.encode(s.now, 0, p.requests)
		replies = append(replies, pipe.EvalSha(ctx, load(set).take, keys, argv...))
		if s.refund.events > 0 {
			if credits := p.credits(s.refund); len(credits) > 0 {
				back, argv := p.format.encodeRefund(credits, s.now)
				refunds = append(refunds, pipe.EvalSha(ctx, load(set).refund, back, argv...))
			}
		}
	}
	if _, err := pipe.Exec(ctx); err != nil {
		return "", err
	}
	for _, reply := range refunds {
		values, err := reply.Slice()
		if err != nil || slices.ContainsFunc(values[1:], func(v any) bool { return v != int64(1) }) {
			return fmt.Sprintf("a refund: %v", values), err
		}
	}
	for i, reply := range replies {
		values, err := reply.Slice()
		if err != nil {
			return "", err
		}
		if diff := p.differs(p.steps[i], values); diff != "" {
			return fmt.Sprintf("step %d at %d: %s", i, p.steps[i].now, diff), nil
		}
	}
	for z, q := range p.requests {
		if len(p.states) == 0 {
			break
		}
		of := p.states[z]
		want := map[string]algorithms.State{}
		for n, l := range q.Limits {
			want[l.ID] = of.budgets[n]
		}
		if q.Ban != nil {
			want[q.Ban.ID] = of.ban
		}
		if q.Slots != nil {
			want[q.Slots.ID] = of.slots
		}
		for id, state := range want {
			if diff, err := stateDifference(client, p.format.name(q.Key, id), state); err != nil || diff != "" {
				return diff, err
			}
		}
	}
	return "", nil
}

// differs compares the reply to a step.
func (p *program) differs(s step, values []any) string {
	p.ready(s)
	r := reader{reply: values}
	now, _ := r.decodeHead()
	_, failed := r.decodeGroup(p.requests)
	if err := r.end(); err != nil {
		return err.Error()
	}
	if found, is := errors.AsType[*store.OverriddenError](failed); is && slices.Equal(found.Overrides, s.others) {
		return ""
	} else if is || s.others != nil {
		return fmt.Sprintf("asked by the overrides %q: %v, want %q", s.asked, found, s.others)
	}
	if failed != nil {
		return failed.Error()
	}
	at, taken := 3, r.taken
	for z, q := range p.requests {
		got, want := q.Outcome, s.want[z]
		at += 8 * len(q.Limits)
		var ban [8]int64
		if q.Ban != nil {
			for n := range ban {
				ban[n] = values[at+n].(int64)
			}
			at += 8
		}
		if q.Slots != nil {
			at += 8
		}
		var receipt algorithms.Receipt
		if got.Slots.Taken {
			receipt, taken = taken[0].receipt, taken[1:]
		}
		if now != s.now || !reflect.DeepEqual(got, want) || ban != s.bans[z] || receipt != s.receipts[z] {
			return fmt.Sprintf("cost %d, %d slots:\n  Go  %+v %v %+v\n  Lua %+v %v %+v", s.costs[z], s.slots[z], want, s.bans[z], s.receipts[z], got, ban, receipt)
		}
	}
	return ""
}

// putState writes the state of a request's first limit into Redis.
func putState(client *redis.Client, r store.Request, s algorithms.State) error {
	key := parityNames.name(r.Key, r.Limits[0].ID)
	if s.Log != nil {
		for i := range s.Log.Len() {
			if err := client.RPush(context.Background(), key, s.Log.At(i)).Err(); err != nil {
				return err
			}
		}
		return client.Expire(context.Background(), key, time.Hour).Err()
	}
	state := binary.LittleEndian.AppendUint64(nil, uint64(s.A))
	state = binary.LittleEndian.AppendUint64(state, uint64(s.B))
	return client.Set(context.Background(), key, state, time.Hour).Err()
}

func stateDifference(client *redis.Client, key string, want algorithms.State) (string, error) {
	ctx := context.Background()
	kind, err := client.Type(ctx, key).Result()
	if err != nil {
		return "", err
	}
	switch kind {
	case "string":
		state, err := client.Get(ctx, key).Bytes()
		if err != nil {
			return "", err
		}
		var got algorithms.State
		for n, field := range []*int64{&got.A, &got.B, &got.C}[:len(state)/8] {
			*field = int64(binary.LittleEndian.Uint64(state[8*n:]))
		}
		if got != want {
			return fmt.Sprintf("state of %s: Go %+v, Lua %+v", key, want, got), nil
		}
	case "list":
		entries, err := client.LRange(ctx, key, 0, -1).Result()
		if err != nil {
			return "", err
		}
		var got, log []int64
		for _, entry := range entries {
			got = append(got, logEntry(entry)...)
		}
		for n := range want.Log.Len() {
			log = append(log, want.Log.At(n))
		}
		if want.A > 0 { // how far the log's own time is ahead stands last
			log = append(log, want.A)
		}
		if !slices.Equal(got, log) {
			return fmt.Sprintf("state of %s: Go %d, Lua %d", key, log, got), nil
		}
	default: // none
		if want != (algorithms.State{}) {
			return fmt.Sprintf("state of %s: Go %+v, Lua none", key, want), nil
		}
		return "", nil
	}
	if ttl := client.PTTL(ctx, key).Val(); ttl < 0 || ttl == 0 {
		return fmt.Sprintf("%s has no expiry", key), nil
	}
	return "", nil
}

// logEntry reads an entry of a log: an instant, or three packed numbers.
func logEntry(entry string) (numbers []int64) {
	if len(entry) == 24 {
		for n := range 3 {
			numbers = append(numbers, int64(binary.LittleEndian.Uint64([]byte(entry[8*n:]))))
		}
		return numbers
	}
	stamp, _ := strconv.ParseInt(entry, 10, 64)
	return []int64{stamp}
}

// loaded are the hashes of the two scripts of a set.
type loaded struct{ take, refund string }

// loader loads each composed script once, changed by mutate. Keys are there for an hour
// longer than they need to be: Redis forgets in true time, of which a busy machine may
// take seconds where a program takes a microsecond.
func loader(t testing.TB, client *redis.Client, mutate func(string) string) func(algorithms.Set) loaded {
	t.Helper()
	known := make(map[algorithms.Set]loaded)
	load := func(script string) string {
		const spare = "/ 1000) + 1000\n"
		if strings.Count(script, spare) != 1 {
			t.Fatalf("the script no longer holds %q", spare)
		}
		lasting := strings.Replace(mutate(script), spare, "/ 1000) + 3600000\n", 1)
		hash, err := client.ScriptLoad(context.Background(), lasting).Result()
		if err != nil {
			t.Fatalf("load: %v", err)
		}
		return hash
	}
	return func(set algorithms.Set) loaded {
		l, ok := known[set]
		if !ok {
			l = loaded{take: load(set.TakeScript()), refund: load(set.RefundScript())}
			known[set] = l
		}
		return l
	}
}

func unchanged(script string) string { return script }

func TestParity(t *testing.T) {
	programs := 3000
	if testing.Short() {
		programs = 300
	}
	client := redistest.Start(t).Client
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
	client := redistest.Start(f).Client
	script := loader(f, client, unchanged)
	for seed := range uint64(50) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed uint64) {
		client.FlushAll(context.Background())
		p := newProgram(seed)
		if diff, err := p.difference(client, script); err != nil || diff != "" {
			t.Fatalf("%v\n%s %v", p, diff, err)
		}
	})
}
