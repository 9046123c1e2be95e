package docs_test

import (
	"fmt"
	"go/token"
	"go/types"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/errtest"
)

// Each row of docs/guarantees.md names a test. Each test on this page and on docs/proof.md is in the file that the
// page links to.
func TestGuarantees(t *testing.T) {
	const file = "docs/guarantees.md"
	page := caddytest.ReadFile(t, file)
	testLink := regexp.MustCompile("\\[`(Test\\w+)`\\]\\(([^)]*_test\\.go)\\)")
	tests := testLink.FindAllStringSubmatch(page, -1)
	if named := strings.Count(page, "`Test"); len(tests) != named || named < 60 {
		t.Errorf("%s links %d of %d tests to their files", file, len(tests), named)
	}
	const proof = "docs/proof.md"
	more := testLink.FindAllStringSubmatch(caddytest.ReadFile(t, proof), -1)
	if len(more) < 10 {
		t.Errorf("%s names %d tests", proof, len(more))
	}
	for _, test := range append(tests, more...) {
		source := filepath.Join("docs", test[2])
		if !strings.Contains(caddytest.ReadFile(t, source), fmt.Sprintf("\nfunc %s(t *testing.T) {\n", test[1])) {
			t.Errorf("there is no %s in %s", test[1], source)
		}
	}
	for line := range strings.Lines(page) {
		isRow := strings.HasPrefix(line, "| ") && !strings.HasPrefix(line, "| event |")
		if isRow && !strings.Contains(line, "`Test") {
			t.Errorf("%s: no test for %s", file, line)
		}
	}
}

// Without Redis each instance has its own budgets, and a restart begins with full ones.
func TestRestartWithoutRedis(t *testing.T) {
	t.Parallel()
	config := caddytest.Site("zone api {\n fixed_window 2 1h\n ban 1h\n}")
	c, other := caddytest.StartProcess(t, config), caddytest.Start(t, config)
	useUp := func(c *caddytest.Caddy) {
		t.Helper()
		for _, status := range []int{200, 200, 429, 429} {
			c.Get(t, "/").Want(t, status)
		}
	}
	useUp(c)
	useUp(other)
	errtest.None(t, c.Process.Process.Signal(os.Interrupt))
	<-c.Ended
	c.CloseIdleConnections()
	errtest.None(t, c.Run(t))
	useUp(c)
}

// If a second directive denies a request, the charge of the first one stays.
func TestSecondDirectiveDenies(t *testing.T) {
	t.Parallel()
	caddytest.EachStore(t, func(t *testing.T, use string) {
		c := caddytest.Start(t, strings.Replace(caddytest.Site("zone first {\n gcra 5 1000h\n}\n"+use), "respond ok",
			fmt.Sprintf("route {\n rate_limit @limited {\n zone second {\n gcra 1 1000h\n }\n %s}\n respond ok\n}", use), 1))
		for i, status := range []int{200, 429, 429} {
			r := c.Get(t, "/")
			r.Want(t, status)
			if want := fmt.Sprintf(`^"first";r=%d;t=\d+, "second";r=0;t=\d+$`, 4-i); !regexp.MustCompile(want).MatchString(r.Field("RateLimit")) {
				t.Errorf("RateLimit: %s, want %s", r.Field("RateLimit"), want)
			}
		}
	})
}

// The bounds in SECURITY.md equal the constants of the code.
func TestSecurityBounds(t *testing.T) {
	page := caddytest.ReadFile(t, "SECURITY.md")
	bounds := regexp.MustCompile("(?m)^\\| ([0-9,]+)( ms| s)? \\| .* \\| \\[`(\\w+)`\\]\\((.*)\\) \\|$").FindAllStringSubmatch(page, -1)
	if len(bounds) < 25 {
		t.Errorf("only %d bounds found", len(bounds))
	}
	units := map[string]string{"": "", " ms": " * time.Millisecond", " s": " * time.Second"}
	values := strings.NewReplacer("time.Millisecond", "1_000_000", "time.Second", "1_000_000_000", "math.MaxInt32", "(1<<31 - 1)")
	value := func(expression string) string {
		v, err := types.Eval(token.NewFileSet(), nil, token.NoPos, values.Replace(expression))
		errtest.None(t, err, expression)
		return v.Value.ExactString()
	}
	for _, b := range bounds {
		source := caddytest.ReadFile(t, b[4])
		constant := regexp.MustCompile(`(?m)^(?:const |\t)` + b[3] + ` += (.*?)(?: //.*)?$`).FindStringSubmatch(source)
		if constant == nil {
			t.Errorf("there is no constant %s in %s", b[3], b[4])
		} else if want := value(constant[1]); value(strings.ReplaceAll(b[1], ",", "")+units[b[2]]) != want {
			t.Errorf("SECURITY.md: %s is %s%s, want %s", b[3], b[1], b[2], constant[1])
		}
	}
}
