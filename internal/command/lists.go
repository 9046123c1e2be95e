package command

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/adminapi"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/keys"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/options"
)

func bansCommand() *cobra.Command {
	return listCommand("bans", Manual{
		Short: "Shows the bans in force",
		Long: `
Shows the bans in force, of one zone or of all. The origin of a ban is 'denials'
or 'operator'.`,
		Examples: `
  $ caddy rate-limit bans
  $ caddy rate-limit bans login
  $ caddy rate-limit bans login --json`,
	}, func(z adminapi.Zone) bool { return z.Ban != "" }, bansView)
}

func overridesCommand() *cobra.Command {
	return listCommand("overrides", Manual{
		Short: "Shows the overrides in force",
		Long: `
Shows the overrides in force, of one zone or of all: those in the configuration,
and those that were set at run time.`,
		Examples: `
  $ caddy rate-limit overrides
  $ caddy rate-limit overrides api
  $ caddy rate-limit overrides api --json`,
	}, func(z adminapi.Zone) bool { return z.Runtime || len(z.Override) > 0 }, overridesView)
}

// listCommand returns a command that lists something of zones. has reports whether a zone can have any.
func listCommand[T any](name string, m Manual, has func(adminapi.Zone) bool,
	view func(s style, now time.Time, bodies []decoded[map[string]T]) string,
) *cobra.Command {
	var limit int
	m.Use = name + " [zone]"
	m.Long += `

Instances that share a Redis have one list, so only the first of them is asked.`
	cmd := subcommand(m, func(c *call) error {
		if limit < 1 {
			return UsageErrorf("--limit must be at least 1, not %d", limit)
		}
		zone := c.argument(0)
		places, failed := c.places(zone, oneOfRedis, has)
		if len(places) == 0 && failed != nil {
			return failed
		}
		answers := c.askPlaces(zone, places, func(i instance, zone string) (json.RawMessage, error) {
			return i.getList(zone, name, limit)
		})
		if len(answers) == 0 && !c.json {
			return errors.Join(c.print("No zone has "+name+".\n"), failed)
		}
		return errors.Join(failed, show(c, answers, func(bodies []decoded[map[string]T]) string {
			return view(c.style, time.Now(), bodies)
		}))
	})
	cmd.Flags().IntVar(&limit, "limit", maxPage, "How many entries of each zone to show")
	return cmd
}

// maxPage is how many entries the admin API returns at most for one request.
const maxPage = 1000

// getList returns a list of a zone, of at most limit entries. It asks for one page after the other,
// and puts them together. If there are more entries, the list has the cursor of the next page.
func (i instance) getList(zone, name string, limit int) (json.RawMessage, error) {
	entries, next := []json.RawMessage{}, ""
	for len(entries) < limit {
		query := url.Values{"limit": {strconv.Itoa(min(limit-len(entries), maxPage))}}
		if next != "" {
			query.Set("cursor", next)
		}
		body, err := i.requestZone("GET", zone, "/"+name+"?"+query.Encode(), nil)
		if err != nil {
			return nil, err
		}
		page := make(map[string]json.RawMessage)
		var more []json.RawMessage
		next = ""
		err = json.Unmarshal(body, &page)
		if err == nil {
			err = json.Unmarshal(page[name], &more)
		}
		if err == nil && page["next"] != nil {
			err = json.Unmarshal(page["next"], &next)
		}
		if err != nil {
			return nil, i.misunderstood(err)
		}
		entries = append(entries, more...)
		if next == "" {
			break
		}
	}
	list := options.Object{{Name: name, Value: entries}}
	if next != "" {
		list = append(list, options.Field{Name: "next", Value: next})
	}
	return compactJSON(list), nil
}

// eachZone visits the zones of the bodies in order.
func eachZone[T any](bodies []decoded[map[string]T], visit func(from instance, zone string, body T)) {
	type entry struct {
		from instance
		zone string
		body T
	}
	var entries []entry
	for _, d := range bodies {
		for zone, body := range d.body {
			entries = append(entries, entry{d.from, zone, body})
		}
	}
	slices.SortStableFunc(entries, func(a, b entry) int {
		return cmp.Or(cmp.Compare(a.zone, b.zone), cmp.Compare(a.from, b.from))
	})
	for _, e := range entries {
		visit(e.from, e.zone, e.body)
	}
}

// moreLines returns a hint for lists that --limit has cut.
func moreLines(zones []string) string {
	if len(zones) == 0 {
		return ""
	}
	slices.Sort(zones)
	return fmt.Sprintf("\nThere are more in %s: raise --limit.\n", strings.Join(slices.Compact(zones), ", "))
}

// shownBan is a ban as the list shows it.
type shownBan struct {
	ban               adminapi.ListedBan
	key, alternatives string
}

func bansView(s style, now time.Time, bodies []decoded[map[string]adminapi.BanList]) string {
	alternatives := false
	eachZone(bodies, func(_ instance, _ string, list adminapi.BanList) {
		alternatives = alternatives || slices.ContainsFunc(list.Bans, func(b adminapi.ListedBan) bool { return b.Alternative != "" })
	})
	alternativeTitle := titleIf(alternatives, "ALTERNATIVE OF KEY")
	t := newTable(titleIf(len(bodies) > 1, "INSTANCE"), "ZONE", ">ENDS IN", "UNTIL", "ORIGIN", alternativeTitle, "KEY")
	var more []string
	eachZone(bodies, func(from instance, zone string, list adminapi.BanList) {
		var shown []*shownBan
		latest := make(map[string]*shownBan) // by key and origin
		for _, b := range list.Bans {
			key := shownKey(b.ShownKey)
			last := latest[b.Origin+" "+key]
			if last != nil && last.ban.Until.Sub(b.Until).Abs() < time.Second { // one ban of an operator holds for each alternative
				last.alternatives += ", " + alternativeText(b.Alternative)
				continue
			}
			last = &shownBan{b, key, alternativeText(b.Alternative)}
			shown, latest[b.Origin+" "+key] = append(shown, last), last
		}
		for _, b := range shown {
			t.Add(plain(string(from)), plain(quoteName(zone)), plain(span(b.ban.Ends)), plain(instant(now, b.ban.Until)),
				plain(printable(b.ban.Origin)), plain(b.alternatives), plain(b.key))
		}
		if list.Next != "" {
			more = append(more, quoteName(zone))
		}
	})
	return cmp.Or(t.Text(s), "No key is banned.\n") + moreLines(more)
}

func overridesView(s style, now time.Time, bodies []decoded[map[string]adminapi.OverrideList]) string {
	t := newTable(titleIf(len(bodies) > 1, "INSTANCE"), "ZONE", "FROM", "UNTIL", "LIMITS", "KEY")
	var more []string
	eachZone(bodies, func(from instance, zone string, list adminapi.OverrideList) {
		for _, o := range list.Overrides {
			t.Add(plain(string(from)), plain(quoteName(zone)), plain(printable(o.From)), plain(untilText(now, o.Until)),
				overriddenLimits(o.Override), plain(shownKey(o.ShownKey)))
		}
		if list.Next != "" {
			more = append(more, quoteName(zone))
		}
	})
	return cmp.Or(t.Text(s), "No key has an override.\n") + moreLines(more)
}

// alternativeText returns an alternative of a key as a Caddyfile has it.
func alternativeText(alternative string) string { return printable(keys.Shorten(alternative)) }

// untilText returns when an override ends, or "" if it has no end.
func untilText(now, until time.Time) string {
	if until.IsZero() {
		return ""
	}
	return instant(now, until)
}

// overriddenLimits returns the limits of an override, or why it has no effect.
func overriddenLimits(o adminapi.Override) cell {
	if o.Error != "" {
		return colored("no effect: "+printable(o.Error), red)
	}
	return plain(printable(strings.Join(o.Limits, ", ")))
}
