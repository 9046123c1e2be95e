package slots_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Each rule of the Table and of the arithmetic is needed: without it a test fails.
func TestModelFindsBrokenRules(t *testing.T) {
	if testing.Short() {
		t.Skip("compiles this package many times")
	}
	const table, arithmetic, take = "slots.go", "../../../algorithms/slots.go", "../../../algorithms/take.go"
	for _, b := range []struct{ rule, file, old, broken string }{
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
		{"a Set that did not run is repeated", table, "k.stale = k.stale || op.Set", ""},
		{"a wrong count is noticed", table, "found != k.counted", "false && found != k.counted"},
		{"overlapping takes prove nothing", table, "if !op.Set && k.alone && found", "if !op.Set && found"},
		{"the count is set again and again", table, "setEvery: expiry / 3", "setEvery: expiry * 100"},
		{"also a count of 0", table, "maxIdle = 10_000", "maxIdle = 0"},
		{"a key in use is not forgotten", table, "if k.held == 0 && k.inFlight == 0 && now", "if k.inFlight == 0 && now"},
		{"nor one with a lost operation that may still run", table, "} else if k.idle != inUse && now >= k.blockedUntil {", "} else if k.idle != inUse {"},
		{"keys whose operations are lost are idle, too", table, "return unconfirmed\n", "return inUse\n"},
		{"Due forgets the keys that could not be forgotten", table, "if k.idle != inUse && t.hasTooManyIdle()", "if false"},
		{"confirmed keys are forgotten first", table, "if n := len(t.confirmed); n > 0 {", "if n := len(t.confirmed); n > 0 && k.idle == confirmed {"},
		{"requests of another store count", table, "k.held++", ""},
		{"and are told to Redis", table, "return k.stale || k.held != k.counted", "return k.stale || k.held < k.counted"},
		{"sets are spread", table, "t.credit < t.setEvery || ", "true || "},
		{"counts expire", arithmetic, "i.Expires > now && i.Count", "i.Count"},
		{"a clock that was set back delays no expiry", arithmetic, "if i.Expires > now+expiry", "if false"},
		{"each write renews the expiry", arithmetic, "s[at] = written", "s[at].Count = count"},
		{"the limit is the limit", take, "c.InFlight < c.Limit", "c.InFlight <= c.Limit"},
	} {
		t.Run(b.rule, func(t *testing.T) {
			found, said := breaks(t, b.file, b.old, b.broken)
			if !found {
				t.Fatalf("nothing fails without %q:\n%s", b.old, said)
			}
			t.Log(said)
		})
	}
}

var failure = regexp.MustCompile(`(?m)^--- FAIL.*$|^\s+(slots|flood)_test.go.*$`)

// breaks runs the other tests with a file in which old is replaced, and returns whether one of
// them fails, and its output. Many programs run only if a single one finds nothing, and no other
// test either.
func breaks(t *testing.T, file, old, broken string) (fails bool, said string) {
	t.Helper()
	path, err := filepath.Abs(file)
	if err != nil {
		t.Fatal(err)
	}
	source, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Count(string(source), old) != 1 {
		t.Fatalf("%s has %q %d times, want once", file, old, strings.Count(string(source), old))
	}
	dir := t.TempDir()
	replaced, overlay := filepath.Join(dir, "broken.go"), filepath.Join(dir, "overlay.json")
	text, err := json.Marshal(map[string]any{"Replace": map[string]string{path: replaced}})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(replaced, []byte(strings.Replace(string(source), old, broken, 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(overlay, text, 0o600); err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(dir, "broken.test")
	if out, err := exec.CommandContext(t.Context(), "go", "test", "-c", "-o", program, "-overlay", overlay, ".").CombinedOutput(); err != nil {
		t.Fatalf("%s", out)
	}
	var out []byte
	for _, programs := range []string{"1", "2000"} {
		run := exec.CommandContext(t.Context(), program, "-test.skip=BrokenRules", "-test.failfast", "-slots.seeds="+programs)
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
