package ratelimit

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/redisstore"
)

// However many keys there are, memory is bounded, no count is further off than it tells,
// and who is refused more than his share is there.
func TestTopIsBounded(t *testing.T) {
	const refusals = 200_000
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 0))
	keys := rand.NewZipf(random, 1.1, 1, 1_000_000)
	now, s, exact := time.Now(), new(top), make(map[topKey]int64)
	for range refusals {
		key := fmt.Sprint("key ", keys.Uint64())
		exact[newTopKey("", key)]++
		s.count(now, "", key)
	}
	list := s.list(now)
	if len(list) != topPlaces || len(s.places) != topPlaces {
		t.Fatalf("%d keys and %d places are kept, want %d", len(list), len(s.places), topPlaces)
	}
	listed := make(map[topKey]bool)
	for i, c := range list {
		listed[c.key] = true
		if n := exact[c.key]; n > c.count || n < c.count-c.over {
			t.Errorf("seed %d: %q was refused %d times, and from %d to %d are told", seed, c.key.text, n, c.count-c.over, c.count)
		}
		if i > 0 && c.count > list[i-1].count {
			t.Errorf("seed %d: place %d counts more than the one before", seed, i)
		}
	}
	often := 0
	for key, n := range exact {
		if n > refusals/topPlaces {
			if often++; !listed[key] {
				t.Errorf("seed %d: %q was refused %d times of %d, and is not there", seed, key.text, n, refusals)
			}
		}
	}
	if often < 3 || len(exact) < 10*topPlaces {
		t.Fatalf("seed %d: %d keys, %d of them often: that shows nothing", seed, len(exact), often)
	}
}

// What counts is what was lately.
func TestTopForgets(t *testing.T) {
	now, s := time.Now(), new(top)
	count := func(key string, n int) {
		for range n {
			s.count(now, "", key)
		}
	}
	want := func(want string) {
		t.Helper()
		var got []string
		for _, c := range s.list(now) {
			got = append(got, fmt.Sprint(c.key.text, " ", c.count))
		}
		if strings.Join(got, ", ") != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	count("once", 1)
	count("long ago", 100)
	count("as long", 80)
	now = now.Add(topHalfLife - 1)
	want("long ago 100, as long 80, once 1")
	now = now.Add(1)
	count("now", 60)
	count("long ago", 4)
	want("now 60, long ago 54, as long 40")
	now = now.Add(3 * topHalfLife)
	want("now 7, long ago 6, as long 5")
	now = now.Add(1000 * topHalfLife)
	want("")
	count("again", 2)
	want("again 2")
}

// A place that one key leaves to another says how much is not its own, and is at most as
// much after halving.
func TestTopTellsHowFarOff(t *testing.T) {
	now, s := time.Now(), new(top)
	for i := range topPlaces {
		for range 5 {
			s.count(now, "", fmt.Sprint(i))
		}
	}
	s.count(now, "", "new")
	id, key := topID{key: keyHashes.Sum("new")}, topKey{text: "new"}
	for i, want := range []topCount{{id, key, 6, 5}, {id, key, 3, 3}, {id, key, 1, 1}} {
		list := s.list(now.Add(time.Duration(i) * topHalfLife))
		if n := slices.IndexFunc(list, func(c topCount) bool { return c.key == want.key }); n < 0 || list[n] != want {
			t.Errorf("%+v, want %+v", list, want)
		}
	}
}

func TestTopKeys(t *testing.T) {
	long := strings.Repeat("x", maxShownKey)
	for _, c := range []struct {
		secret, key string
		want        topKey
	}{
		{"", "", topKey{}},
		{"", long, topKey{text: long}},
		{"", long + "a", topKey{text: long, cut: true}},
		{"s", "k", topKey{text: redisstore.HashedKey("s", "k"), hashed: true}},
	} {
		if got := newTopKey(c.secret, c.key); got != c.want {
			t.Errorf("%q: %+v, want %+v", c.key, got, c.want)
		}
	}
}

// Keys that begin alike are counted apart, however long they are, and shown cut.
func TestTopCountsLongKeysApart(t *testing.T) {
	now, s, long := time.Now(), new(top), strings.Repeat("x", 12_000)
	for range 3 {
		s.count(now, "", long+"a")
	}
	s.count(now, "", long+"b")
	s.count(now, "", long[:maxShownKey])
	shown := topKey{text: long[:maxShownKey], cut: true}
	list := s.list(now)
	if len(list) != 3 || list[0].key != shown || list[0].count != 3 || list[1].count != 1 || list[2].count != 1 {
		t.Errorf("%+v", list)
	}
}

func TestTopAtOnce(t *testing.T) {
	now, s := time.Now(), new(top)
	var clients sync.WaitGroup
	for range 8 {
		clients.Go(func() {
			for i := range 1000 {
				s.count(now, "", fmt.Sprint(i%10))
				if i%100 == 0 {
					s.list(now)
				}
			}
		})
	}
	clients.Wait()
	for _, c := range s.list(now) {
		if c.count != 800 {
			t.Errorf("%+v, want 800", c)
		}
	}
}
