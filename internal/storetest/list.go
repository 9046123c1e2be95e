package storetest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// listAll returns the entries of all pages.
func listAll(t *testing.T, s store.Store, l store.Listing) (all []store.Listed) {
	t.Helper()
	for {
		page, err := s.List(context.Background(), l)
		if err != nil {
			t.Fatalf("list %+v: %v", l, err)
		}
		all = append(all, page.Entries...)
		if l.Cursor = page.Next; l.Cursor == "" {
			return all
		}
	}
}

// listedKeys returns the keys of a list, in order. A key without a text is named by its hash.
func listedKeys(all []store.Listed) (keys []string) {
	for _, l := range all {
		keys = append(keys, l.Key+l.Hash)
	}
	slices.Sort(keys)
	return keys
}

// banByHand begins bans of a key, one of each variant.
func banByHand(t *testing.T, s store.Store, zone, variants, key string, span algorithms.Micros) {
	t.Helper()
	c := store.Change{Zone: zone, Key: key, BanFor: span}
	for variant := range strings.SplitSeq(variants, ",") {
		ban := &algorithms.Ban{After: 1, Window: hour, Duration: hour, Max: hour}
		c.Ban = append(c.Ban, &store.Ban{ID: store.BanID(zone, variant), Ban: ban})
	}
	if err := s.Change(context.Background(), c); err != nil {
		t.Fatal(err)
	}
}

// Each ban that is in force is on one page, and nothing else.
func testListBans(t *testing.T, s Store) {
	const count = 1200
	var want []string
	for i := range count {
		key := fmt.Sprint("key ", i)
		banByHand(t, s, "z", "", key, hour)
		want = append(want, key)
	}
	slices.Sort(want)
	for i := range 150 {
		banByHand(t, s, "other", "", fmt.Sprint("key ", i), hour)
		setOverride(t, s, "z", fmt.Sprint("key ", i), "an override")
	}
	limit := Limit(t, "z", algorithms.Quota{Algorithm: "gcra", Events: 10, Window: minute})
	for i := range 150 {
		if _, err := s.Take(context.Background(), newRequest("z", fmt.Sprint("charged ", i), 1, limit)); err != nil {
			t.Fatal(err)
		}
	}
	for _, limit := range []int{7, 100, 1000, 5000} {
		got := listedKeys(listAll(t, s, store.Listing{Zone: "z", Kind: store.Bans, Limit: limit}))
		if !slices.Equal(got, want) {
			t.Errorf("limit %d: %d bans, %d different ones, want %d", limit, len(got), len(slices.Compact(got)), count)
		}
	}
	if got := len(listAll(t, s, store.Listing{Zone: "z", Kind: store.Overrides, Limit: 100})); got != 150 {
		t.Errorf("%d overrides, want 150", got)
	}
	for _, cursor := range []string{"x", "-1", "0-0", "0-0-0-0", "9999999999999999999999", "ffff-1-1", "0-0-0 "} {
		if page, err := s.List(context.Background(), store.Listing{Zone: "z", Kind: store.Bans, Limit: 1, Cursor: cursor}); err == nil {
			t.Errorf("cursor %q: %+v", cursor, page)
		}
	}
}

// A list says who began a ban, which alternative it is of, and when it ends. Bans that have ended, and
// denials that don't make a ban yet, are not listed.
func testListedBan(t *testing.T, s Store) {
	limit := Limit(t, "z", algorithms.Quota{Algorithm: "fixed_window", Events: 1, Window: hour})
	take := func(key, variant string, n int) {
		t.Helper()
		for range n {
			r := newRequest("z", key, 1, limit)
			r[0].Ban = &store.Ban{ID: store.BanID("z", variant), Ban: &algorithms.Ban{After: 2, Window: hour, Duration: hour, Max: hour}}
			if _, err := s.Take(context.Background(), r); err != nil {
				t.Fatal(err)
			}
		}
	}
	take("denied", "2", 3)
	take("nearly", "2", 2)
	banByHand(t, s, "z", "3", "by hand", minute)
	banByHand(t, s, "z", "", "ended", 1)
	banByHand(t, s, "z", "", "ended by hand", hour)
	unban := store.Change{Zone: "z", Key: "ended by hand", Forget: []string{store.BanID("z", "")}}
	if err := s.Change(context.Background(), unban); err != nil {
		t.Fatal(err)
	}
	all := listAll(t, s, store.Listing{Zone: "z", Kind: store.Bans, Limit: 10})
	if got := listedKeys(all); !slices.Equal(got, []string{"by hand", "denied"}) {
		t.Fatalf("bans of %q", got)
	}
	for _, l := range all {
		byOperator, variant, span := l.Key == "by hand", "2", int64(hour)
		if byOperator {
			variant, span = "3", minute
		}
		if l.Ban.ByOperator != byOperator || l.Variant != variant || l.Ban.EndsAfter > span || l.Ban.EndsAfter < span-minute {
			t.Errorf("%+v", l)
		}
	}
	banByHand(t, s, "two", "1,2", "k", hour)
	if all := listAll(t, s, store.Listing{Zone: "two", Kind: store.Bans, Limit: 10}); len(all) != 2 || all[0].Variant == all[1].Variant {
		t.Errorf("bans of two alternatives: %+v", all)
	}
	// Another ban, by denials, after one by an operator.
	banByHand(t, s, "z", "4", "both", 1)
	take("both", "4", 3)
	for _, l := range listAll(t, s, store.Listing{Zone: "z", Kind: store.Bans, Limit: 10}) {
		if l.Key == "both" && l.Ban.ByOperator {
			t.Errorf("%+v", l)
		}
	}
}

// Keys and zones can have any bytes.
func testListStrangeNames(t *testing.T, s Store) {
	long := strings.Repeat("0123456789", 1000)
	keys := []string{
		"", "%", "%2F", "a/b/../c", "{", "}", "}:z:4b", "{}", "a b", "\xff\x00\r\n", "é世界🙂", "*", "[a]", `\`, "?",
		strings.Repeat("x", 128), strings.Repeat("{", 128),
	}
	zones := []string{"z", "*", "z*", "[z]", "?", `\`, "a:z", "z:4b", "z:4b:2", "z:o", "}:z", "", "z]", "^", "z b\n"}
	for _, zone := range zones {
		for _, key := range keys {
			banByHand(t, s, zone, "", key+zone, hour)
			setOverride(t, s, zone, key+zone+"o", "override of "+zone+key)
		}
	}
	for _, zone := range zones {
		var want []string
		for _, key := range keys {
			want = append(want, key+zone)
		}
		slices.Sort(want)
		var bans []store.Listed
		for _, l := range listAll(t, s, store.Listing{Zone: zone, Kind: store.Bans, Limit: 10}) {
			if l.Variant == "" { // "z:4b:2:4b" is also variant "2:4b" of zone z
				bans = append(bans, l)
			}
		}
		hashed := func(l store.Listed) bool { return l.Hash != "" }
		want = slices.DeleteFunc(want, func(key string) bool { return len(key) > 128 && slices.ContainsFunc(bans, hashed) })
		if got := listedKeys(slices.DeleteFunc(slices.Clone(bans), hashed)); len(bans) != len(keys) || !slices.Equal(got, want) {
			t.Errorf("zone %q: %d bans of %q, want %q", zone, len(bans), got, want)
		}
		overrides := listAll(t, s, store.Listing{Zone: zone, Kind: store.Overrides, Limit: 10})
		if len(overrides) != len(keys) {
			t.Errorf("zone %q: %d overrides, want %d", zone, len(overrides), len(keys))
		}
		for _, l := range overrides {
			if l.Hash == "" && l.Override != "override of "+zone+strings.TrimSuffix(l.Key, zone+"o") {
				t.Errorf("zone %q: %+v", zone, l)
			}
		}
	}
	banByHand(t, s, "long", "", long, hour)
	all := listAll(t, s, store.Listing{Zone: "long", Kind: store.Bans, Limit: 1})
	if len(all) != 1 || !strings.HasPrefix(long, all[0].Key) || len(all[0].Key) > 256 || !all[0].Cut && all[0].Hash == "" {
		t.Errorf("%+v", all)
	}
}

// A ban that is in force during all of the paging is listed once, whatever else begins and ends.
func testListConcurrency(t *testing.T, s Store) {
	const count = 1000
	for i := range count {
		banByHand(t, s, "z", "", fmt.Sprint("key ", i), hour)
	}
	stop := make(chan struct{})
	var others sync.WaitGroup
	for n := range 3 {
		others.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				key := fmt.Sprint(n, " other ", i%50)
				ban := &store.Ban{ID: store.BanID("z", ""), Ban: &algorithms.Ban{After: 1, Window: hour, Duration: hour, Max: hour}}
				err := s.Change(context.Background(), store.Change{Zone: "z", Key: key, Ban: []*store.Ban{ban}, BanFor: hour})
				if err == nil && i%2 == 1 {
					err = s.Change(context.Background(), store.Change{Zone: "z", Key: key, Forget: []string{ban.ID}})
				}
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	for range 3 {
		times := make(map[string]int)
		for _, l := range listAll(t, s, store.Listing{Zone: "z", Kind: store.Bans, Limit: 50}) {
			times[l.Key]++
		}
		for i := range count {
			if n := times[fmt.Sprint("key ", i)]; n != 1 {
				t.Errorf("key %d is listed %d times", i, n)
			}
		}
	}
	close(stop)
	others.Wait()
}

// Overrides that have ended are not listed.
func testListEndedOverrides(t *testing.T, s Store) {
	text := "soon"
	if err := s.Change(context.Background(), store.Change{Zone: "z", Key: "soon", Override: &text, OverrideFor: 1000}); err != nil {
		t.Fatal(err)
	}
	setOverride(t, s, "z", "removed", "never seen")
	setOverride(t, s, "z", "removed", "")
	setOverride(t, s, "z", "for good", "for good")
	deadline := time.Now().Add(maxWait)
	for {
		all := listAll(t, s, store.Listing{Zone: "z", Kind: store.Overrides, Limit: 10})
		if keys := listedKeys(all); slices.Equal(keys, []string{"for good"}) {
			return
		} else if time.Now().After(deadline) || !slices.Equal(keys, []string{"for good", "soon"}) {
			t.Fatalf("overrides of %q", keys)
		}
		time.Sleep(time.Millisecond) // between two looks, because Redis has its own clock
	}
}
