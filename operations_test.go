package ratelimit

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

const (
	runbookPage   = "docs/operations.md"
	referencePage = "docs/metrics-and-logs.md"
)

// docs/metrics-and-logs.md has every metric with its type and its labels, and no other. docs/operations.md has every
// reason of store errors.
func TestMetricsReference(t *testing.T) {
	rows := make(map[string][]string)
	for _, row := range tableRows(sectionOf(t, referencePage, "Metrics")) {
		if name := codeIn(row[0])[0]; strings.HasPrefix(name, "caddy_") {
			rows[name] = row
		}
	}
	described := regexp.MustCompile(`fqName: "(\w+)".*variableLabels: \{([\w,]*)\}`)
	c := newCollector()
	for _, part := range c.collectors() {
		descriptions := make(chan *prometheus.Desc, 1)
		part.Describe(descriptions)
		m := described.FindStringSubmatch((<-descriptions).String())
		kind := "counter"
		switch part.(type) {
		case *prometheus.HistogramVec, prometheus.Histogram:
			kind = "histogram"
		case gaugeSet:
			kind = "gauge"
		case prometheus.GaugeFunc:
			if !strings.HasSuffix(m[1], "_total") { // the client has one type for both functions
				kind = "gauge"
			}
		}
		row, ok := rows[m[1]]
		delete(rows, m[1])
		switch {
		case !ok:
			t.Errorf("%s: no row of the metrics is about %s", referencePage, m[1])
		case row[1] != kind:
			t.Errorf("%s: %s is a %s, not a %s", referencePage, m[1], kind, row[1])
		case strings.Join(codeIn(row[2]), ",") != m[2]:
			t.Errorf("%s: the labels of %s are %s, not %s", referencePage, m[1], m[2], row[2])
		}
	}
	for name := range rows {
		t.Errorf("%s: there is no metric %s", referencePage, name)
	}
	var outcomes, reasons []string
	for _, row := range tableRows(sectionOf(t, referencePage, "Outcomes")) {
		outcomes = append(outcomes, codeIn(row[0])...)
	}
	for _, row := range tableRows(sectionOf(t, runbookPage, "Redis is slow, or gone")) {
		if name := codeIn(row[0])[0]; !strings.HasPrefix(name, "local") && name != "allow" && name != "deny" { // on_store_error
			reasons = append(reasons, name)
		}
	}
	var values []string
	for _, row := range tableRows(sectionOf(t, referencePage, "Values of other labels")) {
		values = append(values, codeIn(row[0])[0]+" "+codeIn(row[1])[0])
	}
	wantSame(t, "values of labels", values, []string{
		"for " + forLimit, "for " + forSlot, "from " + fromConfig, "from " + fromRuntime,
		"state " + connectionIdle, "state " + connectionInUse,
	})
	wantSame(t, "outcomes", outcomes, outcomeLabels[:])
	wantSame(t, "reasons", reasons, append(parseSource(t, "store").constants("Reason"), "other"))
}

// wantSame checks that the pages list these names, in any order.
func wantSame(t *testing.T, what string, got, want []string) {
	t.Helper()
	got, want = slices.Sorted(slices.Values(got)), slices.Sorted(slices.Values(want))
	if !slices.Equal(got, want) {
		t.Errorf("the %s of %s and %s are %q, want %q", what, referencePage, runbookPage, got, want)
	}
}

// logMessage is a message that the module logs. A … stands for a part that differs.
type logMessage struct {
	text, level string
	fields      []string
}

// source is the syntax of a package.
type source []*ast.File

func parseSource(t *testing.T, directory string) (s source) {
	t.Helper()
	entries, err := os.ReadDir(directory)
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		if name := entry.Name(); strings.HasSuffix(name, ".go") && !strings.HasSuffix(name, "_test.go") {
			file, err := parser.ParseFile(token.NewFileSet(), directory+"/"+name, nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			s = append(s, file)
		}
	}
	return s
}

// functions calls f for every function.
func (s source) functions(f func(*ast.FuncDecl)) {
	for _, file := range s {
		for _, d := range file.Decls {
			if function, ok := d.(*ast.FuncDecl); ok && function.Body != nil {
				f(function)
			}
		}
	}
}

// constants returns the texts of the constants whose names begin with a prefix.
func (s source) constants(prefix string) (texts []string) {
	for _, file := range s {
		ast.Inspect(file, func(n ast.Node) bool {
			if spec, ok := n.(*ast.ValueSpec); ok && len(spec.Values) > 0 && strings.HasPrefix(spec.Names[0].Name, prefix) {
				texts = append(texts, s.texts(spec.Values[0])...)
			}
			return true
		})
	}
	return texts
}

// calls calls f for every call in a node, with the name that is called, and its receiver.
func calls(in ast.Node, f func(call *ast.CallExpr, receiver ast.Expr, name string)) {
	ast.Inspect(in, func(n ast.Node) bool {
		if call, ok := n.(*ast.CallExpr); ok {
			switch called := call.Fun.(type) {
			case *ast.SelectorExpr:
				f(call, called.X, called.Sel.Name)
			case *ast.Ident:
				f(call, nil, called.Name)
			}
		}
		return true
	})
}

// isLogger reports whether an expression is a logger, such as z.logger or logger().
func isLogger(e ast.Expr) bool {
	switch e := e.(type) {
	case *ast.SelectorExpr:
		return e.Sel.Name == "logger"
	case *ast.Ident:
		return e.Name == "logger"
	case *ast.CallExpr:
		return isLogger(e.Fun)
	}
	return false
}

// texts returns the texts that an expression can be.
func (s source) texts(e ast.Expr) (texts []string) {
	switch e := e.(type) {
	case *ast.BasicLit:
		text, err := strconv.Unquote(e.Value)
		if err == nil {
			return []string{text}
		}
	case *ast.BinaryExpr:
		for _, left := range s.texts(e.X) {
			for _, right := range s.texts(e.Y) {
				texts = append(texts, left+right)
			}
		}
		return texts
	case *ast.CallExpr: // of a method that returns one of several texts
		if method, ok := e.Fun.(*ast.SelectorExpr); ok && method.Sel.Name == "message" {
			s.functions(func(f *ast.FuncDecl) {
				if f.Name.Name == "message" {
					ast.Inspect(f, func(n ast.Node) bool {
						if r, ok := n.(*ast.ReturnStmt); ok {
							texts = append(texts, s.texts(r.Results[0])...)
						}
						return true
					})
				}
			})
			return texts
		}
	}
	return []string{"…"}
}

// fields returns the names of the fields that are made in a node. One that differs is a ….
func fields(in ast.Node) (names []string) {
	calls(in, func(call *ast.CallExpr, receiver ast.Expr, name string) {
		if pkg, ok := receiver.(*ast.Ident); !ok || pkg.Name != "zap" || len(call.Args) == 0 {
			return
		}
		switch literal, ok := call.Args[0].(*ast.BasicLit); {
		case name == "Error":
			names = append(names, "error")
		case ok:
			text, _ := strconv.Unquote(literal.Value)
			names = append(names, text)
		default:
			names = append(names, "…")
		}
	})
	return names
}

// messages returns the messages that a package logs.
func (s source) messages() (found []logMessage) {
	s.functions(func(f *ast.FuncDecl) {
		calls(f, func(call *ast.CallExpr, receiver ast.Expr, name string) {
			if !isLogger(receiver) || !slices.Contains([]string{"Debug", "Info", "Warn", "Error", "Check", "Log"}, name) {
				return
			}
			message, made := call.Args[0], ast.Node(call)
			if name == "Check" || name == "Log" {
				name, message, made = call.Args[0].(*ast.SelectorExpr).Sel.Name, call.Args[1], f
			}
			level := strings.ToLower(strings.TrimSuffix(name, "Level"))
			for _, text := range s.texts(message) {
				found = append(found, logMessage{text, level, fields(made)})
			}
		})
	})
	return found
}

// docs/metrics-and-logs.md has every message that the module logs, with its level and its fields, and no
// other. In a message of the page … stands for any text.
func TestLogReference(t *testing.T) {
	found := slices.Concat(parseSource(t, ".").messages(), parseSource(t, "redisstore").messages(), parseSource(t, "store").messages())
	if len(found) < 25 {
		t.Fatalf("only %d messages found", len(found))
	}
	denialFields := []string{}
	for _, row := range tableRows(sectionOf(t, referencePage, "Fields of denials and bans")) {
		denialFields = append(denialFields, codeIn(row[0])...)
	}
	used := make(map[string]int)
	rows := tableRows(sectionOf(t, referencePage, "Denials and bans"))
	denials := len(rows)
	for _, heading := range []string{"Redis and the stores", "Shares of denied requests", "When a configuration loads", "While requests come"} {
		rows = append(rows, tableRows(sectionOf(t, referencePage, heading))...)
	}
	for _, m := range found {
		matches := 0
		for i, row := range rows {
			message := codeIn(row[0])[0]
			if !regexp.MustCompile("^" + strings.ReplaceAll(regexp.QuoteMeta(message), "…", ".*") + "$").MatchString(m.text) {
				continue
			}
			matches++
			used[message]++
			if row[1] != m.level {
				t.Errorf("%s: the level of %q is %s, not %s", referencePage, message, m.level, row[1])
			}
			said := denialFields
			if i >= denials {
				said = codeIn(row[2])
			}
			for _, field := range m.fields {
				if field != "…" && !slices.Contains(said, field) {
					t.Errorf("%s: %q has a field %s, which the page doesn't say", referencePage, message, field)
				}
			}
			for _, field := range said {
				if !slices.Contains(m.fields, field) && !slices.Contains(m.fields, "…") {
					t.Errorf("%s: %q has no field %s", referencePage, message, field)
				}
			}
		}
		if matches != 1 {
			t.Errorf("%s: %d rows are about the message %q, want 1", referencePage, matches, m.text)
		}
	}
	for _, row := range rows {
		if message := codeIn(row[0])[0]; used[message] == 0 {
			t.Errorf("%s: no message is %q", referencePage, message)
		}
	}
}
