package command

import (
	"encoding/json"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/adminapi"
)

// completion returns the words that can be an argument. If it can't ask Caddy, it returns none: a shell
// has no place for errors.
type completion func(i instance, args []string) []string

// completeArguments completes the first argument by the first completion, and so on.
func completeArguments(completions ...completion) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		var words []string
		instances, err := addresses(cmd)
		if err == nil && len(args) < len(completions) {
			for _, word := range completions[len(args)](instances[0], args) {
				if quoteKey(word) == word { // others would need quotes
					words = append(words, word)
				}
			}
		}
		return words, cobra.ShellCompDirectiveNoFileComp
	}
}

func zoneNames(i instance, _ []string) []string {
	names, _ := i.zoneNames()
	return names
}

// zonesWith completes the zones that have an option.
func zonesWith(has func(adminapi.Zone) bool) completion {
	return func(i instance, _ []string) (names []string) {
		var zones []adminapi.Zone
		if body, err := i.getZones(); err == nil {
			_ = json.Unmarshal(body, &zones)
		}
		for _, z := range zones {
			if has(z) && !slices.Contains(names, z.Name) {
				names = append(names, z.Name)
			}
		}
		return names
	}
}

func hasBan(z adminapi.Zone) bool              { return z.Ban != "" }
func hasRuntimeOverrides(z adminapi.Zone) bool { return z.Runtime }

// deniedOrListedKeys completes the keys of a zone that were denied lately, and the keys of a list:
// bans, overrides, or "" for none.
func deniedOrListedKeys(list string) completion {
	return func(i instance, args []string) (words []string) {
		add := func(k adminapi.ShownKey) {
			if k.Key != nil && !k.Cut && !strings.Contains(*k.Key, "%") {
				words = append(words, *k.Key)
			}
		}
		if list != "" {
			var entries struct{ Bans, Overrides []adminapi.ShownKey }
			if body, err := i.getList(args[0], list, completedKeys); err == nil {
				_ = json.Unmarshal(body, &entries)
			}
			for _, k := range append(entries.Bans, entries.Overrides...) {
				add(k)
			}
		}
		var denied []adminapi.DeniedKey
		if body, err := i.requestZone("GET", args[0], "/top", nil); err == nil {
			_ = json.Unmarshal(body, &denied)
		}
		for _, k := range denied {
			add(k.ShownKey)
		}
		return words
	}
}

// completedKeys is how many keys of a list are offered.
const completedKeys = 100

func limitNames(instance, []string) []string {
	names := []string{"unlimited"}
	for _, a := range algorithms.All() {
		names = append(names, a.Name)
	}
	return names
}
