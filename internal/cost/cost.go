// Package cost computes the costs of requests: sums of numbers, and of values of a request or its response. It never knows
// where the values come from.
package cost

import (
	"math"
	"math/bits"
	"strconv"
	"strings"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/options"
)

// Max is the largest cost of a request, in events. Larger sums count as Max.
const Max = math.MaxInt32

const (
	unit      = 1_000_000               // numbers are kept in millionths
	unitUnit  = unit * unit             // of a product of two numbers
	maxFactor = 1_000_000 * unit        // the largest factor
	maxValue  = 10_000_000_000_000      // values above count as this
	maxTerms  = 16                      // of a sum
	maxNumber = uint64(maxValue) * unit // fits into 64 bits; 16 products of it and maxFactor fit into 128
)

// Sum is a sum of terms. It is immutable.
type Sum struct {
	text     string
	terms    []term
	constant uint64 // the sum of the terms that are numbers, in millionths
	min, max int64  // events
}

// term is the value of a placeholder, multiplied by a factor.
type term struct {
	factor uint64   // in millionths
	values []string // placeholders in braces; the first with a number counts
}

// String returns the sum as it was written.
func (s *Sum) String() string { return s.text }

// Fixed returns the cost in events if it is the same for all requests.
func (s *Sum) Fixed() (events int64, fixed bool) {
	if len(s.terms) > 0 {
		return 0, false
	}
	events, _ = s.Of(nil)
	return events, true
}

// Placeholders returns the names of the placeholders in the sum.
func (s *Sum) Placeholders() (names []string) {
	for _, t := range s.terms {
		for _, v := range t.values {
			names = append(names, strings.Trim(v, "{}"))
		}
	}
	return names
}

// Most returns the largest cost that the sum can give, in events.
func (s *Sum) Most() int64 {
	if events, fixed := s.Fixed(); fixed {
		return events
	}
	return s.max
}

// Least returns the smallest cost that the sum can give, in events.
func (s *Sum) Least() int64 {
	events, _ := s.Of(func(string) string { return "0" })
	return events
}

// Of returns the cost of a request in events, rounded up once. read returns the value of a placeholder in braces. A
// value is a number from 0, such as 12.5. A term without a value counts 0. If no term has a value, known is false, and
// events is the sum of the constants, or 1 without any. min and max hold in each case.
func (s *Sum) Of(read func(placeholder string) string) (events int64, known bool) {
	known = len(s.terms) == 0
	high, low := bits.Mul64(s.constant, unit)
	for _, t := range s.terms {
		for _, v := range t.values {
			value, ok := parseValue(read(v))
			if !ok {
				continue
			}
			known = true
			var carry uint64
			productHigh, productLow := bits.Mul64(value, t.factor)
			low, carry = bits.Add64(low, productLow, 0)
			high, _ = bits.Add64(high, productHigh, carry)
			break
		}
	}
	if !known && s.constant == 0 {
		return s.bound(1), false
	}
	if high >= unitUnit { // the quotient would not fit
		return s.bound(Max), known
	}
	quotient, rest := bits.Div64(high, low, unitUnit)
	if quotient < Max && rest > 0 {
		quotient++
	}
	return s.bound(int64(min(quotient, Max))), known
}

func (s *Sum) bound(events int64) int64 { return min(max(events, s.min), s.max) }

// parseValue reads a value in millionths. Further decimals are rounded up.
func parseValue(text string) (value uint64, ok bool) {
	text = strings.TrimSpace(text)
	if value, ok = parseDecimal(text); ok {
		return value, true
	}
	number, err := options.ParseNumber(text) // such as 1.5e3
	switch {
	case math.IsInf(number, 1): // the number is too large to be parsed
		return maxNumber, true
	case err != nil || math.Signbit(number):
		return 0, false
	}
	return parseDecimal(strconv.FormatFloat(min(number, maxValue), 'f', -1, 64))
}

// parseDecimal reads digits with at most one point in millionths. Further decimals are rounded up.
func parseDecimal(text string) (value uint64, ok bool) {
	whole, fraction, _ := strings.Cut(text, ".")
	if whole+fraction == "" || strings.Trim(whole, "0123456789") != "" || strings.Trim(fraction, "0123456789") != "" {
		return 0, false
	}
	if whole = strings.TrimLeft(whole, "0"); len(whole) > 13 {
		return maxNumber, true
	}
	for _, digit := range whole {
		value = value*10 + uint64(digit-'0')
	}
	for i := range 6 {
		value *= 10
		if i < len(fraction) {
			value += uint64(fraction[i] - '0')
		}
	}
	if len(fraction) > 6 && strings.Trim(fraction[6:], "0") != "" {
		value++
	}
	return min(value, maxNumber), true
}
