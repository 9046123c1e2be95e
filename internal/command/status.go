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
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/terminal"
)

func statusCommand() *cobra.Command {
	cmd := subcommand(Manual{
		Use:   "status",
		Short: "Shows the stores and zones, with requests per second",
		Long: `
Shows each store with its state, each zone with its limits, and warnings. The
requests per second are those of the last few seconds. The totals count from the
start of the process. The numbers of several instances are added up.
The exit code is 1 while a Redis fails. With --check, the command shows only
warnings and notes. Then the exit code is 1 if there is a warning. Notes are about
zones that deny many requests, or have had none an hour after the start.`,
		Examples: `
  $ caddy rate-limit status
  $ caddy rate-limit status --address 10.0.0.1:2019 --address 10.0.0.2:2019
  $ caddy rate-limit status --check`,
	}, func(c *call) error {
		now, checks, warned := time.Now(), boolFlag(c.cmd, "check"), false
		bodies, err := show(c, ask(c.instances, getStatus), func(bodies []decoded[statusBody]) string {
			if checks {
				text := warnings(c.style, now, bodies)
				warned = text != ""
				return cmp.Or(text, "No warning.\n") + notes(c.style, now, bodies, true)
			}
			return statusView(c.style, now, bodies)
		})
		if err == nil && (warned || slices.ContainsFunc(bodies, redisFails)) {
			return errStoreFails
		}
		return err
	})
	cmd.Flags().Bool("check", false, "Show only warnings and notes; the exit code is 1 if there is a warning")
	cmd.MarkFlagsMutuallyExclusive("check", "json")
	return cmd
}

// statusBody is the body for scripts: three bodies of the admin API.
type statusBody struct {
	Status  adminapi.Status  `json:"status"`
	Zones   []adminapi.Zone  `json:"zones"`
	History adminapi.History `json:"history"`
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

func getStatus(t target) (json.RawMessage, error) {
	body := make(map[string]json.RawMessage)
	for _, name := range []string{"status", "zones", "history"} {
		part, err := t.get(name)
		if err != nil {
			return nil, err
		}
		body[name] = part
	}
	return compactJSON(body), nil
}

// statusView shows the state of instances.
func statusView(s terminal.Style, now time.Time, bodies []decoded[statusBody]) string {
	var b strings.Builder
	for _, d := range bodies {
		version := ""
		if d.body.Status.Version != "" {
			version = ", rate limiter " + printable(d.body.Status.Version)
		}
		fmt.Fprintf(&b, "Caddy at %s%s, started %s ago\n", d.from, version, since(now, d.body.Status.Started))
	}
	parts := []string{
		storesTable(s, now, bodies),
		zonesTable(s, now, bodies),
		warnings(s, now, bodies) + notes(s, now, bodies, false),
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

func storesTable(s terminal.Style, now time.Time, bodies []decoded[statusBody]) string {
	t := terminal.NewTable(instanceTitle(bodies), "STORE", "STATE", ">FOR", ">KEYS", ">MAX KEYS", ">QUEUED", ">CONNECTIONS")
	for _, d := range bodies {
		from := string(d.from)
		memories(d.body.Status, func(name, _ string, m *adminapi.Memory) {
			state := terminal.Colored("works", terminal.Green)
			if m.MaxKeys > 0 && float64(m.Keys) >= almostFull*float64(m.MaxKeys) {
				state = terminal.Colored("almost full", terminal.Yellow)
			}
			t.Add(from, name, state, "", count(m.Keys), count(m.MaxKeys), "", "")
		})
		for _, r := range d.body.Status.Redis {
			state := terminal.Colored(printable(strings.ReplaceAll(r.State, "_", " ")), terminal.Red)
			switch r.State {
			case "up":
				state.Color = terminal.Green
			case "partly_down":
				state = terminal.Colored(fmt.Sprintf("%d nodes down", r.FailingNodes), terminal.Red)
			}
			if r.PerSlotNodes > 0 {
				state.Text += fmt.Sprintf(", %d with calls per slot", r.PerSlotNodes)
			}
			t.Add(from, printable(r.Address), state, since(now, r.Since), "", "",
				count(int64(r.Queued)), count(int64(r.Connections)))
		}
	}
	return t.Text(s)
}

// zoneCounts are the requests of a zone.
type zoneCounts struct{ allowed, denied, shadowDenied float64 } // shadowDenied are also allowed

// countsOf returns counts by their outcomes.
func countsOf(requests map[string]int64) (n zoneCounts) {
	for outcome, requests := range requests {
		switch outcome {
		case "denied", "banned", "bad_body":
			n.denied += float64(requests)
		case "shadow_denied":
			n.shadowDenied += float64(requests)
			n.allowed += float64(requests)
		case "allowed", "delayed", "overridden", "exempt":
			n.allowed += float64(requests)
		}
	}
	return n
}

// add adds counts, each times a factor.
func (n *zoneCounts) add(more zoneCounts, factor float64) {
	n.allowed += factor * more.allowed
	n.denied += factor * more.denied
	n.shadowDenied += factor * more.shadowDenied
}

// share returns the share of some requests in all of a zone, in percent, and whether that is much: a tenth, of more than
// a few.
func (n *zoneCounts) share(some float64) (percent float64, much bool) {
	percent = 100 * some / max(n.allowed+n.denied, 1)
	return percent, some >= 10 && percent >= 10
}

// distinct returns zones without those of an earlier name, which have the same counts.
func distinct(zones []adminapi.Zone) []adminapi.Zone {
	seen := make(map[string]bool)
	return slices.DeleteFunc(slices.Clone(zones), func(z adminapi.Zone) bool {
		again := seen[z.Name]
		seen[z.Name] = true
		return again
	})
}

// earlier returns the requests of a zone until some seconds ago. That is the newest sample of the history that is at
// least as old as given in seconds, or else the start of the process.
func (b statusBody) earlier(now time.Time, zone string, least float64) (counts zoneCounts, ago float64) {
	ago = max(now.Sub(b.Status.Started).Seconds(), 1)
	requests := make(map[string]int64)
	for i, age := range b.History.Ages {
		if age >= least {
			ago = age
			for outcome, samples := range b.History.Zones[zone] {
				requests[outcome] = samples[i]
			}
		}
	}
	return countsOf(requests), ago
}

func zonesTable(s terminal.Style, now time.Time, bodies []decoded[statusBody]) string {
	zones := make(map[string]adminapi.Zone) // as the first instance has them
	totals, rates := make(map[string]*zoneCounts), make(map[string]*zoneCounts)
	for _, d := range bodies {
		for _, z := range distinct(d.body.Zones) {
			if totals[z.Name] == nil {
				zones[z.Name], totals[z.Name], rates[z.Name] = z, new(zoneCounts), new(zoneCounts)
			}
			counts := countsOf(z.Requests)
			earlier, ago := d.body.earlier(now, z.Name, 1)
			totals[z.Name].add(counts, 1)
			rates[z.Name].add(counts, 1/ago)
			rates[z.Name].add(earlier, -1/ago)
		}
	}
	t := terminal.NewTable("ZONE", "LIMITS", ">ALLOWED/S", ">DENIED/S", ">ALLOWED", ">DENIED", "?>SHADOW DENIED")
	for _, name := range slices.Sorted(maps.Keys(zones)) {
		z, total, rated := zones[name], totals[name], rates[name]
		shadowDenied := ""
		if z.Shadow || z.Enforce != nil || total.shadowDenied > 0 {
			shadowDenied = count(int64(total.shadowDenied))
		}
		t.Add(quoteName(name), limitsOf(z), rate(rated.allowed), colorIf(rated.denied > 0, rate(rated.denied), terminal.Red),
			count(int64(total.allowed)), count(int64(total.denied)), shadowDenied)
	}
	return t.Text(s)
}

func colorIf(yes bool, text, color string) terminal.Cell {
	if yes {
		return terminal.Colored(text, color)
	}
	return terminal.Plain(text)
}

// limitsOf returns the limits of a zone in short.
func limitsOf(z adminapi.Zone) string {
	limits := slices.Clone(z.Limits)
	if z.Plan != nil {
		limits = append(limits, fmt.Sprintf("%d plans", len(z.Plan.Values)))
	}
	if z.Concurrency > 0 {
		limits = append(limits, fmt.Sprintf("concurrency %d", z.Concurrency))
		if z.Share != nil {
			limits[len(limits)-1] += " share"
		}
	}
	if z.Hold != nil {
		limits = append(limits, "hold")
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

// remarks returns a line for each call of say, about one instance.
func remarks(kind string, bodies []decoded[statusBody], about func(d decoded[statusBody], say func(format string, args ...any))) string {
	var b strings.Builder
	for _, d := range bodies {
		about(d, func(format string, args ...any) {
			text := printable(fmt.Sprintf(format, args...))
			if len(bodies) > 1 {
				text += " (" + string(d.from) + ")"
			}
			b.WriteString(kind + " " + text + "\n")
		})
	}
	return b.String()
}

// warnings returns a line for each failure of a store.
func warnings(s terminal.Style, now time.Time, bodies []decoded[statusBody]) string {
	return remarks(s.Paint("Warning:", terminal.Yellow), bodies, func(d decoded[statusBody], warn func(string, ...any)) {
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
		})
	})
}

// unusedAfter is how long after the start of the process a zone without a request gets a note.
const unusedAfter = time.Hour

// notes returns a line for each other thing that an operator should look at, with unused zones if these are asked for.
func notes(s terminal.Style, now time.Time, bodies []decoded[statusBody], withUnused bool) string {
	return remarks(s.Paint("Note:", terminal.Yellow), bodies, func(d decoded[statusBody], note func(string, ...any)) {
		memories(d.body.Status, func(_, name string, m *adminapi.Memory) {
			if m.Overflowed > 0 {
				note("A shared budget has decided %s requests since the start, because the %s was full: raise max_keys.", count(m.Overflowed), name)
			}
		})
		for _, z := range distinct(d.body.Zones) {
			if n := z.Requests["error"]; n > 0 {
				note("The store could not decide %s requests of zone %s since the start.", count(n), quoteName(z.Name))
			}
			minute := countsOf(z.Requests)
			earlier, _ := d.body.earlier(now, z.Name, 60)
			minute.add(earlier, -1)
			if share, much := minute.share(minute.denied); much {
				note("Zone %s denied %.0f%% of its requests in the last minute.", quoteName(z.Name), share)
			}
			if share, much := minute.share(minute.shadowDenied); much {
				note("Zone %s would have denied %.0f%% of its requests in the last minute (shadow mode).", quoteName(z.Name), share)
			}
			if requests := slices.Collect(maps.Values(z.Requests)); withUnused && requests != nil && slices.Max(requests) == 0 &&
				now.Sub(d.body.Status.Started) >= unusedAfter {
				note("Zone %s has had no request yet: check its match.", quoteName(z.Name))
			}
		}
	})
}

// withoutRedis says what happens to requests of the zones whose Redis fails.
func withoutRedis(zones []adminapi.Zone) string {
	var texts []string
	for _, z := range zones {
		if z.FailingNodes == 0 {
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
