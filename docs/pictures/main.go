// Command pictures draws the pictures of docs/algorithms.md: the decisions of each limit about the same
// requests. The decisions are made by package algorithms, so the pictures are always right. Run it from the
// root of the repository:
//
//	go run ./docs/pictures
package main

import (
	"fmt"
	"log"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
)

const (
	directory = "docs/pictures"

	millisecond algorithms.Micros = 1000
	second                        = 1000 * millisecond

	// The pictures begin at a multiple of 5 s since the epoch, where clock-aligned windows begin.
	start = 1_800_000_000 * second
	end   = 20 * second
)

// picture is a picture of a limit. The picture with the name of an algorithm has no options.
type picture struct {
	name  string
	quota algorithms.Quota
	start algorithms.Micros // of the picture, after start
	delay algorithms.Micros // the longest delay of a request; 0 for no delay
}

var pictures = []picture{
	{name: "token_bucket", quota: algorithms.Quota{Algorithm: "token_bucket", Events: 1, Window: second, Burst: 5}},
	{name: "gcra", quota: algorithms.Quota{Algorithm: "gcra", Events: 1, Window: second, Burst: 5}},
	{name: "leaky_bucket", quota: algorithms.Quota{Algorithm: "leaky_bucket", Events: 2, Window: 2 * second, Burst: 5}},
	{name: "fixed_window", quota: algorithms.Quota{Algorithm: "fixed_window", Events: 5, Window: 5 * second}},
	{name: "calendar", quota: algorithms.Quota{Algorithm: "calendar", Events: 5, Period: "day"}, start: 16*60*60*second - 6*second},
	{name: "sliding_window", quota: algorithms.Quota{Algorithm: "sliding_window", Events: 5, Window: 5 * second}},
	{name: "sliding_log", quota: algorithms.Quota{Algorithm: "sliding_log", Events: 5, Window: 5 * second}},
	{name: "sliding_log_min_interval", quota: algorithms.Quota{
		Algorithm: "sliding_log", Events: 5, Window: 5 * second, MinInterval: 500 * millisecond,
	}},
	{name: "smooth", quota: algorithms.Quota{Algorithm: "smooth", Events: 1, Window: second, Burst: 5}},
	{name: "smooth_warm_up", quota: algorithms.Quota{Algorithm: "smooth", Events: 2, Window: second, WarmUp: 4 * second}, delay: 4 * second},
	{name: "delay", quota: algorithms.Quota{Algorithm: "token_bucket", Events: 1, Window: second, Burst: 5}, delay: 3 * second},
}

// arrivals has the instants of the requests, in ms. The first request is alone. Two bursts follow, of
// which the second comes too soon, then a trickle that is a little too fast, and a late burst.
var arrivals = []algorithms.Micros{
	1000,
	4700, 4850, 5000, 5150, 5300, 5450,
	6200, 6350, 6500, 6650, 6800, 6950,
	8000, 8800, 9600, 10_400, 11_200, 12_000,
	16_000, 16_150, 16_300, 16_450, 16_600, 16_750, 16_900,
}

// answer is the answer to a request.
type answer struct {
	arrived algorithms.Micros
	wait    algorithms.Micros // how long it was delayed
	passed  bool
}

// level is the number of remaining events from an instant on.
type level struct {
	from      algorithms.Micros
	remaining int64
}

func main() {
	for _, p := range pictures {
		svg, err := p.draw()
		if err == nil {
			err = os.WriteFile(filepath.Join(directory, p.name+".svg"), svg, 0o644)
		}
		if err != nil {
			log.Fatal(fmt.Errorf("%s: %w", p.name, err))
		}
	}
}

func (p picture) draw() ([]byte, error) {
	limit, err := algorithms.NewLimit(p.quota)
	if err != nil {
		return nil, err
	}
	if p.delay > 0 {
		if err := limit.CheckDelay(p.delay); err != nil {
			return nil, err
		}
	}
	caption, err := p.caddyfile()
	if err != nil {
		return nil, err
	}
	answers, levels := p.play(limit)
	return render(caption, answers, levels, p.delay > 0), nil
}

// play sends the requests to an untouched budget. Between two requests the remaining events can only grow, at
// the instants that MoreAfter says.
func (p picture) play(limit *algorithms.Limit) (answers []answer, levels []level) {
	state := new(algorithms.State)
	now := algorithms.Micros(0)
	take := func(cost int64) algorithms.Decision {
		requests := []algorithms.ZoneRequest{{Cost: cost, MaxWait: p.delay, Checks: []algorithms.Check{{Limit: limit, State: state}}}}
		algorithms.Take(requests, start+p.start+now)
		return requests[0].Checks[0].Decision
	}
	d := take(0)
	levels = append(levels, level{now, d.Remaining})
	growUntil := func(next algorithms.Micros) {
		for d.MoreAfter > 0 && now+d.MoreAfter < next {
			now += d.MoreAfter
			d = take(0)
			levels = append(levels, level{now, d.Remaining})
		}
		now = next
	}
	for _, arrival := range arrivals {
		growUntil(arrival * millisecond)
		d = take(1)
		answers = append(answers, answer{now, d.Wait, d.Allowed})
		levels = append(levels, level{now, d.Remaining})
	}
	growUntil(end)
	return answers, levels
}

// caddyfile returns the lines of the limit in a Caddyfile. It supports only the options of the pictures.
func (p picture) caddyfile() ([]string, error) {
	plain := p.quota
	plain.MinInterval, plain.WarmUp = 0, 0
	limit, err := algorithms.NewLimit(plain)
	if err != nil {
		return nil, err
	}
	var options []string
	for _, option := range []struct {
		name  string
		value algorithms.Micros
	}{{"min_interval", p.quota.MinInterval}, {"warm_up", p.quota.WarmUp}} {
		if option.value > 0 {
			options = append(options, "    "+option.name+" "+duration(option.value))
		}
	}
	lines := []string{limit.String()}
	if len(options) > 0 {
		lines = slices.Concat([]string{limit.String() + " {"}, options, []string{"}"})
	}
	if p.delay > 0 {
		lines = append(lines, "delay "+duration(p.delay))
	}
	return lines, nil
}

func duration(m algorithms.Micros) string {
	return (time.Duration(m) * time.Microsecond).String()
}
