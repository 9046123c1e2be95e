package command

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/adminapi"
)

func statusCommand() *cobra.Command {
	return subcommand(Manual{
		Use:   "status",
		Short: "Shows the stores and zones, with requests per second",
		Long: `
Shows each store with its state, each zone with its limits, and warnings. The
requests per second are those of one second. The totals count from the start of the process. The numbers of several
instances are added up. With --json, the output has the totals only.
The exit code is 1 while a Redis fails.`,
		Examples: `
  $ caddy rate-limit status
  $ caddy rate-limit status --address 10.0.0.1:2019 --address 10.0.0.2:2019
  $ caddy rate-limit status --json`,
	}, func(c *call) error {
		answers, began := ask(c.instances, getStatus), time.Now()
		before, _ := decode[statusBody](answers)
		if !c.json && len(before) > 0 { // people see the requests of a second
			time.Sleep(time.Second)
			answers = ask(c.instances, getStatus)
		}
		elapsed := time.Since(began)
		err := show(c, answers, func(after []decoded[statusBody]) string {
			return statusView(c.style, time.Now(), elapsed, before, after)
		})
		if after, _ := decode[statusBody](answers); err == nil && slices.ContainsFunc(after, redisFails) {
			return errStoreFails
		}
		return err
	})
}

// statusBody is the body for scripts: two bodies of the admin API.
type statusBody struct {
	Status adminapi.Status `json:"status"`
	Zones  []adminapi.Zone `json:"zones"`
}

// redisFails reports whether a Redis of an instance fails, or a part of it.
func redisFails(d decoded[statusBody]) bool {
	return slices.ContainsFunc(d.body.Status.Redis, func(r adminapi.Redis) bool { return r.State != "up" })
}

// memories calls see for each store in memory of an instance, with a short and a long name.
func memories(s adminapi.Status, see func(name, long string, m *adminapi.Memory)) {
	if s.Memory != nil {
		see("memory", "memory", s.Memory)
	}
	if s.Local != nil {
		see("local budgets", "memory for local budgets", s.Local)
	}
}

func getStatus(i instance) (json.RawMessage, error) {
	status, err := i.get("status")
	if err != nil {
		return nil, err
	}
	zones, err := i.getZones()
	if err != nil {
		return nil, err
	}
	return compactJSON(map[string]json.RawMessage{"status": status, "zones": zones}), nil
}

// statusView shows the state of instances. before are earlier bodies of the instances.
func statusView(s style, now time.Time, elapsed time.Duration, before, after []decoded[statusBody]) string {
	var b strings.Builder
	for _, d := range after {
		version := ""
		if d.body.Status.Version != "" {
			version = ", rate limiter " + printable(d.body.Status.Version)
		}
		fmt.Fprintf(&b, "Caddy at %s%s, started %s ago\n", d.from, version, since(now, d.body.Status.Started))
	}
	parts := []string{
		storesTable(s, now, after),
		zonesTable(s, elapsed, before, after),
		warnings(s, now, after),
	}
	for _, part := range parts {
		if part != "" {
			b.WriteString("\n" + part)
		}
	}
	return b.String()
}

// almostFull is the share of max_keys from which on the memory is shown as almost full.
const almostFull = 0.9

func storesTable(s style, now time.Time, bodies []decoded[statusBody]) string {
	t := newTable(titleIf(len(bodies) > 1, "INSTANCE"), "STORE", "STATE", ">FOR", ">KEYS", ">MAX KEYS", ">QUEUED", ">CONNECTIONS")
	for _, d := range bodies {
		from := plain(string(d.from))
		memories(d.body.Status, func(name, _ string, m *adminapi.Memory) {
			state := colored("works", green)
			if m.MaxKeys > 0 && float64(m.Keys) >= almostFull*float64(m.MaxKeys) {
				state = colored("almost full", yellow)
			}
			t.Add(from, plain(name), state, plain(""), plain(count(m.Keys)), plain(count(m.MaxKeys)), plain(""), plain(""))
		})
		for _, r := range d.body.Status.Redis {
			state := colored(printable(strings.ReplaceAll(r.State, "_", " ")), red)
			switch r.State {
			case "up":
				state.Color = green
			case "partly_down":
				state = colored(fmt.Sprintf("%d nodes down", r.FailingNodes), red)
			}
			t.Add(from, plain(printable(r.Address)), state, plain(since(now, r.Since)), plain(""), plain(""),
				plain(count(int64(r.Queued))), plain(count(int64(r.Connections))))
		}
	}
	return t.Text(s)
}

// titleIf returns a title for newTable, if the column is needed.
func titleIf(needed bool, title string) string {
	if needed {
		return title
	}
	return ""
}

// zoneTotals are the requests of a zone of an instance.
type zoneTotals struct{ allowed, denied, shadowDenied int64 } // shadowDenied are also allowed

// totalsOf returns the requests of the zones of an instance, by zone. The entries of zones with one
// name have the same counts.
func totalsOf(zones []adminapi.Zone) map[string]zoneTotals {
	totals := make(map[string]zoneTotals)
	for _, z := range zones {
		var n zoneTotals
		for outcome, requests := range z.Requests {
			switch outcome {
			case "denied", "banned", "bad_body":
				n.denied += requests
			case "shadow_denied":
				n.shadowDenied += requests
				n.allowed += requests
			case "allowed", "delayed", "overridden", "exempt":
				n.allowed += requests
			}
		}
		totals[z.Name] = n
	}
	return totals
}

func zonesTable(s style, elapsed time.Duration, before, after []decoded[statusBody]) string {
	earlier := make(map[instance]map[string]zoneTotals)
	for _, d := range before {
		earlier[d.from] = totalsOf(d.body.Zones)
	}
	zones := make(map[string]adminapi.Zone)
	shadow := false
	totals, lately := make(map[string]zoneTotals), make(map[string]zoneTotals)
	for _, d := range after {
		for _, z := range d.body.Zones {
			if _, ok := zones[z.Name]; !ok {
				zones[z.Name] = z
			}
		}
		for name, n := range totalsOf(d.body.Zones) {
			sum, late := totals[name], lately[name]
			sum.allowed, sum.denied, sum.shadowDenied = sum.allowed+n.allowed, sum.denied+n.denied, sum.shadowDenied+n.shadowDenied
			shadow = shadow || n.shadowDenied > 0
			if e, ok := earlier[d.from][name]; ok { // max, because a restarted process counts from 0
				late.allowed, late.denied = late.allowed+max(n.allowed-e.allowed, 0), late.denied+max(n.denied-e.denied, 0)
			}
			totals[name], lately[name] = sum, late
		}
	}
	t := newTable("ZONE", "LIMITS", ">ALLOWED/S", ">DENIED/S", ">ALLOWED", ">DENIED", titleIf(shadow, ">SHADOW DENIED"))
	for _, name := range slices.Sorted(maps.Keys(zones)) {
		z, late, sum := zones[name], lately[name], totals[name]
		shadowDenied := ""
		if z.Shadow || z.Enforce != nil || sum.shadowDenied > 0 {
			shadowDenied = count(sum.shadowDenied)
		}
		denied := rate(float64(late.denied) / elapsed.Seconds())
		t.Add(plain(quoteName(name)), plain(limitsOf(z)),
			plain(rate(float64(late.allowed)/elapsed.Seconds())), colorIf(late.denied > 0, denied, red),
			plain(count(sum.allowed)), plain(count(sum.denied)), plain(shadowDenied))
	}
	return t.Text(s)
}

func colorIf(yes bool, text, color string) cell {
	if yes {
		return colored(text, color)
	}
	return plain(text)
}

// limitsOf returns the limits of a zone in short.
func limitsOf(z adminapi.Zone) string {
	limits := slices.Clone(z.Limits)
	if z.Plan != nil {
		limits = append(limits, fmt.Sprintf("%d plans", len(z.Plan.Values)))
	}
	if z.Concurrency > 0 {
		limits = append(limits, fmt.Sprintf("concurrency %d", z.Concurrency))
	}
	text := strings.Join(limits, ", ")
	if z.Shadow {
		text += " (shadow)"
	}
	if z.Enforce != nil {
		text += fmt.Sprintf(" (enforce %v)", *z.Enforce)
	}
	return printable(text)
}

// warnings returns a line for each thing that an operator should look at.
func warnings(s style, now time.Time, bodies []decoded[statusBody]) string {
	var b strings.Builder
	for _, d := range bodies {
		warn := func(format string, args ...any) {
			text := printable(fmt.Sprintf(format, args...))
			if len(bodies) > 1 {
				text += " (" + string(d.from) + ")"
			}
			b.WriteString(s.Paint("Warning:", yellow) + " " + text + "\n")
		}
		for _, r := range d.body.Status.Redis {
			if r.State != "up" {
				warn("Redis %s has failed for %s: %s.%s", r.Address, since(now, r.Since),
					strings.TrimSuffix(cmp.Or(r.Error, "no reason is known"), "."), withoutRedis(d.body.Zones))
			}
		}
		memories(d.body.Status, func(_, name string, m *adminapi.Memory) {
			if share := float64(m.Keys) / float64(m.MaxKeys); m.MaxKeys > 0 && share >= almostFull {
				warn("The %s is %.0f%% full. When it is full, new keys of a zone share one budget: raise max_keys.", name, share*100)
			}
			if m.Overflowed > 0 {
				warn("A shared budget has decided %s requests since the start, because the %s was full: raise max_keys.", count(m.Overflowed), name)
			}
		})
		named := make(map[string]bool)
		for _, z := range d.body.Zones {
			if n := z.Requests["error"]; n > 0 && !named[z.Name] {
				warn("The store could not decide %s requests of zone %s since the start.", count(n), quoteName(z.Name))
			}
			named[z.Name] = true
		}
	}
	return b.String()
}

// withoutRedis says what happens to requests of the zones whose Redis fails.
func withoutRedis(zones []adminapi.Zone) string {
	var texts []string
	for _, z := range zones {
		if failingNodes(z) == 0 {
			continue
		}
		text := " Local budgets decide"
		switch z.OnStoreError {
		case "allow":
			text = " Requests pass without a limit"
		case "deny":
			text = " Requests are answered with status 503"
		}
		if text += " (on_store_error " + z.OnStoreError + ")."; !slices.Contains(texts, text) {
			texts = append(texts, text)
		}
	}
	return strings.Join(texts, "")
}
