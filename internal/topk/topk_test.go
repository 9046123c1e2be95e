package topk

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

const (
	capacity = 100
	halfLife = time.Minute
)

func newSketch() *Sketch[string, string] { return New[string, string](capacity, halfLife) }

func add(s *Sketch[string, string], now time.Time, key string) {
	s.Add(now, key, func(label *string) {
		if *label == "" {
			*label = "label of " + key
		}
	})
}

func list(s *Sketch[string, string], now time.Time) []Counter[string, string] {
	return s.List(now, strings.Compare)
}

// Memory is bounded for any number of keys. No count is too high by more than its excess. A key
// with more than its share has a counter.
func TestSketchIsBounded(t *testing.T) {
	const occurrences = 200_000
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 0))
	keys := rand.NewZipf(random, 1.1, 1, 1_000_000)
	now, s, exact := time.Now(), newSketch(), make(map[string]int64)
	for range occurrences {
		key := fmt.Sprint("key ", keys.Uint64())
		exact[key]++
		add(s, now, key)
	}
	counters := list(s, now)
	if len(counters) != capacity || len(s.indexes) != capacity {
		t.Fatalf("%d counters and %d indexes, want %d", len(counters), len(s.indexes), capacity)
	}
	listed := make(map[string]bool)
	for i, c := range counters {
		listed[c.Key] = true
		if n := exact[c.Key]; n > c.Count || n < c.Count-c.Excess {
			t.Errorf("seed %d: %q occurred %d times, and the counter says %d to %d", seed, c.Key, n, c.Count-c.Excess, c.Count)
		}
		if c.Label != "label of "+c.Key {
			t.Errorf("seed %d: %q has the label %q", seed, c.Key, c.Label)
		}
		if i > 0 && c.Count > counters[i-1].Count {
			t.Errorf("seed %d: counter %d is higher than the one before", seed, i)
		}
	}
	frequent := 0
	for key, n := range exact {
		if n > occurrences/capacity {
			if frequent++; !listed[key] {
				t.Errorf("seed %d: %q occurred %d times of %d, and has no counter", seed, key, n, occurrences)
			}
		}
	}
	if frequent < 3 || len(exact) < 10*capacity {
		t.Fatalf("seed %d: %d keys, %d of them frequent: that shows nothing", seed, len(exact), frequent)
	}
}

func TestSketchForgets(t *testing.T) {
	now, s := time.Now(), newSketch()
	count := func(key string, n int) {
		for range n {
			add(s, now, key)
		}
	}
	want := func(want string) {
		t.Helper()
		var got []string
		for _, c := range list(s, now) {
			got = append(got, fmt.Sprint(c.Key, " ", c.Count))
		}
		if strings.Join(got, ", ") != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	count("once", 1)
	count("long ago", 100)
	count("as long", 80)
	now = now.Add(halfLife - 1)
	want("long ago 100, as long 80, once 1")
	now = now.Add(1)
	count("now", 60)
	count("long ago", 4)
	want("now 60, long ago 54, as long 40, once 0")
	now = now.Add(3 * halfLife)
	want("now 7, long ago 6, as long 5, once 0")
	now = now.Add(7 * halfLife) // the last ones occurred ten half-lives ago, and the others eleven
	want("long ago 0, now 0")
	now = now.Add(1000 * halfLife)
	want("")
	count("b", 2)
	count("a", 2)
	want("a 2, b 2")
}

// A counter that one key leaves to another tells how much of its count is not its own. The
// excess is never more than the count, also after halving.
func TestExcess(t *testing.T) {
	now, s := time.Now(), newSketch()
	for i := range capacity {
		for range 5 {
			add(s, now, fmt.Sprint(i))
		}
	}
	add(s, now, "new")
	for range 20 {
		add(s, now, "often")
	}
	for i, want := range [][]Counter[string, string]{
		{{"new", "label of new", 6, 5, now}, {"often", "label of often", 25, 5, now}},
		{{"new", "label of new", 3, 3, now}, {"often", "label of often", 12, 3, now}},
		{{"new", "label of new", 1, 1, now}, {"often", "label of often", 6, 2, now}},
	} {
		counters := list(s, now.Add(time.Duration(i)*halfLife))
		for _, c := range want {
			if !slices.Contains(counters, c) {
				t.Errorf("%+v, want %+v", counters, c)
			}
		}
	}
}

func TestConcurrentUse(t *testing.T) {
	now, s := time.Now(), newSketch()
	var clients sync.WaitGroup
	for range 8 {
		clients.Go(func() {
			for i := range 1000 {
				add(s, now, fmt.Sprint(i%10))
				if i%100 == 0 {
					list(s, now)
				}
			}
		})
	}
	clients.Wait()
	for _, c := range list(s, now) {
		if c.Count != 800 {
			t.Errorf("%+v, want 800", c)
		}
	}
}
