// Command bench measures Caddy with the rate limiter beside Caddy without it, and beside other
// limiters: requests a second, processor time, latency and memory. It builds each Caddy, starts
// it and redis-server, and loads them. Setups take turns, since absolute numbers say little
// where the load comes from the same machine. Linux only.
//
// A whole run takes less than ten minutes and writes ../docs/performance.md. A run of a part,
// or a quick one, only prints. A server that does not answer as it should is a failure.
package main

import (
	"flag"
	"fmt"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

var (
	only        = flag.String("only", "", "the `parts` to run: memory, bodies, redis, redis256, cluster, cluster256, far, crowd, keys")
	quick       = flag.Bool("quick", false, "run a short trial")
	caddyBinary = flag.String("caddy", "", "a Caddy `program` to measure instead of one from this checkout")
	mholtBinary = flag.String("mholt", "", "also measure this Caddy `program`, built with github.com/mholt/caddy-ratelimit")
)

func main() {
	log.SetFlags(0)
	flag.Parse()
	if err := run(); err != nil {
		log.Fatal("bench: ", err)
	}
}

func run() error {
	dir, err := os.MkdirTemp("", "bench")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)

	all, growths := parts(), growths()
	names := []string{"keys"}
	for _, p := range all {
		names = append(names, p.name)
	}
	chosen := strings.Split(*only, ",")
	if *only == "" {
		chosen = names
	}
	for _, name := range chosen {
		if !slices.Contains(names, name) {
			return fmt.Errorf("no part is called %q; parts are %s", name, strings.Join(names, ", "))
		}
	}
	all = slices.DeleteFunc(all, func(p *part) bool { return !slices.Contains(chosen, p.name) })
	if !slices.Contains(chosen, "keys") {
		growths = nil
	}
	for _, p := range all {
		left += p.planned()
	}
	for _, g := range growths {
		left += g.planned()
	}

	b := &bench{dir: dir, programs: map[string]string{mholt: *mholtBinary}}
	if err := b.build(); err != nil {
		return err
	}
	for _, p := range all {
		if err := b.measure(p); err != nil {
			for _, s := range p.setups {
				s.fault = err
			}
		}
	}
	for _, g := range growths {
		g.fault = b.grow(g)
	}
	return publish(all, growths)
}

// publish prints the report, and writes it into the documentation if the run was a whole one
// and all servers answered as they should.
func publish(all []*part, growths []*growth) error {
	text := report(all, growths)
	fmt.Print(text)
	var failed []string
	for _, p := range all {
		for _, s := range p.setups {
			if s.fault != nil {
				failed = append(failed, fmt.Sprintf("%s, %s: %v", p.name, s.name, s.fault))
			}
		}
	}
	for _, g := range growths {
		if g.fault != nil {
			failed = append(failed, fmt.Sprintf("keys, %s: %v", g.program, g.fault))
		}
	}
	if len(failed) > 0 {
		return fmt.Errorf("these did not answer as they should:\n%s", strings.Join(failed, "\n"))
	}
	if *quick || *only != "" {
		return nil
	}
	return writeDocs("../docs", text, plot(all))
}

// bench runs parts.
type bench struct {
	dir      string
	programs map[string]string
}

// build makes the programs that are measured.
func (b *bench) build() error {
	step(0, "building two Caddys")
	build := exec.Command("go", "build", "-o", b.dir, "./"+ours, "./"+references)
	build.Stderr = os.Stderr
	b.programs[ours] = filepath.Join(b.dir, ours)
	b.programs[references] = filepath.Join(b.dir, references)
	if *caddyBinary != "" {
		b.programs[ours] = *caddyBinary
	}
	return build.Run()
}

var left time.Duration // that the steps to come are planned to take

// step says on standard error what is done next.
func step(planned time.Duration, format string, args ...any) {
	log.Printf("%s; about %v left", fmt.Sprintf(format, args...), left.Round(time.Second))
	left -= planned
}

func (p *part) round() time.Duration {
	return time.Duration(len(p.setups)) * (p.turn + 20*time.Millisecond)
}

func (p *part) planned() time.Duration { return time.Duration(p.rounds+1) * p.round() }

// measure starts the servers of a part and lets them take turns. A setup whose server does not
// answer as it should has no other turn.
func (b *bench) measure(p *part) error {
	var all []*running
	for _, s := range p.setups {
		r := &running{setup: s}
		defer r.stop()
		if err := r.start(b, p); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		all = append(all, r)
	}
	for round := range p.rounds + 1 {
		step(p.round(), "%s, round %d of %d", p.name, round, p.rounds) // round 0 warms up
		for _, r := range all {
			if r.fault != nil {
				continue
			}
			if r.fault = r.turn(p.turn, round == 0); r.fault != nil {
				log.Printf("%s, %s failed: %v", p.name, r.name, r.fault)
			}
		}
	}
	return nil
}
