package ratelimit

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"

	"github.com/caddy-rate-limit/caddy-rate-limit/redisstore/redistest"
)

// deafConn is a UDP socket that hears nothing while it is deaf: a handshake can't be
// completed over it, but early data gets through.
type deafConn struct {
	net.PacketConn
	deaf atomic.Pointer[chan struct{}] // closed when it hears again
}

func (c *deafConn) ReadFrom(b []byte) (int, net.Addr, error) {
	n, from, err := c.PacketConn.ReadFrom(b)
	if deaf := c.deaf.Load(); deaf != nil {
		<-*deaf
	}
	return n, from, err
}

// What comes before the handshake is complete comes from anybody's address.
func TestEarlyData(t *testing.T) {
	port := redistest.FreePort(t)
	c := startCaddy(t, `{
	admin {$ADMIN}
	local_certs
	skip_install_trust
	auto_https disable_redirects
	servers :`+port+` {
		protocols h3
	}
}
{$SITE} {
	respond ok
}
https://localhost:`+port+` {
	log
	rate_limit {
		zone addresses {
			match path /address /both
			key {header.Api-Key} {remote_host}
			ipv6_prefix 64
			fixed_window 5 1h
		}
		zone everybody {
			match path /both
			fixed_window 5 1h
		}
		zone tried {
			shadow
			match path /shadow
			key {client_ip}
			ipv6_prefix 64
			fixed_window 5 1h
		}
	}
	respond "{http.request.tls.resumed}"
}
`)
	cache := tls.NewLRUClientSessionCache(10)
	sent := 0
	handled := func() int { return strings.Count(c.logged(), `"msg":"handled request"`) }
	// request sends one over a connection of its own; an early one arrives before the
	// handshake is complete, for the answers of the server are held back until the request is
	// handled.
	request := func(early bool, path string, header ...string) (response, error) {
		t.Helper()
		udp, err := net.ListenPacket("udp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		conn := &deafConn{PacketConn: udp}
		method := http.MethodGet
		if early {
			method = http3.MethodGet0RTT
			hears := make(chan struct{})
			conn.deaf.Store(&hears)
			sent++
			go func() {
				for deadline := time.Now().Add(patient); handled() < sent && time.Now().Before(deadline); {
					time.Sleep(time.Millisecond)
				}
				conn.deaf.Store(nil)
				close(hears)
			}()
		}
		transport := &quic.Transport{Conn: conn}
		defer udp.Close()
		defer transport.Close()
		tr := &http3.Transport{
			TLSClientConfig: &tls.Config{InsecureSkipVerify: true, ServerName: "localhost", ClientSessionCache: cache},
			Dial: func(ctx context.Context, _ string, tlsConfig *tls.Config, config *quic.Config) (*quic.Conn, error) {
				to, err := net.ResolveUDPAddr("udp", "127.0.0.1:"+port)
				if err != nil {
					return nil, err
				}
				return transport.DialEarly(ctx, to, tlsConfig, config)
			},
		}
		defer tr.Close()
		ctx, cancel := context.WithTimeout(context.Background(), 2*patient)
		defer cancel()
		r, err := http.NewRequestWithContext(ctx, method, "https://localhost:"+port+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		for i := 0; i < len(header); i += 2 {
			r.Header.Set(header[i], header[i+1])
		}
		answer, err := tr.RoundTrip(r)
		if err != nil {
			return response{}, err
		}
		defer answer.Body.Close()
		body, err := io.ReadAll(answer.Body)
		return response{answer, string(body)}, err
	}
	for deadline := time.Now().Add(patient); ; time.Sleep(10 * time.Millisecond) { // for the certificate, and a ticket
		if r, err := request(false, "/"); err == nil && r.StatusCode == 200 {
			sent++
			break
		} else if time.Now().After(deadline) {
			t.Fatal("no answer over HTTP/3: ", err)
		}
	}
	early := func(path string, status int, header ...string) response {
		t.Helper()
		r, err := request(true, path, header...)
		if err != nil {
			t.Fatal(err)
		}
		r.want(t, status)
		return r
	}
	for range 3 {
		early("/address", http.StatusTooEarly).want(t, http.StatusTooEarly, "RateLimit", "", "Retry-After", "")
		early("/both", http.StatusTooEarly)
	}
	early("/address", 200, "Api-Key", "known").want(t, 200, "RateLimit", `"addresses";r=4;t=3600`)
	early("/shadow", 200)
	early("/neither", 200)
	// With the handshake it is charged, and so far nobody was.
	r, err := request(false, "/both")
	if err != nil {
		t.Fatal(err)
	}
	r.want(t, 200, "RateLimit", `"addresses";r=4;t=3600, "everybody";r=4;t=3600`)
}

func TestWarningsOfKeys(t *testing.T) {
	const many = "over IPv6 one client has more of them"
	const proxy = "that of a trusted proxy"
	const user = "names the user, who is not known yet"
	config := func(global, order, key string) string {
		return fmt.Sprintf(`{
	admin {$ADMIN}
	%s
}
{$SITE}
route {
	respond /ready ok
	%s
	rate_limit {
		zone keyed {
			key %s
			gcra 1000 1h
		}
	}
	basic_auth {
		bob $2a$04$0PdoWKo3VbWCtNy8qtkPzuT1SZ4MkZ/GPn2mV2KIXz5WezVRHGUje
	}
	respond "{http.auth.user.id}"
}
`, global, order, key)
	}
	const trusted = "servers {\n trusted_proxies static 127.0.0.1\n }"
	c := startCaddy(t, config("", "", "static"))
	for _, test := range []struct {
		global, order, key string
		want               string // one of the warnings, or ""
	}{
		{"", "", "{client_ip}", many},
		{"", "", "{remote_host}", many},
		{"", "", "{header.Api-Key} {client_ip}", many},
		{"", "", "{client_ip}\nipv6_prefix 128", ""},
		{"", "", `"{client_ip}|{path}"`, ""},
		{trusted, "", "{remote_host}\nipv6_prefix 64", proxy},
		{trusted, "", `"{remote_host}|{path}"`, proxy},
		{trusted, "", "{client_ip}\nipv6_prefix 64", ""},
		{"", "", "{remote_host}\nipv6_prefix 64", ""},
		{"", "", "{http.auth.user.id}", user},
		{"", "", "{http.auth.user.id} {path}", user},
		{"", "", "{http.auth.user.email}", ""}, // which nobody sets
		{"", "basic_auth /nobody {\n bob $2a$04$0PdoWKo3VbWCtNy8qtkPzuT1SZ4MkZ/GPn2mV2KIXz5WezVRHGUje\n}", "{http.auth.user.id}", user},
		{"", "basic_auth {\n bob $2a$04$0PdoWKo3VbWCtNy8qtkPzuT1SZ4MkZ/GPn2mV2KIXz5WezVRHGUje\n}", "{http.auth.user.id}", ""},
	} {
		t.Run(fmt.Sprintf("%s, %.10s%.10s", test.key, test.global, test.order), func(t *testing.T) {
			before := len(c.logged())
			c.reload(t, config(test.global, test.order, test.key)+"# "+t.Name()+"\n")
			for i := range 3 {
				request, _ := http.NewRequest("GET", "http://"+c.site+"/", nil)
				request.SetBasicAuth("bob", "secret")
				request.Header.Set("X-Forwarded-For", fmt.Sprint("203.0.113.", i))
				r, err := client.Do(request)
				if err != nil {
					t.Fatal(err)
				}
				body, _ := io.ReadAll(r.Body)
				r.Body.Close()
				if r.StatusCode != 200 || string(body) != "bob" {
					t.Fatalf("status %d, body %q", r.StatusCode, body)
				}
			}
			c.reload(t, config("", "", "static")+"# after "+t.Name()+"\n")
			// When the last reload is in the log, so is all that came before.
			for deadline := time.Now().Add(patient); strings.Count(c.logged()[before:], `"load complete"`) < 2 && time.Now().Before(deadline); {
				time.Sleep(time.Millisecond)
			}
			log := c.logged()[before:]
			for _, warning := range []string{many, proxy, user} {
				want := 0
				if warning == test.want {
					want = 1
				}
				if n := strings.Count(log, warning); n != want {
					t.Errorf("%q is logged %d times, want %d", warning, n, want)
				}
			}
		})
	}
}
