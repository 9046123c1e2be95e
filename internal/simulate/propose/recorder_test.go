package propose

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/simulate"
)

// A bucket can have more requests than fit into memory. It is then read in parts. A key that has more requests
// than fit into memory is read again for each limit.
func TestGroupsRequestsByKeys(t *testing.T) {
	r := rand.New(rand.NewPCG(2, 2))
	s := newStreamWithEnds(newSpool(1 << 16))
	want := make(map[uint32][]request)
	at := algorithms.Micros(1_700_000_000_000_000)
	for range 3 * maxGrouped {
		at += r.Int64N(1000) - 300 // not in order
		e := request{at: at, end: at + r.Int64N(1e9), cost: r.Int64N(3), mode: algorithms.Mode(r.IntN(4))}
		if e.cost == 2 {
			e.settled, e.trueCost = true, r.Int64N(1e12)
		}
		key := 5 + bucketCount*uint32(r.IntN(20_000))
		if r.IntN(2) == 0 {
			key = 5 + bucketCount*7
		}
		s.add(key, &e)
		want[key] = append(want[key], e)
	}
	defer s.spool.close()
	heavy, keys := 0, 0
	err := newGrouper().eachKey(s, 5, func(k *keyRequests) error {
		keys++
		if k.stream != nil {
			heavy++
		}
		i, last := 0, algorithms.Micros(0)
		err := k.each(func(e *request) {
			w := want[k.key][i]
			w.at = max(w.at, last)
			w.end = max(w.end, w.at)
			if last = w.at; *e != w {
				t.Fatalf("key %d, request %d: %v, want %v", k.key, i, e, &w)
			}
			i++
		})
		if i != len(want[k.key]) {
			t.Fatalf("key %d: %d requests, want %d", k.key, i, len(want[k.key]))
		}
		return err
	})
	if err != nil || heavy != 1 || keys != len(want) || s.spool.file == nil {
		t.Errorf("%v: %d keys of %d, %d of them heavy", err, keys, len(want), heavy)
	}
}

// Requests that a zone of the same handler denies are recorded. Exempt requests, those that meet only a
// ban, and those that an earlier handler denies are not.
func TestRecorderRecordsRequests(t *testing.T) {
	limit := newLimit(t, algorithms.Quota{Algorithm: "fixed_window", Events: 5, Window: 1_000_000})
	zones := []simulate.Zone{
		{Name: "a", Sets: []simulate.LimitSet{{Limits: []*algorithms.Limit{limit}}}},
		{Name: "b", Sets: []simulate.LimitSet{{Limits: []*algorithms.Limit{limit}}}},
		{Name: "c", Sets: []simulate.LimitSet{{Limits: []*algorithms.Limit{limit}}}},
	}
	tests := []struct {
		name   string
		denied [3]bool
		shadow bool // zone a
		only   int  // the zone with only a ban; -1 for none
		exempt int  // the zone that doesn't limit the request; -1 for none
		want   [3]int64
	}{
		{"allowed", [3]bool{}, false, -1, -1, [3]int64{1, 1, 1}},
		{"denied by the other zone", [3]bool{true, false, false}, false, -1, -1, [3]int64{1, 1, 0}},
		{"denied by the last zone", [3]bool{false, false, true}, false, -1, -1, [3]int64{1, 1, 1}},
		{"denied by a shadow", [3]bool{true, false, false}, true, -1, -1, [3]int64{1, 1, 1}},
		{"only a ban", [3]bool{}, false, 1, -1, [3]int64{1, 0, 1}},
		{"exempt", [3]bool{}, false, -1, 0, [3]int64{0, 1, 1}},
	}
	for _, test := range tests {
		r := newRecorder(zonesOnly{zones, 10}, DefaultTarget, 1<<20)
		visit := simulate.Visit{Handlers: []simulate.HandlerVisit{
			{Zones: []simulate.ZoneVisit{{Zone: 0}, {Zone: 1}}}, {Zones: []simulate.ZoneVisit{{Zone: 2}}},
		}}
		d := simulate.Decided{Visit: &visit, Came: 1, Denied: slices.Contains(test.denied[:], true) && !test.shadow}
		at := 0
		for h := range visit.Handlers {
			for z := range visit.Handlers[h].Zones {
				v := &visit.Handlers[h].Zones[z]
				v.BanOnly = at == test.only
				if at != test.exempt {
					d.Zones = append(d.Zones, simulate.DecidedZone{
						ZoneVisit: v, Key: "k", Cost: 1, Denied: test.denied[at], Shadow: test.shadow && at == 0,
					})
				}
				at++
			}
		}
		r.Observe(&d)
		for i, want := range test.want {
			got := int64(0)
			if s := r.zones[i].sets[0]; s != nil {
				got = s.requests
			}
			if got != want {
				t.Errorf("%s: zone %s has %d requests, want %d", test.name, zones[i].Name, got, want)
			}
		}
	}
}

// The charge of a request is corrected as the Decider corrects it.
func TestRecorderRecordsSettlements(t *testing.T) {
	limit := newLimit(t, algorithms.Quota{Algorithm: "fixed_window", Events: 5, Window: 1_000_000})
	sets := []simulate.LimitSet{{Limits: []*algorithms.Limit{limit}}}
	for _, test := range []struct {
		name                               string
		wasDenied, deniedLater, refundsOwn bool
		want                               request
	}{
		{"settled", false, false, false, request{at: 10, end: 90, cost: 3, settled: true, trueCost: 7}},
		{"denied in the log", true, false, false, request{at: 10, end: 10, cost: 3}},
		{"denied later", false, true, false, request{at: 10, end: 10, cost: 3}},
		{"denied later, and given back", false, true, true, request{at: 10, end: 10, cost: 3, settled: true}},
	} {
		zones := []simulate.Zone{{Name: "a", Sets: sets, RefundsDenied: test.refundsOwn}, {Name: "b", Sets: sets}}
		r := newRecorder(zonesOnly{zones, 10}, DefaultTarget, 1<<20)
		visit := simulate.Visit{End: 90, WasDenied: test.wasDenied, Handlers: []simulate.HandlerVisit{
			{Zones: []simulate.ZoneVisit{{Zone: 0, Settled: true, TrueCost: 7}}}, {Zones: []simulate.ZoneVisit{{Zone: 1}}},
		}}
		r.Observe(&simulate.Decided{Visit: &visit, Came: 10, Denied: test.deniedLater, Zones: []simulate.DecidedZone{
			{ZoneVisit: &visit.Handlers[0].Zones[0], Key: "k", Cost: 3},
			{ZoneVisit: &visit.Handlers[1].Zones[0], Key: "k", Cost: 1, Denied: test.deniedLater},
		}})
		err := r.zones[0].sets[0].each(0, nil, func(_ uint32, e *request) {
			if *e != test.want {
				t.Errorf("%s: %v, want %v", test.name, e, &test.want)
			}
		})
		if err != nil || r.zones[0].sets[0].requests != 1 {
			t.Errorf("%s: %d requests, %v", test.name, r.zones[0].sets[0].requests, err)
		}
	}
}

// The number of keys, and the number of sets, have bounds.
func TestRecorderIsBounded(t *testing.T) {
	limit := newLimit(t, algorithms.Quota{Algorithm: "fixed_window", Events: 5, Window: 1_000_000})
	zone := simulate.Zone{Name: "zone", Sets: []simulate.LimitSet{{Limits: []*algorithms.Limit{limit}}}}
	for i := range 50 {
		zone.Sets = append(zone.Sets, simulate.LimitSet{Name: fmt.Sprint("override ", i), Limits: []*algorithms.Limit{limit}})
	}
	var log []zoneRequest
	for i := range 5000 {
		at := int64(i) + 1
		log = append(log, zoneRequest{key: fmt.Sprint("key ", i%2000), set: i % 51, request: request{at: at, end: at, cost: 1}})
	}
	r := record(t, log, 1<<20, zone)
	if n := r.zones[0].keys.Len(); n != 1000 {
		t.Errorf("%d keys, want 1000, which is MaxKeys", n)
	}
	late := simulate.Visit{Handlers: []simulate.HandlerVisit{{Zones: []simulate.ZoneVisit{{Zone: 1}}}}}
	two := newRecorder(zonesOnly{[]simulate.Zone{zone, zone}, 10}, DefaultTarget, 1<<20)
	for i := range 40 { // a zone that comes late has its share of the room
		late.Handlers[0].Zones[0].Zone = i / 20
		two.Observe(&simulate.Decided{Visit: &late, Came: 1, Zones: []simulate.DecidedZone{
			{ZoneVisit: &late.Handlers[0].Zones[0], Key: fmt.Sprint(i), Cost: 1},
		}})
	}
	if first, second := two.zones[0].keys.Len(), two.zones[1].keys.Len(); first != 10 || second != 5 {
		t.Errorf("%d keys in the first zone and %d in the second, want 10 and 5", first, second)
	}
	proposals, err := r.proposeFor(t.Context(), DefaultTarget)
	if err != nil {
		t.Fatal(err)
	}
	all := proposals["zone"]
	if last := all[len(all)-1]; len(all) != maxSets+1 || last.Set != "31 other plans and overrides" || last.Reason == "" || last.Line != "" {
		t.Errorf("%d proposals, the last one %+v", len(all), last)
	}
}

// The file is gone when the recorder is closed, and in most systems before. A full disk is an error that
// says what to do.
func TestTemporaryFile(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	t.Setenv("TMP", dir) // Windows
	limit := newLimit(t, algorithms.Quota{Algorithm: "fixed_window", Events: 5, Window: second})
	zone := simulate.Zone{Name: "zone", Sets: []simulate.LimitSet{{Limits: []*algorithms.Limit{limit}}}}
	log := drawLog(rand.New(rand.NewPCG(1, 2)), 5000, 10, algorithms.Binary, false)
	r := record(t, log, 0, zone)
	if r.spool.file == nil {
		t.Fatal("no file is used")
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left: %v %v", left, err)
	}
	if _, err := r.proposeFor(t.Context(), DefaultTarget); err == nil {
		t.Error("a closed recorder proposes limits")
	}

	missing := filepath.Join(dir, "missing")
	t.Setenv("TMPDIR", missing)
	t.Setenv("TMP", missing)
	_, err := record(t, log, 0, zone).proposeFor(t.Context(), DefaultTarget)
	if err == nil || !strings.Contains(err.Error(), missing) || !strings.Contains(err.Error(), "TMPDIR") {
		t.Errorf("without the directory: %v", err)
	}

	full, err := os.OpenFile("/dev/full", os.O_RDWR, 0)
	if err != nil {
		t.Skip("no /dev/full:", err)
	}
	s := newSpool(0)
	s.file = full
	defer s.close()
	stream := newStream(s)
	for i := range log {
		stream.add(0, &log[i].request)
	}
	if s.err == nil || !strings.Contains(s.err.Error(), "no space left") {
		t.Errorf("on a full disk: %v", s.err)
	}
}
