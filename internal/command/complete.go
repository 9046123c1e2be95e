package command

import (
	"encoding/json"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/adminapi"
)

// completion adds the words that can be an argument. If it can't ask Caddy, it adds none: a shell has no
// place for errors.
type completion func(i instance, args []string, add func(words ...string))

// completionTime is how long a shell waits for words. Then it gets the words that are known.
const completionTime = time.Second

// completeArguments completes the first argument by the first completion, and so on.
func completeArguments(completions ...completion) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) (words []string, _ cobra.ShellCompDirective) {
		instances, err := addresses(cmd)
		if err != nil || len(args) >= len(completions) {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		found, late := make(chan []string), time.After(completionTime)
		go func() { // if it is late, it stays until the process ends
			defer close(found)
			completions[len(args)](instances[0], args, func(words ...string) { found <- words })
		}()
		for {
			select {
			case more, ok := <-found:
				if !ok {
					return words, cobra.ShellCompDirectiveNoFileComp
				}
				for _, word := range more {
					if quoteKey(word) == word { // others would need quotes
						words = append(words, word)
					}
				}
			case <-late:
				return words, cobra.ShellCompDirectiveNoFileComp
			}
		}
	}
}

// zonesWith completes the zones for which has is true, such as those that have an option.
func zonesWith(has func(adminapi.Zone) bool) completion {
	return func(i instance, _ []string, add func(words ...string)) {
		names, _ := i.zoneNames(has)
		add(names...)
	}
}

func anyZone(adminapi.Zone) bool               { return true }
func hasBan(z adminapi.Zone) bool              { return z.Ban != "" }
func hasRuntimeOverrides(z adminapi.Zone) bool { return z.Runtime }

// deniedOrListedKeys completes the keys of a zone that were denied lately, and the keys of a list:
// bans, overrides, or "" for none.
func deniedOrListedKeys(list string) completion {
	return func(i instance, args []string, add func(words ...string)) {
		addKey := func(k adminapi.ShownKey) {
			if k.Key != nil && !k.Cut && !strings.Contains(*k.Key, "%") {
				add(*k.Key)
			}
		}
		var denied []adminapi.DeniedKey
		if body, err := i.requestZone("GET", args[0], "/top", nil); err == nil {
			_ = json.Unmarshal(body, &denied)
		}
		for _, k := range denied {
			addKey(k.ShownKey)
		}
		if list != "" {
			_, _ = i.getList(args[0], list, completedKeys, func(entry json.RawMessage) {
				var k adminapi.ShownKey
				_ = json.Unmarshal(entry, &k)
				addKey(k)
			})
		}
	}
}

// completedKeys is how many keys of a list are offered.
const completedKeys = 100

func limitNames(_ instance, _ []string, add func(words ...string)) {
	add("unlimited")
	for _, a := range algorithms.All() {
		add(a.Name)
	}
}
