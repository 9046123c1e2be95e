package ratelimit

import (
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"go.uber.org/zap"
)

// Cost is a number, or text with placeholders; in JSON a number or a string.
type Cost string

// UnmarshalJSON implements [json.Unmarshaler].
func (c *Cost) UnmarshalJSON(data []byte) error {
	var number json.Number
	if len(data) > 0 && data[0] != '"' && json.Unmarshal(data, &number) == nil {
		*c = Cost(number)
		return nil
	}
	var text string
	if json.Unmarshal(data, &text) != nil {
		return fmt.Errorf("cost must be a number or a string with placeholders, not %.100s", data)
	}
	*c = Cost(text)
	return nil
}

// MarshalJSON implements [json.Marshaler].
func (c Cost) MarshalJSON() ([]byte, error) {
	if _, err := strconv.ParseFloat(string(c), 64); err == nil && json.Valid([]byte(c)) {
		return []byte(c), nil
	}
	return json.Marshal(string(c))
}

// checkCost judges a cost that is the same for all requests.
func (c *Zone) checkCost() error {
	if c.Cost == "" || strings.Contains(string(c.Cost), "{") {
		return nil
	}
	_, err := parseCost(string(c.Cost))
	return err
}

// maxCost is the largest cost of a request; a larger one counts as this.
const maxCost = math.MaxInt32

// parseCost reads a number from 0, which fractions may have.
func parseCost(text string) (int64, error) {
	n, err := strconv.ParseFloat(text, 64)
	if math.IsInf(n, 1) { // also for numbers too large to be parsed
		return maxCost, nil
	}
	if err != nil || math.IsNaN(n) || math.Signbit(n) {
		return 1, fmt.Errorf("cost must be a number from 0 or a placeholder, not %q", text)
	}
	return int64(math.Ceil(min(n, maxCost))), nil
}

// costOf returns what a request is worth.
func (z *zone) costOf(repl *caddy.Replacer) int64 {
	if z.costText == "" {
		return z.cost
	}
	text := repl.ReplaceAll(z.costText, "")
	cost, err := parseCost(text)
	if err != nil && !z.badCost.Swap(true) {
		z.logger.Warn("a cost is no number from 0: such requests count as 1 (said once)",
			zap.String("zone", z.name), zap.String("cost", z.costText))
	}
	return cost
}
