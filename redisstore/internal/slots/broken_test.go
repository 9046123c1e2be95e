package slots_test

import (
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/errtest"
)

const table, arithmetic, take = "slots.go", "../../../internal/wire/wiretest/slots.go", "../../../algorithms/take.go"

// brokenRule is a rule of the Table or of the arithmetic, and a change of a function that breaks it.
type brokenRule struct{ rule, file, old, broken string }

var brokenRules = []brokenRule{
	{"a Set waits for takes in flight", table, "case k.setInFlight, t.needsSet(k) && k.inFlight > 0:", "case k.setInFlight:"},
	{"all wait for a Set in flight", table, "case k.setInFlight, t.needsSet(k) && k.inFlight > 0:", "case t.needsSet(k) && k.inFlight > 0:"},
	{"takes wait for a Set that waits", table, "case k.setInFlight, t.needsSet(k) && k.inFlight > 0:", "case k.setInFlight, k.held < k.counted && k.inFlight > 0:"},
	{"no Set is sent beside takes", table, "if t.needsSet(k) && k.inFlight == 0 {", "if t.needsSet(k) {"},
	{"a higher count is no loss", table, "found < k.counted", "true"},
	{"a lower count is a loss", table, "found < k.counted", "false"},
	{"a lost operation may still run", table, "return max(k.blockedUntil-now, 0)", "return 0"},
	{"a lost Set may still run", table, "k.blockedUntil = max(k.blockedUntil, until)", "if !op.Set {\nk.blockedUntil = max(k.blockedUntil, until)\n}"},
	{"after a loss the key is set", table, "k.stale = true\n\tk.blockedUntil", "k.blockedUntil"},
	{"a lost operation is not repeated", table, "k.blockedUntil = max(k.blockedUntil, until)", "k.blockedUntil = 0 * until"},
	{"a Set that did not run is repeated", table, "k.stale, k.endsLine = k.stale || op.Set,", "k.stale, k.endsLine = k.stale,"},
	{"a wrong count is noticed", table, "found != k.counted", "false && found != k.counted"},
	{"and is remembered until it is set", table, "k.lastUsed = now // the", "// the"},
	{"overlapping takes prove nothing", table, "if !op.Set && k.alone && found", "if !op.Set && found"},
	{"the count is set again and again", table, "setEvery: expiry / 3", "setEvery: expiry * 100"},
	{"also a count of 0", table, "maxIdle: maxIdle}", "maxIdle: 0}"},
	{"a key in use is not forgotten", table, "if k.held == 0 && k.inFlight == 0 && now", "if k.inFlight == 0 && now"},
	{"nor one with a lost operation that may still run", table, "} else if k.idle != inUse && now >= k.blockedUntil {", "} else if k.idle != inUse {"},
	{"keys whose operations are lost are idle, too", table, "return unconfirmed\n", "return inUse\n"},
	{"Due forgets the keys that could not be forgotten", table, "return k.idle != inUse && t.hasTooManyIdle()", "return false"},
	{"confirmed keys are forgotten first", table, "if n := len(t.confirmed); n > 0 {", "if n := len(t.confirmed); n > 0 && k.idle == confirmed {"},
	{"requests of another store count", table, "k.held++", ""},
	{"and are sent to Redis", table, "return k.stale || k.held != k.counted", "return k.stale || k.held < k.counted"},
	{"what a message gives back isn't held", table, "k.held += taken", "k.held += max(taken, 0)"},
	{"what a message gives back isn't counted", table, "k.counted += taken", "k.counted += max(taken, 0)"},
	{"sets are spread", table, "t.credit >= t.setEvery && ", "false && "},
	{"counts expire", arithmetic, "if i.Expires <= now {", "if i.Expires <= now && false {"},
	{"a clock that was set back delays no expiry", arithmetic, "min(i.Expires, now+expiry)", "i.Expires"},
	{"each write renews the expiry", arithmetic, "i.Count, i.Expires = count, expires", "i.Count = count"},
	{"the limit is the limit", take, "c.InFlight+c.Ahead < c.Limit", "c.InFlight+c.Ahead <= c.Limit"},
}

// Each rule of the Table and of the arithmetic is needed: without it a test fails.
func TestModelFindsBrokenRules(t *testing.T) {
	if testing.Short() {
		t.Skip("compiles this package once more")
	}
	program := compileBroken(t)
	if fails, said := program.fails(t, 0); fails {
		t.Fatalf("a test fails although no rule is broken:\n%s", said)
	}
	for n, b := range brokenRules {
		t.Run(b.rule, func(t *testing.T) {
			found, said := program.fails(t, n+1)
			if !found {
				t.Fatalf("nothing fails without %q:\n%s", b.old, said)
			}
			t.Log(said)
		})
	}
}

// brokenProgram is the path of a program with the tests of this package. The environment variable BROKEN_RULE
// chooses the rule that is broken: 1 is the first of brokenRules, and 0 is none.
type brokenProgram string

// compileBroken compiles this package once, with all broken rules. A function with rules has its own text, and
// before it one text for each broken rule:
//
//	func (t *Table) Leave() {
//		if brokenRule == 7 { ...; return }
//		...
//	}
func compileBroken(t *testing.T) brokenProgram {
	t.Helper()
	dir, replace := t.TempDir(), make(map[string]string)
	overlay := func(file, text string) {
		t.Helper()
		path, err := filepath.Abs(file)
		errtest.None(t, err)
		replace[path] = filepath.Join(dir, fmt.Sprint(len(replace), ".go"))
		errtest.None(t, os.WriteFile(replace[path], []byte(text), 0o600))
	}
	for _, file := range []string{table, arithmetic, take} {
		overlay(file, withBrokenRules(t, file))
	}
	for file, of := range map[string]string{table: "slots", arithmetic: "wiretest", take: "algorithms"} {
		overlay(filepath.Join(filepath.Dir(file), "broken.go"), "package "+of+`
			import ("os"; "strconv")
			var brokenRule, _ = strconv.Atoi(os.Getenv("BROKEN_RULE"))`)
	}
	text, err := json.Marshal(map[string]any{"Replace": replace})
	errtest.None(t, err)
	file, program := filepath.Join(dir, "overlay.json"), filepath.Join(dir, "broken.test")
	errtest.None(t, os.WriteFile(file, text, 0o600))
	build := exec.CommandContext(t.Context(), "go", "test", "-c", "-vet=off", "-ldflags=-s -w", "-o", program, "-overlay", file, ".")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%s", out)
	}
	return brokenProgram(program)
}

// withBrokenRules returns the text of a file, with all of its broken rules.
func withBrokenRules(t *testing.T, file string) string {
	t.Helper()
	source, err := os.ReadFile(file)
	errtest.None(t, err)
	text := string(source)
	parsed, err := parser.ParseFile(token.NewFileSet(), file, source, 0)
	errtest.None(t, err)
	offset := func(p token.Pos) int { return int(p - parsed.FileStart) }
	broken := make(map[int]string) // by the offset at which a body begins
	for n, b := range brokenRules {
		if b.file != file {
			continue
		}
		if strings.Count(text, b.old) != 1 {
			t.Fatalf("%s has %q %d times, want once", file, b.old, strings.Count(text, b.old))
		}
		at := strings.Index(text, b.old)
		in := slices.IndexFunc(parsed.Decls, func(d ast.Decl) bool { return offset(d.Pos()) <= at && at < offset(d.End()) })
		f, isFunction := parsed.Decls[in].(*ast.FuncDecl)
		if !isFunction {
			t.Fatalf("%q is in no function", b.old)
		}
		from, to := offset(f.Body.Lbrace)+1, offset(f.Body.Rbrace)
		body := strings.Replace(text[from:to], b.old, b.broken, 1)
		if f.Type.Results == nil {
			body += "\nreturn"
		}
		broken[from] += fmt.Sprintf("\nif brokenRule == %d {%s\n}\n", n+1, body)
	}
	var all strings.Builder
	for at := range len(text) {
		all.WriteString(broken[at])
		all.WriteByte(text[at])
	}
	return all.String()
}

var failure = regexp.MustCompile(`(?m)^--- FAIL.*$|^\s+(slots|flood)_test.go.*$`)

// fails runs the other tests with a broken rule, and returns whether one of them fails, and its output. The slowest
// tests, and many programs, run only if the others find nothing.
func (p brokenProgram) fails(t *testing.T, rule int) (fails bool, said string) {
	t.Helper()
	tries := [][]string{
		{"-slots.seeds=1", "-test.skip=BrokenRules|FloodOfKeys$|SetsAreSpread/50000"},
		{"-slots.seeds=1", "-slots.first=1355", "-test.run=ThatForgets"}, // finds alone a lost operation that may still run
		{"-slots.seeds=100", "-test.run=^TestModel$"},
		{"-slots.seeds=2000", "-test.skip=BrokenRules"},
	}
	if rule == 0 {
		tries = tries[:1]
	}
	var out []byte
	for _, arguments := range tries {
		run := exec.CommandContext(t.Context(), string(p), append(arguments, "-test.failfast")...)
		run.Env = append(os.Environ(), fmt.Sprint("BROKEN_RULE=", rule))
		var err error
		if out, err = run.CombinedOutput(); err == nil {
			continue
		}
		lines := failure.FindAllString(string(out), -1)
		if len(lines) == 0 {
			t.Fatalf("%s", out)
		}
		return true, strings.Join(lines, "\n")
	}
	return false, string(out)
}
