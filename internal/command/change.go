package command

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/spf13/cobra"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/adminapi"
)

// A change is made in each instance that has the zone in memory, and once per Redis.
const changeNote = `

With Redis the change applies to all instances. The others follow within a second.
In memory it applies to the instances in --address.`

func overrideCommand() *cobra.Command {
	cmd := keySubcommand(Manual{
		Use:   "override <zone> <key> [limit...]",
		Short: "Gives a key other limits, or removes them",
		Long: `
Gives a key other limits, or with 'unlimited' no limit. Write a limit as in a
Caddyfile. Quote each limit if there are several. Without --for the override has
no end. With --remove the key has the limits of its zone again. The zone needs
the option runtime_overrides.` + changeNote,
		Examples: `
  $ caddy rate-limit override api customer-7 token_bucket 100 1m
  $ caddy rate-limit override api customer-7 'token_bucket 100 1s' 'fixed_window 10000 1d' --for 24h
  $ caddy rate-limit override api 203.0.113.9 unlimited --for 1h
  $ caddy rate-limit override api customer-7 --remove`,
	}, func(c *call) error {
		limits, remove := limitTexts(c.args[2:]), boolFlag(c.cmd, "remove")
		switch {
		case remove && (len(limits) > 0 || stringFlag(c.cmd, "for") != ""):
			return UsageErrorf("--remove can't be combined with limits or --for: leave them out")
		case remove:
			return c.change("DELETE", "override", "override removed", nil)
		case len(limits) == 0:
			return UsageErrorf("the limits are missing: write for example 'token_bucket 100 1m', or unlimited, or --remove")
		}
		body := map[string]any{"limits": limits}
		if len(limits) == 1 && limits[0] == "unlimited" {
			body = map[string]any{"unlimited": true}
		}
		ttl, err := durationFlag(c.cmd, "for")
		if err != nil {
			return err
		}
		if ttl != "" {
			body["ttl"] = ttl
		}
		return c.change("PUT", "override", "", body)
	})
	cmd.Flags().String("for", "", "How long the override lasts, such as 1h or 7d (default: no end)")
	cmd.Flags().Bool("remove", false, "Remove the override that was set at run time")
	return cmd
}

func banCommand() *cobra.Command {
	cmd := keySubcommand(Manual{
		Use:   "ban <zone> <key>",
		Short: "Denies all requests of a key for a while",
		Long: `
Denies all requests of a key, from now on. The zone needs the option ban or hold.` + changeNote,
		Examples: `
  $ caddy rate-limit ban login 203.0.113.9
  $ caddy rate-limit ban login 203.0.113.9 --for 24h`,
	}, func(c *call) error {
		duration, err := durationFlag(c.cmd, "for")
		if err != nil {
			return err
		}
		body := make(map[string]string)
		if duration != "" {
			body["duration"] = duration
		}
		return c.change("PUT", "ban", "", body)
	})
	cmd.Flags().String("for", "", "How long the ban lasts, such as 1h or 7d (default: as long as the bans of the zone)")
	return cmd
}

func unbanCommand() *cobra.Command {
	return keySubcommand(Manual{
		Use:   "unban <zone> <key>",
		Short: "Ends the ban of a key",
		Long: `
Ends the ban of a key, and forgets its earlier bans and the denials that count
toward the next one. Charges stay. The zone needs the option ban or hold.` + changeNote,
		Examples: `
  $ caddy rate-limit unban login 203.0.113.9`,
	}, func(c *call) error { return c.change("DELETE", "ban", "ban ended", nil) })
}

func resetCommand() *cobra.Command {
	return keySubcommand(Manual{
		Use:   "reset <zone> <key>",
		Short: "Restores all budgets of a key, and ends its ban",
		Long: `
Restores all budgets of a key, ends its ban, and forgets its earlier bans.
An override stays. Requests in flight still count for concurrency.` + changeNote,
		Examples: `
  $ caddy rate-limit reset api customer-7
  $ caddy rate-limit reset api 2001:db8::/64`,
	}, func(c *call) error { return c.change("DELETE", "keys", "reset", nil) })
}

// limitTexts returns the limits in arguments. Words without spaces are one limit together, so a
// single limit needs no quotes.
func limitTexts(args []string) []string {
	if !strings.Contains(strings.Join(args, ""), " ") && len(args) > 0 {
		return []string{strings.Join(args, " ")}
	}
	return args
}

// durationFlag returns the value of a flag, or "" if it isn't set.
func durationFlag(cmd *cobra.Command, name string) (string, error) {
	text := stringFlag(cmd, name)
	if d, err := caddy.ParseDuration(text); text != "" && (err != nil || d < time.Millisecond) {
		return "", UsageErrorf("--%s %q is not a span of time: write for example 30m, 1h or 7d", name, text)
	}
	return text, nil
}

// change changes a key, in all instances that must know, and shows the key then. ended names what the change ends; it is
// empty for others. Where there was nothing to end, the command says so instead.
func (c *call) change(method, resource, ended string, body any) error {
	var hadNothing sync.Map // the targets
	zones, failed := c.zones(c.zone, oneOfRedis, nil)
	answers := ask(zones, func(t target) (json.RawMessage, error) {
		if ended != "" && !c.json {
			var key adminapi.Key
			before, err := t.requestKey("GET", "keys", c.key, nil)
			if err == nil && json.Unmarshal(before, &key) == nil && hasNone[resource](key) {
				hadNothing.Store(t, true)
			}
		}
		if _, err := t.requestKey(method, resource, c.key, body); err != nil {
			return nil, err
		}
		key, err := t.requestKey("GET", "keys", c.key, nil)
		if err != nil {
			err = fmt.Errorf("the change was made, but its result can't be shown: %w", err)
		}
		return key, err
	})
	view := func(d decoded[adminapi.Key]) string {
		d.body.Denials = nil // from before the change
		if _, ok := hadNothing.Load(d.target); ok {
			correction := "check the spelling of the key"
			if o := d.body.Override; resource == "override" && o != nil {
				correction = "remove the override from the configuration"
			}
			return keyView(c.style, time.Now(), d.body, "nothing has changed: "+correction)
		}
		return keyView(c.style, time.Now(), d.body, ended)
	}
	_, err := show(c, append(failed, answers...), func(keys []decoded[adminapi.Key]) string { return titled(c, keys, view) })
	return err
}

// hasNone reports whether a key has nothing of a resource that can be deleted.
var hasNone = map[string]func(adminapi.Key) bool{
	"override": func(k adminapi.Key) bool { return k.Override == nil || k.Override.From == "config" },
	"ban":      func(k adminapi.Key) bool { return !longestBan(k).Banned },
	"keys":     func(k adminapi.Key) bool { return !longestBan(k).Banned && isUnused(k) },
}

// overrideText returns the limits of an override, and its end if it has one.
func overrideText(now time.Time, o adminapi.Override) string {
	text := overriddenLimits(o).Text
	if !o.Until.IsZero() {
		text += ", until " + instant(now, o.Until)
	}
	return text
}

// longestBan returns the ban of a key that lasts longest. It is zero without a ban.
func longestBan(key adminapi.Key) (ban adminapi.Ban) {
	for _, b := range key.Budgets {
		if b.Ban != nil && b.Ban.Banned && b.Ban.Ends > ban.Ends {
			ban = *b.Ban
		}
	}
	return ban
}

// isUnused reports whether a key has limits, but no charges, and no requests in flight.
func isUnused(key adminapi.Key) bool {
	limited := false
	for _, b := range key.Budgets {
		if b.Concurrency != nil && b.Concurrency.InUse > 0 {
			return false
		}
		for _, l := range b.Limits {
			if l.ResetAfter > 0 {
				return false
			}
			limited = true
		}
	}
	return limited && key.Override == nil // which hides the charges
}

// limitText returns one of the limits with all plans that have it, and whether it is the first that says so: plans with the
// same limit have the same budget.
func limitText(limits []adminapi.Limit, i int) (text string, isFirst bool) {
	var plans []string
	for _, other := range limits {
		if other.Limit == limits[i].Limit && other.Plan != nil && !slices.Contains(plans, planText(*other.Plan)) {
			plans = append(plans, planText(*other.Plan))
		}
	}
	text = printable(limits[i].Limit)
	if limits[i].Plan == nil {
		return text, true
	}
	return text + " (" + strings.Join(plans, ", ") + ")", plans[0] == planText(*limits[i].Plan)
}

// planText returns a plan by its value.
func planText(value string) string {
	if value == "" {
		return "no plan"
	}
	return "plan " + quoteName(value)
}
