package e2e

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/errtest"
)

// received holds the parts of a request that an application has received.
type received struct {
	Body     []byte
	Error    string // instead of the end of the body
	Length   int64
	Encoding []string
	Trailer  string // the field Sum
	Type     string
}

// receiving starts an application that answers with what it has received, as JSON.
func receiving(t testing.TB) (address string) {
	t.Helper()
	return caddytest.StartUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		got := received{
			Body: body, Length: r.ContentLength, Encoding: r.TransferEncoding,
			Trailer: r.Trailer.Get("Sum"), Type: r.Header.Get("Content-Type"),
		}
		if err != nil {
			got.Error = err.Error()
		}
		_ = json.NewEncoder(w).Encode(got)
	})
}

// bodySite is a Caddyfile that passes all requests to an application. Its zone reads the name of an
// account from bodies.
func bodySite(application, rateLimit string) string {
	return strings.Replace(caddytest.Site(rateLimit), "respond ok", "respond /ready ok\nreverse_proxy "+application, 1)
}

const accountKey = "key {http.rate_limit.request.json.user.name} {http.rate_limit.request.form.user}\n"

// A key, plan, cost and factor can come from the body. TestBodyIsPassedOnUnchanged has any values.
func TestBodyValues(t *testing.T) {
	t.Parallel()
	c := caddytest.Start(t, caddytest.Site(`zone account {
			match path /login
			`+accountKey+`
			token_bucket 10 1000h
		}
		zone batch {
			match path /batch
			key {query.key}
			cost {http.rate_limit.request.json.items.0.pack\.size}
			factor {http.rate_limit.request.json.factor}
			plan {http.rate_limit.request.form.plan} {
				free {
					token_bucket 10 1000h
				}
				default {
					token_bucket 100 1000h
				}
			}
		}
		`))
	for n, test := range []struct{ contentType, body, left string }{
		{caddytest.JSONType, `{"user":{"name":"alice"}}`, "9"},
		{"Application/Problem+JSON; charset=UTF-8", ` {"x":[{"user":1}],"user":{"name":"al\u0069ce"}}`, "8"},
		{"text/json", `{"user":{"id":1,"name":"alice"},"x":1,"x":2}`, "7"},
		{caddytest.FormType, "user=alice", "9"}, // another alternative of key, so another budget
		{caddytest.FormType + "; charset=utf-8", "x=1&user=alice&x=2", "8"},
		{"text/plain", `{"user":{"name":"alice"}}`, "9"}, // neither: the last alternative, empty
		{"", `{"user":{"name":"alice"}}`, "8"},
		{caddytest.JSONType, `{"user":"alice"}`, "7"},
		{"application/grpc+json", `{"user":{"name":"alice"}}`, "6"},
	} {
		r := c.Post(t, "/login", test.contentType, test.body)
		if r.Want(t, 200); !strings.Contains(r.Field("RateLimit"), ";r="+test.left+";") {
			t.Errorf("%d: %s leaves %s, want %s", n, test.body, r.Field("RateLimit"), test.left)
		}
	}
	for _, test := range []struct{ contentType, body, left string }{
		{caddytest.JSONType, `{"items":[{"pack.size":30}]}`, "70"},
		{caddytest.JSONType, `{"items":[{"pack.size":30}], "factor": 2}`, "20"},
		{caddytest.FormType, `plan=free`, "9"},
		{caddytest.FormType, `plan=gold`, "99"},
	} {
		r := c.Post(t, "/batch?key="+url.QueryEscape(test.body), test.contentType, test.body)
		if r.Want(t, 200); !strings.Contains(r.Field("RateLimit"), ";r="+test.left+";") {
			t.Errorf("%s leaves %s, want %s", test.body, r.Field("RateLimit"), test.left)
		}
	}
}

// A body that can't be read doesn't get past a limit. With pass, and in shadow mode, the next handler
// receives it byte for byte.
func TestBodyErrors(t *testing.T) {
	t.Parallel()
	application := receiving(t)
	zone := func(name, options string) string {
		return "zone " + name + " {\nmatch path /" + name + "\n" + accountKey + "body_timeout 1h\ntoken_bucket 1000 1000h\n" + options + "\n}\n"
	}
	// The bodies to late are never complete, so it doesn't matter when its timeout ends.
	c := caddytest.Start(t, bodySite(application,
		strings.Replace(zone("late", "max_body 200"), "1h", "50ms", 1)+zone("deny", "max_body 200")+zone("pass", "max_body 200 pass")+zone("shadow", "max_body 200\nshadow")+zone("enforce", "max_body 200\nenforce 0")))
	type bad struct {
		name, header, body string
		status             int
	}
	chunked := func(text string) string {
		if text == "" {
			return "0\r\n\r\n"
		}
		return fmt.Sprintf("1\r\n%s\r\n%x\r\n%s\r\n0\r\n\r\n", text[:1], len(text)-1, text[1:])
	}
	long := `{"user":{"name":"alice"}}` + strings.Repeat(" ", 200)
	json, form := "Content-Type: "+caddytest.JSONType+"\r\n", "Content-Type: "+caddytest.FormType+"\r\n"
	const te = "Transfer-Encoding: chunked\r\n"
	withLength := func(text string) string { return fmt.Sprintf("Content-Length: %d\r\n", len(text)) }
	var tests []bad
	for _, test := range []bad{
		{"too large", json, long, 413},
		{"too large form", form, "user=alice&x=" + long, 413},
		{"malformed", json, `{"user":{"name":"alice"}`, 400},
		{"more than one value", json, `{"user":{"name":"alice"}} {}`, 400},
		{"malformed form", form, "user=%zz", 400},
		{"multipart", "Content-Type: multipart/form-data; boundary=b\r\n", "--b\r\nContent-Disposition: form-data; name=user\r\n\r\nalice\r\n--b--\r\n", 415},
		{"multipart and a charset", "Content-Type: Multipart/Form-Data; charset=utf-8\r\n", "user=alice", 415},
		{"compressed", json + "Content-Encoding: gzip\r\n", `{"user":{"name":"alice"}}`, 415},
		{"compressed twice", json + "Content-Encoding: identity, br\r\n", `{"user":{"name":"alice"}}`, 415},
		{"charset", "Content-Type: application/json; charset=utf-7\r\n", `{"user":{"name":"+AGEAbABpAGMAZQ-"}}`, 415},
		{"parameters", "Content-Type: application/json; charset\r\n", `{"user":{"name":"alice"}}`, 415},
		{"a comma", "Content-Type: application/json, text/plain\r\n", `{"user":{"name":"alice"}}`, 415},
		{"a space", "Content-Type: application/x-www-form-urlencoded x\r\n", `user=alice`, 415},
		{"two charsets", "Content-Type: application/json; x=\"charset=utf-7\"; charset=utf-8\r\n", `{"user":{"name":"alice"}}`, 415},
		{"encoded charset", "Content-Type: application/json; charset*=us-ascii''utf-8\r\n", `{"user":{"name":"alice"}}`, 415},
		{"JSON as a form", form, `{"user":{"name":"alice"},"x":"&user=bob&"}`, 400},
		{"semicolons", form, "user=bob;&user=alice", 400},
		{"a question mark", form, "?user=bob&user=alice", 400},
		{"a name twice", json, `{"user":{"name":"bob","name":"alice"}}`, 400},
		{"an object twice", json, `{"user":{"name":"bob"},"\u0075ser":{"name":"alice"}}`, 400},
		{"a field twice", form, "user=bob&user=alice", 400},
		{"two types", json + form, `{"user":{"name":"alice"}}`, 415},
		{"UTF-16", json, "\xff\xfe{\x00}\x00", 400},
	} {
		tests = append(tests, bad{test.name, test.header + withLength(test.body), test.body, test.status},
			bad{test.name + ", chunked", test.header + te, chunked(test.body), test.status})
	}
	tests = append(tests,
		bad{"too large, without a body so far", json + "Expect: 100-continue\r\nContent-Length: 1000\r\n", "", 413},
		bad{"late", json + withLength("{}x"), "{}", 408},
		bad{"late, and too large", json + te, "200\r\n" + long, 413},
		bad{"late, chunked", json + te, "2\r\n{}\r\n", 408},
		bad{"never", json + withLength("x"), "", 408},
		bad{"chunks", json + te, "zz\r\n", 400},
	)
	late := 0
	for _, test := range tests {
		path := "/deny"
		if test.status == 408 {
			path, late = "/late", late+1
		}
		conn := c.SendRaw(t, "POST "+path+" HTTP/1.1\r\nHost: {host}\r\n"+test.header+"\r\n"+test.body)
		from := bufio.NewReader(conn)
		r := caddytest.ReadResponse(t, from)
		if r.StatusCode != test.status {
			t.Errorf("%s: status %d, want %d", test.name, r.StatusCode, test.status)
		}
		if test.status != 408 {
			continue
		}
		if _, err := from.ReadByte(); !r.Close || err != io.EOF {
			t.Errorf("%s: close %v, the connection gives %v", test.name, r.Close, err)
		}
	}
	for _, test := range tests {
		if strings.Contains(test.name, "late") || strings.Contains(test.name, "never") || strings.Contains(test.name, "chunks") || test.body == "" {
			continue // never complete
		}
		for _, path := range []string{"/pass", "/shadow", "/enforce"} {
			want := test.body
			if strings.Contains(test.name, "chunked") {
				_, end, _ := strings.Cut(want[3:], "\r\n") // of the first chunk, and then the length of the second
				_, end, _ = strings.Cut(end, "\r\n")
				want = want[3:4] + strings.TrimSuffix(end, "\r\n0\r\n\r\n")
			}
			r := caddytest.ReadResponse(t, bufio.NewReader(c.SendRaw(t, "POST "+path+" HTTP/1.1\r\nHost: {host}\r\n"+test.header+"\r\n"+test.body)))
			if got := decodeReceived(t, r); got.Error != "" || string(got.Body) != want {
				t.Errorf("%s: %s: the application received %q %s, want %q", test.name, path, got.Body, got.Error, want)
			}
		}
	}
	for _, want := range []string{
		`"msg":"a zone denied a request because it could not read the body","zone":"deny","reason":"too large","count":1`,
		`"zone":"deny","reason":"malformed","count":1`,
		`"zone":"late","reason":"not complete in time","count":1`,
		`"zone":"deny","reason":"content encoding, charset, parameters or a multipart form","count":1`,
		`"msg":"a zone in shadow mode could not read the body of a request, so its values are empty","zone":"shadow"`,
	} {
		c.WaitForLog(t, want)
	}
	for zone, n := range map[string]int{"deny": len(tests) - late, "late": late} {
		caddytest.WaitForMetric(t, c, fmt.Sprintf(`caddy_rate_limit_requests_total{outcome="bad_body",zone=%q} %d`, zone, n))
	}
}

func decodeReceived(t testing.TB, r caddytest.Response) (got received) {
	t.Helper()
	errtest.None(t, json.Unmarshal([]byte(r.Text), &got), r)
	return got
}

// arriving starts an application that tells of each part of a body when it arrives.
func arriving(t testing.TB) (address string, parts <-chan string) {
	t.Helper()
	arrived := make(chan string, 100)
	return caddytest.StartUpstream(t, func(_ http.ResponseWriter, r *http.Request) {
		p := make([]byte, 1000)
		for {
			n, err := r.Body.Read(p)
			if n > 0 {
				arrived <- string(p[:n])
			}
			if err != nil {
				arrived <- err.Error() + r.Trailer.Get("Sum")
				return
			}
		}
	}), arrived
}

// sendParts sends the parts of a body, and waits until each has arrived at the application. encode
// encodes a part.
func sendParts(t testing.TB, to io.Writer, arrived <-chan string, encode func(string) string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		errtest.None(t, errtest.Of(io.WriteString(to, encode(part))))
		for got := ""; got != part; {
			select {
			case more := <-arrived:
				if got += more; !strings.HasPrefix(part, got) {
					t.Fatalf("%q arrives, want %q", got, part)
				}
			case <-time.After(caddytest.Patient): // a bound, which only a failure reaches
				t.Fatalf("%q has not arrived, only %q", part, got)
			}
		}
	}
}

func asItIs(text string) string { return text }

// The body of a request with another content type reaches the application while it is still sent.
// So does one that no zone needs, because an earlier alternative of the key has a value, an override decides instead of
// plan and cost, or because no zone matches.
func TestBodyIsNotRead(t *testing.T) {
	t.Parallel()
	application, arrived := arriving(t)
	c := caddytest.Start(t, bodySite(application, "zone z {\nmatch path /read\nkey {query.key} {http.rate_limit.request.json.user}\nmax_body 4\nfixed_window 100 1h\n}\n"+
		"zone y {\nmatch path /vip\nkey {query.key}\ncost {http.rate_limit.request.json.cost}\nmax_body 4\n"+
		"plan {http.rate_limit.request.json.plan} {\nfree {\nfixed_window 1 1h\n}\ndefault unlimited\n}\noverride k unlimited\n}"))
	for _, test := range []struct{ path, header string }{
		{"/vip?key=k", "Content-Type: application/json\r\n"},
		{"/read", "Content-Type: application/octet-stream\r\n"},
		{"/read", "Content-Type: application/grpc+json\r\n"},
		{"/read", "Content-Type: application/x-www-form-urlencoded\r\n"}, // the key has no form field
		{"/read", ""},
		{"/read?key=k", "Content-Type: application/json\r\n"},
		{"/other", "Content-Type: application/json\r\n"},
	} {
		conn := c.SendRaw(t, "POST "+test.path+" HTTP/1.1\r\nHost: {host}\r\n"+test.header+"Content-Length: 9\r\n\r\n")
		sendParts(t, conn, arrived, asItIs, "{\"a\"", ":12 }")
		<-arrived // the end
		caddytest.ReadResponse(t, bufio.NewReader(conn)).Want(t, 200)
	}
}

// request_body in front decides on bodies that are too large for it.
func TestBodyErrorOfEarlierHandler(t *testing.T) {
	t.Parallel()
	config := bodySite(receiving(t), "zone z {\nkey {http.rate_limit.request.json.user}\nfixed_window 100 1h\nmatch path /deny\n}\n"+
		"zone y {\nkey {http.rate_limit.request.json.user}\nfixed_window 100 1h\nmax_body 1KiB pass\nmatch path /pass\n}")
	c := caddytest.Start(t, strings.Replace(config, "@limited not", "request_body {\nmax_size 20\n}\n@limited not", 1))
	for _, path := range []string{"/deny", "/pass"} {
		for _, test := range []struct {
			body   string
			status int
		}{{`{"user": "alice"}`, 200}, {`{"user": "alice"}     `, 413}} {
			r, err := http.NewRequest("POST", "http://"+c.Site+path, io.MultiReader(strings.NewReader(test.body))) // of unknown length
			errtest.None(t, err)
			r.Header.Set("Content-Type", caddytest.JSONType)
			answer, err := caddytest.Client.Do(r)
			errtest.None(t, err)
			_ = answer.Body.Close()
			if answer.StatusCode != test.status {
				t.Errorf("%s %q: status %d, want %d", path, test.body, answer.StatusCode, test.status)
			}
		}
	}
}

// Error routes and problem documents describe a body that can't be read, as they do a denial.
func TestBodyErrorResponses(t *testing.T) {
	t.Parallel()
	zone := "zone z {\nkey {http.rate_limit.request.json.user}\nfixed_window 1 1h\nmax_body 30\n}\n"
	c := caddytest.Start(t, caddytest.Site(zone+"problem_json"))
	r := c.Post(t, "/", caddytest.JSONType, "{")
	r.Want(t, 400, "Content-Type", "application/problem+json")
	if want := `{"type":"about:blank","title":"Bad Request","status":400}`; r.Text != want {
		t.Errorf("%s, want %s", r.Text, want)
	}
	// The body is there for the error routes.
	c.Reload(t, strings.Replace(caddytest.Site(zone), "respond ok", "respond ok\nhandle_errors {\nreverse_proxy "+receiving(t)+"\n}", 1))
	c.Post(t, "/", caddytest.JSONType, `{"user":"alice"}`).Want(t, 200)
	for _, body := range []string{`{"user":"alice"}`, `{"user":"alice"`} {
		if got := decodeReceived(t, c.Post(t, "/", caddytest.JSONType, body)); string(got.Body) != body {
			t.Errorf("the error routes receive %q %s, want %q", got.Body, got.Error, body)
		}
	}
}

// A value has at most 16 KiB, because reading it takes several times its size. Other values have no bound.
func TestLongValue(t *testing.T) {
	t.Parallel()
	c := caddytest.Start(t, caddytest.Site("zone z {\n"+accountKey+"max_body 1MiB\nfixed_window 100 1h\n}"))
	for length, status := range map[int]int{16 << 10: 200, 16<<10 + 1: 413} {
		long, longest := strings.Repeat("x", length), strings.Repeat("x", 500_000)
		c.Post(t, "/", caddytest.JSONType, `{"other":"`+longest+`","user":{"name":"`+long+`"}}`).Want(t, status)
		c.Post(t, "/", caddytest.FormType, "other="+longest+"&user="+long).Want(t, status)
	}
	c.Post(t, "/", caddytest.JSONType, `{"user":{"name":"`+strings.Repeat("\xff", 6000)+`"}}`).Want(t, 413) // each becomes three bytes
}
