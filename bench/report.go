package main

import (
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"
)

// row is a line of the summary. It is left out where value is false.
type row struct {
	what, reference string
	value           func(measured) (string, bool)
}

// measured has the setups that answered as they should, as "part/name".
type measured map[string]*setup

func rows() []row {
	return []row{
		{"memory: requests/s", "bare Caddy", ratio("memory/memory", "memory/"+bare)},
		{"memory, mholt/caddy-ratelimit: requests/s", "bare Caddy", ratio("memory/"+mholt, "memory/"+bare)},
		{"memory: processor time in Caddy", "bare Caddy", added(inCaddy, "memory/memory", "memory/"+bare)},
		{"memory: processor time in Caddy", "bare Caddy", timeRatio("memory/memory", "memory/"+bare)},
		{"memory, one key: processor time in Caddy", "bare Caddy", added(inCaddy, "memory/memory, one key", "memory/"+bare)},
		{"memory, one key denied: requests/s", "`respond 429`", ratio("memory/memory, denied", "memory/bare Caddy, status 429")},
		{"memory, one key: requests/s", "100,000 keys", ratio("memory/memory, one key", "memory/memory")},
		{"`calendar`: processor time in Caddy", "`token_bucket`", added(inCaddy, "memory/calendar", "memory/memory")},
		{"`notify`: processor time in Caddy", "without the option", added(inCaddy, "memory/notify", "memory/calendar")},
		{"a sum as `cost`: processor time in Caddy", "without the option", added(inCaddy, "memory/sum as cost", "memory/memory")},
		{
			"key from a JSON field: processor time in Caddy", "a header, same body",
			added(inCaddy, "bodies/JSON field", "bodies/header, JSON body"),
		},
		{
			"key from a form field: processor time in Caddy", "a header, same body",
			added(inCaddy, "bodies/form field", "bodies/header, form"),
		},
		{
			"`settle` by a JSON response: processor time in Caddy", "`settle` by a fixed cost",
			added(inCaddy, "bodies/settle by JSON response", "bodies/settle, fixed cost"),
		},
		{"Redis, 64 connections: requests/s", "redis_rate", ratio("redis/redis", "redis/redis_rate")},
		{"Redis, 256 connections: requests/s", "redis_rate", ratio("redis256/redis", "redis256/redis_rate")},
		{"Redis, 64 connections: requests/s", "the floor", ratio("redis/redis", "redis/floor")},
		{"Redis, 256 connections: requests/s", "the floor", ratio("redis256/redis", "redis256/floor")},
		{"Redis, 64 connections: requests/s", "bare Caddy", ratio("redis/redis", "redis/"+bare)},
		{"Redis: processor time in Caddy", "bare Caddy", added(inCaddy, "redis/redis", "redis/"+bare)},
		{"Redis: processor time in Redis", "", added(inRedis, "redis/redis", "redis/"+bare)},
		{"Redis, one key denied: requests/s", "bare Caddy", ratio("redis/redis, denied", "redis/"+bare)},
		{"Redis, one key: requests/s", "100,000 keys", ratio("redis/redis, one key", "redis/redis")},
		{"three limits: processor time in Redis", "three requests with one limit each", ofThree("redis/three limits", "redis/redis")},
		{"`calendar`: processor time in Redis", "`token_bucket`", added(inRedis, "redis/calendar", "redis/redis")},
		{"`notify`: processor time in Redis", "without the option", added(inRedis, "redis/notify", "redis/calendar")},
		{"`factor`: processor time in Redis", "without the option", added(inRedis, "redis/factor", "redis/redis")},
		{"1000 values of `plan`: processor time in Redis", "without the option", added(inRedis, "redis/plans", "redis/redis")},
		{"`concurrency`: processor time in Caddy", "without the option", added(inCaddy, "redis/concurrency", "redis/redis")},
		{"`concurrency`: processor time in Redis", "without the option", added(inRedis, "redis/concurrency", "redis/redis")},
		{"`settle` with a refund: processor time in Caddy", "without the option", added(inCaddy, "redis/settle", "redis/redis")},
		{"`settle` with a refund: processor time in Redis", "without the option", added(inRedis, "redis/settle", "redis/redis")},
		{"cluster of three, 64 connections: processor time in Redis", "one Redis", added(inRedis, "cluster/three nodes", "cluster/one Redis")},
		{"cluster of three, 64 connections: capacity", "one Redis", capacity("cluster/three nodes", "cluster/one Redis")},
		{"cluster of three, 256 connections: capacity", "one Redis", capacity("cluster256/three nodes", "cluster256/one Redis")},
		{"cluster of six, 256 connections: capacity", "one Redis", capacity("cluster256/six nodes", "cluster256/one Redis")},
		{"the same with `declare_keys`: capacity", "one Redis", capacity("cluster/three nodes, declare_keys", "cluster/one Redis")},
		{"Redis 10 ms away, `concurrency`: requests/s", "without the option", ratio("far/concurrency", "far/plain")},
		{"Redis 10 ms away, `settle` with a refund: requests/s", "without the option", ratio("far/settle", "far/plain")},
		{
			"Redis 10 ms away, `concurrency`, one key: requests/s", "without the option",
			ratio("far/concurrency, one key", "far/plain, one key"),
		},
		{
			"Redis 10 ms away, `settle` with a refund, one key: requests/s", "without the option",
			ratio("far/settle, one key", "far/plain, one key"),
		},
		{"4000 connections, Redis: requests/s", "memory", ratio("crowd/redis", "crowd/memory")},
	}
}

func ratio(of, to string) func(measured) (string, bool) {
	return func(m measured) (string, bool) {
		if m[of] == nil || m[to] == nil {
			return "", false
		}
		return fmt.Sprintf("%.2f", quantile(ratios(m[of], m[to]), 0.5)), true
	}
}

func timeRatio(of, to string) func(measured) (string, bool) {
	return func(m measured) (string, bool) {
		if m[of] == nil || m[to] == nil {
			return "", false
		}
		return fmt.Sprintf("%.2f", inCaddy(m[of])/inCaddy(m[to])), true
	}
}

func ofThree(three, one string) func(measured) (string, bool) {
	return func(m measured) (string, bool) {
		if m[three] == nil || m[one] == nil {
			return "", false
		}
		return fmt.Sprintf("%.2f", inRedis(m[three])/inRedis(m[one])/3), true
	}
}

func added(part func(*setup) float64, of, to string) func(measured) (string, bool) {
	return func(m measured) (string, bool) {
		if m[of] == nil || m[to] == nil {
			return "", false
		}
		tenths := math.Round(10 * (part(m[of]) - part(m[to])))
		return fmt.Sprintf("%+.1f µs", tenths/10+0), true // + 0, because -0 would be printed as -0.0
	}
}

// ratios returns how many requests a setup answered to each of another, round by round.
func ratios(of, to *setup) (all []float64) {
	for i := range min(len(of.rates), len(to.rates)) {
		all = append(all, of.rates[i]/to.rates[i])
	}
	return all
}

func inCaddy(s *setup) float64 { return micros(s.inCaddy, s.requests) }

// inRedis returns the time in all nodes together.
func inRedis(s *setup) float64 {
	total := time.Duration(0)
	for _, one := range s.inRedis {
		total += one
	}
	return micros(total, s.requests)
}

// inBusiest returns the time in the node that took most.
func inBusiest(s *setup) float64 {
	if len(s.inRedis) == 0 {
		return 0
	}
	return micros(slices.Max(s.inRedis), s.requests)
}

// capacity returns how many times as many requests a cluster could decide as one Redis, if its busiest node is the bound.
func capacity(cluster, one string) func(measured) (string, bool) {
	return func(m measured) (string, bool) {
		if m[cluster] == nil || m[one] == nil {
			return "", false
		}
		return fmt.Sprintf("%.2f", inRedis(m[one])/inBusiest(m[cluster])), true
	}
}

// micros returns the microseconds of each of n.
func micros(d time.Duration, n int) float64 {
	return float64(d.Nanoseconds()) / 1000 / float64(max(n, 1))
}

// quantile returns the value below which a part of the values is: 0.5 is the median.
func quantile[T float64 | time.Duration](values []T, part float64) T {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	return sorted[int(part*float64(len(sorted)-1))]
}

// report returns all results as Markdown.
func report(all []*part, growths []*growth) string {
	var b strings.Builder
	b.WriteString(machine())
	m := make(measured)
	for _, p := range all {
		for _, s := range p.setups {
			if s.fault == nil {
				m[p.name+"/"+s.name] = s
			}
		}
	}
	if s := m["memory/"+bare]; s != nil {
		fmt.Fprintf(&b, "- The load generator takes %.1f µs of processor time per request.\n", micros(s.inClient, s.requests))
	}
	b.WriteString("\n### Summary\n\n| quantity | compared with | measured |\n|---|---|--:|\n")
	for _, r := range rows() {
		if value, ok := r.value(m); ok {
			fmt.Fprintf(&b, "| %s | %s | %s |\n", r.what, r.reference, value)
		}
	}
	growths = slices.DeleteFunc(slices.Clone(growths), func(g *growth) bool { return g.fault != nil })
	for _, g := range growths {
		g.summarize(&b)
	}
	b.WriteString("\n![Processor time per request, in Caddy and in Redis](performance.svg)\n")
	for _, p := range all {
		p.report(&b)
	}
	if len(growths) > 0 {
		b.WriteString("\n### Keys in memory\n\n| program | keys | resident memory | per key | p99 | p99.9 |\n|---|--:|--:|--:|--:|--:|\n")
	}
	for _, g := range growths {
		for _, s := range g.stages {
			fmt.Fprintf(&b, "| %s | %d | %d MB | %d B |", g.label(), s.keys, s.total/1_000_000, s.perKey)
			if len(s.waits) == 0 {
				b.WriteString(" | |\n")
				continue
			}
			fmt.Fprintf(&b, " %s | %s |\n", millis(quantile(s.waits, 0.99)), millis(quantile(s.waits, 0.999)))
		}
	}
	return b.String()
}

// label returns the name of the program for readers.
func (g *growth) label() string {
	if g.program == ours {
		return "this module"
	}
	return g.program
}

func (g *growth) summarize(b *strings.Builder) {
	first, last := g.stages[0], g.stages[len(g.stages)-1]
	if len(last.waits) > 0 {
		fmt.Fprintf(b, "| %d keys in memory: p99.9 under full load | %d keys: %s | %s |\n",
			last.keys, first.keys, millis(quantile(first.waits, 0.999)), millis(quantile(last.waits, 0.999)))
	}
	fmt.Fprintf(b, "| %s, %d keys in memory: resident memory per key | | %d B |\n", g.label(), g.stages[1].keys, g.stages[1].perKey)
}

func (p *part) report(b *strings.Builder) {
	fmt.Fprintf(b, "\n### %s\n\n", p.title)
	b.WriteString("| setup | requests/s | compared with | ratio | µs in Caddy | µs in Redis | p99 | p99.9 |\n" +
		"|---|--:|---|--:|--:|--:|--:|--:|\n")
	byName := make(map[string]*setup)
	for _, s := range p.setups {
		byName[s.name] = s
		if s.fault != nil {
			fmt.Fprintf(b, "| %s | failed: %v | | | | | | |\n", s.name, s.fault)
			continue
		}
		fmt.Fprintf(b, "| %s | %.0f | %s |", s.name, quantile(s.rates, 0.5), s.reference)
		if to := byName[s.reference]; to != nil && to.fault == nil {
			fmt.Fprintf(b, " %.2f |", quantile(ratios(s, to), 0.5))
		} else {
			b.WriteString(" |")
		}
		fmt.Fprintf(b, " %.1f |", inCaddy(s))
		if s.redis != "" {
			fmt.Fprintf(b, " %.1f", inRedis(s))
			if len(s.inRedis) > 1 {
				fmt.Fprintf(b, ", at most %.1f in one", inBusiest(s))
			}
		}
		fmt.Fprintf(b, " | %s | %s |\n", millis(quantile(s.waits, 0.99)), millis(quantile(s.waits, 0.999)))
	}
}

func millis(d time.Duration) string { return fmt.Sprintf("%.1f ms", d.Seconds()*1000) }

// machine describes the machine and the programs, as far as they can be found out.
func machine() string {
	const unknown = "unknown"
	line := func(file, name string) string {
		text, _ := os.ReadFile(file)
		for line := range strings.Lines(string(text)) {
			if before, after, found := strings.Cut(line, ":"); found && strings.TrimSpace(before) == name {
				return strings.TrimSpace(after)
			}
		}
		return unknown
	}
	output := func(name string, args ...string) string {
		text, err := exec.Command(name, args...).Output()
		if err != nil {
			return unknown
		}
		return strings.TrimSpace(string(text))
	}
	redis := unknown
	if _, after, found := strings.Cut(output("redis-server", "--version"), "v="); found {
		redis, _, _ = strings.Cut(after, " ")
	}
	return fmt.Sprintf("- Measured on %s at commit %s.\n- Machine: %d cores of %s, %s of memory, Linux %s.\n"+
		"- Programs: %s, Caddy %s, Redis %s.\n",
		time.Now().Format(time.DateOnly), output("git", "describe", "--always", "--dirty"),
		runtime.NumCPU(), line("/proc/cpuinfo", "model name"), line("/proc/meminfo", "MemTotal"), output("uname", "-r"),
		runtime.Version(), output("go", "list", "-m", "-f", "{{.Version}}", "github.com/caddyserver/caddy/v2"), redis)
}

// The report stands between these lines of the page; all else there is written by hand.
const (
	begin = "<!-- make bench writes from here -->\n"
	end   = "<!-- to here -->\n"
)

// writeDocs puts a report and its plot into a directory.
func writeDocs(dir, text string, picture []byte) error {
	file := filepath.Join(dir, "performance.md")
	page, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	replaced, err := replace(string(page), text)
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	return errors.Join(
		os.WriteFile(file, []byte(replaced), 0o644),
		os.WriteFile(filepath.Join(dir, "performance.svg"), picture, 0o644),
	)
}

// replace returns a page with another text between its markers.
func replace(page, text string) (string, error) {
	before, rest, hasBegin := strings.Cut(page, begin)
	_, after, hasEnd := strings.Cut(rest, end)
	if !hasBegin || !hasEnd {
		return "", fmt.Errorf("no lines %q and %q", strings.TrimSpace(begin), strings.TrimSpace(end))
	}
	return before + begin + "\n" + text + "\n" + end + after, nil
}
