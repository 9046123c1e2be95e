package docs_test

import (
	"bytes"
	"encoding/json"
	"html"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	testpb "google.golang.org/grpc/interop/grpc_testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
)

// The tests in this file show of recipes what the commands on their pages can't.

// startRecipe starts a Caddy with the example of a recipe. Its site is :8080. The stand-ins in the
// example are left out; replace are pairs of an address in the example and another one.
func startRecipe(t *testing.T, name string, replace ...string) (c *caddytest.Caddy, config string) {
	t.Helper()
	config = asTestSite(caddytest.ReadFile(t, "examples/"+name+"/Caddyfile"), replace...)
	return caddytest.Start(t, config), config
}

// asTestSite makes a Caddyfile with the site :8080 one for startCaddy.
func asTestSite(config string, replace ...string) string {
	config, _, _ = strings.Cut(config, "\n# This stands in")
	if options := regexp.MustCompile(`(?m)^\{$`); options.MatchString(config) {
		config = options.ReplaceAllLiteralString(config, "{\n\tadmin {$ADMIN}")
	} else {
		config = "{\n\tadmin {$ADMIN}\n}\n" + config
	}
	config = strings.Replace(config, "\n:8080 {", "\n{$SITE} {", 1)
	return strings.NewReplacer(replace...).Replace(config)
}

// A download costs the bytes of its body.
func TestRecipeDownloads(t *testing.T) {
	t.Parallel()
	file, changed := make([]byte, 1000000), time.Now().Add(-time.Hour)
	files := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/files/a":
			http.ServeContent(w, r, "a", changed, bytes.NewReader(file))
		case "/files/chunked":
			_, _ = w.Write(file[:1000])
			_ = http.NewResponseController(w).Flush()
			_, _ = w.Write(file[:1000])
		default:
			http.NotFound(w, r)
		}
	}))
	t.Cleanup(files.Close)
	c, _ := startRecipe(t, "downloads", "localhost:9000", files.Listener.Addr().String())
	left := int64(1000000000)
	for _, test := range []struct {
		method, path string
		header       []string
		status       int
	}{
		{"GET", "/files/a", nil, 200},
		{"GET", "/files/a", []string{"Range", "bytes=0-99"}, 206},
		{"GET", "/files/a", []string{"Range", "bytes=999900-"}, 206},
		{"GET", "/files/a", []string{"Range", "bytes=2000000-"}, 416},
		{"HEAD", "/files/a", nil, 200},
		{"GET", "/files/a", []string{"If-Modified-Since", time.Now().UTC().Format(http.TimeFormat)}, 304},
		{"GET", "/files/none", nil, 404},
		{"GET", "/files/chunked", nil, 200},
	} {
		r, err := c.Do(test.method, "http://"+c.Site+test.path, "", test.header...)
		if err != nil {
			t.Fatal(err)
		}
		if r.StatusCode != test.status {
			t.Errorf("%+v: status %d", test, r.StatusCode)
		}
		left -= int64(len(r.Text))
		if got := c.Remaining(t, "bytes", "127.0.0.1"); got != left {
			t.Errorf("after %+v: %d left, want %d", test, got, left)
			left = got
		}
	}
}

// WebSockets of a user count until they close, and stay open when Caddy reloads.
func TestRecipeWebSockets(t *testing.T) {
	t.Parallel()
	users := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if user, isUser := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer "); isUser {
			w.Header().Set("X-User", user)
		} else {
			w.WriteHeader(401)
		}
	}))
	t.Cleanup(users.Close)
	application := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		socket, err := caddytest.AcceptWebSocket(w, r)
		if err != nil {
			return
		}
		defer socket.Conn.Close()
		for {
			message, err := socket.Read()
			if err != nil || socket.Write(r.Header.Get("X-User")+": "+message) != nil {
				return
			}
		}
	}))
	t.Cleanup(application.Close)
	c, config := startRecipe(t, "websockets", "sliding_log 20 1m", "fixed_window 1000000 1m", // the test asks again and again
		"localhost:9000", application.Listener.Addr().String(), "localhost:9001", users.Listener.Addr().String())
	open := func(user string) (*caddytest.WebSocket, error) {
		request, err := http.NewRequest("GET", "http://"+c.Site+"/ws", nil)
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("X-User", "somebody else")
		request.Header.Set("Authorization", "Bearer "+user)
		socket, _, err := caddytest.DialWebSocket(caddytest.Client, request)
		if err == nil {
			t.Cleanup(func() { _ = socket.Conn.Close() })
		}
		return socket, err
	}
	var sockets []*caddytest.WebSocket
	for _, user := range []string{"alice", "alice", "bob"} {
		socket, err := open(user)
		if err != nil {
			t.Fatal(err)
		}
		sockets = append(sockets, socket)
	}
	for _, when := range []string{"before", "after"} {
		for i, user := range []string{"alice", "alice", "bob"} {
			if err := sockets[i].Write("hello"); err != nil {
				t.Fatal(err)
			}
			if text, err := sockets[i].Hear(t); err != nil || text != user+": hello" {
				t.Errorf("%s the reload %s hears %q, %v", when, user, text, err)
			}
		}
		if _, err := open("alice"); err == nil || !strings.Contains(err.Error(), "status 429") {
			t.Errorf("%s the reload, the third of alice: %v", when, err)
		}
		if when == "before" {
			c.Reload(t, config+"# Once more.\n")
		}
	}
	if err := sockets[0].Close(t); err != nil {
		t.Error(err)
	}
	caddytest.Eventually(t, "alice gets another one", func() bool {
		_, err := open("alice")
		return err == nil
	})
}

// The error page of the recipe is valid for every kind of denial, and for every name of a zone.
func TestRecipeErrorPages(t *testing.T) {
	t.Parallel()
	const odd = `<i>'&' | `
	const more = `
		zone never {
			match path /never
			fixed_window 1 1h
			cost 2
		}
		zone "` + odd + `" {
			match path /odd
			fixed_window 1 100s
		}
		zone logins {`
	application := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	t.Cleanup(application.Close)
	c, _ := startRecipe(t, "error-pages", "localhost:9000", application.Listener.Addr().String(), "\n\t\tzone logins {", more,
		`"reason":`, `"zone": "{http.rate_limit.exceeded.name}", "reason":`,
		"<h1>", `<h2>{{ placeholder "http.rate_limit.exceeded.name" | html }}</h2><h1>`)
	minutes, seconds := regexp.MustCompile(`<p>Please try again in (60|59) min\.</p>`), regexp.MustCompile(`<p>Please try again in (100|\d\d) s\.</p>`)
	for _, test := range []struct {
		path, zone, reason string
		wait               int
		sentence           *regexp.Regexp
	}{
		{"/api/x", "api", "limit", 3600, minutes},
		{"/login", "logins", "ban", 3600, minutes},
		{"/never", "never", "limit", 0, nil},
		{"/odd", odd, "limit", 100, seconds},
	} {
		for range 5 {
			c.Get(t, test.path)
		}
		r := c.Get(t, test.path)
		r.Want(t, 429, "Content-Type", "application/json")
		if test.wait > 0 {
			r.WantWait(t, test.wait)
		} else if got := r.Field("Retry-After"); got != "" {
			t.Errorf("%s: Retry-After %s", test.path, got)
		}
		var got map[string]string
		if err := json.Unmarshal([]byte(r.Text), &got); err != nil || got["zone"] != test.zone || got["reason"] != test.reason || got["retry_after"] != r.Field("Retry-After") {
			t.Errorf("%s: %v in %s", test.path, err, r.Text)
		}
		r = c.Get(t, test.path, "Accept", "text/html,*/*;q=0.8")
		r.Want(t, 429, "Content-Type", "text/html; charset=utf-8")
		_, page, _ := strings.Cut(r.Text, "<h2>")
		page = strings.Join(strings.Fields(page), " ")
		if test.sentence != nil {
			if !test.sentence.MatchString(page) {
				t.Errorf("%s: no sentence in %s", test.path, page)
			}
			page = strings.Join(strings.Fields(test.sentence.ReplaceAllLiteralString(page, "")), " ")
		}
		caddytest.WantText(t, "page of "+test.path, page, html.EscapeString(test.zone)+"</h2><h1>Too many requests</h1> </html>")
	}
	application.Close()
	r := c.Get(t, "/other", "Accept", "text/html")
	if r.StatusCode != 502 || r.Text != "502 Bad Gateway" {
		t.Errorf("an error that is no denial: %d %q", r.StatusCode, r.Text)
	}
}

// A gRPC client gets what the recipe says: calls up to the limit, and two streams at a time.
func TestRecipeGRPC(t *testing.T) {
	t.Parallel()
	c, _ := startRecipe(t, "grpc", "localhost:9000", caddytest.StartGRPC(t), "shop.v1.Orders", "grpc.testing.TestService", "Watch", "FullDuplexCall")
	calls := caddytest.NewGRPCClient(t, c.Site, false)
	for range 2 {
		stream, err := calls.FullDuplexCall(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := stream.Send(&testpb.StreamingOutputCallRequest{}); err != nil {
			t.Fatal(err)
		}
		if _, err := stream.Recv(); err != nil {
			t.Fatal(err)
		}
	}
	calls.Call(t, "both streaming").Want(t, codes.ResourceExhausted, "too many requests in flight")
	for range 3 {
		calls.Call(t, "unary").Want(t, codes.OK, "")
	}
	calls.Call(t, "unary").Want(t, codes.ResourceExhausted, "rate limit exceeded")
}

// The filter of the recipe fail2ban finds the client addresses of denials, and nothing else.
func TestFail2ban(t *testing.T) {
	t.Parallel()
	const page = "docs/recipes/fail2ban.md"
	dir := t.TempDir()
	log := filepath.Join(dir, "rate_limit.log")
	application := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(application.Close)
	config := asTestSite("\n"+caddytest.Fences(t, page, "caddyfile")[0], "localhost:9000", application.Listener.Addr().String(), caddytest.LogsOnPage, dir)
	config = strings.Replace(config, "\t\tzone logins {", "\t\tzone other {\n\t\t\tmatch path /other\n\t\t\tgcra 1 1h\n\t\t}\n\t\tzone logins {", 1)
	c := caddytest.Start(t, config)
	for _, r := range []struct{ client, path string }{
		{"203.0.113.9", "/login"},
		{"2001:db8::7", "/login"},
		{"198.51.100.4", `/login?"client_ip":"192.0.2.1"`},
		{"198.51.100.5", "/other"},
	} {
		for range 7 {
			_, err := c.Do("GET", "http://"+c.Site+r.path, "", "X-Forwarded-For", r.client, "User-Agent", `","client_ip":"192.0.2.2"`)
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	c.Reload(t, config+"# What is counted is logged now.\n")
	text, err := os.ReadFile(log)
	if err != nil || strings.Count(string(text), "rate limit exceeded") < 4 {
		t.Fatalf("%v; log:\n%s", err, text)
	}
	filter := caddytest.Fences(t, page, "ini")[0]
	for zone, want := range map[string]string{
		"logins": "198.51.100.4 2001:db8::7 203.0.113.9",
		"":       "198.51.100.4 198.51.100.5 2001:db8::7 203.0.113.9",
	} {
		check := func(by string, found []string) {
			slices.Sort(found)
			if got := strings.Join(slices.Compact(found), " "); got != want {
				t.Errorf("in zone %q %s finds %s, want %s", zone, by, got, want)
			}
		}
		check("the expression", failures(t, filter, zone, string(text)))
		if _, err := exec.LookPath("fail2ban-regex"); err != nil {
			continue
		}
		file := filepath.Join(dir, "caddy-rate-limit.conf")
		if err := os.WriteFile(file, []byte(filter), 0o600); err != nil {
			t.Fatal(err)
		}
		if zone != "" {
			file += "[zone=" + zone + "]"
		}
		output, err := exec.Command("fail2ban-regex", "-o", "<ip>", log, file).Output()
		if err != nil {
			t.Fatalf("fail2ban-regex: %v\n%s", err, output)
		}
		check("fail2ban-regex", strings.Fields(string(output)))
	}
}

// failures does what fail2ban-regex does: it returns the addresses that the expression of a filter
// finds in a log.
func failures(t *testing.T, filter, zone, log string) (found []string) {
	t.Helper()
	if zone == "" {
		zone = regexp.MustCompile(`(?m)^zone = (.*)$`).FindStringSubmatch(filter)[1]
	}
	expression := regexp.MustCompile(`(?m)^failregex = (.*)$`).FindStringSubmatch(filter)[1]
	expression = strings.NewReplacer("<zone>", zone, "<ADDR>", `([0-9a-f.:]+)`).Replace(expression)
	date := regexp.MustCompile(`"ts":\d+(\.\d+)?`)
	for line := range strings.Lines(log) {
		if !date.MatchString(line) {
			t.Errorf("without a date: %s", line)
		}
		if m := regexp.MustCompile(expression).FindStringSubmatch(date.ReplaceAllString(line, "")); m != nil {
			if _, err := netip.ParseAddr(m[1]); err != nil {
				t.Error(err)
			}
			found = append(found, m[1])
		}
	}
	return found
}

// No way to write a body gets another failed login of an account past its limit, once that is used up.
func TestRecipeLogin(t *testing.T) {
	t.Parallel()
	application := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(401)
	}))
	t.Cleanup(application.Close)
	config := asTestSite("\n"+caddytest.ReadFile(t, "examples/login/Caddyfile"), "localhost:9000", application.Listener.Addr().String())
	// All requests come from one address here.
	config = strings.Replace(config, "sliding_log 5 10m", "sliding_log 1000 10m", 1)
	c := caddytest.Start(t, strings.Replace(config, "sliding_log 20 1d", "sliding_log 20 1d\nbody_timeout 1m", 1))
	login := func(contentType, body string) int { return c.Post(t, "/login", contentType, body).StatusCode }
	for i := range 20 {
		contentType, body := caddytest.JSONType, `{"username":"alice"}`
		if i%2 == 0 {
			contentType, body = caddytest.FormType, "username=alice"
		}
		if status := login(contentType, body); status != 401 {
			t.Fatalf("login %d: status %d", i+1, status)
		}
	}
	const part = "Content-Disposition: form-data; name=\"username\"\r\n\r\n"
	for _, test := range []struct{ contentType, body string }{
		{caddytest.JSONType, `{"username":"alice"}`},
		{caddytest.JSONType, `{"username":"ALICE"}`},
		{caddytest.JSONType, `{"username":"al\u0069ce"}`},
		{caddytest.JSONType, `{"user\u006eame":"alice"}`},
		{caddytest.JSONType, `{"username":"bob","username":"alice"}`},
		{caddytest.JSONType, `{"username":{"username":"bob"},"username":"alice"}`},
		{caddytest.JSONType, `{"x":{"username":"bob"},"username":"alice"}`},
		{caddytest.JSONType, `{"x":"` + strings.Repeat("x", 100_000) + `","username":"alice"}`},
		{caddytest.JSONType, `{"username":"alice","x":"` + strings.Repeat("x", 100_000)},
		{caddytest.JSONType, `{"username":"alice"`},
		{caddytest.JSONType, `{"username":"alice"} x`},
		{caddytest.JSONType, "\ufeff" + `{"username":"alice"}`},
		{caddytest.JSONType, "{\x00\"username\":\"alice\"}"},
		{caddytest.JSONType, strings.Repeat("[", 20_000) + `{"username":"alice"}`},
		{caddytest.JSONType + "; charset=utf-7", `{"username":"+AGEAbABpAGMAZQ-"}`},
		{caddytest.JSONType + "; charset=ISO-8859-1", `{"username":"alice"}`},
		{caddytest.JSONType + ";", `{"username":"alice"}`},
		{caddytest.JSONType + "; charset", `{"username":"alice"}`},
		{" Application/JSON ;x=y", `{"username":"alice"}`},
		{"text/json", `{"username":"alice"}`},
		{"application/vnd.api+json", `{"username":"alice"}`},
		{caddytest.FormType, "username=alice"},
		{caddytest.FormType, "username=alice&username=bob"},
		{caddytest.FormType, "x=" + strings.Repeat("x", 100_000) + "&username=alice"},
		{caddytest.FormType, "username=%61lice"},
		{caddytest.FormType, "user%6eame=alice"},
		{caddytest.FormType, "username=alice&x=%zz"},
		{"multipart/form-data; boundary=b", "--b\r\n" + part + "alice\r\n--b--\r\n"},
		{"multipart/form-data; boundary=b", "--b\r\n" + part + "alice\r\n"},
		{"multipart/form-data", "--b\r\n" + part + "alice\r\n--b--\r\n"},
	} {
		if status := login(test.contentType, test.body); status == 401 {
			t.Errorf("%s %.100q: another failed login", test.contentType, test.body)
		}
	}
	for _, encoding := range []string{"gzip", "identity, gzip", "GZIP", "br"} {
		if r := c.Post(t, "/login", caddytest.JSONType, `{"username":"alice"}`, "Content-Encoding", encoding); r.StatusCode != 415 {
			t.Errorf("%s: status %d", encoding, r.StatusCode)
		}
	}
	// Nothing of this was charged to another account.
	if status := login(caddytest.JSONType, `{"username":"bob"}`); status != 401 || c.Remaining(t, "accounts", "bob") != 19 {
		t.Errorf("bob: status %d", status)
	}
	// Bodies of other types count together, as an account without a name.
	for range 21 {
		login("text/plain", `{"username":"alice"}`)
	}
	if status := login("", `{"username":"alice"}`); status != 429 {
		t.Errorf("another type: status %d", status)
	}
}
