package e2e

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/accesslog"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/errtest"
)

// A simulation opens nothing that its configuration names. One of its addresses can't be listened on.
func TestSimulationOpensNothing(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME"} {
		t.Setenv(name, filepath.Join(dir, name))
	}
	redis, err := net.Listen("tcp", "127.0.0.1:0")
	errtest.None(t, err)
	defer redis.Close()
	var connections atomic.Int64
	go func() {
		for {
			c, err := redis.Accept()
			if err != nil {
				return
			}
			connections.Add(1)
			_ = c.Close()
		}
	}()
	s := loadSimulation(t, strings.NewReplacer("DIR", dir, "REDIS", redis.Addr().String()).Replace(`{
	admin unix/DIR/admin
	storage file_system DIR/storage
	email someone@example.com
	log {
		output file DIR/caddy.log
	}
	rate_limit {
		redis REDIS {
			hash_keys {env.SECRET_THAT_IS_NOT_SET}
		}
		memory {
			max_keys 12
		}
	}
}
example.com, {$SITE}, https://REDIS {
	tls internal
	log {
		output file DIR/access.log
	}
	rate_limit {
		zone a {
			key {client_ip}
			ipv6_prefix 64
			gcra 1 1h
			concurrency 1
			runtime_overrides
		}
		on_store_error local 1/3
	}
	reverse_proxy REDIS
}
`))
	for range 100 {
		if met := s.met(s.visit(t, loggedGet("/"))); met != "a=127.0.0.1" {
			t.Fatalf("met %q", met)
		}
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) > 0 {
		t.Errorf("these were made: %v (%v)", entries, err)
	}
	if n := connections.Load(); n > 0 {
		t.Errorf("%d connections", n)
	}
	if s.MaxKeys() != 12 {
		t.Errorf("max_keys %d", s.MaxKeys())
	}
	if shown := s.ShownKey(0, "127.0.0.1"); strings.Contains(shown, "127") || shown != s.ShownKey(0, "127.0.0.1") {
		t.Errorf("a key with hash_keys: %s", shown)
	}
	s.wantNote(t, "Redis is not asked")
	s.wantNote(t, "zone a has runtime_overrides")
}

// The zones have the limits of all keys, then those of plans and overrides. Visits refer to them.
func TestSimulationZones(t *testing.T) {
	s := loadSimulation(t, `{
	rate_limit {
		zone shared {
			key {client_ip}
			ipv6_prefix 64
			gcra 1 1h
		}
	}
}
{$SITE} {
	rate_limit shared
	rate_limit /plans* {
		zone plans {
			key {header.X-User}
			gcra 1 1h
			plan {header.X-Plan} {
				silver {
					gcra 2 1h
				}
				gold {
					gcra 3 1h
				}
			}
			override alice {
				gcra 4 1h
			}
			override bob unlimited
			delay 2s 7
			ban 1h scope handler
			shadow
		}
		zone cost {
			match path /plans/cost
			token_bucket 10 1s
			cost {query.n}
			factor {query.f}
			settle {
				match status 2xx
			}
		}
	}
	rate_limit shared
	respond ok
}
`)
	var zones []string
	for _, z := range s.Zones() {
		text := fmt.Sprintf("%s %q", z.Name, z.Key)
		for _, set := range z.Sets {
			text += fmt.Sprintf(" %s%v", set.Name, set.Limits)
		}
		zones = append(zones, fmt.Sprint(text, z.Shadow, z.SingleKey, z.HasBan, z.VariesBurst, z.RefundsDenied, z.MaxDelay, z.Places))
	}
	if got, want := strings.Join(zones, "\n"), `cost [] [token_bucket 10 1s]false true false true true 0 1000
plans ["{header.X-User}"] [gcra 1 1h] plan gold[gcra 3 1h] plan silver[gcra 2 1h] override alice[gcra 4 1h] override bob[]true false true false false 2000000 7
shared ["{client_ip}"] [gcra 1 1h]false false false false false 0 0`; got != want {
		t.Errorf("zones\n%s\nwant\n%s", got, want)
	}
	for _, test := range []struct {
		uri    string
		header []string
		want   string // zone/set=key
	}{
		{"/", nil, "shared/=127.0.0.1 shared/=127.0.0.1"},
		{"/plans", []string{"X-User", "carol", "X-Plan", "gold"}, "plans/plan gold=carol shared/=127.0.0.1 shared/=127.0.0.1"},
		{"/plans", []string{"X-User", "alice", "X-Plan", "gold"}, "plans/override alice=alice shared/=127.0.0.1 shared/=127.0.0.1"},
		{"/plans", []string{"X-User", "bob"}, "plans/override bob=bob shared/=127.0.0.1 shared/=127.0.0.1"},
		{"/plans", nil, "plans/= shared/=127.0.0.1 shared/=127.0.0.1"},
		{"/plans/cost?n=3.5&f=0.5", nil, "cost/= plans/= shared/=127.0.0.1 shared/=127.0.0.1"},
		{"/plans/cost?n=3.5&f=0", nil, "plans/= shared/=127.0.0.1 shared/=127.0.0.1"},
	} {
		v := s.visit(t, loggedGet(test.uri, test.header...))
		var met []string
		for _, h := range v.Handlers {
			for i, z := range h.Zones {
				zone := s.Zones()[z.Zone]
				met = append(met, fmt.Sprintf("%s/%s=%s", zone.Name, zone.Sets[z.Set].Name, h.Requests[i].Key))
				if r := h.Requests[i]; zone.Name == "cost" && (r.Cost != 4 || r.Limits[0].Burst != 20) {
					t.Errorf("cost %d, and %v", r.Cost, r.Limits[0])
				}
			}
		}
		if got := strings.Join(met, " "); got != test.want {
			t.Errorf("%s %q met %s, want %s", test.uri, test.header, got, test.want)
		}
	}
}

// A response costs at most max, also if the log is from a time without max. A reservation that stays can be higher.
func TestSimulationSettlesUpToMax(t *testing.T) {
	s := loadSimulation(t, `{$SITE} {
	rate_limit {
		zone body {
			cost 10
			gcra 1 1h 1000
			settle {
				cost {http.rate_limit.response.json.n} max 50
			}
		}
		zone dear {
			cost {http.rate_limit.request.json.n} max 70
			gcra 1 1h 1000
			settle {
				cost {http.rate_limit.response.json.n} max 50
			}
		}
		zone header {
			gcra 1 1h 1000
			settle {
				cost {http.response.header.X-Tokens} max 50
			}
		}
	}
}`)
	for charged, want := range map[int64]string{
		10: "body 10 dear 10 header 10", 60: "body 50 dear 60 header 50", 80: "body 50 dear 70 header 50",
	} {
		r := loggedGet("/")
		r.Charged = map[string]int64{"body": charged, "dear": charged}
		r.ResponseHeader.Set("X-Tokens", fmt.Sprint(charged))
		var got []string
		for _, z := range s.visit(t, r).Handlers[0].Zones {
			got = append(got, fmt.Sprint(s.Zones()[z.Zone].Name, " ", z.TrueCost))
		}
		if got := strings.Join(got, " "); got != want {
			t.Errorf("%d are logged: %s, want %s", charged, got, want)
		}
	}
}

// Zones of one name with different settings, as another limiter accepts them, have separate budgets. So they
// are two zones.
func TestSimulationZonesOfOneName(t *testing.T) {
	s := loadSimulation(t, `{$SITE} {
	rate_limit /a {
		zone z {
			key {client_ip}
			ipv6_prefix 64
			events 1
			window 1h
		}
	}
	rate_limit /b {
		zone z {
			key {client_ip}
			ipv6_prefix 64
			events 2
			window 1h
		}
	}
	respond ok
}
`)
	if a, b := s.met(s.visit(t, loggedGet("/a"))), s.met(s.visit(t, loggedGet("/b"))); a == b || len(s.Zones()) != 2 {
		t.Errorf("%s, %s", a, b)
	}
}

// The server of a request is found by TLS and by the port in Host, as Caddy's listeners do. The port can be that of a proxy, a
// container or nothing. Then the routes that name the host decide, and TLS.
func TestSimulationServer(t *testing.T) {
	site := func(address, zone string) string {
		limit := ""
		if zone != "" {
			limit = "\trate_limit {\n\t\tzone " + zone + " {\n\t\t\tgcra 1 1h\n\t\t}\n\t}\n"
		}
		return address + " {\n" + limit + "\trespond ok\n}\n"
	}
	const guess = "they are assumed to come to server"
	sites := site("example.com, *.example.net", "https") + site("http://plain.example.com", "http") + site(":8080", "port") +
		site("http://example.com:8081", "other") + strings.Replace(site("http://localhost:9090", "bound"), "{", "{\n\tbind 127.0.0.1", 1)
	at := func(host string, status int, tls bool) func(r *accesslog.Request) {
		return func(r *accesslog.Request) {
			if r.Host, r.Status = host, status; tls {
				r.TLS = &accesslog.TLS{Version: 0x304, ServerName: "example.com"}
			}
		}
	}
	for name, test := range map[string]struct {
		config string
		change func(r *accesslog.Request)
		want   string
		notes  int
	}{
		"a host":                    {sites, at("example.com", 200, true), "https=", 0},
		"a host and the usual port": {sites, at("EXAMPLE.com:443", 200, true), "https=", 0},
		"a wildcard":                {sites, at("a.example.net", 200, true), "https=", 0},
		"another host":              {sites, at("elsewhere.com", 200, true), "", 0},
		"a redirect":                {sites, at("example.com", 308, false), "", 0},
		"a host without TLS":        {sites, at("plain.example.com", 200, false), "http=", 0},
		"a port":                    {sites, at("anything:8080", 200, false), "port=", 0},
		"an address and a port":     {sites, at("[::1]:8080", 200, false), "port=", 0},
		"a host and its port":       {sites, at("example.com:8081", 200, false), "other=", 0},
		"a site with bind":          {sites, at("localhost:9090", 200, false), "bound=", 0},
		"a port of nobody":          {sites, at("example.com:8443", 200, true), "https=", 1},
		"a host that only a server on another port names": {
			site("a.example.com", "a") + site("https://b.example.com:8443", "b"),
			func(r *accesslog.Request) { r.Host, r.TLS = "b.example.com", new(accesslog.TLS) }, "b=", 1,
		},
		"a host that no server names": {
			site("a.example.com", "a") + site("https://b.example.com:8443", "b"),
			func(r *accesslog.Request) { r.Host = "192.0.2.1:99" }, "", 0,
		},
		"a mapped port without TLS": {
			site("https://", "secure") + site("http://", "plain"),
			func(r *accesslog.Request) { r.Host = "localhost:49152" }, "plain=", 1,
		},
		"a mapped port with TLS": {
			site("https://", "secure") + site("http://", "plain"),
			func(r *accesslog.Request) { r.Host, r.TLS = "localhost:49152", new(accesslog.TLS) }, "secure=", 1,
		},
		"TLS that ends at a proxy": {
			site("https://example.com", "secure"),
			func(r *accesslog.Request) { r.Host = "example.com" }, "secure=", 1,
		},
		"no host, and a site that only redirects": {
			site("http://example.com", "") + site("https://example.com", "secure"),
			func(r *accesslog.Request) { r.Host = "" }, "secure=", 1,
		},
		"a unix socket": {
			site(":80", "port") + strings.Replace(site("http://", "socket"), "{", "{\n\tbind unix//run/caddy.sock", 1),
			func(r *accesslog.Request) { r.Host, r.RemoteIP = "anything", "@" }, "socket=", 0,
		},
		"a redirect before a site for any host": {
			site(":80", "plain") + site("example.com", "secure"),
			func(r *accesslog.Request) { r.Host, r.Status = "example.com", 308 }, "", 0,
		},
		"another redirect of a site for any host": {
			site(":80", "plain") + site("example.com", "secure"),
			func(r *accesslog.Request) { r.Host, r.Status = "example.org", 308 }, "plain=", 0,
		},
		"a redirect by an application on a mapped port": {
			site(":8080", "plain"),
			func(r *accesslog.Request) { r.Host, r.Status = "example.org", 308 }, "plain=", 1,
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := loadSimulation(t, test.config)
			r := loggedGet("/")
			test.change(r)
			if got := s.met(s.visit(t, r)); got != test.want {
				t.Errorf("met %q, want %q", got, test.want)
			}
			if notes := s.Notes(); len(notes) != test.notes || test.notes > 0 && !strings.Contains(notes[0], guess) && r.Host != "" {
				t.Errorf("notes %q", notes)
			}
		})
	}
}
