package ratelimit

import (
	"bytes"
	"encoding/json"
	"go/parser"
	"go/token"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/errtest"
)

// modulePath is the path of this Go module.
const modulePath = "github.com/caddy-rate-limit/caddy-rate-limit"

// floors are the packages of the product, from top to bottom. A package imports only packages of lower floors. Commands
// are left out, because nothing imports them.
var floors = [][]string{
	{"simulate"},
	{".", "examples/webhook"},
	{"internal/budgets"},
	{"internal/admin", "internal/command", "internal/simulate/configuration"},
	{"internal/routes", "internal/simulate/htmlreport", "internal/simulate/propose"},
	{"internal/limiter", "internal/simulate", "redisstore"},
	{
		"internal/bodies", "internal/cost", "internal/denials", "internal/lines", "internal/placeholder", "internal/simulate/keytable",
		"internal/simulate/report", "internal/statuspage", "internal/telemetry",
	},
	{"internal/keys", "internal/shorthand", "internal/timezones", "redisstore/internal/nodes", "redisstore/internal/replies"},
	{"internal/options", "internal/wire"},
	{"internal/httpfields", "internal/simulate/agenda", "redisstore/internal/sharing", "redisstore/internal/slots", "store"},
	{
		"algorithms", "internal/accesslog", "internal/adminapi", "internal/adminclient", "internal/contentcoding", "internal/defaults", "internal/eventstream",
		"internal/formvalue", "internal/jsonvalue", "internal/keyhash", "internal/palette", "internal/readahead", "internal/terminal",
		"internal/throttle", "internal/topk",
	},
}

// testKits are the packages that only tests and the benchmark import.
var testKits = []string{
	"docs", "internal/caddytest", "internal/e2e", "internal/errtest", "internal/goldentest", "internal/logtest", "internal/redistest",
	"internal/racetest", "internal/relay", "internal/seedtest", "internal/simulate/reporttest",
	"internal/storetest", "internal/wire/wiretest",
}

// withoutCaddy are the packages that work in any Go program.
var withoutCaddy = []string{
	"algorithms", "internal/accesslog", "internal/adminapi", "internal/bodies", "internal/httpfields", "internal/lines",
	"internal/topk", "internal/wire", "redisstore", "store",
}

// onStandardLibrary are the packages that need nothing but the standard library, or other packages in this list.
var onStandardLibrary = []string{
	"algorithms", "internal/adminapi", "internal/defaults", "internal/formvalue", "internal/httpfields", "internal/jsonvalue",
	"internal/topk", "redisstore/internal/slots",
}

// onlySimulated are parts of the paths of packages that a Caddy without package simulate does not compile.
var onlySimulated = []string{"/simulate", "/accesslog", "/fastjson"}

// goPackage is a package as go list describes it.
type goPackage struct {
	ImportPath, Name, Dir  string
	GoFiles, Imports, Deps []string
}

// listed is the output of go list about this module. It takes most of the time of the tests that use it.
var listed = sync.OnceValues(func() ([]byte, error) {
	return exec.Command("go", "list", "-json=ImportPath,Name,Dir,GoFiles,Imports,Deps", "./...").Output()
})

// goPackages returns the packages of this module, by their paths in it. That of the root is ".".
func goPackages(t *testing.T) map[string]goPackage {
	t.Helper()
	output, err := listed()
	errtest.None(t, err)
	all := make(map[string]goPackage)
	for decoder := json.NewDecoder(bytes.NewReader(output)); decoder.More(); {
		var p goPackage
		errtest.None(t, decoder.Decode(&p))
		all[pathInModule(p.ImportPath)] = p
	}
	return all
}

// pathInModule returns the path of a package in this module, or "" for other packages.
func pathInModule(path string) string {
	if path == modulePath {
		return "."
	}
	own, _ := strings.CutPrefix(path, modulePath+"/")
	if own == path {
		return ""
	}
	return own
}

// Imports run one way, from the root down to the arithmetic.
func TestImportsRunOneWay(t *testing.T) {
	floorOf := make(map[string]int)
	for n, floor := range floors {
		for _, pkg := range floor {
			floorOf[pkg] = n
		}
	}
	all := goPackages(t)
	for path, p := range all {
		floor, known := floorOf[path]
		switch {
		case slices.Contains(testKits, path):
			continue
		case p.Name != "main" && !known:
			t.Errorf("%s is on no floor", path)
		}
		for _, imported := range p.Imports {
			own := pathInModule(imported)
			switch {
			case strings.HasPrefix(imported, "github.com/redis/") && path != "redisstore":
				t.Errorf("%s imports %s: only redisstore may", path, imported)
			case slices.Contains(testKits, own) || imported == "testing":
				t.Errorf("%s imports %s, which is for tests", path, imported)
			case own == "." && !strings.HasPrefix(path, "cmd/") && path != "simulate":
				t.Errorf("%s imports the root: only commands, simulate and tests may", path)
			case known && own != "" && floorOf[own] <= floor:
				t.Errorf("%s imports %s, which is not on a lower floor", path, own)
			}
		}
		for _, dep := range p.Deps {
			switch {
			case path == "." && slices.ContainsFunc(onlySimulated, func(part string) bool { return strings.Contains(dep, part) }):
				t.Errorf("the root depends on %s, which only simulate needs", dep)
			case slices.Contains(withoutCaddy, path) && strings.Contains(dep, "caddyserver/"):
				t.Errorf("%s depends on %s", path, dep)
			case slices.Contains(onStandardLibrary, path) && strings.Contains(strings.SplitN(dep, "/", 2)[0], ".") &&
				!slices.Contains(onStandardLibrary, pathInModule(dep)):
				t.Errorf("%s depends on %s", path, dep)
			}
		}
	}
	for path := range floorOf {
		if _, there := all[path]; !there {
			t.Errorf("there is no package %s", path)
		}
	}
}

// Each package says what it is for and what it never does, and is small enough to be known.
func TestRooms(t *testing.T) {
	for path, p := range goPackages(t) {
		if p.Name == "main" || slices.Contains(testKits, path) {
			continue
		}
		lines, comment := 0, ""
		for _, name := range p.GoFiles {
			text := caddytest.ReadFile(t, filepath.Join(p.Dir, name))
			lines += strings.Count(text, "\n")
			file, err := parser.ParseFile(token.NewFileSet(), name, text, parser.PackageClauseOnly|parser.ParseComments)
			errtest.None(t, err)
			comment += file.Doc.Text()
		}
		if !strings.HasPrefix(comment, "Package "+p.Name+" ") || !strings.Contains(comment, "never") {
			t.Errorf("the comment of %s doesn't say what the package is for, and what it never does: %q", path, comment)
		}
		if lines > 4000 && path != "." {
			t.Errorf("%s has %d lines", path, lines)
		}
	}
}

// budgets bound the project, so that it stays small enough to be known. Something else goes if a change would exceed one.
var budgets = map[string]int{
	"lines of Go in the core": 31400, "lines of Go for simulate": 9000, "lines of Lua": 1800, "lines of tests": 48000,
	"words of pages": 95000, "lines of the root": 4400, "files of the root": 16,
}

// The core is all that the root compiles. cmd/caddy also compiles what simulate needs.
func TestBudgets(t *testing.T) {
	all := goPackages(t)
	linesOfProgram := func(path string) (lines int) {
		for _, dep := range append(all[path].Deps, all[path].ImportPath) {
			p := all[pathInModule(dep)]
			for _, name := range p.GoFiles {
				lines += strings.Count(caddytest.ReadFile(t, filepath.Join(p.Dir, name)), "\n")
			}
		}
		return lines
	}
	core := linesOfProgram(".")
	used := map[string]int{
		"lines of Go in the core": core, "lines of Go for simulate": linesOfProgram("cmd/caddy") - core,
		"files of the root": len(all["."].GoFiles),
	}
	for _, name := range all["."].GoFiles {
		used["lines of the root"] += strings.Count(caddytest.ReadFile(t, name), "\n")
	}
	files, err := exec.Command("git", "ls-files", "*_test.go", "*.md", "*.lua").Output()
	errtest.None(t, err)
	for _, file := range strings.Fields(string(files)) {
		text := caddytest.ReadFile(t, file)
		switch {
		case strings.HasSuffix(file, ".md"):
			used["words of pages"] += len(strings.Fields(text))
		case strings.HasSuffix(file, ".go"):
			used["lines of tests"] += strings.Count(text, "\n")
		case !strings.HasPrefix(file, "bench/"):
			used["lines of Lua"] += strings.Count(text, "\n")
		}
	}
	for what, budget := range budgets {
		if n := used[what]; n == 0 || n > budget {
			t.Errorf("%s: %d, want from 1 to %d", what, n, budget)
		}
	}
}

// A build by a user downloads all that go.mod requires, also for tests. So each direct requirement
// is part of the program. Tests that need anything else are in a separate module.
func TestRequirementsAreForUsers(t *testing.T) {
	output, err := exec.Command("go", "mod", "edit", "-json").Output()
	errtest.None(t, err)
	var file struct {
		Require []struct {
			Path     string
			Indirect bool
		}
	}
	errtest.None(t, json.Unmarshal(output, &file))
	built := make(map[string]bool)
	for _, dep := range goPackages(t)["cmd/caddy"].Deps {
		module := "" // the longest path that the package is below
		for _, r := range file.Require {
			if strings.HasPrefix(dep+"/", r.Path+"/") && len(r.Path) > len(module) {
				module = r.Path
			}
		}
		built[module] = true
	}
	direct := 0
	for _, r := range file.Require {
		if r.Indirect {
			continue
		}
		direct++
		if !built[r.Path] {
			t.Errorf("go.mod requires %s, which the program doesn't use", r.Path)
		}
	}
	if direct == 0 {
		t.Error("go.mod requires nothing")
	}
}
