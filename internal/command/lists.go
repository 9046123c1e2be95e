package command

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/adminapi"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/keys"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/terminal"
)

func bansCommand() *cobra.Command {
	return listCommand(Manual{
		Use:   "bans [zone]",
		Short: "Shows the bans in force",
		Long: `
Shows the bans in force, of one zone or of all. The origin of a ban is
'denials', 'response' or 'operator'.` + listNote,
		Examples: `
  $ caddy rate-limit bans
  $ caddy rate-limit bans login
  $ caddy rate-limit bans login --json`,
	}, maxPage, oneOfRedis, func(z adminapi.Zone) bool { return z.Ban != "" || z.Hold != nil }, getPages("bans"), bansView)
}

func overridesCommand() *cobra.Command {
	return listCommand(Manual{
		Use:   "overrides [zone]",
		Short: "Shows the overrides in force",
		Long: `
Shows the overrides in force, of one zone or of all: those in the configuration,
and those that were set at run time.` + listNote,
		Examples: `
  $ caddy rate-limit overrides
  $ caddy rate-limit overrides api
  $ caddy rate-limit overrides api --json`,
	}, maxPage, oneOfRedis, func(z adminapi.Zone) bool { return z.Runtime || len(z.Override) > 0 }, getPages("overrides"), overridesView)
}

const listNote = `

Instances that share a Redis have one list, so only the first of them is asked.`

// listCommand returns a command that lists something of zones. has reports whether a zone can have any. get asks for at
// least limit entries, if there are that many. view gets the lists in the order of zones and instances.
func listCommand[T any](m Manual, usualLimit int, which asked, has func(adminapi.Zone) bool,
	get func(t target, limit int) (json.RawMessage, error), view func(s terminal.Style, now time.Time, lists []decoded[T], limit int) string,
) *cobra.Command {
	var limit int
	cmd := subcommand(m, func(c *call) error {
		if limit < 1 {
			return UsageErrorf("--limit must be at least 1, not %d", limit)
		}
		if len(c.args) > 0 {
			c.zone = c.args[0]
		}
		zones, failed := c.zones(c.zone, which, has)
		answers := ask(zones, func(t target) (json.RawMessage, error) { return get(t, limit) })
		_, err := show(c, append(failed, answers...), func(lists []decoded[T]) string {
			slices.SortStableFunc(lists, func(a, b decoded[T]) int { return cmp.Or(cmp.Compare(a.zone, b.zone), cmp.Compare(a.from, b.from)) })
			return view(c.style, time.Now(), lists, limit)
		})
		return err
	})
	cmd.Flags().IntVar(&limit, "limit", usualLimit, "How many entries of each zone to show")
	return cmd
}

// maxPage is how many entries the admin API returns at most for one request.
const maxPage = 1000

// getPages returns a function that gets a list of a zone. It asks for one page after the other, and puts them together.
// If there are more entries, the list has the cursor of the next page.
func getPages(name string) func(t target, limit int) (json.RawMessage, error) {
	return func(t target, limit int) (json.RawMessage, error) {
		entries, next := []json.RawMessage{}, ""
		for len(entries) < limit {
			query := url.Values{"limit": {strconv.Itoa(min(limit-len(entries), maxPage))}, "cursor": {next}}
			body, err := t.request("GET", nil, query, "zones", t.zone, name)
			if err != nil {
				return nil, err
			}
			var page struct {
				Bans, Overrides []json.RawMessage
				Next            string
			}
			if err := json.Unmarshal(body, &page); err != nil {
				return nil, t.misunderstood(err)
			}
			entries = slices.Concat(entries, page.Bans, page.Overrides)
			if next = page.Next; next == "" {
				break
			}
		}
		list := map[string]any{name: entries}
		if next != "" {
			list["next"] = next
		}
		return compactJSON(list), nil
	}
}

// instanceTitle returns the title of a column for the instances, if there are several.
func instanceTitle[T any](bodies []decoded[T]) string {
	if slices.ContainsFunc(bodies, func(d decoded[T]) bool { return d.from != bodies[0].from }) {
		return "INSTANCE"
	}
	return ""
}

// moreIn returns a hint for a list that --limit has cut.
func moreIn(zone, next string) string {
	if next == "" {
		return ""
	}
	return "There are more in " + quoteName(zone) + ": raise --limit.\n"
}

func bansView(s terminal.Style, now time.Time, lists []decoded[adminapi.BanList], _ int) string {
	t := terminal.NewTable(instanceTitle(lists), "ZONE", ">ENDS IN", "UNTIL", "ORIGIN", "?ALTERNATIVE OF KEY", "KEY")
	more := ""
	for _, d := range lists {
		for _, b := range d.body.Bans {
			t.Add(string(d.from), quoteName(d.zone), span(b.Ends), instant(now, b.Until), printable(b.Origin)+inShadow(b.Shadow),
				alternativeText(b.Alternative), shownKey(b.ShownKey))
		}
		more += moreIn(d.zone, d.body.Next)
	}
	return cmp.Or(t.Text(s), "No key is banned.\n") + more
}

func overridesView(s terminal.Style, now time.Time, lists []decoded[adminapi.OverrideList], _ int) string {
	t := terminal.NewTable(instanceTitle(lists), "ZONE", "FROM", "UNTIL", "LIMITS", "KEY")
	more := ""
	for _, d := range lists {
		for _, o := range d.body.Overrides {
			until := ""
			if !o.Until.IsZero() {
				until = instant(now, o.Until)
			}
			t.Add(string(d.from), quoteName(d.zone), printable(o.From), until, overriddenLimits(o.Override), shownKey(o.ShownKey))
		}
		more += moreIn(d.zone, d.body.Next)
	}
	return cmp.Or(t.Text(s), "No key has an override.\n") + more
}

// alternativeText returns an alternative of a key as a Caddyfile has it.
func alternativeText(alternative string) string { return printable(keys.Shorten(alternative)) }

// overriddenLimits returns the limits of an override, or why it has no effect.
func overriddenLimits(o adminapi.Override) terminal.Cell {
	if o.Error != "" {
		return terminal.Colored("no effect: "+printable(o.Error), terminal.Red)
	}
	return terminal.Plain(printable(strings.Join(o.Limits, ", ")))
}

func topCommand() *cobra.Command {
	every := func(adminapi.Zone) bool { return true }
	getTop := func(t target, _ int) (json.RawMessage, error) { return t.get("zones", t.zone, "top") }
	return listCommand(Manual{
		Use:   "top [zone]",
		Short: "Shows the keys denied most often in recent minutes",
		Long: `
Shows the keys that the instances denied in the last ten minutes, of one zone or
of all, most denied first: how often, since when, and by which limit.
'5 or more' means that earlier denials of the key may be unknown. The counts of
several instances are added up. Requests that zones in shadow mode would have
denied have a separate column.`,
		Examples: `
  $ caddy rate-limit top
  $ caddy rate-limit top api
  $ caddy rate-limit top api --json`,
	}, 10, everyInstance, every, getTop, topView)
}

// topView shows the keys that all instances together denied most.
func topView(s terminal.Style, now time.Time, lists []decoded[[]adminapi.DeniedKey], limit int) string {
	type deniedKey struct {
		zone, key string // as people see them
		kind      string // which is before that of shadow mode
		adminapi.DeniedKey
	}
	sums := make(map[[2]string]*deniedKey)
	for _, d := range lists {
		for n, k := range d.body {
			kind := "denied"
			if k.Shadow {
				kind = "shadow denied"
			}
			id := [2]string{d.zone, kind + string(compactJSON(k.ShownKey))}
			if k.Cut { // other keys can have this beginning
				id[1] += fmt.Sprint(d.from, n)
			}
			if sums[id] == nil {
				sums[id] = &deniedKey{zone: d.zone, key: shownKey(k.ShownKey), kind: kind}
			}
			addDenials(&sums[id].DeniedKey, k)
		}
	}
	t := terminal.NewTable("ZONE", ">DENIED", "?>SHADOW DENIED", "SINCE", ">LAST", "LIMIT", "KEY")
	shown := make(map[[2]string]int)
	for _, k := range slices.SortedFunc(maps.Values(sums), func(a, b *deniedKey) int {
		return cmp.Or(cmp.Compare(a.zone, b.zone), cmp.Compare(a.kind, b.kind), cmp.Compare(b.Denied, a.Denied), cmp.Compare(a.key, b.key))
	}) {
		part := [2]string{k.zone, k.kind}
		if shown[part]++; shown[part] > limit {
			continue
		}
		denied, byShadow := count(k.Denied), ""
		if k.Denied < k.AtMost {
			denied += " or more"
		}
		if k.Shadow {
			denied, byShadow = "", denied
		}
		t.Add(quoteName(k.zone), denied, byShadow, instant(now, k.First), since(now, k.Last)+" ago", printable(k.Limit), k.key)
	}
	return cmp.Or(t.Text(s), "No key was denied recently.\n")
}
