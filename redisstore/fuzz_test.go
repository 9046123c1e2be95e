package redisstore

import (
	"strings"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// FuzzKey: the name of a budget is printable, holds exactly one pair of braces
// with the encoded key in it, and is another one for any other key.
func FuzzKey(f *testing.F) {
	long := strings.Repeat("x", 200)
	for _, pair := range [][2]string{
		{"", "%"},
		{"a", "b"},
		{"{", "%7B"},
		{"%7B", "%7b"},
		{"}:z:{", "a"},
		{"\x00", "%00"},
		{"\n", "%0A"},
		{"日", "%E6%97%A5"},
		{long, long + "x"},
		{long, "%#"},
		{"%#", "#"},
		{" ", "%20"},
	} {
		f.Add(pair[0], pair[1])
	}
	name := func(key string) string { return keyNames{prefix: "p"}.name(key, "zone {x}:1abc") }
	f.Fuzz(func(t *testing.T, a, b string) {
		got := name(a)
		tag, rest, found := strings.Cut(strings.TrimPrefix(got, "p:{"), "}")
		if !found || !strings.HasPrefix(got, "p:{") || tag == "" || strings.ContainsAny(tag, "{}") || rest != ":zone {x}:1abc" {
			t.Fatalf("key %q is named %q", a, got)
		}
		for _, c := range []byte(tag) {
			if c < ' ' || c > '~' {
				t.Fatalf("key %q is named %q", a, got)
			}
		}
		if len(tag) > 3*longestKey {
			t.Fatalf("key of %d bytes has a name of %d", len(a), len(tag))
		}
		if (a == b) != (got == name(b)) {
			t.Fatalf("keys %q and %q are named %q and %q", a, b, got, name(b))
		}
	})
}

// FuzzReply: whatever a reply holds, decoding it ends in decisions that are in
// range, or in an error.
func FuzzReply(f *testing.F) {
	f.Add([]byte{9, 0, 1, 1, 1, 7, 0, 4, 0, 0, 5, 2, 1, 7, 0, 0, 3, 3, 9})
	f.Add([]byte{9, 1})
	f.Add([]byte{9, 0, 2, 255})
	f.Add([]byte{9, 0, 0, 255})
	f.Add([]byte{9, 0, 1, 254, 253})
	f.Add([]byte{})
	l, err := algorithms.NewLimit(algorithms.Quota{Algorithm: "gcra", Events: 5, Window: 1000})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		values := make([]any, 0, len(data))
		for _, b := range data { // most bytes are numbers, some are other things
			switch b {
			case 255:
				values = append(values, "text")
			case 254:
				values = append(values, nil)
			case 253:
				values = append(values, []any{int64(1)})
			case 252:
				values = append(values, int64(-1))
			case 251:
				values = append(values, int64(1)<<60)
			default:
				values = append(values, int64(b))
			}
		}
		requests := []store.Request{{Override: new(store.Override), Limits: []store.Limit{{Limit: l}, {Limit: l}}}}
		r := reader{reply: values}
		r.decodeHead()
		allowed, failed := r.decodeGroup(requests)
		err := r.end()
		if allowed && failed != nil {
			t.Fatalf("allowed, and failed with %v", failed)
		}
		if err == nil && failed == nil {
			if len(values) != 19 || len(requests[0].Outcome.Decisions) != 2 {
				t.Fatalf("accepted %v", values)
			}
			all := true
			for _, d := range requests[0].Outcome.Decisions {
				all = all && d.Allowed
				if d.Remaining < 0 || d.RetryAfter > algorithms.Forever {
					t.Fatalf("decision %+v", d)
				}
			}
			if allowed != all {
				t.Fatalf("allowed is %v with decisions %+v", allowed, requests[0].Outcome.Decisions)
			}
		}
	})
}
