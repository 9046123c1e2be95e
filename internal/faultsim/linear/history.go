// Package linear makes histories of concurrent calls of several stores on one Redis. The checker porcupine, which knows
// nothing of this project, compares them with models in which one call comes after the other. All limits, bans and
// overrides last for hours, so time plays no part in the models.
package linear

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/redis/go-redis/v9"

	"github.com/caddy-rate-limit/caddy-rate-limit/redisstore"
)

const (
	// Stores is the number of stores of a history.
	Stores  = 3
	clients = 3 // of each store
	keys    = 2
)

// Subject is something of a key that stores change concurrently.
type Subject struct {
	model porcupine.NondeterministicModel
	visit func(*client)
	// lose changes what Redis knows of a key, so that a history is wrong.
	lose func(ctx context.Context, r *rand.Rand, redis *redis.Client, key string)
}

// History is calls of stores with their results, and when they began and ended.
type History struct {
	Failures []error // of calls; their results are unknown

	simulated bool // time is simulated, and only passes while all wait
	began     time.Time
	mu        sync.Mutex
	calls     []porcupine.Operation
	left      map[call]int  // slots that were given back, by store and key
	waits     map[call]bool // a client of a store waits for a slot of a key
}

// newHistory returns a history without calls, which begins now.
func newHistory(simulated bool) *History {
	return &History{simulated: simulated, began: time.Now(), left: make(map[call]int), waits: make(map[call]bool)}
}

// call is a call about a key.
type call struct {
	key  string
	what string
	arg  string // the text of an override
	by   int    // the store
	seen int    // slots that the store had given back before the call began
	lineCall
}

// unknown is the result of a call that failed. It may have had an effect, until grace after its end.
const (
	unknown = "unknown"
	grace   = 100 * time.Millisecond
)

func (h *History) now() int64 { return time.Since(h.began).Nanoseconds() }

func (h *History) add(c call, result string, began, ended int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.calls = append(h.calls, porcupine.Operation{ClientId: c.by, Input: c, Output: result, Call: began, Return: ended})
}

// do makes a call and adds it.
func (h *History) do(c call, make func() (result string, err error)) (result string) {
	began := h.now()
	result, err := make()
	ended := h.now()
	c.lasted = ended - c.began()
	if err != nil {
		result, ended = unknown, ended+grace.Nanoseconds()
		h.fail(err)
	}
	h.add(c, result, began, ended)
	return result
}

func (h *History) fail(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.Failures = append(h.Failures, err)
}

// client makes calls of a store.
type client struct {
	*History
	ctx   context.Context
	store *redisstore.Store
	by    int // the number of the store
	key   string
	rand  *rand.Rand
}

// Run lets clients of all stores call them for some time, which can be simulated.
func (s *Subject) Run(ctx context.Context, stores [Stores]*redisstore.Store, seed uint64, lasts time.Duration, simulated bool) *History {
	h := newHistory(simulated)
	var all sync.WaitGroup
	for n := range Stores * clients {
		c := &client{History: h, ctx: ctx, by: n % Stores, store: stores[n%Stores], rand: rand.New(rand.NewPCG(seed, uint64(n)))}
		all.Go(func() {
			for time.Since(h.began) < lasts {
				c.key = fmt.Sprint("k", c.rand.IntN(keys))
				s.visit(c)
				time.Sleep(time.Duration(c.rand.IntN(10_000)) * time.Microsecond) // a client makes random pauses
			}
		})
	}
	all.Wait()
	return h
}

// Spoil changes what Redis knows of some key, again and again until the context ends.
func (s *Subject) Spoil(ctx context.Context, redis *redis.Client, seed uint64) {
	r := rand.New(rand.NewPCG(seed, Stores*clients))
	for ctx.Err() == nil {
		s.lose(context.WithoutCancel(ctx), r, redis, fmt.Sprint("k", r.IntN(keys)))
		time.Sleep(time.Millisecond) // leaves time for the calls between two faults
	}
}

// Check reports whether a history is as the model says. The result is unknown if that takes too long: the search can be
// exponential, and most of all if many calls overlap.
func (s *Subject) Check(h *History) (result porcupine.CheckResult, summary string) {
	results := make(map[string]int)
	for _, c := range h.calls {
		results[fmt.Sprint(c.Input.(call).what, " ", c.Output)]++
	}
	return porcupine.CheckOperationsTimeout(s.model.ToModel(), h.calls, 10*time.Second), fmt.Sprintf("%d calls: %v", len(h.calls), results)
}

// byKey divides a history: keys don't depend on each other.
func byKey(all []porcupine.Operation) (parts [][]porcupine.Operation) {
	places := make(map[string]int)
	for _, c := range all {
		key := c.Input.(call).key
		n, known := places[key]
		if !known {
			n = len(parts)
			places[key], parts = n, append(parts, nil)
		}
		parts[n] = append(parts[n], c)
	}
	return parts
}

// model returns a model in which a call has one result and one effect. An unknown call may have had no effect.
func model[S comparable](apply func(S, call) (result string, after S)) porcupine.NondeterministicModel {
	return porcupine.NondeterministicModel{
		Partition: byKey,
		Init: func() []any {
			var none S
			return []any{none}
		},
		Step: func(state, input, output any) []any {
			result, after := apply(state.(S), input.(call))
			switch output {
			case unknown:
				return []any{state, after}
			case result:
				return []any{after}
			}
			return nil
		},
	}
}
