package redisstore

import (
	"context"
	"encoding/json"
	"flag"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/errtest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/redistest"
)

// mutantSeeds holds for each mutant the seed of a program that catches it, so that one program is
// enough as long as neither changes. -update writes it.
const mutantSeeds = "testdata/mutant_seeds.json"

var update = flag.Bool("update", false, "write "+mutantSeeds)

// Programs of the parity test find every mutant. A mutant without a seed, or whose seed no longer catches it,
// is searched for: among a few programs, and with -update among many.
func TestParityCatchesMutants(t *testing.T) {
	t.Parallel()
	redistest.Long(t)
	client := redistest.Start(t).Client
	seeds := make(map[string]uint64)
	text, err := os.ReadFile(mutantSeeds)
	if err == nil {
		err = json.Unmarshal(text, &seeds)
	}
	if err != nil && !*update {
		t.Fatal(err)
	}
	every, most := everyScript(), uint64(300)
	if *update {
		most = 30_000
	}
	for _, m := range mutants {
		t.Run(m.name, func(t *testing.T) {
			if !strings.Contains(every, m.old) {
				t.Fatalf("the script no longer holds %q", m.old)
			}
			client.ScriptFlush(context.Background())
			script := loader(t, client, func(s string) string { return strings.ReplaceAll(s, m.old, m.new) })
			catches := func(seed uint64) bool {
				p := newProgram(seed)
				if !strings.Contains(p.features().Script(), m.old) {
					return false // its script has no such mistake
				}
				diff, err := p.difference(client, script)
				return err != nil || diff != ""
			}
			client.FlushAll(context.Background())
			seed, known := seeds[m.name]
			if known && catches(seed) {
				return
			}
			client.FlushAll(context.Background())
			for seed = range most {
				if catches(seed) {
					seeds[m.name] = seed
					t.Logf("caught by seed %d: run this test with -update, which keeps it", seed)
					return
				}
			}
			t.Errorf("not caught by the first %d programs: run this test with -update, which tries more", most)
		})
	}
	if *update {
		maps.DeleteFunc(seeds, func(name string, _ uint64) bool {
			return !slices.ContainsFunc(mutants, func(m mutant) bool { return m.name == name })
		})
		text, err := json.MarshalIndent(seeds, "", "\t")
		if err == nil {
			err = os.WriteFile(mutantSeeds, append(text, '\n'), 0o644)
		}
		errtest.Report(t, err)
	}
}

// everyScript returns the script of everything that can be decided.
func everyScript() string {
	var every algorithms.Features
	for _, a := range algorithms.All() {
		every = every.With(a)
	}
	return every.WithBan().WithSlots().Script()
}
