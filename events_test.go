package ratelimit

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyevents"
	"go.uber.org/zap"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
)

func init() {
	caddy.RegisterModule(slowEvent{})
	caddy.RegisterModule(loadOnEvent{})
}

// slowEvent is a handler of events that ends when a file exists.
type slowEvent struct {
	Until string `json:"until,omitempty"`
}

func (slowEvent) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "events.handlers.test_slow", New: func() caddy.Module { return new(slowEvent) }}
}

func (s *slowEvent) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next()
	d.Args(&s.Until)
	return nil
}

func (s *slowEvent) Handle(context.Context, caddy.Event) error {
	caddy.Log().Info("a slow handler begins")
	for {
		if _, err := os.Stat(s.Until); err == nil {
			return nil
		}
		time.Sleep(time.Millisecond)
	}
}

// loadOnEvent is a handler of events that loads a Caddyfile, and waits until it is in force.
type loadOnEvent struct {
	Admin string `json:"admin,omitempty"`
	File  string `json:"file,omitempty"`
}

func (loadOnEvent) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "events.handlers.test_load", New: func() caddy.Module { return new(loadOnEvent) }}
}

func (l *loadOnEvent) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next()
	d.Args(&l.Admin, &l.File)
	return nil
}

func (l *loadOnEvent) Handle(context.Context, caddy.Event) error {
	text, err := os.ReadFile(l.File)
	if err != nil {
		return err
	}
	r, err := http.Post("http://"+l.Admin+"/load", "text/caddyfile", strings.NewReader(string(text)))
	if err != nil {
		return err
	}
	_ = r.Body.Close()
	caddy.Log().Info("loaded on an event", zap.Int("status", r.StatusCode))
	return nil
}

// onEvents subscribes a handler to all events of this module.
func onEvents(config, handler string) string {
	var lines string
	for _, name := range eventNames {
		lines += "on " + name + " " + handler + "\n"
	}
	return strings.Replace(config, "admin {$ADMIN}", "admin {$ADMIN}\n\tevents {\n"+lines+"}", 1)
}

var eventNames = []string{eventExceeded, eventShadowExceeded, eventBanned, eventStoreDown, eventStoreUp}

// recordedEvent is an event that test_record has logged.
type recordedEvent struct {
	Msg, Name string
	Data      map[string]any
}

// events returns the events that test_record has logged.
func (c *caddyProcess) events(t *testing.T) (all []recordedEvent) {
	t.Helper()
	for line := range strings.Lines(c.logged()) {
		var e recordedEvent
		if json.Unmarshal([]byte(line), &e) == nil && e.Msg == "recorded event" {
			all = append(all, e)
		}
	}
	return all
}

// waitForEvent waits for the first event of a name that has these data.
func (c *caddyProcess) waitForEvent(t *testing.T, name string, data map[string]any) (found recordedEvent) {
	t.Helper()
	eventually(t, fmt.Sprint("there is an event ", name, " with ", data), func() bool {
		i := slices.IndexFunc(c.events(t), func(e recordedEvent) bool {
			for field, value := range data {
				if e.Data[field] != value {
					return false
				}
			}
			return e.Name == name
		})
		if i >= 0 {
			found = c.events(t)[i]
		}
		return i >= 0
	})
	return found
}

// documentedFields returns the fields of an event in the reference.
func documentedFields(t *testing.T, name string) (fields []string) {
	t.Helper()
	rows := tableRows(sectionOf(t, referencePage, "Events"))
	for i, row := range rows {
		if codeIn(row[0])[0] != name {
			continue
		}
		switch {
		case !strings.HasPrefix(row[2], "the same"):
			return codeIn(row[2])
		case name == eventShadowExceeded:
			return codeIn(rows[i-1][2])
		default: // with these instead of those
			words := codeIn(row[2])
			fields = slices.DeleteFunc(documentedFields(t, eventExceeded), func(f string) bool { return slices.Contains(words[2:], f) })
			return append(fields, words[:2]...)
		}
	}
	t.Fatalf("%s has no row about the event %s", referencePage, name)
	return nil
}

// wantFields checks that an event has exactly the fields of the page, without those left out.
func (e recordedEvent) wantFields(t *testing.T, without ...string) {
	t.Helper()
	want := slices.DeleteFunc(documentedFields(t, e.Name), func(f string) bool { return slices.Contains(without, f) })
	if got := slices.Sorted(maps.Keys(e.Data)); !slices.Equal(got, slices.Sorted(slices.Values(want))) {
		t.Errorf("the event %s has the fields %q, want %q", e.Name, got, want)
	}
}

// docs/metrics-and-logs.md has every event, and no other.
func TestEventReference(t *testing.T) {
	var rows []string
	for _, row := range tableRows(sectionOf(t, referencePage, "Events")) {
		rows = append(rows, codeIn(row[0])...)
	}
	wantSame(t, "events", rows, parseSource(t, ".").constants("event"))
	wantSame(t, "events", rows, eventNames)
}

// Denials, denials in shadow mode, and bans have events, with the fields of the log.
func TestEventsOfDenials(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, use string) {
		c := startCaddy(t, onEvents(site(`zone api {
			key {header.Key}
			gcra 1 1h
			ban 2h after 2
		}
		zone tried {
			key {header.Key}
			match path /tried
			gcra 1 1d
			ban 1h
			shadow
		}
		log_key
		`+use), "test_record"))
		for range 3 {
			c.get(t, "/path", "Key", "secret")
		}
		e := c.waitForEvent(t, eventExceeded, map[string]any{"zone": "api", "reason": "limit", "limit": "gcra 1 1h", "path": "/path", "method": "GET", "client_ip": "127.0.0.1", "count": 1.0})
		e.wantFields(t)
		if wait, ok := e.Data["wait"].(float64); !ok || wait < 3500e9 || wait > 3600e9 { // JSON has nanoseconds
			t.Errorf("wait is %v, want about 3600e9", e.Data["wait"])
		}
		e = c.waitForEvent(t, eventBanned, map[string]any{"zone": "api", "reason": "limit", "limit": "gcra 1 1h", "path": "/path", "count": 1.0, "duration": 7200e9})
		e.wantFields(t)
		if until, err := time.Parse(time.RFC3339, fmt.Sprint(e.Data["until"])); err != nil || time.Until(until) > 2*time.Hour || time.Until(until) < 2*time.Hour-patient {
			t.Errorf("until is %v", e.Data["until"])
		}
		for range 2 {
			c.get(t, "/tried", "Key", "other")
		}
		c.waitForEvent(t, eventShadowExceeded, map[string]any{"zone": "tried", "limit": "gcra 1 24h", "path": "/tried"}).wantFields(t)
		c.waitForLog(t, `"key would be banned"`)
		c.waitForEvent(t, eventExceeded, map[string]any{"zone": "api", "path": "/tried"})
		for _, e := range c.events(t) {
			if e.Name == eventBanned && e.Data["zone"] != "api" {
				t.Errorf("a ban in shadow mode has an event: %v", e.Data)
			}
			if strings.Contains(fmt.Sprint(e.Data), "secret") {
				t.Errorf("an event has a key: %v", e.Data)
			}
		}
	})
}

// With hash_keys no event has a text that keys are made of.
func TestEventsHashKeys(t *testing.T) {
	t.Parallel()
	c := startCaddy(t, onEvents(site(fmt.Sprintf("zone api {\n key {path}\n gcra 1 1h\n ban 1h\n}\nzone tried {\n key {path}\n gcra 1 1h\n shadow\n}\nredis %s {\n timeout 30s\n hash_keys {env.SECRET}\n}", redistest.Start(t).Addr)), "test_record"), "SECRET=pepper")
	for range 2 {
		c.get(t, "/sesame")
	}
	for _, name := range []string{eventExceeded, eventBanned} {
		c.waitForEvent(t, name, nil).wantFields(t, "remote_ip", "client_ip", "host", "path")
	}
	for _, e := range c.events(t) {
		if text := fmt.Sprint(e.Data); strings.Contains(text, "sesame") || strings.Contains(text, "127.0.0.1") {
			t.Errorf("the event %s has %s", e.Name, text)
		}
	}
}

// Redis that fails and works again has events, also if it fails at the start. They go to the
// configuration in force.
func TestEventsOfTheStore(t *testing.T) {
	long(t)
	t.Parallel()
	server := redistest.Start(t)
	server.Kill(t)
	config := site(fmt.Sprintf("zone api {\n gcra 1000 1h\n}\nredis %s {\n timeout 2s\n}", server.Addr))
	c := startCaddy(t, onEvents(config, "test_record"))
	down := c.waitForEvent(t, eventStoreDown, map[string]any{"address": server.Addr})
	down.wantFields(t)
	if text := fmt.Sprint(down.Data["error"]); !strings.Contains(text, "refused") {
		t.Errorf("the error is %q", text)
	}
	for range 3 {
		c.get(t, "/").want(t, 200)
	}
	server.Restart(t)
	up := c.waitForEvent(t, eventStoreUp, map[string]any{"address": server.Addr, "requests_answered_503": 0.0, "requests_passed_unlimited": 0.0})
	up.wantFields(t)
	if n := up.Data["requests_decided_locally"].(float64); n < 3 { // readiness isn't limited
		t.Errorf("%v requests were decided locally, want 3", n)
	}
	if length := up.Data["outage"].(float64); length <= 0 || length > float64(patient) {
		t.Errorf("the outage took %v ns", length)
	}

	c.reload(t, config) // without a handler of events
	server.Kill(t)
	c.waitForOutages(t, 2)
	server.Restart(t)
	eventually(t, "Redis works again", func() bool { return strings.Count(c.logged(), `"Redis works again"`) == 2 })
	c.reload(t, onEvents(config, "test_record")+"# again\n")
	server.Kill(t)
	c.waitForOutages(t, 3)
	eventually(t, "the new configuration has the event", func() bool { return len(c.events(t)) == 3 })
	if e := c.events(t)[2]; e.Name != eventStoreDown {
		t.Errorf("the last event is %s", e.Name)
	}
}

// A node of a cluster has its own events.
func TestEventsOfANode(t *testing.T) {
	long(t)
	t.Parallel()
	cluster := redistest.StartCluster(t, "--cluster-require-full-coverage", "no", "--cluster-replica-no-failover", "yes")
	c := startCaddy(t, onEvents(site(fmt.Sprintf("zone api {\n key {path}\n gcra 1000 1h\n}\nredis %s {\n cluster\n timeout 2s\n}", strings.Join(cluster.Addrs(), " "))), "test_record"))
	ask := func() {
		for n := range 30 {
			c.get(t, fmt.Sprint("/", n))
		}
	}
	ask()
	dying := cluster.Nodes[1]
	dying.Kill(t)
	eventually(t, "the node fails", func() bool {
		ask()
		return strings.Contains(c.logged(), `"Redis fails, and is not asked`)
	})
	c.waitForEvent(t, eventStoreDown, map[string]any{"address": dying.Addr})
	dying.Restart(t)
	c.waitForEvent(t, eventStoreUp, map[string]any{"address": dying.Addr})
	for _, e := range c.events(t) {
		if e.Data["address"] != dying.Addr {
			t.Errorf("the event %s is about %v", e.Name, e.Data["address"])
		}
	}
}

// A handler of events delays neither requests nor the end of its configuration. The events that wait
// for it go to the next configuration.
func TestSlowEventHandlers(t *testing.T) {
	t.Parallel()
	until := filepath.Join(t.TempDir(), "until")
	config := site("zone api {\n key {header.Key}\n gcra 1 1h\n}")
	c := startCaddy(t, onEvents(config, "test_slow "+until))
	deny := func(key string) {
		t.Helper()
		c.get(t, "/"+key, "Key", key).want(t, 200)
		c.get(t, "/"+key, "Key", key).want(t, 429)
	}
	deny("first")
	c.waitForLog(t, "a slow handler begins")
	for n := range 20 {
		deny(fmt.Sprint("later-", n))
	}
	c.reload(t, onEvents(config, "test_record"))
	deny("next")
	c.waitForEvent(t, eventExceeded, map[string]any{"path": "/next"})
	if n := len(c.events(t)); n != 1 {
		t.Errorf("%d events are emitted before the slow handler ends", n)
	}
	writeFile(t, until, "", 0o600)
	for n := range 20 {
		c.waitForEvent(t, eventExceeded, map[string]any{"path": fmt.Sprint("/later-", n)})
	}
	if n := strings.Count(c.logged(), "a slow handler begins"); n != 1 {
		t.Errorf("the slow handler got %d events, want one", n)
	}
}

// A handler of events can load a configuration, and wait for it.
func TestReloadByEventHandler(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "next.Caddyfile")
	config := site("zone api {\n key {header.Key}\n gcra 1 1h\n}")
	c := startCaddy(t, config)
	writeFile(t, file, c.expand(strings.Replace(config, "respond ok", "respond next", 1)), 0o600)
	c.reload(t, onEvents(config, fmt.Sprintf("test_load %s %s", c.admin, file)))
	c.get(t, "/", "Key", "a").want(t, 200)
	c.get(t, "/", "Key", "a").want(t, 429)
	c.waitForLog(t, `"msg":"loaded on an event","status":200`)
	c.settle(t)
	if body := c.get(t, "/", "Key", "b").body; body != "next" {
		t.Errorf("the body is %q, want that of the next configuration", body)
	}
}

// At most 1000 events wait for a slow handler, and the log says that others are lost.
func TestEventQueueIsBounded(t *testing.T) {
	provisioned, err := caddy.ProvisionContext(&caddy.Config{Admin: &caddy.AdminConfig{Disabled: true}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := caddy.NewContext(provisioned)
	defer cancel()
	app, err := ctx.App("events")
	if err != nil {
		t.Fatal(err)
	}
	events := app.(*caddyevents.App)
	q, err := newEventQueue(ctx, events)
	if err != nil {
		t.Fatal(err)
	}
	var got []int
	var done sync.WaitGroup
	done.Add(maxQueuedEvents)
	if err := events.On(eventExceeded, handleFunc(func(e caddy.Event) {
		got = append(got, e.Data["n"].(int))
		done.Done()
	})); err != nil {
		t.Fatal(err)
	}
	for n := range 2 * maxQueuedEvents {
		q.add(eventExceeded, map[string]any{"n": n})
	}
	q.start()
	done.Wait()
	if len(got) != maxQueuedEvents || !slices.IsSorted(got) || got[maxQueuedEvents-1] != maxQueuedEvents-1 {
		t.Errorf("the events are %v, want the first 1000 in order", got)
	}
	eventually(t, "the goroutine ends", func() bool {
		q.mu.Lock()
		defer q.mu.Unlock()
		return !q.emitting && q.waiting == nil
	})
}

// handleFunc is a handler of events.
type handleFunc func(caddy.Event)

// Handle implements [caddyevents.Handler].
func (f handleFunc) Handle(_ context.Context, e caddy.Event) error {
	f(e)
	return nil
}
