package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
)

// A simulation takes the cost of a request from its charge in the log.
func TestSimulateLoggedCharges(t *testing.T) {
	t.Parallel()
	s := loadSimulation(t, caddytest.Site(`zone tokens {
	cost 10
	fixed_window 1000 1h
	settle {
		match status 2xx
		cost {http.rate_limit.response.json.usage.total_tokens} or {http.response.header.X-Tokens}
	}
}
zone exports {
	cost {http.rate_limit.request.json.rows}
	fixed_window 1000 1h
}
zone granted {
	cost 5
	mode nary
	fixed_window 1000 1h
}
zone sent {
	fixed_window 1000 1h
	settle {
		cost {http.rate_limit.response.bytes}
	}
}
zone free {
	fixed_window 1000 1h
	override "" unlimited
	concurrency 5
}`))
	charges := map[string]int64{"tokens": 4242, "exports": 77, "granted": 2, "free": 9}
	for _, test := range []struct {
		name, header string
		status       int
		charged      map[string]int64
		want         string
	}{
		{"charges", "", 200, charges, "exports 77, free 0, granted 5, sent 1 settles 9, tokens 10 settles 4242"},
		{"a charge goes before a header field", "3", 200, charges, "exports 77, free 0, granted 5, sent 1 settles 9, tokens 10 settles 4242"},
		{"charges of 0 say nothing", "3", 200, map[string]int64{"tokens": 0, "exports": 0}, "exports 1, free 0, granted 5, sent 1 settles 9, tokens 10 settles 3"},
		{"without charges, the tokens and rows are not known", "", 200, nil, "free 0, granted 5, sent 1 settles 9"},
		{"a huge charge", "", 200, map[string]int64{"tokens": 1 << 60}, "free 0, granted 5, sent 1 settles 9, tokens 10 settles 2147483647"},
		{"a denied request", "", 429, charges, "exports 77, free 0, granted 5, sent 1, tokens 10"},
	} {
		r := loggedGet("/")
		r.Size, r.Status, r.Charged = 9, test.status, test.charged
		if test.header != "" {
			r.ResponseHeader.Set("X-Tokens", test.header)
		}
		var got []string
		for h, v := 0, s.visit(t, r); h < len(v.Handlers); h++ {
			for i, z := range v.Handlers[h].Zones {
				text := fmt.Sprint(s.Zones()[z.Zone].Name, " ", v.Handlers[h].Requests[i].Cost)
				if z.Settled {
					text += fmt.Sprint(" settles ", z.TrueCost)
				}
				got = append(got, text)
			}
		}
		slices.Sort(got)
		if got := strings.Join(got, ", "); got != test.want {
			t.Errorf("%s: %s, want %s", test.name, got, test.want)
		}
	}
}
