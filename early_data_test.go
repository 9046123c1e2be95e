package ratelimit

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
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

// A request before the end of the handshake can have any address.
func TestEarlyData(t *testing.T) {
	t.Parallel()
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
	rate_limit /banned/* {
		zone banned {
			match path /banned/zone
			exempt path /banned/exempt
			key {header.Api-Key} {remote_host}
			ipv6_prefix 64
			fixed_window 5 1h
			ban 1h scope handler
		}
	}
	rate_limit /exempt {
		zone exempt {
			exempt client_ip 192.0.2.0/24
			fixed_window 5 1h
		}
	}
	respond "{http.request.tls.resumed}"
}
`)
	cache := tls.NewLRUClientSessionCache(10)
	sent := 0
	handled := func() int { return strings.Count(c.logged(), `"msg":"handled request"`) }
	// request sends a request over a new connection. An early request arrives before the handshake
	// is complete, because the server's answers wait until the request is handled.
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
	eventually(t, "HTTP/3 answers, with the certificate and a ticket", func() bool {
		r, err := request(false, "/")
		return err == nil && r.StatusCode == 200
	})
	sent++
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
	// An address that is not verified has no ban, and is not exempt.
	early("/banned/other", http.StatusTooEarly)
	early("/banned/exempt", 200)
	early("/banned/other", 200, "Api-Key", "known")
	early("/exempt", http.StatusTooEarly)
	// With the handshake it is charged, and so far nobody was.
	r, err := request(false, "/both")
	if err != nil {
		t.Fatal(err)
	}
	r.want(t, 200, "RateLimit", `"addresses";r=4;t=3600, "everybody";r=4;t=3600`)
}
