package cost

import (
	"math/big"
	"math/rand/v2"
	"strings"
	"testing"
)

// values returns a function that reads placeholders from a text like "a=1 b=2.5".
func values(text string) func(string) string {
	byName := make(map[string]string)
	for pair := range strings.FieldsSeq(text) {
		name, value, _ := strings.Cut(pair, "=")
		byName["{"+name+"}"] = value
	}
	return func(placeholder string) string { return byName[placeholder] }
}

// parse parses a sum without mistakes.
func parse(t testing.TB, text string) *Sum {
	t.Helper()
	s, err := Parse(text, nil)
	if err != nil {
		t.Fatalf("%q: %v", text, err)
	}
	return s
}

func TestOf(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		sum, values string
		want        int64
		known       bool
	}{
		{"2.5", "", 3, true},
		{"1 + 2.5 + 0.5", "", 4, true},
		{"{a}", "a=0", 0, true},
		{"{a}", "a=1.000001", 2, true},
		{"{a}", "a=1.00000001", 2, true},
		{"{a}", "a=1.5e3", 1500, true},
		{"{a}", "a=1e-9", 1, true},
		{"{a}", "a=.5", 1, true},
		{"{a}", "a=007", 7, true},
		{"{a}", "", 1, false},
		{"{a}", "a=-1", 1, false},
		{"{a}", "a=-0", 1, false},
		{"{a}", "a=NaN", 1, false},
		{"{a}", "a=.", 1, false},
		{"{a}", "a=Infinity", 1, false},
		{"{a}", "a=1_000", 1, false},
		{"{a}", "a=0x1p4", 1, false},
		{"{a}", "a=٣", 1, false},
		{"{a}", "a=1e999", Max, true},
		{"{a}", "a=18446744073710", Max, true}, // in millionths it is just above 64 bits
		{"{a}", "a=2147483647.5", Max, true},
		// Fractions of several terms are added, and rounded up once.
		{"0.4*{a} + 0.6*{b}", "a=1 b=1", 1, true},
		{"0.1*{a} + 0.1*{a} + 0.1*{a}", "a=1", 1, true},
		{"0.000001*{a}", "a=10000000000", 10_000, true}, // a response of 10 GB
		{"5 * {out}+{in}", "out=100 in=20", 520, true},
		{"5*{out} + {in}", "in=20", 20, true},
		{"5*{out} + {in}", "", 1, false},
		{"5*{out} + {in} + 10", "", 10, false},
		{"5*{out} + {in} + 10", "out=x in=1", 11, true},
		// Alternatives: the first that has a number.
		{"2*{a} or {b} or {c}", "b=3 c=100", 6, true},
		{"{a} or {b}", "a=0 b=3", 0, true},
		// Bounds.
		{"{a} min 5 max 10", "a=1", 5, true},
		{"{a} min 5 max 10", "a=64000", 10, true},
		{"{a} min 5", "", 5, false},
		{"{a} max 10", "", 1, false},
		{"{a} max 10", "a=0", 0, true},
		{"1000000*{a} + 1000000*{a}", "a=1e300", Max, true},
	} {
		s := parse(t, test.sum)
		if got, known := s.Of(values(test.values)); got != test.want || known != test.known {
			t.Errorf("%s with %s: %d, %v, want %d, %v", test.sum, test.values, got, known, test.want, test.known)
		}
	}
}

// A sum is exact: it is the same as with rational numbers, rounded up.
func TestSumIsExact(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(29, 1))
	number := func(whole int64) string {
		text := big.NewRat(r.Int64N(whole*1000), 1000).FloatString(r.IntN(7))
		return text
	}
	for range 5000 {
		var sum, texts []string
		want := new(big.Rat)
		for i := range 1 + r.IntN(maxTerms) {
			name := string(rune('a' + i))
			factor, value := number(100), number(1_000_000)
			if strings.Trim(factor, "0.") == "" {
				factor = "1"
			}
			f, _ := new(big.Rat).SetString(factor)
			v, _ := new(big.Rat).SetString(value)
			want.Add(want, f.Mul(f, v))
			sum, texts = append(sum, factor+"*{"+name+"}"), append(texts, name+"="+value)
		}
		s := parse(t, strings.Join(sum, " + "))
		ceil := new(big.Int).Add(want.Num(), new(big.Int).Sub(want.Denom(), big.NewInt(1)))
		ceil.Div(ceil, want.Denom())
		if got, _ := s.Of(values(strings.Join(texts, " "))); got != min(ceil.Int64(), Max) {
			t.Fatalf("%v with %v: %d, want %v", s, texts, got, ceil)
		}
	}
}

// The largest factors and values don't overflow.
func TestLargestSum(t *testing.T) {
	t.Parallel()
	s := parse(t, strings.Repeat("1000000*{a} + ", maxTerms)+"2147483647")
	for _, value := range []string{"1e13", "10000000000000", "9999999999999.999999", "1e308"} {
		if got, _ := s.Of(values("a=" + value)); got != Max {
			t.Errorf("%s: %d", value, got)
		}
	}
}

func TestParseErrors(t *testing.T) {
	t.Parallel()
	lacksBraces := func(text string) bool { return strings.HasPrefix(text, "http.") }
	for text, want := range map[string]string{
		"":                                 `has nothing where a number from 0 or a placeholder is expected: write for example`,
		"{a} +":                            `has nothing where a number`,
		"{a":                               `has "{" where a number`,
		"a}":                               `has "a" where a number`,
		"{a}{b}":                           `has "{b}" where the next term or the end is expected: write + between terms`,
		"{a}e-3":                           `has "e-3" where the next term or the end is expected`,
		"{a} + -2*{b}":                     `has "-2" where a number`,
		"http.vars.x":                      "has http.vars.x, the name of a placeholder, without its braces: write {http.vars.x}",
		"1.0000001*{a}":                    "has 1.0000001 with more than six decimals: round it",
		"5*3":                              `has "3" where a placeholder is expected`,
		"0*{a}":                            "has the factor 0: write one above 0, and up to 1000000",
		"1000000.1*{a}":                    "has the factor 1000000.1: write one above 0, and up to 1000000",
		"{a} or":                           `has nothing where a placeholder is expected`,
		"{a} min":                          `has the min "": write a whole number from 0 to 2147483647`,
		"{a} max -1":                       `has the max "-1": write a whole number`,
		"{a} max 2147483648":               `has the max "2147483648"`,
		"{a} max 5 min 1":                  `has "min" where the next term or the end is expected`,
		"{a} min 5 max 1":                  "has a min of 5 above its max of 1",
		"2147483647 + 0.000001":            "is above 2147483647, the largest cost",
		strings.Repeat("{a}+", 16) + "{b}": "has 17 terms with placeholders: write at most 16",
	} {
		if _, err := Parse(text, lacksBraces); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%q: %v\nwant %s", text, err, want)
		}
	}
}

func TestProperties(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]struct {
		most         int64
		fixed        bool
		least        int64
		placeholders string
	}{
		"2.5":                    {3, true, 3, ""},
		"{a}":                    {Max, false, 0, "a"},
		"5*{a} or {b} + {c}":     {Max, false, 0, "a b c"},
		"{a} + 1.5 max 10":       {10, false, 2, "a"},
		"{a} + 2 min 3":          {Max, false, 3, "a"},
		`{header.X} + {query.y}`: {Max, false, 0, "header.X query.y"},
	} {
		s := parse(t, " "+text+" ")
		_, fixed := s.Fixed()
		if s.Most() != want.most || fixed != want.fixed || s.Least() != want.least || strings.Join(s.Placeholders(), " ") != want.placeholders || s.String() != text {
			t.Errorf("%s: most %d, fixed %v, least %d, placeholders %v", s, s.Most(), fixed, s.Least(), s.Placeholders())
		}
	}
}

// Nothing that a client can send makes a cost fail, or takes long.
func FuzzValue(f *testing.F) {
	for _, text := range []string{"1", "1.5e3", "-0", "1e999999999", "0x1p-2", "  7 ", strings.Repeat("9", 100), "0." + strings.Repeat("0", 100) + "1"} {
		f.Add(text)
	}
	s := parse(f, "5*{a} min 2 max 100")
	f.Fuzz(func(t *testing.T, text string) {
		if events, _ := s.Of(func(string) string { return text }); events < 2 || events > 100 {
			t.Errorf("%q: %d", text, events)
		}
	})
}
