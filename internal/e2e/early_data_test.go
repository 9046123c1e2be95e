package e2e

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
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
	c := caddytest.Start(t, `{
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
	handled := func() int { return strings.Count(c.Logged(), `"msg":"handled request"`) }
	// request sends a GET request over a new connection, or a POST request if it has a content type. An
	// early request arrives before the handshake is complete, because the server's answers wait until
	// the request is handled.
	request := func(early bool, path string, header ...string) (caddytest.Response, error) {
		t.Helper()
		udp, err := net.ListenPacket("udp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		conn := &deafConn{PacketConn: udp}
		if early {
			hears := make(chan struct{})
			conn.deaf.Store(&hears)
			sent++
			go func() {
				for deadline := time.Now().Add(caddytest.Patient); handled() < sent && time.Now().Before(deadline); {
					time.Sleep(time.Millisecond) // a poll of the log, in a goroutine that must not end the test
				}
				conn.deaf.Store(nil)
				close(hears)
			}()
		}
		ctx, cancel := context.WithTimeout(context.Background(), 2*caddytest.Patient)
		defer cancel()
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://localhost:"+port+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		for i := 0; i < len(header); i += 2 {
			r.Header.Set(header[i], header[i+1])
		}
		if r.Header.Get("Content-Type") != "" {
			r.Method = http.MethodPost
		}
		to, err := net.ResolveUDPAddr("udp", "127.0.0.1:"+port)
		if err != nil {
			t.Fatal(err)
		}
		transport := &quic.Transport{Conn: conn}
		defer udp.Close()
		defer transport.Close()
		connection, err := transport.DialEarly(ctx, to, &tls.Config{
			InsecureSkipVerify: true, ServerName: "localhost", ClientSessionCache: cache, NextProtos: []string{http3.NextProtoH3},
		}, &quic.Config{HandshakeIdleTimeout: caddytest.Patient, MaxIdleTimeout: caddytest.Patient})
		if err != nil {
			return caddytest.Response{}, err
		}
		defer connection.CloseWithError(0, "")
		if !early {
			select {
			case <-connection.HandshakeComplete():
			case <-connection.Context().Done():
				return caddytest.Response{}, context.Cause(connection.Context())
			}
		}
		// A RoundTrip would send only GET requests early.
		stream, err := new(http3.Transport).NewClientConn(connection).OpenRequestStream(ctx)
		if err == nil {
			err = errors.Join(stream.SendRequestHeader(r), stream.Close())
		}
		if err != nil {
			return caddytest.Response{}, err
		}
		answer, err := stream.ReadResponse()
		if err != nil {
			return caddytest.Response{}, err
		}
		defer answer.Body.Close()
		body, err := io.ReadAll(answer.Body)
		return caddytest.Response{Response: answer, Text: string(body)}, err
	}
	caddytest.EventuallySees(t, "HTTP/3 answers, with the certificate and a ticket", func() error {
		r, err := request(false, "/")
		if err == nil && r.StatusCode != 200 {
			err = errors.New(r.String())
		}
		return err
	}, func(err error) bool { return err == nil })
	sent++
	early := func(path string, status int, header ...string) caddytest.Response {
		t.Helper()
		r, err := request(true, path, header...)
		if err != nil {
			t.Fatal(err)
		}
		r.Want(t, status)
		return r
	}
	for range 3 {
		early("/address", http.StatusTooEarly).Want(t, http.StatusTooEarly, "RateLimit", "", "Retry-After", "")
		early("/both", http.StatusTooEarly)
	}
	early("/address", 200, "Api-Key", "known").Want(t, 200, "RateLimit", `"addresses";r=4;t=3600`)
	early("/shadow", 200)
	early("/neither", 200)
	// An address that is not verified has no ban, and is not exempt.
	early("/banned/other", http.StatusTooEarly)
	early("/banned/exempt", 200)
	early("/banned/other", 200, "Api-Key", "known")
	early("/exempt", http.StatusTooEarly)
	early("/both", 200, "Content-Type", "application/grpc").Want(t, 200, "Grpc-Status", "14",
		"Grpc-Message", "the request came before the end of the TLS handshake", "Grpc-Retry-Pushback-Ms", "", "RateLimit", "", "Retry-After", "")
	// With the handshake it is charged, and so far nobody was.
	r, err := request(false, "/both")
	if err != nil {
		t.Fatal(err)
	}
	r.Want(t, 200, "RateLimit", `"addresses";r=4;t=3600, "everybody";r=4;t=3600`)
}
