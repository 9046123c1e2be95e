package command

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/adminapi"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/terminal"
)

func keyCommand() *cobra.Command {
	return keySubcommand(Manual{
		Use:   "key <zone> <key>",
		Short: "Shows what a key has left, its override and its ban",
		Long: `
Shows the limits of a key with what remains, its override, its requests in
flight, and its ban. Use it if you know the key from a log or from 'top', and
'explain' if you know the request. A key without requests has full
budgets. Instances that share a Redis have the same budgets, which are shown
once. The recent denials of the key are added up over all instances.`,
		Examples: `
  $ caddy rate-limit key api customer-7
  $ caddy rate-limit key login 203.0.113.9
  $ caddy rate-limit key login 2001:db8::/64 --json`,
	}, func(c *call) error {
		zones, failed := c.zones(c.zone, asked(c.json), nil) // in JSON, each Redis once
		answers := ask(zones, func(t target) (json.RawMessage, error) { return t.requestKey("GET", "keys", c.key, nil) })
		answers = slices.DeleteFunc(answers, func(a answer) bool { return a.err != nil && a.owner != a.from }) // the owner has the budgets
		_, err := show(c, append(failed, answers...), func(keys []decoded[adminapi.Key]) string {
			return titled(c, byOwner(keys), func(d decoded[adminapi.Key]) string { return keyView(c.style, time.Now(), d.body, "") })
		})
		return err
	})
}

// byOwner returns the views of a key without those that repeat the budgets of another instance. Their denials are added to
// those of that instance.
func byOwner(all []decoded[adminapi.Key]) (keys []decoded[adminapi.Key]) {
	for _, d := range all {
		if d.from == d.owner {
			for _, other := range all {
				if other.owner == d.owner && other.from != d.from {
					d.body.Denials = append(d.body.Denials, other.body.Denials...)
				}
			}
			keys = append(keys, d)
		}
	}
	return keys
}

// denialTexts returns a line about the denials of a key, and one about those in shadow mode, of all instances together.
func denialTexts(now time.Time, denials []adminapi.DeniedKey) (texts []string) {
	for _, shadow := range []bool{false, true} {
		var sum adminapi.DeniedKey
		for _, d := range denials {
			if d.Shadow == shadow {
				addDenials(&sum, d)
			}
		}
		verb, by := "denied", printable(sum.Limit)+inShadow(shadow)
		if shadow {
			verb = "would have been denied"
		}
		if sum.Denied < sum.AtMost {
			verb += " at least"
		}
		switch sum.Denied {
		case 0:
		case 1:
			texts = append(texts, fmt.Sprintf("%s once, %s ago: %s", verb, since(now, sum.Last), by))
		default:
			texts = append(texts, fmt.Sprintf("%s %s times since %s, the last time %s ago: %s",
				verb, count(sum.Denied), instant(now, sum.First), since(now, sum.Last), by))
		}
	}
	return texts
}

// inShadow returns what follows an effect that a zone would only have without shadow mode.
func inShadow(shadow bool) string {
	if shadow {
		return " (shadow mode)"
	}
	return ""
}

// addDenials adds the denials of a key that another instance counted.
func addDenials(sum *adminapi.DeniedKey, d adminapi.DeniedKey) {
	if sum.Denied == 0 {
		*sum = d
		return
	}
	sum.Denied, sum.AtMost = sum.Denied+d.Denied, sum.AtMost+d.AtMost
	if d.First.Before(sum.First) {
		sum.First = d.First
	}
	if d.Last.After(sum.Last) {
		sum.Last, sum.Limit = d.Last, d.Limit
	}
}

// keyView shows a key: first how often it was denied recently, then its ban and its override, because they decide before the
// limits. ended, if not empty, says what a command has ended.
func keyView(s terminal.Style, now time.Time, key adminapi.Key, ended string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "Zone %s, key %s", quoteName(key.Zone), shownKey(adminapi.ShownKey{Key: &key.Key}))
	if key.Store == "local" {
		b.WriteString(" (local budgets, because Redis fails)")
	}
	if ended != "" {
		b.WriteString(": " + ended)
	}
	b.WriteString("\n")
	for _, text := range denialTexts(now, key.Denials) {
		b.WriteString("Recently: " + text + "\n")
	}
	if ban := longestBan(key); ban.Banned {
		until := now.Add(time.Duration(ban.Ends * float64(time.Second)))
		b.WriteString(s.Paint("Banned for "+span(ban.Ends)+", until "+instant(now, until)+inShadow(ban.Shadow), terminal.Red) + "\n")
	}
	if o := key.Override; o != nil {
		origin := "Override of the configuration"
		if o.From == "runtime" {
			origin = "Override at run time"
		}
		b.WriteString(origin + ": " + overrideText(now, *o) + "\n")
	}
	t := terminal.NewTable("LIMIT", "?>USED", "?>RESERVED", ">REMAINING", ">FREES IN", ">FULL IN", "?ALTERNATIVE OF KEY")
	for _, budgets := range key.Budgets {
		alternative := alternativeText(budgets.Alternative)
		for i, l := range budgets.Limits {
			text, isFirst := limitText(budgets.Limits, i)
			if !isFirst {
				continue
			}
			used, reserved, full := "", "", ""
			if l.Used != nil {
				used = count(*l.Used)
			}
			if l.Reserved > 0 {
				reserved = count(l.Reserved)
			}
			if l.ResetAfter > 0 {
				full = span(l.ResetAfter)
			}
			t.Add(text, used, reserved, colorIf(l.Remaining == 0, count(l.Remaining), terminal.Red), freesIn(l), full, alternative)
		}
		if c := budgets.Concurrency; c != nil {
			free := max(c.Limit-c.InUse, 0)
			t.Add(fmt.Sprintf("concurrency %d", c.Limit), "", "", colorIf(free == 0, count(free), terminal.Red), "", "", alternative)
		}
	}
	if text := t.Text(s); text != "" {
		b.WriteString("\n" + text)
	}
	if isUnused(key) && len(key.Denials) == 0 && ended == "" {
		b.WriteString("\nNo request is charged to this key now: check its spelling, and whether its plan is unlimited.\n")
	}
	return b.String()
}

// freesIn returns how long until an event fits into a limit, or "" if one fits now.
func freesIn(l adminapi.Limit) string {
	switch {
	case l.RetryAfter == nil:
		return "never"
	case *l.RetryAfter > 0:
		return span(*l.RetryAfter)
	}
	return ""
}
