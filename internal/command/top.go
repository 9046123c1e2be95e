package command

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/spf13/cobra"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/adminapi"
)

func topCommand() *cobra.Command {
	var limit int
	cmd := subcommand(Manual{
		Use:   "top [zone]",
		Short: "Shows the keys that were denied most lately",
		Long: `
Shows the keys that the instances denied most lately, of one zone or of all.
Each minute all counts are halved. A count such as '5 to 7' can include denials
of other keys. The counts of several instances are added up.`,
		Examples: `
  $ caddy rate-limit top
  $ caddy rate-limit top api
  $ caddy rate-limit top api --json`,
	}, func(c *call) error {
		if limit < 1 {
			return UsageErrorf("--limit must be at least 1, not %d", limit)
		}
		zone := c.argument(0)
		places, failed := c.places(zone, everyInstance, nil)
		if len(places) == 0 && failed != nil {
			return failed
		}
		answers := c.askPlaces(zone, places, func(i instance, zone string) (json.RawMessage, error) {
			return i.requestZone("GET", zone, "/top", nil)
		})
		if len(answers) == 0 && !c.json {
			return errors.Join(c.print(topView(c.style, nil, limit)), failed)
		}
		return errors.Join(failed, show(c, answers, func(bodies []decoded[map[string][]adminapi.DeniedKey]) string {
			return topView(c.style, deniedKeys(bodies), limit)
		}))
	})
	cmd.Flags().IntVar(&limit, "limit", 10, "How many keys of each zone to show")
	return cmd
}

// deniedKey is a key of a zone that was denied, in all instances together.
type deniedKey struct {
	zone, key       string // as people see them
	denied, atLeast int64
}

// deniedKeys adds up what instances have denied. The most denied keys of each zone are first.
func deniedKeys(bodies []decoded[map[string][]adminapi.DeniedKey]) []deniedKey {
	sums := make(map[[2]string]deniedKey)
	for _, d := range bodies {
		for zone, keys := range d.body {
			for n, k := range keys {
				id := [2]string{zone, string(compactJSON(k.ShownKey))}
				if k.Cut { // other keys can have this beginning
					id[1] += fmt.Sprint(d.from, n)
				}
				sum := sums[id]
				sums[id] = deniedKey{zone, shownKey(k.ShownKey), sum.denied + k.Denied, sum.atLeast + k.AtLeast}
			}
		}
	}
	return slices.SortedFunc(maps.Values(sums), func(a, b deniedKey) int {
		return cmp.Or(cmp.Compare(a.zone, b.zone), cmp.Compare(b.denied, a.denied), cmp.Compare(a.key, b.key))
	})
}

// topView shows the most denied keys.
func topView(s style, keys []deniedKey, limit int) string {
	t := newTable("ZONE", ">DENIED", "KEY")
	shown := make(map[string]int)
	for _, k := range keys {
		if shown[k.zone]++; shown[k.zone] > limit {
			continue
		}
		denied := count(k.denied)
		if k.atLeast < k.denied {
			denied = count(k.atLeast) + " to " + denied
		}
		t.Add(plain(quoteName(k.zone)), plain(denied), plain(k.key))
	}
	return cmp.Or(t.Text(s), "No key was denied lately.\n")
}
