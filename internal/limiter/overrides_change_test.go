package limiter

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/keys"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// changingStore is a store in which the override of a key is another one at each look.
type changingStore struct {
	*store.Memory
	looks int
}

func (s *changingStore) Take(ctx context.Context, requests []store.ZoneRequest) (bool, error) {
	s.looks++
	text := fmt.Sprint(1000 + s.looks)
	if err := s.Change(ctx, store.Change{Zone: requests[0].Zone, Key: requests[0].Key, Override: &text}); err != nil {
		return false, err
	}
	return s.Memory.Take(ctx, requests)
}

// If an override changes whenever a request is asked about, the request is decided by one of its versions, and charged once.
func TestOverrideThatChangesAllTheTime(t *testing.T) {
	budgets := &changingStore{Memory: store.NewMemory(1000)}
	z := &Zone{FixedCost: 1, RuntimeOverrides: true}
	l := newTestLimiter(t, z)
	l.Store, z.Keys = budgets, []keys.Template{keys.NewKey("k", keys.Form{})}
	var charged int64 // with any version
	z.CompileOverride = func(text string) (*LimitSet, time.Time, error) {
		var events int64
		if _, err := fmt.Sscan(text, &events); err != nil {
			t.Error(err)
		}
		limit, err := algorithms.NewLimit(algorithms.Quota{Algorithm: "fixed_window", Events: events, Window: 1 << 40})
		set := &LimitSet{Limits: []*algorithms.Limit{limit}}
		set.NameBudgets(z.Name, z.Keys)
		return set, time.Time{}, err
	}
	for range 10 {
		before := budgets.looks
		repl := caddy.NewReplacer()
		r := caddyhttp.PrepareRequest(httptest.NewRequest("GET", "/", nil), repl, httptest.NewRecorder(), nil)
		passed := false
		if err := l.Serve(httptest.NewRecorder(), r, caddyhttp.HandlerFunc(func(http.ResponseWriter, *http.Request) error {
			passed = true
			return nil
		})); err != nil || !passed {
			t.Fatalf("passed %v, error %v", passed, err)
		}
		state, _ := repl.Get(PlaceholderPrefix)
		d := state.(*State).Requests[0].Outcome.Decisions[0]
		charged += d.Charged
		limit := state.(*State).Requests[0].Limits[0]
		if most := int64(1000 + budgets.looks); limit.Events < 1000+int64(before) || limit.Events > most || d.Remaining != limit.Events-charged {
			t.Errorf("after %d looks, %d events of %d remain", budgets.looks, d.Remaining, limit.Events)
		}
		if looks := budgets.looks - before; looks != maxAttempts {
			t.Errorf("the store was asked %d times, want %d", looks, maxAttempts)
		}
	}
	if charged != 10 {
		t.Errorf("10 requests were charged %d", charged)
	}
}
