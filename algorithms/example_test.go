package algorithms_test

import (
	"fmt"
	"log"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
)

// Decide requests about one budget, with your own clock.
func Example() {
	limit, err := algorithms.NewLimit(algorithms.Quota{Algorithm: "token_bucket", Events: 10, Window: 1_000_000, Burst: 2})
	if err != nil {
		log.Fatal(err)
	}
	var budget algorithms.State
	for _, now := range []algorithms.Micros{0, 0, 0, 100_000} {
		checks := []algorithms.Check{{Limit: limit, State: &budget}}
		allowed := algorithms.Take([]algorithms.ZoneRequest{{Cost: 1, Checks: checks}}, 1_700_000_000_000_000+now)
		d := checks[0].Decision
		fmt.Println(allowed, d.Remaining, d.RetryAfter)
	}
	// Output:
	// true 1 0
	// true 0 0
	// false 0 100000
	// true 0 0
}

// Decide several limits together. A request is charged to all of them, or to none.
func ExampleTake() {
	perMinute, err := algorithms.NewLimit(algorithms.Quota{Algorithm: "gcra", Events: 5, Window: 60_000_000})
	if err != nil {
		log.Fatal(err)
	}
	perDay, err := algorithms.NewLimit(algorithms.Quota{Algorithm: "fixed_window", Events: 1000, Window: 86_400_000_000})
	if err != nil {
		log.Fatal(err)
	}
	var minute, day algorithms.State
	for _, cost := range []int64{3, 3, 2} {
		checks := []algorithms.Check{{Limit: perMinute, State: &minute}, {Limit: perDay, State: &day}}
		allowed := algorithms.Take([]algorithms.ZoneRequest{{Cost: cost, Checks: checks}}, 1_700_000_000_000_000)
		fmt.Println(cost, allowed, checks[0].Decision.Remaining, checks[1].Decision.Remaining)
	}
	// Output:
	// 3 true 2 997
	// 3 false 2 997
	// 2 true 0 995
}

// Give back a part of a charge. Time has given back 2 of the 5 events in the meantime.
func ExampleRefund() {
	limit, err := algorithms.NewLimit(algorithms.Quota{Algorithm: "token_bucket", Events: 10, Window: 1_000_000})
	if err != nil {
		log.Fatal(err)
	}
	var budget algorithms.State
	const start = 1_700_000_000_000_000
	take := func(cost int64, now algorithms.Micros) algorithms.Decision {
		checks := []algorithms.Check{{Limit: limit, State: &budget}}
		algorithms.Take([]algorithms.ZoneRequest{{Cost: cost, Checks: checks}}, now)
		return checks[0].Decision
	}

	charge := take(5, start)
	fmt.Println(charge.Remaining, take(0, start+200_000).Remaining)
	algorithms.Refund(limit, &budget, start+200_000, charge.Receipt, charge.Charged)
	fmt.Println(take(0, start+200_000).Remaining)
	// Output:
	// 5 7
	// 10
}
