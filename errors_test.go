package ratelimit

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/algorithms"
)

// goldens returns the inputs and the outcomes of all golden files.
func goldens(t *testing.T) (inputs, outcomes string) {
	t.Helper()
	files, err := filepath.Glob("testdata/adapt/*.caddyfiletest")
	if err != nil || len(files) == 0 {
		t.Fatal("no golden files", err)
	}
	for _, file := range files {
		golden, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		input, outcome, _ := strings.Cut(string(golden), goldenRule)
		inputs += input + "\n"
		outcomes += outcome + "\n"
	}
	return inputs, outcomes
}

// An error of a Caddyfile ends in its file and line, so no punctuation ends the text before.
func TestGoldenPunctuation(t *testing.T) {
	_, outcomes := goldens(t)
	for _, wrong := range regexp.MustCompile(`.*[.:;,?!], at [^ ]*:[0-9]+`).FindAllString(outcomes, -1) {
		t.Error(wrong)
	}
}

// Every option there is stands in a golden file, in the block it belongs to.
func TestGoldenOptions(t *testing.T) {
	inputs, _ := goldens(t)
	there := make(map[string]bool) // "<block> <option>"; the global option's block is called global
	var blocks []string
	for line := range strings.Lines(inputs) {
		words := strings.Fields(line)
		switch {
		case len(words) == 0:
		case words[0] == "}":
			blocks = blocks[:max(len(blocks)-1, 0)]
		default:
			name := words[0]
			if len(blocks) > 0 {
				there[blocks[len(blocks)-1]+" "+name] = true
			}
			if slices.Equal(blocks, []string{"{"}) && name == "rate_limit" {
				name = "global"
			}
			for _, word := range words[1:] { // such as after in ban 1h after 5
				there[name+" "+word] = true
			}
			if words[len(words)-1] == "{" {
				blocks = append(blocks, name)
			}
		}
	}
	for block, options := range map[string][]string{
		"zone": zoneOptions(), "rate_limit": handlerOptions, "global": globalOptions, "memory": {"max_keys"},
		"redis": redisOptions, "tls": tlsOptions, "settle": settleOptions, "ban": {"after", "max"}, "plan": {"default"}, "override": limitOptions,
	} {
		for _, option := range options {
			if !there[block+" "+option] {
				t.Errorf("in no golden file %s has the option %s", block, option)
			}
		}
	}
	for _, a := range algorithms.All() {
		for _, option := range a.OptionNames() {
			if !there[a.Name+" "+option] {
				t.Errorf("in no golden file %s has the option %s", a.Name, option)
			}
		}
	}
}

const (
	whileServing  = "of a request, not of a configuration"
	ofOperators   = "about the body of a request to the admin API"
	onlyInJSON    = "a Caddyfile can't say it"
	rejectedFirst = "reading a Caddyfile finds it before, and says it in other words"
	mustNotBe     = "would be a mistake of ours"
)

// notFromCaddyfile are the errors that a Caddyfile can't lead to, and why. TestJSON has
// those of JSON.
var notFromCaddyfile = map[string]string{
	"%w; run ACL LOG as an administrator: the user needs ~%s:* and the commands in docs/redis.md":     whileServing,
	"slots of %d bytes: want a multiple of %d":                                                        whileServing,
	"slots of an instance: count %d until %d: want at most %d until %d":                               whileServing,
	"correcting what a request was charged, giving back its slot, or claiming a share for notify: %w": whileServing,
	"its limits and those of the other zones take too long to decide in one call: %s":                 whileServing,
	"must be a string or a list of strings, not %.100s":                                               onlyInJSON,
	"zones[%d]: %w": onlyInJSON,
	`the body: %w; write for example {"limits":["token_bucket 100 1m"],"ttl":"1h"} or {"unlimited":true}`:            ofOperators,
	`ttl must be at least 1ms, not %v: write for example "1h" (a number is nanoseconds), or leave it out for no end`: ofOperators,
	"limits[%d] %q: %w": ofOperators,
	`"unlimited" can't stand beside limits: write it alone`:                                  ofOperators,
	"it has no limit: write for example token_bucket 100 1m":                                 ofOperators,
	"%q follows the limit: write each limit in its own string":                               ofOperators,
	"must be a number or a string with placeholders, not %.100s":                             onlyInJSON,
	"must be a string or an object, such as \"allow\"":                                       onlyInJSON,
	"works only in a Caddyfile, and is empty in JSON: write {%s}":                            onlyInJSON,
	"exempt has a matcher set without matchers, which would exempt all requests: ":           onlyInJSON,
	"unlimited and limits don't go together: write one of the two":                           onlyInJSON,
	"it is null: write an object with key and limits":                                        onlyInJSON,
	"algorithm is missing: write one of %s":                                                  onlyInJSON,
	"unknown algorithm %q: write one of %s":                                                  onlyInJSON,
	"%s takes no burst, not %d: it admits up to events at once":                              onlyInJSON,
	"%s has no period and no time zone: they belong to calendar":                             onlyInJSON,
	"calendar has no window, but a period: leave %s out":                                     onlyInJSON,
	"time zone Local is another one on each computer: write its name, such as Europe/Berlin": rejectedFirst,
	"unknown time zone %q: write its name in the time zone database, such as Europe/Berlin":  rejectedFirst,
	"%s has no option %s: it belongs to %s":                                                  onlyInJSON,
	"ban has no duration: write how long it lasts, such as 1h":                               rejectedFirst,
	"the duration must be at least 1us, not %s: write how long a ban lasts, such as 1h":      rejectedFirst,
	"delay must have places for at least 1 request, not %d: write for example delay 2s 100":  rejectedFirst,
	"the share of on_store_error: %w":                                                        mustNotBe,
	"the window of a ban must be that of a limit":                                            mustNotBe,
}

// The errors of these files are about JSON, a request, operators of a running Caddy, or a simulation.
var notOfCaddyfiles = []string{
	"internal/admin/*.go", "internal/limiter/*.go", "internal/options/json.go", "internal/routes/*.go", "internal/simulate/configuration/*.go",
}

// Every error of a Caddyfile is in a golden file. If an error names another error, the test looks
// only for the words around it. No error has < > or &, which the admin API would send as \u003c and
// so on.
func TestGoldenErrors(t *testing.T) {
	_, outcomes := goldens(t)
	verb := regexp.MustCompile(`%[-+#.0-9\[\]]*[a-zA-Z]`)
	found := make(map[string]bool)
	inCaddyfile := make(map[string]bool) // by file
	for _, pattern := range slices.Concat([]string{
		"*.go", "algorithms/*.go", "internal/keys/*.go", "internal/options/*.go", "internal/placeholder/*.go", "redisstore/address.go",
	}, notOfCaddyfiles) {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %d files, %v", pattern, len(files), err)
		}
		for _, file := range files {
			inCaddyfile[file] = !slices.Contains(notOfCaddyfiles, pattern)
		}
	}
	for file, reachesCaddyfile := range inCaddyfile {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		tree, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(tree, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok || len(call.Args) == 0 {
				return true
			}
			first := call.Args[0]
			if f, ok := call.Fun.(*ast.Ident); ok && f.Name == "Error" && len(call.Args) > 1 { // of package admin
				first = call.Args[1]
			} else if f, ok := call.Fun.(*ast.SelectorExpr); !ok || f.Sel.Name != "Errorf" && f.Sel.Name != "Err" && (f.Sel.Name != "New" || len(call.Args) != 1) {
				return true
			}
			if sum, ok := first.(*ast.BinaryExpr); ok {
				first = sum.X
			}
			lit, ok := first.(*ast.BasicLit)
			if !ok {
				return true
			}
			text, err := strconv.Unquote(lit.Value)
			if err != nil {
				t.Fatal(err)
			}
			if strings.ContainsAny(text, "<>&") {
				t.Errorf("%s: the error %q has < > or &", file, text)
			}
			if !reachesCaddyfile {
				return true
			}
			pattern := ""
			last := 0
			for _, at := range verb.FindAllStringIndex(text, -1) {
				pattern += regexp.QuoteMeta(text[last:at[0]]) + `.*`
				last = at[1]
			}
			pattern += regexp.QuoteMeta(text[last:])
			pattern = strings.ReplaceAll(pattern, "%%", "%")
			if strings.Trim(pattern, ".*: ") == "" {
				return true
			}
			found[text] = true
			reachable := notFromCaddyfile[text] == ""
			there := regexp.MustCompile(pattern).MatchString(outcomes)
			if reachable && !there {
				t.Errorf("%s: no golden file has the error %q", file, text)
			} else if there && !reachable {
				t.Errorf("%s: a golden file has the error %q, which is said to be %s", file, text, notFromCaddyfile[text])
			}
			return true
		})
	}
	for text := range notFromCaddyfile {
		if !found[text] {
			t.Errorf("there is no such error any more: %q", text)
		}
	}
}
