// Command speed counts the places where tests may depend on how fast something is:
//
//	git ls-files '*_test.go' | xargs /tmp/speed -most 40
//
// Such a place makes tests slow, or wrong on a busy machine, so each needs a comment, on its line or above it, that
// says why. There are three kinds: a real sleep, a timeout of the product below 10 s in a file that uses servers, and a
// comparison of the time that has passed. A real sleep is a call of time.Sleep, or a statement that only receives from
// time.After. Nothing counts inside a call of synctest.Test, or in a file with the build tag real. In a helper of
// simulated tests the comment says so with the words "virtual time".
package main

import (
	"bytes"
	"cmp"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"regexp"
	"strconv"
	"strings"
	"time"
)

func main() {
	most := flag.Int("most", 0, "fail if there are `more` of them")
	list := flag.Bool("list", false, "list them")
	flag.Parse()
	var real []place
	failed := false
	for _, name := range flag.Args() {
		found, err := places(name)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		for _, p := range found {
			if p.why == "" {
				fmt.Fprintf(os.Stderr, "%s: %s: use testing/synctest, wait for a state, or say in a comment why it must\n", p.at, p.what)
				failed = true
			}
			if *list {
				fmt.Printf("%s: %s: %s\n", p.at, p.what, p.why)
			}
		}
		real = append(real, found...)
	}
	if len(real) > *most {
		fmt.Fprintf(os.Stderr, "tests may depend on speed in %d places, want at most %d: see them with -list\n", len(real), *most)
		failed = true
	}
	if failed {
		os.Exit(1)
	}
	fmt.Printf("tests may depend on speed in %d places\n", len(real))
}

// place is where a test may depend on speed.
type place struct {
	at   token.Position
	what string
	why  string // its comment
}

// places returns the places of a file.
func places(name string) (found []place, err error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	usesServers := bytes.Contains(text, []byte("redistest.")) || bytes.Contains(text, []byte("caddytest.Start"))
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, name, text, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil || isReal(file) {
		return nil, err
	}
	comments := make(map[int]string) // by the line on which they end
	for _, group := range file.Comments {
		comments[files.Position(group.End()).Line] = strings.TrimSpace(group.Text())
	}
	selected := make(map[ast.Stmt]bool) // what select statements wait for
	ast.Inspect(file, func(n ast.Node) bool {
		if call, ok := n.(*ast.CallExpr); ok && isCall(call, "synctest", "Test") {
			return false
		}
		if clause, ok := n.(*ast.CommClause); ok {
			selected[clause.Comm] = true
		}
		statement, isStatement := n.(ast.Stmt)
		what := dependence(n)
		if what == "" || what == shortTimeout && !usesServers || isStatement && selected[statement] {
			return true
		}
		at := files.Position(n.Pos())
		why := cmp.Or(comments[at.Line], comments[at.Line-1])
		if !strings.Contains(why, "virtual time") {
			found = append(found, place{at, what, why})
		}
		return true
	})
	return found, nil
}

// isReal reports whether a file has the build tag real.
func isReal(file *ast.File) bool {
	return len(file.Comments) > 0 && strings.HasPrefix(file.Comments[0].List[0].Text, "//go:build real")
}

const shortTimeout = "a timeout below 10 s"

// dependence says how a node depends on speed, or returns "".
func dependence(n ast.Node) string {
	switch n := n.(type) {
	case *ast.CallExpr:
		if isCall(n, "time", "Sleep") {
			return "a test sleeps"
		}
	case *ast.ExprStmt:
		if receive, ok := n.X.(*ast.UnaryExpr); ok && receive.Op == token.ARROW && isCall(receive.X, "time", "After") {
			return "a test sleeps"
		}
	case *ast.BasicLit:
		if n.Kind == token.STRING && hasShortTimeout(n.Value) {
			return shortTimeout
		}
	case *ast.KeyValueExpr:
		if key, ok := n.Key.(*ast.Ident); ok && strings.HasSuffix(key.Name, "Timeout") && isShort(n.Value) {
			return shortTimeout
		}
	case *ast.BinaryExpr:
		switch n.Op {
		case token.LSS, token.GTR, token.LEQ, token.GEQ:
			if isCall(n.X, "time", "Since") || isCall(n.Y, "time", "Since") {
				return "a test compares the time that has passed"
			}
		}
	}
	return ""
}

// configured finds the timeouts of a Caddyfile, of JSON, or of a command.
var configured = regexp.MustCompile(`timeout"?:? *=? *\\?"?([0-9][0-9a-zµ.]*)`)

// hasShortTimeout reports whether a text configures a timeout below 10 s.
func hasShortTimeout(text string) bool {
	for _, m := range configured.FindAllStringSubmatch(text, -1) {
		if d, err := time.ParseDuration(m[1]); err == nil && d > 0 && d < 10*time.Second {
			return true
		}
	}
	return false
}

// units are the units whose multiples are short.
var units = map[string]time.Duration{
	"Nanosecond": time.Nanosecond, "Microsecond": time.Microsecond, "Millisecond": time.Millisecond, "Second": time.Second,
}

// isShort reports whether an expression is a number of such units below 10 s.
func isShort(e ast.Expr) bool {
	switch e := e.(type) {
	case *ast.SelectorExpr:
		from, ok := e.X.(*ast.Ident)
		return ok && from.Name == "time" && units[e.Sel.Name] > 0
	case *ast.BinaryExpr:
		number, ok := e.X.(*ast.BasicLit)
		unit, isSelector := e.Y.(*ast.SelectorExpr)
		if !ok || !isSelector || e.Op != token.MUL {
			return false
		}
		n, err := strconv.Atoi(number.Value)
		return err == nil && units[unit.Sel.Name] > 0 && time.Duration(n)*units[unit.Sel.Name] < 10*time.Second
	}
	return false
}

// isCall reports whether an expression calls a function of a package.
func isCall(e ast.Expr, pkg, function string) bool {
	call, ok := e.(*ast.CallExpr)
	if !ok {
		return false
	}
	selector, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return false
	}
	from, ok := selector.X.(*ast.Ident)
	return ok && from.Name == pkg && selector.Sel.Name == function
}
