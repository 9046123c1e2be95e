package e2e

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
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"go.uber.org/zap"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/adminapi"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
)

func init() {
	caddy.RegisterModule(loadOnEvent{})
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
	for _, name := range caddytest.EventNames {
		lines += "on " + name + " " + handler + "\n"
	}
	return strings.Replace(config, "admin {$ADMIN}", "admin {$ADMIN}\n\tevents {\n"+lines+"}", 1)
}

// recordedEvent is an event that test_record has logged.
type recordedEvent struct {
	Msg, Name string
	Data      map[string]any
}

// eventsOf returns the events that test_record has logged.
func eventsOf(t *testing.T, c *caddytest.Caddy) (all []recordedEvent) {
	t.Helper()
	for line := range strings.Lines(c.Logged()) {
		var e recordedEvent
		if json.Unmarshal([]byte(line), &e) == nil && e.Msg == "recorded event" {
			all = append(all, e)
		}
	}
	return all
}

// waitForEvent waits for the first event of a name that has these data.
func waitForEvent(t *testing.T, c *caddytest.Caddy, name string, data map[string]any) (found recordedEvent) {
	t.Helper()
	look := func() []recordedEvent { return eventsOf(t, c) }
	caddytest.EventuallySees(t, fmt.Sprint("there is an event ", name, " with ", data), look, func(all []recordedEvent) bool {
		i := slices.IndexFunc(all, func(e recordedEvent) bool {
			for field, value := range data {
				if e.Data[field] != value {
					return false
				}
			}
			return e.Name == name
		})
		if i >= 0 {
			found = all[i]
		}
		return i >= 0
	})
	return found
}

// documentedFields returns the fields of an event in the reference.
func documentedFields(t *testing.T, name string) (fields []string) {
	t.Helper()
	rows := caddytest.TableRows(caddytest.SectionOf(t, caddytest.ReferencePage, "Events"))
	for i, row := range rows {
		if caddytest.CodeIn(row[0])[0] != name {
			continue
		}
		switch {
		case !strings.HasPrefix(row[2], "the same"):
			return caddytest.CodeIn(row[2])
		case name == caddytest.EventShadowExceeded:
			return caddytest.CodeIn(rows[i-1][2])
		default: // with these instead of those
			words := caddytest.CodeIn(row[2])
			fields = slices.DeleteFunc(documentedFields(t, caddytest.EventExceeded), func(f string) bool { return slices.Contains(words[2:], f) })
			return append(fields, words[:2]...)
		}
	}
	t.Fatalf("%s has no row about the event %s", caddytest.ReferencePage, name)
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

// Denials, denials in shadow mode, and bans have events, with the fields of the log.
func TestEventsOfDenials(t *testing.T) {
	t.Parallel()
	c := caddytest.Start(t, onEvents(caddytest.Site(`zone api {
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
		`), "test_record"))
	for range 3 {
		c.Get(t, "/path", "Key", "secret")
	}
	e := waitForEvent(t, c, caddytest.EventExceeded, map[string]any{"zone": "api", "reason": "limit", "limit": "gcra 1 1h", "path": "/path", "method": "GET", "client_ip": "127.0.0.1", "count": 1.0})
	e.wantFields(t)
	if wait, ok := e.Data["wait"].(float64); !ok || wait < 3500e9 || wait > 3600e9 { // JSON has nanoseconds
		t.Errorf("wait is %v, want about 3600e9", e.Data["wait"])
	}
	e = waitForEvent(t, c, caddytest.EventBanned, map[string]any{"zone": "api", "reason": "limit", "limit": "gcra 1 1h", "path": "/path", "count": 1.0, "duration": 7200e9})
	e.wantFields(t)
	if until, err := time.Parse(time.RFC3339, fmt.Sprint(e.Data["until"])); err != nil || time.Until(until) > 2*time.Hour || time.Until(until) < 2*time.Hour-caddytest.Patient {
		t.Errorf("until is %v", e.Data["until"])
	}
	for range 2 {
		c.Get(t, "/tried", "Key", "other")
	}
	waitForEvent(t, c, caddytest.EventShadowExceeded, map[string]any{"zone": "tried", "limit": "gcra 1 24h", "path": "/tried"}).wantFields(t)
	c.WaitForLog(t, `"key would be banned"`)
	waitForEvent(t, c, caddytest.EventExceeded, map[string]any{"zone": "api", "path": "/tried"})
	for _, e := range eventsOf(t, c) {
		if e.Name == caddytest.EventBanned && e.Data["zone"] != "api" {
			t.Errorf("a ban in shadow mode has an event: %v", e.Data)
		}
		if strings.Contains(fmt.Sprint(e.Data), "secret") {
			t.Errorf("an event has a key: %v", e.Data)
		}
	}
}

// Redis that fails and works again has events, also if it fails at the start. They go to the
// configuration in force. The status says since when it fails or works, and why.
func TestEventsOfTheStore(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	server.Kill(t)
	config := caddytest.Site(fmt.Sprintf("zone api {\n gcra 1000 1h\n}\nredis %s", server.Addr))
	began := time.Now().Truncate(time.Millisecond)
	c := caddytest.Start(t, onEvents(config, "test_record"))
	status := func(state string, failing int) {
		t.Helper()
		v := caddytest.EventuallySees(t, "Redis is "+state, func() adminapi.Redis { return c.Status(t).Redis[0] },
			func(v adminapi.Redis) bool { return v.State == state && (v.Error != "") == (failing > 0) }) // the reason follows the state
		if v.FailingNodes != failing || v.Queued != 0 || v.Since.Before(began) || v.Since.After(time.Now()) || !c.Status(t).Redis[0].Since.Equal(v.Since) {
			t.Errorf("%+v, and it began at %v", v, began)
		}
		began = v.Since
	}
	down := waitForEvent(t, c, caddytest.EventDown, map[string]any{"address": server.Addr})
	down.wantFields(t)
	status("down", 1)
	if text := fmt.Sprint(down.Data["error"]); !strings.Contains(text, "refused") {
		t.Errorf("the error is %q", text)
	}
	for range 3 {
		c.Get(t, "/").Want(t, 200)
	}
	server.Restart(t)
	up := waitForEvent(t, c, caddytest.EventUp, map[string]any{"address": server.Addr, "requests_answered_503": 0.0, "requests_passed_unlimited": 0.0})
	up.wantFields(t)
	status("up", 0)
	if n := up.Data["requests_decided_locally"].(float64); n < 3 { // readiness isn't limited
		t.Errorf("%v requests were decided locally, want 3", n)
	}
	if length := up.Data["outage"].(float64); length <= 0 {
		t.Errorf("the outage took %v ns", length)
	}

	c.Reload(t, config) // without a handler of events
	server.Kill(t)
	c.WaitForOutages(t, 2)
	server.Restart(t)
	caddytest.Eventually(t, "Redis works again", func() bool { return strings.Count(c.Logged(), `"Redis works again"`) == 2 })
	c.Reload(t, onEvents(config, "test_record")+"# again\n")
	server.Kill(t)
	c.WaitForOutages(t, 3)
	look := func() []recordedEvent { return eventsOf(t, c) }
	three := caddytest.EventuallySees(t, "the new configuration has the event", look, func(all []recordedEvent) bool { return len(all) == 3 })
	if e := three[2]; e.Name != caddytest.EventDown {
		t.Errorf("the last event is %s", e.Name)
	}
}

// A handler of events can load a configuration, and wait for it.
func TestReloadByEventHandler(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "next.Caddyfile")
	config := caddytest.Site("zone api {\n key {header.Key}\n gcra 1 1h\n}")
	c := caddytest.Start(t, config)
	caddytest.WriteFile(t, file, c.Expand(strings.Replace(config, "respond ok", "respond next", 1)), 0o600)
	c.Reload(t, onEvents(config, fmt.Sprintf("test_load %s %s", c.Admin, file)))
	c.Get(t, "/", "Key", "a").Want(t, 200)
	c.Get(t, "/", "Key", "a").Want(t, 429)
	c.WaitForLog(t, `"msg":"loaded on an event","status":200`)
	c.Settle(t)
	if body := c.Get(t, "/", "Key", "b").Text; body != "next" {
		t.Errorf("the body is %q, want that of the next configuration", body)
	}
}
