package e2e

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"strings"
	"testing"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
)

// upstreamSite is a site, with and without TLS, whose requests go to an upstream, those
// with the header H2c by HTTP/2.
func upstreamSite(t *testing.T, u *talker, families, proxy, use string) string {
	t.Helper()
	cert := redistest.NewCertificates(t)
	config := caddytest.Site(`zone slots {
		key {query.key}
		concurrency 4
	}
	zone settled {
		key {query.key}
		token_bucket 1 500h 1000
		cost {query.cost}
		settle {
			match status 101 2xx
			cost {http.response.header.X-Tokens}
		}
	}
	zone tried {
		shadow
		key {query.key}
		fixed_window 1000 1000h
		concurrency 1
		cost {query.cost}
		settle {
			match status 101 2xx
			cost {http.response.header.X-Tokens}
		}
	}
	zone delayed {
		match query delay=*
		key {query.key}
		gcra 1 500ms 1
		delay 1h
	}
	headers draft ` + families + "\n" + use)
	config = strings.Replace(config, "admin {$ADMIN}", "admin {$ADMIN}\n\tauto_https disable_redirects\n\tservers {\n\t\tprotocols h1 h2\n\t}", 1)
	config = strings.Replace(config, "{$SITE}\n", "(all) {\n", 1) + "}\n{$SITE} {\n\timport all\n}\n{$TLS} {\n\ttls " + cert.Cert + " " + cert.Key + "\n\timport all\n}\n"
	return strings.Replace(config, "respond ok", `handle /ready {
	respond ok
}
handle /peek {
	respond "{http.rate_limit.slots.remaining} {http.rate_limit.settled.remaining} {http.rate_limit.tried.allowed} {http.rate_limit.tried.charged}"
}
@h2c header H2c *
handle @h2c {
	reverse_proxy h2c://`+u.address+" {\n"+proxy+`
	}
}
handle {
	reverse_proxy `+u.address+" {\n"+proxy+`
	}
}`, 1)
}

// keepOpen keeps streams that became another protocol over a reload.
const keepOpen = "stream_close_delay 1h"

// path is a request's way to an upstream: the protocols before and behind Caddy.
type path struct {
	client *http.Client
	url    string // of the site
	h2c    bool
	name   string
}

// pathsTo are all ways through a Caddy.
func pathsTo(t *testing.T, c *caddytest.Caddy) (all []path) {
	t.Helper()
	for _, h2 := range []bool{false, true} {
		transport := &http.Transport{DisableCompression: true}
		t.Cleanup(transport.CloseIdleConnections)
		one := path{client: &http.Client{Transport: transport, Timeout: time.Minute}, url: "http://" + c.Site, name: "HTTP/1.1"}
		if h2 {
			transport.ForceAttemptHTTP2 = true
			transport.TLSClientConfig = &tls.Config{InsecureSkipVerify: true}
			one.url, one.name = "https://"+c.TLS, "HTTP/2"
		}
		for _, h2c := range []bool{false, true} {
			one.h2c = h2c
			all = append(all, one)
		}
	}
	for i := range all {
		if all[i].name += " to HTTP/1.1"; all[i].h2c {
			all[i].name = strings.TrimSuffix(all[i].name, "1.1") + "2"
		}
	}
	return all
}

func (p path) do(ctx context.Context, uri string, body io.Reader) (*http.Response, error) {
	r, err := http.NewRequestWithContext(ctx, "POST", p.url+uri, body)
	if err != nil {
		return nil, err
	}
	if p.h2c {
		r.Header.Set("H2c", "1")
	}
	return p.client.Do(r)
}

// open sends a request and checks the header of the response, which must come though the
// body has not.
func (p path) open(t *testing.T, ctx context.Context, uri string, body io.Reader) caddytest.Response {
	t.Helper()
	r, err := p.do(ctx, uri, body)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Body.Close() })
	client, upstream, _ := strings.Cut(p.name, " to ")
	if got := strings.TrimSuffix(r.Proto, ".0"); got != client {
		t.Errorf("Caddy answers by %s", got)
	}
	if got := strings.TrimSuffix(r.Header.Get("Upstream-Protocol"), ".0"); got != upstream {
		t.Errorf("the upstream was asked by %s", got)
	}
	return caddytest.Response{Response: r}
}

// budgetsOf returns the remaining events of a key, as a request without cost sees them.
func budgetsOf(t *testing.T, c *caddytest.Caddy, key string) string {
	t.Helper()
	r := c.Get(t, "/peek?cost=0&key="+key)
	r.Want(t, 200)
	return r.Text
}

// waitForBudgets waits until these are left: slots free, that of the peek not counted;
// events of the settled zone; and whether the shadow's only slot is free.
func waitForBudgets(t *testing.T, c *caddytest.Caddy, key string, slots, events int, free bool) {
	t.Helper()
	want := fmt.Sprint(slots, " ", events, " ", free, " 0")
	look := func() string { return budgetsOf(t, c, key) }
	caddytest.EventuallySees(t, fmt.Sprintf("key %s has %s left", key, want), look, func(left string) bool { return left == want })
}

// dial opens a WebSocket.
func (p path) dial(t *testing.T, uri string) (*caddytest.WebSocket, caddytest.Response) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), caddytest.Patient)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, "GET", p.url+uri, nil)
	if err != nil {
		t.Fatal(err)
	}
	if p.h2c {
		request.Header.Set("H2c", "1")
	}
	conn, r, err := caddytest.DialWebSocket(p.client, request)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Conn.Close() })
	return conn, caddytest.Response{Response: r}
}

// A response goes through piece by piece, as without the handler, also if it is wrapped or
// outlived. This is so by HTTP/1.1 and HTTP/2, before and behind Caddy.
func TestUpstream(t *testing.T) {
	t.Parallel()
	caddytest.EachStore(t, func(t *testing.T, use string) {
		u := startTalker(t)
		c := caddytest.Start(t, upstreamSite(t, u, "draft_06 x_ratelimit", "", use))
		for _, families := range []string{"draft_06 x_ratelimit", "draft_06 sharkey"} {
			if strings.Contains(families, "sharkey") {
				c.Reload(t, upstreamSite(t, u, families, "", use))
			}
			for i, p := range pathsTo(t, c) {
				t.Run(families+" "+p.name, func(t *testing.T) {
					ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
					defer cancel()
					key := func(of string) string { return fmt.Sprintf("%s-%s-%d", of, families[len("draft_06 "):], i) }

					// A large body with a length, after early hints.
					var early []string
					hinted := httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{Got1xxResponse: func(status int, header textproto.MIMEHeader) error {
						early = append(early, fmt.Sprint(status, header.Get("Link"), header.Get("X-Ratelimit-Remaining")))
						return nil
					}})
					r := p.open(t, hinted, "/large?early=1&tokens=30&cost=10&key="+key("large"), nil)
					body, err := io.ReadAll(r.Body)
					if err != nil || !bytes.Equal(body, caddytest.LargeBody) {
						t.Errorf("%d bytes of body, %v; want %d", len(body), err, len(caddytest.LargeBody))
					}
					if len(early) != 1 || early[0] != "103</style.css>; rel=preload" {
						t.Errorf("early hints: %q", early)
					}
					r.WantZones(t, families)
					waitForBudgets(t, c, key("large"), 3, 970, true)

					// Events, each when it is sent, and a trailer, which says what they cost.
					s := u.stream(key("events"))
					r = p.open(t, ctx, "/events?trailer=40&cost=10&key="+key("events"), nil)
					r.WantZones(t, families)
					events := bufio.NewReader(r.Body)
					for n := range 3 {
						s.tell(t, fmt.Sprint("event ", n)) // not before the one before was read
						caddytest.WantText(t, "event", line(t, events), fmt.Sprint("data: event ", n))
						caddytest.WantText(t, "after it", line(t, events), "")
						waitForBudgets(t, c, key("events"), 2, 990, false)
					}
					close(s.say)
					if rest, err := io.ReadAll(events); err != nil || len(rest) > 0 || r.Trailer.Get("X-Tokens") != "40" {
						t.Errorf("at the end of the events: %q %v, trailer %v", rest, err, r.Trailer)
					}
					waitForBudgets(t, c, key("events"), 3, 960, true)

					// Both ways at the same time.
					if r.ProtoMajor == 2 && p.h2c {
						out, in := io.Pipe()
						r = p.open(t, ctx, "/echo?tokens=20&cost=10&key="+key("echo"), out)
						back := bufio.NewReader(r.Body)
						for n := range 3 {
							fmt.Fprintf(in, "message %d\n", n)
							caddytest.WantText(t, "echo", line(t, back), fmt.Sprint("message ", n))
						}
						waitForBudgets(t, c, key("echo"), 2, 990, false)
						_ = in.Close()
						if rest, err := io.ReadAll(back); err != nil || len(rest) > 0 {
							t.Errorf("after the echo: %q %v", rest, err)
						}
						waitForBudgets(t, c, key("echo"), 3, 980, true)
					}

					// A WebSocket.
					if strings.HasPrefix(p.name, "HTTP/1.1") && !p.h2c {
						conn, r := p.dial(t, "/socket/echo?tokens=50&cost=10&key="+key("socket"))
						r.WantZones(t, families)
						for _, message := range []string{"hello", strings.Repeat("long ", 5000)} {
							if err := conn.Write(message); err != nil {
								t.Fatal(err)
							}
							if got, err := conn.Hear(t); err != nil || got != message {
								t.Fatalf("%q came back as %.20q, %v", message, got, err)
							}
						}
						waitForBudgets(t, c, key("socket"), 2, 990, false)
						if err := conn.Close(t); err != nil {
							t.Error(err)
						}
						waitForBudgets(t, c, key("socket"), 3, 950, true)
					}
				})
			}
		}
	})
}

// A stream has its slots while it is open, also if Caddy reloads meanwhile. It gives them back
// after any end, and is then charged its true cost.
func TestStreamsAndSlots(t *testing.T) {
	caddytest.Long(t)
	t.Parallel()
	caddytest.EachStore(t, func(t *testing.T, use string) {
		u := startTalker(t)
		config := upstreamSite(t, u, "draft_06 x_ratelimit", keepOpen, use)
		c := caddytest.Start(t, config)
		type open struct {
			stream *stream
			key    string
			left   int // of its budget, when it has ended
			leave  func()
			next   func(t *testing.T) string // reads what the upstream says next; empty at the end
		}
		// start opens a stream of every kind; on a machine that is fast enough, some have to wait before they begin.
		start := func(t *testing.T, name string, wait bool) (all []*open) {
			for i, p := range pathsTo(t, c) {
				for _, kind := range []string{"events", "socket"} {
					if kind == "socket" && i > 0 {
						continue
					}
					ctx, leave := context.WithCancel(context.Background())
					t.Cleanup(leave)
					o := &open{key: fmt.Sprintf("%s-%s-%d", name, kind, i), left: 930, leave: leave}
					o.stream = u.stream(o.key)
					uri := fmt.Sprintf("/%s?key=%s&cost=10&tokens=70", kind, o.key)
					if wait && (kind == "socket" || p.h2c) {
						uri += "&delay=1"
						if _, err := c.Do("GET", "http://"+c.Site+strings.Replace(uri, "/"+kind, "/nothing", 1), ""); err != nil {
							t.Fatal(err)
						}
						o.left -= 70
					}
					if kind == "socket" {
						conn, r := p.dial(t, uri)
						r.WantZones(t, "x_ratelimit")
						o.leave = func() { _ = conn.Conn.Close() }
						o.next = func(t *testing.T) string {
							text, err := conn.Hear(t)
							if err != nil {
								_ = conn.Conn.Close() // it is over when both sides have ended it
							}
							return text
						}
					} else {
						r := p.open(t, ctx, uri, nil)
						r.WantZones(t, "x_ratelimit")
						lines := bufio.NewReader(r.Body)
						o.next = func(t *testing.T) string {
							text, err := lines.ReadString('\n')
							if err != nil {
								return ""
							}
							_, _ = lines.ReadString('\n')
							return strings.TrimSpace(strings.TrimPrefix(text, "data: "))
						}
					}
					all = append(all, o)
				}
			}
			return all
		}
		goesOn := func(t *testing.T, all []*open, what string) {
			t.Helper()
			for _, o := range all {
				waitForBudgets(t, c, o.key, 2, o.left+60, false)
				o.stream.tell(t, what)
				caddytest.WantText(t, o.key, o.next(t), what)
			}
		}
		for end, how := range map[string]func(t *testing.T, o *open){
			"its end":               func(_ *testing.T, o *open) { close(o.stream.say) },
			"a client that leaves":  func(_ *testing.T, o *open) { o.leave() },
			"an upstream that dies": func(t *testing.T, o *open) { o.stream.tell(t, "die") },
		} {
			for _, reload := range []bool{false, true} {
				name := strings.ReplaceAll(end, " ", "-")
				if reload {
					name += "-after-a-reload"
				}
				t.Run(name, func(t *testing.T) {
					all := start(t, name, reload)
					goesOn(t, all, "one")
					if reload {
						c.Reload(t, config+"# for "+name+"\n")
						goesOn(t, all, "two")
					}
					for _, o := range all {
						how(t, o)
					}
					for _, o := range all {
						if end != "a client that leaves" {
							caddytest.WantText(t, "after the end of "+o.key, o.next(t), "")
						}
						waitForBudgets(t, c, o.key, 3, o.left, true)
						<-o.stream.over
					}
				})
			}
		}
		// Without stream_close_delay a reload ends WebSockets.
		c.Reload(t, upstreamSite(t, u, "draft_06 x_ratelimit", "", use))
		conn, _ := pathsTo(t, c)[0].dial(t, "/socket?key=closed&cost=10&tokens=70")
		waitForBudgets(t, c, "closed", 2, 990, false)
		c.Reload(t, config)
		if _, err := conn.Hear(t); err == nil {
			t.Error("the WebSocket is still open")
		}
		waitForBudgets(t, c, "closed", 3, 930, true)
	})
}
