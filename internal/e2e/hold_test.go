package e2e

import (
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
)

// A response holds a key back in all instances, until an operator ends the hold.
func TestHold(t *testing.T) {
	t.Parallel()
	caddytest.EachStore(t, func(t *testing.T, use string) {
		config := caddytest.Site("zone api {\n exempt query wait=*\n key {query.key}\n hold status 503 max 1h\n}\n"+
			"zone patient {\n match query wait=*\n hold status 503 max 1h\n delay 2h\n}\n"+use) +
			"header /busy Retry-After 600\nrespond /busy 503\n"
		one := caddytest.Start(t, config)
		other := one
		if use != "" {
			other = caddytest.Start(t, config)
		}
		one.Get(t, "/busy?key=a").Want(t, 503, "Retry-After", "600")
		other.Get(t, "/?key=a").WantWait(t, 600)
		other.Get(t, "/?key=b").Want(t, 200, "Retry-After", "")
		one.WaitForLog(t, `"msg":"hold began","zone":"api"`)
		other.WaitForLog(t, `"msg":"request denied by a hold","zone":"api"`)
		if x := other.ExplainPath(t, "/?key=a"); x.Verdict != "denied" || x.Decides == nil || x.Decides.Reason != "hold" {
			t.Errorf("explained as %+v", x)
		}
		if bans := listedBans(t, other, 2); len(bans) != 1 || *bans[0].Key != "a" || bans[0].Origin != "response" {
			t.Errorf("listed as %+v", bans)
		}
		other.Operate(t, 204, "DELETE", "zones/api/ban?key=a", "")
		one.UntilAt(t, "/?key=a", 200)                        // another instance can remember the denial for a while
		one.Operate(t, 204, "PUT", "zones/api/ban?key=a", "") // as long as holds can be
		one.Get(t, "/?key=a").WantWait(t, 3600)

		one.Get(t, "/busy?wait=1").Want(t, 503)
		if x := other.ExplainPath(t, "/?wait=1"); x.Verdict != "delayed" || x.Decides == nil || x.Decides.Reason != "hold" {
			t.Errorf("explained as %+v", x)
		}
		delayed := other.Hold(t.Context(), "/?wait=1")
		other.WaitForWaiters(t, 1)
		one.Operate(t, 204, "DELETE", "zones/patient/ban?key=", "")
		if status := <-delayed; status != 200 {
			t.Errorf("a request that waited got status %d", status)
		}
	})
}
