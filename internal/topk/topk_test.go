package topk

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"
)

const (
	capacity = 100
	keptFor  = 10 * time.Minute
)

func newSketch() *Sketch[string, string] { return New[string, string](capacity, keptFor) }

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
		if i > 0 && c.Count-c.Excess > counters[i-1].Count-counters[i-1].Excess {
			t.Errorf("seed %d: the key of counter %d occurred more often for certain than the one before", seed, i)
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

// A key is forgotten some time after it occurred last, and then begins again.
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
	count("often", 100)
	count("again", 80)
	now = now.Add(keptFor)
	want("often 100, again 80, once 1")
	count("again", 1)
	now = now.Add(1)
	want("again 81")
	count("often", 2)
	want("again 81, often 2")
	now = now.Add(keptFor + 1)
	want("")
	count("b", 2)
	count("a", 2)
	want("a 2, b 2")
	for i := range capacity - 2 { // the last ones take the counters of forgotten keys
		count(fmt.Sprint(i), 3)
	}
	for _, c := range list(s, now) {
		if c.Excess != 0 {
			t.Errorf("%+v took over the count of a forgotten key", c)
		}
	}
}

// A counter that one key leaves to another tells how much of its count is not its own. Keys that nothing is known of for
// certain don't stand before others.
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
	counters := list(s, now)
	first, last := counters[0], counters[capacity-1]
	if want := (Counter[string, string]{"often", "label of often", 25, 5, now}); first != want {
		t.Errorf("the first is %+v, want %+v", first, want)
	}
	if want := (Counter[string, string]{"new", "label of new", 6, 5, now}); last != want {
		t.Errorf("the last is %+v, want %+v", last, want)
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
