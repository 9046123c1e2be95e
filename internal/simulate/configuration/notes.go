package configuration

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/accesslog"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/keys"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/limiter"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/routes"
)

// notes collects what a simulation has to assume. While the configuration is loaded, it reads
// what matchers and handlers depend on. While requests are led through the routes, it only sets flags.
type notes struct {
	handlers map[string]*atomic.Bool // handlers that don't run, by name: whether a request met them
	names    map[string]bool         // of the placeholders in use
	fields   []*loggedField          // the header fields of requests in use
	answers  []*loggedField          // the header fields of responses in use
	static   []string                // notes that don't depend on requests

	usesClient  bool // the configuration uses the client address
	lacksClient atomic.Bool
	textClient  earliest // of the requests whose client is no address
	withoutHost string   // the note for a log without hosts; empty if the routes name none
	lacksHost   atomic.Bool
	guess       earliest // of the requests whose server was guessed
	errors      atomic.Int64
	firstError  earliest
}

// earliest is the text about the earliest of some requests. So it doesn't depend on the order in which
// goroutines see them.
type earliest struct {
	mu   sync.Mutex
	at   int64
	text string // empty before the first request
}

// see sees a request that began at an instant. text is called only if the request may be the earliest.
func (e *earliest) see(at int64, text func() string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case e.text == "" || at < e.at:
		e.at, e.text = at, text()
	case at == e.at:
		e.text = min(e.text, text())
	}
}

// loggedField is a header field that the configuration uses.
type loggedField struct {
	name           string
	seen, redacted atomic.Bool
}

// redacted is the value of a header field with credentials in Caddy's logs.
const redacted = "REDACTED"

func newNotes() *notes {
	return &notes{handlers: make(map[string]*atomic.Bool), names: make(map[string]bool)}
}

// addHandler adds a handler that doesn't run.
func (n *notes) addHandler(name string) {
	if n.handlers[name] == nil {
		n.handlers[name] = new(atomic.Bool)
	}
}

// add adds a note that doesn't depend on requests, once.
func (n *notes) add(format string, args ...any) {
	if text := fmt.Sprintf(format, args...); !slices.Contains(n.static, text) {
		n.static = append(n.static, text)
	}
}

// placeholderInText matches the placeholders in any text, also in an expression.
var placeholderInText = regexp.MustCompile(`\{((?:http|env|file)\.[^{}\s]+)\}`)

// readTexts reads the placeholders in JSON.
func (n *notes) readTexts(value any) {
	raw, err := json.Marshal(value)
	if err != nil {
		return
	}
	n.usesClient = n.usesClient || bytes.Contains(raw, []byte("client_ip"))
	for _, match := range placeholderInText.FindAllSubmatch(raw, -1) {
		name := string(match[1])
		n.names[name] = true
		if field, ok := strings.CutPrefix(name, limiter.FieldPrefix); ok {
			n.addField(field)
		}
		if strings.HasPrefix(name, "http.request.cookie.") {
			n.addField("Cookie")
		}
		if name == limiter.PlaceholderPrefix+".request.basic_user" {
			n.addField("Authorization")
		}
		if field, ok := strings.CutPrefix(name, "http.response.header."); ok {
			n.addResponseField(field)
		}
	}
}

func (n *notes) addField(name string) { n.fields = addLoggedField(n.fields, name) }

func (n *notes) addResponseField(name string) { n.answers = addLoggedField(n.answers, name) }

func addLoggedField(fields []*loggedField, name string) []*loggedField {
	name = http.CanonicalHeaderKey(name)
	if slices.ContainsFunc(fields, func(f *loggedField) bool { return f.name == name }) {
		return fields
	}
	return append(fields, &loggedField{name: name})
}

// readMatchers reads what a matcher set depends on.
func (n *notes) readMatchers(set caddy.ModuleMap) {
	n.readTexts(set)
	for name, raw := range set {
		switch name {
		case "header", "header_regexp":
			var fields map[string]json.RawMessage
			_ = json.Unmarshal(raw, &fields) // loading the matcher reports the error
			for field := range fields {
				n.addField(field)
			}
		case "file":
			n.add("the matcher file looks at the files of this machine, as they are now")
		case "not":
			var sets []caddy.ModuleMap
			_ = json.Unmarshal(raw, &sets)
			for _, set := range sets {
				n.readMatchers(set)
			}
		}
	}
}

// readZone reads what a zone depends on.
func (n *notes) readZone(z *limiter.Zone, matchers zoneMatchers, inRedis bool) {
	for _, set := range slices.Concat(matchers.Match, matchers.Exempt) {
		n.readMatchers(set)
	}
	if z.Share != nil {
		n.add("zone %s has share, which is not simulated: requests get slots in the order in which they come", z.Name)
	}
	if z.RuntimeOverrides {
		n.add("zone %s has runtime_overrides, which are not known: the limits of the configuration apply", z.Name)
	}
	if inRedis {
		n.add("Redis is not asked: one instance decides all requests; name the logs of all instances that share the limits")
	}
}

// leaveOutErrors notes that error routes have limits, which a simulation ignores.
func (n *notes) leaveOutErrors(routes *caddyhttp.HTTPErrorConfig) {
	if raw, err := json.Marshal(routes); err == nil && strings.Contains(string(raw), `"handler":"rate_limit"`) {
		n.add("the rate_limit handlers in error routes are left out")
	}
}

// setOnce sets a flag that many goroutines share. It is written only once.
func setOnce(flag *atomic.Bool) {
	if !flag.Load() {
		flag.Store(true)
	}
}

// seeRequest sees what a logged request has.
func (n *notes) seeRequest(logged *accesslog.Request) {
	if logged.LacksClientIP {
		setOnce(&n.lacksClient)
		if _, err := netip.ParseAddr(logged.RemoteIP); err != nil && logged.RemoteIP != "" {
			n.textClient.see(logged.Start, func() string { return shown(logged.RemoteIP) })
		}
	}
	for _, f := range n.fields {
		f.see(logged.Header)
	}
	for _, f := range n.answers {
		f.see(logged.ResponseHeader)
	}
}

// shown returns the beginning of a text, as a note shows it.
func shown(text string) string {
	beginning, _ := keys.Beginning(text, keys.MaxShown)
	return beginning
}

// see looks for the field in a header, until a header has it.
func (f *loggedField) see(header http.Header) {
	if f.seen.Load() {
		return
	}
	switch values := header[f.name]; {
	case len(values) == 0:
	case values[0] == redacted:
		setOnce(&f.redacted)
	default:
		f.seen.Store(true)
	}
}

// seeGuess sees that the server of a request is a guess.
func (n *notes) seeGuess(logged *accesslog.Request, server *server) {
	n.guess.see(logged.Start, func() string {
		scheme := "http"
		if logged.TLS != nil {
			scheme = "https"
		}
		return fmt.Sprintf("no server listens on the port of requests such as %s://%s: they are assumed to come to server %s",
			scheme, shown(logged.Host), server.name)
	})
}

// seeError sees that a request ended with an error.
func (n *notes) seeError(logged *accesslog.Request, err error) {
	n.errors.Add(1)
	n.firstError.see(logged.Start, func() string { return shown(err.Error()) })
}

// texts returns the notes.
func (n *notes) texts() (notes []string) {
	notes = append(notes, n.logNotes()...)
	for _, name := range slices.Sorted(maps.Keys(n.handlers)) {
		if n.handlers[name].Load() {
			notes = append(notes, describeAssumption(name))
		}
	}
	notes = append(notes, n.static...)
	notes = append(notes, n.placeholderNotes()...)
	if first := n.firstError.text; first != "" {
		notes = append(notes, fmt.Sprintf("requests that ended with an error in the routes: %d, for example with: %s", n.errors.Load(), first))
	}
	return notes
}

// describeAssumption describes a handler that doesn't run, and what is assumed.
func describeAssumption(handler string) string {
	text := "requests meet " + routes.DescribeUnknown(handler) + ": it is assumed to pass them on"
	switch handler {
	case "authentication":
		return "requests without a user meet an authentication handler, which checks nothing here: " +
			"it is assumed to pass them on, except those with status 401"
	case "reverse_proxy":
		return text + ", without the header fields that it would copy into them"
	case "file_server":
		return text
	}
	return text + " unchanged"
}

// logNotes returns the notes about what the log doesn't have.
func (n *notes) logNotes() (notes []string) {
	if n.withoutHost != "" && n.lacksHost.Load() {
		notes = append(notes, n.withoutHost)
	}
	if n.usesClient && n.lacksClient.Load() {
		notes = append(notes, "requests in the log have no client_ip, so the address in their lines is used instead: "+
			"if that is a proxy, log the client (Caddy 2.7 or newer, real_ip of nginx, mod_remoteip of Apache)")
	}
	if text := n.textClient.text; n.usesClient && text != "" {
		notes = append(notes, fmt.Sprintf("requests in the log have no address of the client: the client is taken from a text such as %q", text))
	}
	for _, f := range n.fields {
		if note := f.note("request", "clients send it"); note != "" {
			notes = append(notes, note)
		}
	}
	for _, f := range n.answers {
		if note := f.note("response", "the application sends it"); note != "" {
			notes = append(notes, note)
		}
	}
	if guess := n.guess.text; guess != "" {
		notes = append(notes, guess)
	}
	return notes
}

// note returns the note about a field that the log doesn't have, or has without its values. It is empty
// if the log has the field.
func (f *loggedField) note(of, sent string) string {
	switch {
	case f.seen.Load():
		return ""
	case f.redacted.Load():
		return fmt.Sprintf("the configuration uses the header field %s, which the log has only as %s: "+
			"write log_credentials in the global option servers, and keep the log secret", f.name, redacted)
	}
	return fmt.Sprintf("the configuration uses the header field %s, which no %s in the log has: "+
		"if %s, use Caddy's access log in JSON without filters for this field", f.name, of, sent)
}

// notLogged are the beginnings of the names of placeholders whose values a log doesn't have.
var notLogged = []string{
	"env.", "file.", "http.request.uuid", "http.request.local", "http.request.duration", "http.request.body", "http.request.tls.client.",
	limiter.UserPrefix,
}

// placeholderNotes returns the notes about placeholders that have other values than in production.
func (n *notes) placeholderNotes() (notes []string) {
	for _, name := range slices.Sorted(maps.Keys(n.names)) {
		isNotLogged := slices.ContainsFunc(notLogged, func(prefix string) bool { return strings.HasPrefix(name, prefix) })
		switch {
		case isDecisionPlaceholder(name):
			notes = append(notes, "the placeholder {"+name+
				"} is empty, because the decisions of rate_limit handlers are not known while a request is led through the routes")
		case isNotLogged && name != idOfUser:
			notes = append(notes, "the placeholder {"+name+"} can be empty or differ from production, because a log doesn't have its value")
		}
	}
	return notes
}

// isDecisionPlaceholder reports whether a placeholder is about the decision of a zone.
func isDecisionPlaceholder(name string) bool {
	rest, ok := strings.CutPrefix(name, limiter.PlaceholderPrefix+".")
	return ok && !strings.HasPrefix(rest, "request.") && !strings.HasPrefix(rest, "response.")
}
