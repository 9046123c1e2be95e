package e2e

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/quic-go/quic-go/http3"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/errtest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/seedtest"
)

// randomBody returns a body with its type, and the values in it. Some bodies are cut short. The tests of jsonvalue and formvalue
// have all kinds of values.
func randomBody(random *rand.Rand) (contentType string, body []byte, jsonValue, formValue string) {
	padding, value := strings.Repeat("x", random.IntN(1+random.IntN(3000))), fmt.Sprint("é日𝄞"[:2+3*random.IntN(2)], random.IntN(1000))
	if random.IntN(2) == 0 {
		contentType, jsonValue = caddytest.JSONType, value
		body = fmt.Appendf(nil, `{"padding":"%s" , "a":{"c":[{}],"\u0062" : "%s"},"more":"%[1]s"}`, padding, value)
	} else {
		contentType, formValue = caddytest.FormType, value
		body = fmt.Appendf(nil, "padding=%s&n%%61me=%s&more=%[1]s", padding, url.QueryEscape(value))
	}
	if random.IntN(4) > 0 {
		return contentType, body, jsonValue, formValue
	}
	body = body[:random.IntN(len(body))]
	if strings.Contains(string(body), "&more=") {
		return contentType, body, "", formValue
	}
	return contentType, body[:min(len(body), len("padding="+padding))], "", ""
}

// pieces is a reader that returns a text in random pieces.
type pieces struct {
	random *rand.Rand
	text   []byte
}

func (p *pieces) Read(into []byte) (int, error) {
	if len(p.text) == 0 {
		return 0, io.EOF
	}
	n := copy(into, p.text[:1+p.random.IntN(len(p.text))])
	p.text = p.text[n:]
	return n, nil
}

// The application receives the bytes that the client has sent, for any body, pieces and protocol, and
// with several handlers that read it. The values equal those of encoding/json and net/url. A body that is late gets an
// answer.
func TestBodyIsPassedOnUnchanged(t *testing.T) {
	t.Parallel()
	const keys = "key {http.rate_limit.request.json.a.b} {http.rate_limit.request.form.name}\nfixed_window 1000000 1h\n"
	// The bodies to late are never complete, so it doesn't matter when its timeout ends.
	routes := `
	route {
		respond /ready ok
		rate_limit {
			zone late {
				match path /late
				key {http.rate_limit.request.json.a}
				body_timeout 50ms
				gcra 1000 1h
			}
		}
		rate_limit {
			zone a {
				` + keys + `max_body 100 pass
			}
			zone b {
				` + keys + `max_body 1MB pass
			}
		}
		rate_limit {
			zone c {
				` + keys + `max_body 1000 pass
			}
		}
		reverse_proxy ` + receiving(t) + ` {
			header_down X-Json "{http.rate_limit.request.json.a.b}"
			header_down X-Form "{http.rate_limit.request.form.name}"
			header_up -Expect
		}
	}
`
	c := caddytest.Start(t, "{\n\tadmin {$ADMIN}\n\tlocal_certs\n\tskip_install_trust\n\tauto_https disable_redirects\n\tservers {\n\t\tprotocols h1 h2 h2c h3\n\t}\n}\n"+
		"{$SITE} {"+routes+"}\n{$TLS} {"+routes+"}\n")
	insecure := &tls.Config{InsecureSkipVerify: true}
	var h1, h2 http.Protocols
	h1.SetHTTP1(true)
	h2.SetUnencryptedHTTP2(true)
	quicTransport := &http3.Transport{TLSClientConfig: insecure}
	t.Cleanup(func() { _ = quicTransport.Close() })
	type sender struct {
		name, url string
		http.RoundTripper
		header []string
	}
	transports := []sender{
		{"HTTP/1.1", "http://" + c.Site, &http.Transport{Protocols: &h1}, nil},
		{"HTTP/1.1 with 100-continue", "http://" + c.Site, &http.Transport{Protocols: &h1, ExpectContinueTimeout: caddytest.Patient}, []string{"Expect", "100-continue"}},
		{"HTTP/2", "http://" + c.Site, &http.Transport{Protocols: &h2}, nil},
		{"HTTP/3", "https://" + c.TLS, quicTransport, nil},
	}
	caddytest.Eventually(t, "HTTP/3 answers", func() bool {
		r, err := http.NewRequest("GET", "https://"+c.TLS+"/ready", nil)
		errtest.None(t, err)
		answer, err := quicTransport.RoundTrip(r)
		if err == nil {
			_ = answer.Body.Close()
		}
		return err == nil
	})
	for seed := range seedtest.Cases[uint64](t, 200) {
		random := rand.New(rand.NewPCG(seed, 1))
		by := transports[seed%uint64(len(transports))]
		contentType, body, jsonValue, formValue := randomBody(random)
		r, err := http.NewRequest("POST", by.url, io.MultiReader(&pieces{random, bytes.Clone(body)})) // the length is unknown
		errtest.None(t, err)
		r.Header.Set("Content-Type", contentType)
		for i := 0; i < len(by.header); i += 2 {
			r.Header.Set(by.header[i], by.header[i+1])
		}
		known := random.IntN(2) == 0
		if known {
			r.ContentLength = int64(len(body))
			if len(body) == 0 {
				r.Body = http.NoBody
			}
		} else if by.name != "HTTP/3" {
			r.Trailer = http.Header{"Sum": {"42"}}
		}
		answer, err := by.RoundTrip(r)
		errtest.None(t, err, by.name, "seed", seed)
		text, err := io.ReadAll(answer.Body)
		_ = answer.Body.Close()
		errtest.None(t, err)
		got := decodeReceived(t, caddytest.Response{Response: answer, Text: string(text)})
		if got.Error != "" || !bytes.Equal(got.Body, body) || got.Type != contentType || known && got.Length != int64(len(body)) ||
			r.Trailer != nil && got.Length < 0 && got.Trailer != "42" {
			t.Errorf("%s, seed %d: the application received %+v, want %q", by.name, seed, got, body)
		}
		if j, f := answer.Header.Get("X-Json"), answer.Header.Get("X-Form"); j != jsonValue || f != formValue {
			t.Errorf("%s, seed %d: %s %q has the values %q and %q, want %q and %q", by.name, seed, contentType, body, j, f, jsonValue, formValue)
		}
	}
	for _, by := range transports {
		body, write := io.Pipe()
		go func() { _, _ = io.WriteString(write, `{"a"`) }()
		r, err := http.NewRequest("POST", by.url+"/late", body)
		errtest.None(t, err)
		r.Header.Set("Content-Type", caddytest.JSONType)
		answer, err := by.RoundTrip(r)
		errtest.None(t, err, by.name)
		if answer.StatusCode != http.StatusRequestTimeout {
			t.Errorf("%s: status %d to a late body, want 408", by.name, answer.StatusCode)
		}
		_ = answer.Body.Close()
		_ = write.Close()
	}
}
