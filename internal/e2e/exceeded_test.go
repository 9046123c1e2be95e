package e2e

import (
	"context"
	"net/http"
	"strings"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
)

// pageOfDenial is the body of an error page with all fields of a denial.
const pageOfDenial = "{http.rate_limit.exceeded.name}|{http.rate_limit.exceeded.limit}|{http.rate_limit.exceeded.remaining}|" +
	"{http.rate_limit.exceeded.retry_after}|{http.rate_limit.exceeded.reason}"

// One error page describes the denials of all zones. It says what the header fields say.
func TestExceededPlaceholders(t *testing.T) {
	t.Parallel()
	held := make(chan struct{})
	upstream := caddytest.StartUpstream(t, func(_ http.ResponseWriter, r *http.Request) {
		held <- struct{}{}
		<-r.Context().Done()
	})
	config := `{
	admin {$ADMIN}
}
{$SITE}
log
log_append wait {http.rate_limit.exceeded.retry_after}
header >Deferred [` + pageOfDenial + `]
route {
	rate_limit {
		zone limited {
			match path /limited
			fixed_window 5 1h
			cost {query.cost}
		}
		zone longest {
			match path /several
			key {query.key}
			fixed_window 2 1d
			fixed_window 1 2h
		}
		zone slots {
			match path /slots
			concurrency 1
		}
		zone banned {
			match path /banned
			fixed_window 1 1h
			ban 2h
		}
	}
	rate_limit {
		zone second {
			match path /second
			fixed_window 1 1h
			status 418
		}
	}
	rate_limit {
		zone jittered {
			match path /jittered
			fixed_window 1 1h
		}
		zone never {
			match path /never
			fixed_window 3 1h
			cost 4
		}
		jitter 1
	}
	@held query held=*
	reverse_proxy @held ` + upstream + `
	respond ok
}
handle_errors 418 {
	rate_limit {
		zone pages {
			match query page=*
			fixed_window 1 3h
		}
	}
	respond "418 ` + pageOfDenial + `"
}
handle_errors {
	respond "` + pageOfDenial + `"
}
`
	c := caddytest.Start(t, config)
	pass := func(path string) {
		t.Helper()
		c.Get(t, path).Want(t, 200, "Deferred", "[||||]")
	}
	// denied asks for a path that is denied. The page agrees with Retry-After.
	denied := func(path, page string) {
		t.Helper()
		r := c.Get(t, path)
		fields := strings.Split(r.Text, "|")
		caddytest.WantText(t, "page of "+path, r.Text, strings.Replace(page, "random", fields[min(3, len(fields)-1)], 1))
		if len(fields) != 5 || fields[3] != r.Field("Retry-After") || !strings.HasPrefix(page, "418") && r.StatusCode != 429 {
			t.Errorf("%s: status %d, page %q, Retry-After %q", path, r.StatusCode, r.Text, r.Field("Retry-After"))
		}
	}
	pass("/limited?cost=3")
	denied("/limited?cost=3", "limited|5|2|3600|limit")
	pass("/several?key=a")
	denied("/several?key=a", "longest|1|0|7200|limit")
	pass("/several?key=b")
	ctx, leave := context.WithCancel(t.Context())
	ended := c.Hold(ctx, "/slots?held=1")
	<-held
	denied("/slots", "slots|1|0|1|concurrency")
	leave()
	<-ended
	pass("/banned")
	denied("/banned", "banned|||7200|ban") // begins the ban
	denied("/banned", "banned|||7200|ban")
	pass("/jittered")
	denied("/jittered", "jittered|1|0|random|limit")
	denied("/never", "never|3|3||limit")
	pass("/second")
	denied("/second", "418 second|1|0|3600|limit")
	c.Get(t, "/second?page=1").Want(t, 418)
	c.Get(t, "/second?page=1").Want(t, 429, "Content-Length", "0")
	c.WaitForLog(t, `"status":429,"resp_headers"`)
	c.WaitForLog(t, `"wait":"7200"`)

	// A failure of Redis is no denial by a zone.
	c = caddytest.Start(t, caddytest.Site("zone api {\n fixed_window 1 1h\n}\nredis localhost:1\non_store_error deny")+"handle_errors {\n respond \""+pageOfDenial+"\"\n}\n")
	r := c.Get(t, "/")
	r.Want(t, 503, "Retry-After", "1")
	if r.Text != "||||" {
		t.Errorf("page of an outage: %q", r.Text)
	}
}
