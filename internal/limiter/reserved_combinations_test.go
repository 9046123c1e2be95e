package limiter_test

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/errtest"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// Other options of a zone, other zones, other handlers and operators leave the rules about reserved events as they are. A
// step is an instant, a target, and the outcomes of the requests that are sent at once: number, status, retry after and
// the instant of the end. The path of the target has the status, and the time until the header and that of the body. A step
// without outcomes changes the key k of the first zone.
func TestReservedCombinations(t *testing.T) {
	log := func(events int, window string) string {
		return fmt.Sprintf(`"limits":[{"algorithm":"sliding_log","events":%d,"window":%q}]`, events, window)
	}
	settle := `"settle":{"match":{"status_code":[401]}}`
	limit, b := log(5, "15m"), `"b":{"ban":{"duration":"2h"},`
	login := `"login":{"key":"{http.request.uri.query.k}","ban":{"duration":"1h"},` + settle + ","
	limits := strings.Replace(log(3, "10s"), "]", ","+strings.TrimPrefix(limit, `"limits":[`), 1)
	for test := range slices.Chunk([]string{ // name, zones of the outer handler, zones of the inner one, steps
		"another zone denies by what is used", login + limit + `},"b":{` + limit + `,"match":[{"query":{"b":["1"]}}]}`, "",
		"0s /200?k=k&b=1 5x200@1s; 400ms /200?k=k&b=1 1x429/900@400ms; 500ms /200?k=k 1x200@2s",
		"two zones reserve", login + limit + `},` + b + settle + `,` + log(3, "15m") + `}`, "",
		"0s /200?k=k 3x200@1s 3x200@2s 2x200@3s; 4s /401?k=k 3x401@5s 1x429/7200@5s",
		"several limits", login + limits + `}`, "",
		"0s /200?k=k 3x200@1s 2x200@2s; 3s /401?k=k 3x401@4s 1x429/3600@4s; 0s /401?k=a 3x401@1s; 20s /401?k=a 2x401@21s 1x429/3600@21s",
		"beside mode uniform", login + limit + `},"b":{"limits":[{"algorithm":"fixed_window","events":9,"window":"1h"}],"mode":"uniform"}`, "",
		"0s /200?k=k 2x429/1@0s 5x200@1s",
		"delay", `"d":{"limits":[{"algorithm":"token_bucket","events":1,"window":"12s"}],"delay":{"max":"11s"},` + settle + `}`, "",
		"0s /200/5s 1x200@5s 1x200@10s; 20s /401/5s 1x401@25s 1x429/1@25s; 60s /401/20s 1x429/1@1m11s 1x401@1m20s",
		"slots", login + `"limits":[{"algorithm":"fixed_window","events":5,"window":"15m"}],"concurrency":4,"delay":{"max":"30s"}}`, "",
		"0s /200 4x200@1s 4x200@2s 2x200@3s; 4s /200/1s/1s 4x200@6s 2x200@8s; 10s /401/1s/1s 4x401@12s; " +
			"11s /200 1x200@13s 1x200@14s 1x200@15s",
		"overrides", login + limit + `,"override":{"more":{` + log(8, "15m") + `},"any":{"unlimited":true}}}`, "",
		"0s /200?k=more 8x200@1s 2x200@2s; 0s /401?k=any 50x401@1s",
		"an override is set meanwhile", login + limit + `,"runtime_overrides":true}`, "",
		"0s /200/12s?k=k 1x429/1@10s 5x200@12s 1x200@12.75s; 600ms {" + log(6, "15m") + `}; ` +
			`20s /200?k=k 6x200@21s 3x200@21.75s; 20600ms {"unlimited":true}`,
		"plans", login + `"plan":{"by":"{http.request.uri.query.p}","values":{"pro":{` + log(8, "15m") + `}},"default":{` + limit + `}}}`, "",
		"0s /200?k=k 5x200@1s 1x200@2s; 500ms /200?k=k&p=pro 3x200@1.5s 1x200@2s",
		"a shadow", login + log(1, "15m") + `,"shadow":true},` + b + settle + `,` + log(3, "15m") + `}`, "", "0s /200 3x200@1s 3x200@2s",
		"costs", login + limit + `,"cost":"{http.request.uri.query.c}"}`, "", "0s /200?k=k&c=2 2x200@1s; 50ms /200?k=a&c=6 1x429@50ms; " +
			"100ms /200?k=k&c=2 1x200@2s; 200ms /200?k=k&c=0 1x200@1.2s; 300ms /200?k=k&c=1 1x200@1.3s",
		"exempt requests", login + limit + `,"exempt":[{"query":{"x":["1"]}}]}`, "",
		"0s /403?k=k 5x403@1s 1x403@2s; 500ms /401?k=k&x=1 3x401@1.5s",
		"the end of a day", login + `"limits":[{"algorithm":"calendar","events":5,"period":"day"}]}`, "", "23h59m59.5s /200 5x200@24h0m0.5s " +
			"2x200@24h0m1s; 24h0m0.6s /401 3x401@24h0m1.6s 1x401@24h0m2s; 24h0m3s /401 1x401@24h0m4s 1x429/86396@24h0m4s",
		"two handlers", login + limit + `}`, b + settle + `,` + log(3, "15m") + `}`,
		"0s /200?k=k 3x200@1s 3x200@2s 3x200@3s 1x200@4s; 5s /401?k=k 3x401@6s 2x429/7200@6s",
		// The last request waits for what it has reserved in the outer handler.
		"two handlers with one zone", login + log(3, "15m") + `}`, login + log(3, "15m") + `}`,
		"0s /200?k=k 1x200@1s 1x200@2s; 10s /401?k=k 1x401@11s; 20s /200?k=k 1x429/1@30s",
		"a client leaves", login + limit + `}`, "",
		"0s /200/2s?k=k 5x200@2s; 100ms /200?k=k&leaves 1x499@1.1s; 200ms /200?k=k 5x200@3s 1x200@4s",
		"a reset", login + limit + `}`, "", "0s /200/3s?k=k 5x200@3s 2x200@3.75s; 600ms reset; 3100ms /200?k=k 3x200@4.1s 1x200@4.75s; " +
			"10s /401?k=k 5x401@11s 1x429/3600@11s",
		"an operator bans", login + limit + `}`, "",
		"0s /200/3s?k=k 2x429/3600@750ms 5x200@3s; 600ms ban; 4s unban; 5s /200?k=k 5x200@6s 1x200@7s",
	}, 4) {
		t.Run(test[0], func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h, serve := serveNested(t, test[1], test[2], func(w http.ResponseWriter, r *http.Request) {
					status, untilHeader, body := 0, 1, 0
					_, _ = fmt.Sscanf(r.URL.Path, "/%d/%ds/%ds", &status, &untilHeader, &body)
					time.Sleep(time.Duration(untilHeader) * time.Second) // virtual time
					w.WriteHeader(status)
					if body > 0 {
						_ = http.NewResponseController(w).Flush()
						time.Sleep(time.Duration(body) * time.Second) // virtual time
					}
				})
				var all sync.WaitGroup
				began := time.Now()
				for step := range strings.SplitSeq(test[3], "; ") {
					all.Go(func() {
						at, rest, _ := strings.Cut(step, " ")
						target, want, requests := strings.Cut(rest, " ")
						delay, _ := time.ParseDuration(at)
						time.Sleep(delay) // virtual time
						if requests {
							if got := outcomes(t, serve, target, want, began); got != want {
								t.Errorf("%s %s: %s, want %s", at, target, got, want)
							}
							return
						}
						z := h.outer.Limiter().Zones[0]
						c, b := store.Change{Zone: z.Name, Key: "k"}, z.DefaultSet.Budgets[0]
						switch target {
						case "reset":
							c.Forget = []string{b.Limits[0].ID}
						case "ban":
							c.Ban, c.BanFor = []*store.Ban{b.Ban}, time.Hour.Microseconds()
						case "unban":
							c.Forget = []string{b.Ban.ID}
						default:
							c.Override = &target
						}
						errtest.Report(t, h.outer.Limiter().Store.Change(t.Context(), c))
					})
				}
				all.Wait()
			})
		})
	}
}

// outcomes sends as many requests as want has, and returns their outcomes in the same form.
func outcomes(t *testing.T, serve func(*http.Request) *httptest.ResponseRecorder, target, want string, began time.Time) string {
	var mu sync.Mutex
	var all sync.WaitGroup
	numbers := make(map[string]int)
	for outcome := range strings.FieldsSeq(want) {
		number := 0
		_, _ = fmt.Sscan(strings.Split(outcome, "x")[0], &number)
		for range number {
			all.Go(func() {
				ctx, leave := context.WithCancel(t.Context())
				defer leave()
				if strings.HasSuffix(target, "leaves") {
					time.AfterFunc(time.Second, leave)
				}
				w := serve(httptest.NewRequestWithContext(ctx, "GET", target, nil))
				mu.Lock()
				defer mu.Unlock()
				took := time.Since(began)
				numbers[fmt.Sprintf("%20d x%d/%s@%v", took, w.Code, w.Header().Get("Retry-After"), took)]++
			})
		}
	}
	all.Wait()
	var texts []string
	for _, outcome := range slices.Sorted(maps.Keys(numbers)) {
		texts = append(texts, fmt.Sprint(numbers[outcome], strings.Replace(strings.Fields(outcome)[1], "/@", "@", 1)))
	}
	return strings.Join(texts, " ")
}
