package httpfields

import (
	"encoding/json"
	"maps"
	"net/http"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
)

func TestDraftItems(t *testing.T) {
	tests := []struct{ got, want string }{
		{string(AppendQuotaPolicy(nil, "api", 60, 30)), `"api";q=60;w=30`},
		{string(AppendQuotaPolicy(nil, "api", 60, 0)), `"api";q=60`},
		{string(AppendQuotaPolicy([]byte(`"a"`), "b/2", MaxInteger+1, 2)), `"a", "b/2";q=999999999999999;w=2`},
		{string(AppendConcurrencyPolicy(nil, "api", 10)), `"api";q=10;qu="concurrent-requests"`},
		{string(AppendRateLimit(nil, "api", 0, 1)), `"api";r=0;t=1`},
		{string(AppendRateLimit(nil, "api", 12, 2_000_001)), `"api";r=12;t=3`},
		{string(AppendRateLimit([]byte(`"a";r=1`), "api v1; =,*", MaxInteger+1, 0)), `"a";r=1, "api v1; =,*";r=999999999999999`},
	}
	for _, test := range tests {
		if test.got != test.want {
			t.Errorf("%s, want %s", test.got, test.want)
		}
	}
}

func TestRetryAfter(t *testing.T) {
	for wait, want := range map[algorithms.Micros]string{0: "1", 1: "1", 1_000_001: "2", 3_600_000_000: "3600", algorithms.Forever: ""} {
		h := make(http.Header)
		if SetRetryAfter(h, wait); h.Get("Retry-After") != want {
			t.Errorf("SetRetryAfter(%d): %q, want %q", wait, h.Get("Retry-After"), want)
		}
	}
}

// flat returns the first value of each field.
func flat(h http.Header) map[string]string {
	fields := make(map[string]string)
	for name := range h {
		fields[name] = h.Get(name)
	}
	return fields
}

func TestFamilies(t *testing.T) {
	allowed := Report{Limit: 10, Remaining: 4, ResetAfter: 1_500_001, Now: 1000_000_000}
	denied := Report{Limit: 10, ResetAfter: 9_000_000, Now: 1000_000_000, Denied: true, RetryAfter: 500_000}
	never := denied
	never.RetryAfter = algorithms.Forever
	tests := []struct {
		family string
		report Report
		want   map[string]string
	}{
		{"draft_06", allowed, map[string]string{"Ratelimit-Limit": "10", "Ratelimit-Remaining": "4", "Ratelimit-Reset": "2"}},
		{"draft_06", Report{Limit: 1 << 51, Remaining: 1 << 51}, map[string]string{"Ratelimit-Limit": "999999999999999", "Ratelimit-Remaining": "999999999999999", "Ratelimit-Reset": "0"}},
		{"x_ratelimit", denied, map[string]string{"X-Ratelimit-Limit": "10", "X-Ratelimit-Remaining": "0", "X-Ratelimit-Reset": "9"}},
		{"x_ratelimit_epoch", allowed, map[string]string{"X-Ratelimit-Limit": "10", "X-Ratelimit-Remaining": "4", "X-Ratelimit-Reset": "1002"}},
		{"sharkey", allowed, map[string]string{"X-Ratelimit-Remaining": "4", "X-Ratelimit-Clear": "1.501"}},
		{"sharkey", denied, map[string]string{"X-Ratelimit-Remaining": "0", "X-Ratelimit-Clear": "9.000", "X-Ratelimit-Reset": "0.500"}},
		{"sharkey", never, map[string]string{"X-Ratelimit-Remaining": "0", "X-Ratelimit-Clear": "9.000"}},
	}
	for _, test := range tests {
		f, _ := FamilyByName(test.family)
		h := make(http.Header)
		f.Set(h, test.report)
		if got := flat(h); !maps.Equal(got, test.want) {
			t.Errorf("%s: %v, want %v", test.family, got, test.want)
		}
	}
}

// Of two sets the tighter one is kept, and nothing of the other.
func TestTighterSetIsKept(t *testing.T) {
	tests := []struct {
		present   string
		remaining int64
		denied    bool
		kept      bool
	}{
		{"3", 4, false, true},
		{"4", 4, false, true},
		{" 4 ", 4, false, true},
		{"4", 4, true, false},
		{"5", 4, false, false},
		{"3", 4, true, true},
		{"many", 4, false, false},
	}
	f, _ := FamilyByName("x_ratelimit")
	for _, test := range tests {
		h := http.Header{"X-Ratelimit-Remaining": {test.present}, "X-Ratelimit-Clear": {"1.000"}, "X-Ratelimit-Reset": {"77"}}
		f.Set(h, Report{Limit: 10, Remaining: test.remaining, ResetAfter: 5_000_000, Denied: test.denied})
		got := h.Get("X-Ratelimit-Clear") == "1.000" && h.Get("X-Ratelimit-Reset") == "77" && h.Get("X-Ratelimit-Remaining") == test.present
		replaced := h.Get("X-Ratelimit-Clear") == "" && h.Get("X-Ratelimit-Reset") == "5" && h.Get("X-Ratelimit-Remaining") == "4"
		if got != test.kept || replaced == test.kept {
			t.Errorf("%+v: %v", test, h)
		}
	}
}

func TestSharedFields(t *testing.T) {
	names := []string{"draft_06", "x_ratelimit", "x_ratelimit_epoch", "sharkey"}
	for _, a := range names {
		for _, b := range names {
			one, _ := FamilyByName(a)
			other, _ := FamilyByName(b)
			if want := a == b || a != "draft_06" && b != "draft_06"; one.SharesFields(other) != want {
				t.Errorf("%s and %s share fields: %v", a, b, !want)
			}
		}
	}
	if _, ok := FamilyByName("draft"); ok {
		t.Error("draft is no family")
	}
}

func TestProblems(t *testing.T) {
	const types = "https://iana.org/assignments/http-problem-types#"
	for want, problem := range map[string]Problem{
		`{"type":"` + types + `quota-exceeded","title":"The quota for such requests has been exceeded","status":429,` +
			`"violated-policies":["a","a/2"],"reason":"limit"}`: Denied(Problem{Status: 429, Policies: []string{"a", "a/2"}, Reason: "limit"}),
		`{"type":"` + types + `quota-exceeded","title":"The rest of the quota for such requests is reserved by other requests at present",` +
			`"status":429,"reason":"reserved"}`: Denied(Problem{Status: 429, Reason: "reserved"}),
		`{"type":"` + types + `abnormal-usage-detected","title":"Too many such requests have been denied","status":403,` +
			`"violated-policies":["a"],"reason":"ban"}`: Denied(Problem{Status: 403, Policies: []string{"a"}, Reason: "ban"}),
		`{"type":"` + types + `temporary-reduced-capacity","title":"The server cannot take such requests at present","status":503}`: ReducedCapacity(503),
	} {
		if got, err := json.Marshal(problem); err != nil || string(got) != want {
			t.Errorf("%s, %v; want %s", got, err, want)
		}
	}
}
