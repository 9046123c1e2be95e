package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
)

// A key that has half of the places leaves the others to other keys.
func TestPlacesOfKeys(t *testing.T) {
	t.Parallel()
	c := caddytest.Start(t, caddytest.Site("zone api {\n key {query.key}\n gcra 1 1h 1\n delay 10h 4\n}"))
	clients, leave := context.WithCancel(t.Context())
	var ended []<-chan int
	held := 0
	hold := func(key string) {
		t.Helper()
		held++
		ended = append(ended, c.Hold(clients, "/?key="+key))
		caddytest.WaitForMetric(t, c, fmt.Sprintf(`caddy_rate_limit_requests_total{outcome="delayed",zone="api"} %d`, held))
	}
	c.Get(t, "/?key=a").Want(t, 200)
	hold("a")
	hold("a")
	c.Get(t, "/?key=a").Want(t, 429)
	c.Get(t, "/?key=b").Want(t, 200)
	hold("b")
	c.Get(t, "/?key=b").Want(t, 429)
	c.Get(t, "/?key=c").Want(t, 200)
	hold("c")
	leave()
	for _, status := range ended {
		if status := <-status; status != 0 {
			t.Errorf("a request that was to be held got %d", status)
		}
	}
}

// Fifty held clients that leave at once, in any order, leave the budgets as if they had
// never come. Where some stay behind others, nothing is given to anybody else.
func TestWholeQueueLeaves(t *testing.T) {
	caddytest.Long(t)
	t.Parallel()
	limits := []string{"token_bucket 3 10h 1", "gcra 3 10h 1", "leaky_bucket 1 1h 1", "smooth 7 10h 1", "fixed_window 1 1h"}
	caddytest.EachStore(t, func(t *testing.T, use string) {
		asked, held, reset := "", "", ""
		for _, limit := range limits {
			name, _, _ := strings.Cut(limit, " ")
			zone := fmt.Sprintf("zone %s {\n match path */%[1]s\n %s\n", name, limit)
			asked += zone + "cost 0\n}\n"
			held += zone + "delay 1000h 60\n}\n"
			reset += "{http.rate_limit." + name + ".reset}" // of other zones it is empty
		}
		c := caddytest.Start(t, "{\n admin {$ADMIN}\n}\n{$SITE}\nhandle /ready {\n respond ok\n}\n"+
			fmt.Sprintf("handle /reset/* {\n rate_limit {\n%s%s\n}\nrespond \"%s\"\n}\n", asked, use, reset)+
			fmt.Sprintf("handle {\n rate_limit {\n%s%s\n}\nrespond ok\n}\n", held, use))
		for _, limit := range limits {
			name, _, _ := strings.Cut(limit, " ")
			t.Run(name, func(t *testing.T) { testWholeQueueLeaves(t, c, name) })
		}
	})
}

func testWholeQueueLeaves(t *testing.T, c *caddytest.Caddy, name string) {
	reset := func() (seconds int) {
		t.Helper()
		_, _ = fmt.Sscan(c.Get(t, "/reset/"+name).Text, &seconds)
		return seconds
	}
	c.Get(t, "/"+name).Want(t, 200)
	if name == "smooth" { // where one more passes, on account of the next
		c.Get(t, "/"+name).Want(t, 200)
	}
	began, untouched := time.Now(), reset()
	since := func() int { return int(time.Since(began)/time.Second) + 2 }
	var clients sync.WaitGroup
	var leave []func()
	for range 50 {
		ctx, stop := context.WithCancel(t.Context())
		leave = append(leave, stop)
		before := reset()
		clients.Go(func() {
			request, _ := http.NewRequestWithContext(ctx, "GET", "http://"+c.Site+"/"+name, nil)
			if r, err := caddytest.Client.Do(request); err == nil {
				_ = r.Body.Close()
				t.Errorf("a request that was to be held got %d", r.StatusCode)
			}
		})
		caddytest.EventuallySees(t, "the next request is held", reset, func(now int) bool { return now > before+1000 })
	}
	delayed := fmt.Sprintf(`caddy_rate_limit_requests_total{outcome="delayed",zone=%q} 50`, name)
	caddytest.WaitForMetric(t, c, delayed)
	deep := reset()
	for _, i := range rand.Perm(25) { // from the middle
		leave[10+i]()
	}
	for range 20 {
		if now := reset(); now > deep || now < deep-since() {
			t.Errorf("the budget is untouched after %d s, want %d: 15 are held behind those who left", now, deep)
		}
		time.Sleep(time.Millisecond) // a wrong refund could come at any moment
	}
	for _, i := range rand.Perm(50) {
		leave[i]()
	}
	clients.Wait()
	caddytest.EventuallySees(t, "everything is given back", reset, func(now int) bool { return now <= untouched })
	if now := reset(); now < untouched-since() {
		t.Errorf("the budget is untouched after %d s, want %d", now, untouched)
	}
}
