package e2e

import (
	"bytes"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/quic-go/quic-go/http3"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/seedtest"
)

// member returns the member of a JSON object, or nil if the object has none of this name, or several.
func member(object []byte, name string) (value json.RawMessage) {
	decoder, times := json.NewDecoder(bytes.NewReader(object)), 0
	if opening, err := decoder.Token(); err != nil || opening != json.Delim('{') {
		return nil
	}
	for decoder.More() {
		var v json.RawMessage
		if found, err := decoder.Token(); err != nil || decoder.Decode(&v) != nil {
			return nil
		} else if found == name {
			value, times = v, times+1
		}
	}
	if times > 1 {
		return nil
	}
	return value
}

// randomBody returns a body with its type, and the values that a Go program reads from it, unless they are there
// twice. Some bodies are cut short.
func randomBody(random *rand.Rand) (contentType string, body []byte, jsonValue, formValue string) {
	word := func() string {
		letters := []rune("abcé日𝄞")
		text := make([]rune, 1+random.IntN(6))
		for i := range text {
			text[i] = letters[random.IntN(len(letters))]
		}
		return string(text)
	}
	padding := strings.Repeat("x", random.IntN(1+random.IntN(3000)))
	var b bytes.Buffer
	switch random.IntN(2) {
	case 0:
		contentType = caddytest.JSONType
		value := func() string {
			switch random.IntN(5) {
			case 0:
				return fmt.Sprint(random.IntN(1000))
			case 1:
				return []string{"true", "null", "[1]", "{}"}[random.IntN(4)]
			case 2: // with escapes
				text := ""
				for _, c := range word() {
					if c < 0x10000 {
						text += fmt.Sprintf(`\u%04x`, c)
					}
				}
				return `"` + text + `"`
			}
			return `"` + word() + `"`
		}
		fmt.Fprintf(&b, `{"padding":"%s"`, padding)
		for range random.IntN(4) {
			switch random.IntN(3) {
			case 0:
				fmt.Fprintf(&b, ` , "a":{"b":%s,"c":[{}],"b" : %s}`, value(), value())
			case 1:
				fmt.Fprintf(&b, `,"a":%s`, value())
			default:
				fmt.Fprintf(&b, `,"\u0061":{"x":%s,"\u0062":%s}`, value(), value())
			}
		}
		b.WriteString("}")
	default:
		contentType = caddytest.FormType
		fmt.Fprintf(&b, "padding=%s", padding)
		for range random.IntN(3) {
			fmt.Fprintf(&b, "&%s=%s", []string{"name", "other", "n%61me"}[random.IntN(3)], url.QueryEscape(word()))
		}
	}
	body = b.Bytes()
	if random.IntN(4) == 0 {
		body = body[:random.IntN(len(body)+1)]
	}
	r, _ := http.NewRequest("POST", "/", bytes.NewReader(body))
	r.Header.Set("Content-Type", contentType)
	switch contentType {
	case caddytest.JSONType:
		var value any
		decoder := json.NewDecoder(bytes.NewReader(member(member(body, "a"), "b")))
		decoder.UseNumber()
		if json.Valid(body) && decoder.Decode(&value) == nil {
			switch v := value.(type) {
			case string, json.Number, bool:
				jsonValue = fmt.Sprint(v)
			}
		}
	default:
		if values, err := url.ParseQuery(string(body)); err == nil && len(values["name"]) == 1 {
			formValue = values.Get("name")
		}
	}
	return contentType, body, jsonValue, formValue
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
		if err != nil {
			t.Fatal(err)
		}
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
		if err != nil {
			t.Fatal(err)
		}
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
		if err != nil {
			t.Fatalf("%s, seed %d: %v", by.name, seed, err)
		}
		text, err := io.ReadAll(answer.Body)
		_ = answer.Body.Close()
		if err != nil {
			t.Fatal(err)
		}
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
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Content-Type", caddytest.JSONType)
		answer, err := by.RoundTrip(r)
		if err != nil {
			t.Fatalf("%s: %v", by.name, err)
		}
		if answer.StatusCode != http.StatusRequestTimeout {
			t.Errorf("%s: status %d to a late body, want 408", by.name, answer.StatusCode)
		}
		_ = answer.Body.Close()
		_ = write.Close()
	}
}
