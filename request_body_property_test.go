package ratelimit

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"mime/multipart"
	"net/http"
	"net/url"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/quic-go/quic-go/http3"
)

// randomBody returns a body with its type, and the values that a Go program reads from it. Some
// bodies are cut short.
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
	switch random.IntN(3) {
	case 0:
		contentType = jsonType
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
	case 1:
		contentType = formType
		fmt.Fprintf(&b, "padding=%s", padding)
		for range random.IntN(3) {
			fmt.Fprintf(&b, "&%s=%s", []string{"name", "other", "n%61me"}[random.IntN(3)], url.QueryEscape(word()))
		}
	default:
		parts := multipart.NewWriter(&b)
		contentType = parts.FormDataContentType()
		_ = parts.WriteField("padding", padding)
		for range random.IntN(3) {
			if random.IntN(3) == 0 {
				file, _ := parts.CreateFormFile("name", word())
				_, _ = io.WriteString(file, word())
			} else {
				_ = parts.WriteField([]string{"name", "other"}[random.IntN(2)], word())
			}
		}
		_ = parts.Close()
	}
	body = b.Bytes()
	if random.IntN(4) == 0 {
		body = body[:random.IntN(len(body)+1)]
	}
	r, _ := http.NewRequest("POST", "/", bytes.NewReader(body))
	r.Header.Set("Content-Type", contentType)
	switch {
	case contentType == jsonType:
		var outer map[string]any
		decoder := json.NewDecoder(bytes.NewReader(body))
		decoder.UseNumber()
		if json.Valid(body) && decoder.Decode(&outer) == nil {
			a, _ := outer["a"].(map[string]any)
			switch v := a["b"].(type) {
			case string, json.Number, bool:
				jsonValue = fmt.Sprint(v)
			}
		}
	case contentType == formType:
		if values, err := url.ParseQuery(string(body)); err == nil {
			formValue = values.Get("name")
		}
	default:
		if r.ParseMultipartForm(1<<20) == nil {
			formValue = url.Values(r.MultipartForm.Value).Get("name")
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
// with several handlers that read it. The values equal those of encoding/json, net/url and
// mime/multipart.
func TestBodyIsPassedOnUnchanged(t *testing.T) {
	t.Parallel()
	const keys = "key {http.rate_limit.request.json.a.b} {http.rate_limit.request.form.name}\nfixed_window 1000000 1h\n"
	routes := `
	route {
		respond /ready ok
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
	c := startCaddy(t, "{\n\tadmin {$ADMIN}\n\tlocal_certs\n\tskip_install_trust\n\tauto_https disable_redirects\n\tservers {\n\t\tprotocols h1 h2 h2c h3\n\t}\n}\n"+
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
		{"HTTP/1.1", "http://" + c.site, &http.Transport{Protocols: &h1}, nil},
		{"HTTP/1.1 with 100-continue", "http://" + c.site, &http.Transport{Protocols: &h1, ExpectContinueTimeout: patient}, []string{"Expect", "100-continue"}},
		{"HTTP/2", "http://" + c.site, &http.Transport{Protocols: &h2}, nil},
		{"HTTP/3", "https://" + c.tls, quicTransport, nil},
	}
	eventually(t, "HTTP/3 answers", func() bool {
		r, err := http.NewRequest("GET", "https://"+c.tls+"/ready", nil)
		if err != nil {
			t.Fatal(err)
		}
		answer, err := quicTransport.RoundTrip(r)
		if err == nil {
			_ = answer.Body.Close()
		}
		return err == nil
	})
	for seed := range uint64(400) {
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
		got := decodeReceived(t, response{answer, string(text)})
		if got.Error != "" || !bytes.Equal(got.Body, body) || got.Type != contentType || known && got.Length != int64(len(body)) ||
			r.Trailer != nil && got.Length < 0 && got.Trailer != "42" {
			t.Errorf("%s, seed %d: the application received %+v, want %q", by.name, seed, got, body)
		}
		if j, f := answer.Header.Get("X-Json"), answer.Header.Get("X-Form"); j != jsonValue || f != formValue {
			t.Errorf("%s, seed %d: %s %q has the values %q and %q, want %q and %q", by.name, seed, contentType, body, j, f, jsonValue, formValue)
		}
	}
}

// A body that is late over HTTP/2 and HTTP/3 gets an answer, and the connection goes on.
func TestLateBodyOverOtherProtocols(t *testing.T) {
	t.Parallel()
	const rateLimit = "rate_limit {\nzone z {\nmatch path /login\nkey {http.rate_limit.request.json.a}\nbody_timeout 50ms\nfixed_window 10 1h\n}\n}\nrespond ok\n"
	c := startCaddy(t, "{\n\tadmin {$ADMIN}\n\tlocal_certs\n\tskip_install_trust\n\tauto_https disable_redirects\n\tservers {\n\t\tprotocols h1 h2 h2c h3\n\t}\n}\n"+
		"{$SITE} {\n"+rateLimit+"}\n{$TLS} {\n"+rateLimit+"}\n")
	var h2 http.Protocols
	h2.SetUnencryptedHTTP2(true)
	quicTransport := &http3.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
	t.Cleanup(func() { _ = quicTransport.Close() })
	for url, transport := range map[string]http.RoundTripper{"http://" + c.site: &http.Transport{Protocols: &h2}, "https://" + c.tls: quicTransport} {
		get := func() bool {
			r, err := http.NewRequest("GET", url, nil)
			if err != nil {
				t.Fatal(err)
			}
			answer, err := transport.RoundTrip(r)
			if err == nil {
				_ = answer.Body.Close()
			}
			return err == nil && answer.StatusCode == 200
		}
		eventually(t, url+" answers", get)
		body, write := io.Pipe()
		go func() { _, _ = io.WriteString(write, `{"a"`) }()
		r, err := http.NewRequest("POST", url+"/login", body)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Content-Type", jsonType)
		answer, err := transport.RoundTrip(r)
		if err != nil {
			t.Fatalf("%s: %v", url, err)
		}
		if answer.StatusCode != 408 {
			t.Errorf("%s: status %d, want 408", url, answer.StatusCode)
		}
		_ = answer.Body.Close()
		_ = write.Close()
		if !get() {
			t.Errorf("%s: the connection doesn't go on", url)
		}
	}
}

// slowBodies sends the beginnings of many bodies, and returns when the server has read all of them.
// It returns the connections.
func slowBodies(tb testing.TB, address string, n int, beginning string) (conns []*bufio.Reader) {
	tb.Helper()
	c := &caddyProcess{site: address}
	for range n {
		conn := c.sendRaw(tb, "POST / HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nContent-Length: 60000\r\n\r\n"+beginning)
		_ = conn.SetDeadline(time.Now().Add(5 * patient))
		conns = append(conns, bufio.NewReaderSize(conn, 16))
	}
	return conns
}

// Any number of slow bodies takes at most maxBodyMemory together. Further bodies are denied with
// status 503.
func TestSlowBodies(t *testing.T) {
	const beginning = 30_000
	n := 9000 // with both ends in this process
	if testing.Short() || raceEnabled {
		n = 2500
	}
	h := loadHandler(t, `"z":{"key":"{http.rate_limit.request.json.user}","body_timeout":"10m","limits":[{"algorithm":"fixed_window","events":3,"window":"1h"}]}`)
	address := serveInProcess(t, h, func(http.ResponseWriter, *http.Request) error { return nil })
	before := heapInUse()
	conns := slowBodies(t, address, n, strings.Repeat(" ", beginning))
	denied := make(chan int, n)
	for _, from := range conns {
		go func() {
			if r, err := http.ReadResponse(from, nil); err == nil && r.StatusCode == 503 && r.Header.Get("Retry-After") == "1" {
				denied <- 1
			}
		}()
	}
	// A body of 30,000 bytes has a buffer of 32 kB, and needs 16 kB more while it grows.
	for range n - maxBodyMemory/(32<<10) {
		select {
		case <-denied:
		case <-time.After(patient):
			t.Fatalf("%d are denied, and %d bytes are taken", len(denied), bodyMemory.Used())
		}
		if used := bodyMemory.Used(); used > maxBodyMemory {
			t.Fatalf("%d bytes are taken", used)
		}
	}
	grown := heapInUse() - before
	t.Logf("%d bodies take %d bytes, and the heap has grown by %d, with the connections", n, bodyMemory.Used(), grown)
	if used := bodyMemory.Used(); used < maxBodyMemory/2 {
		t.Errorf("only %d bytes are taken", used)
	}
	if most := int64(maxBodyMemory + n*30_000); grown > most { // a connection has about 20 kB of its own, on both sides
		t.Errorf("the heap has grown by %d bytes, want at most %d", grown, most)
	}
}

// heapInUse returns how many bytes of the heap are reachable.
func heapInUse() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
