// Command sleeps counts the places where tests sleep for real:
//
//	git ls-files '*_test.go' | xargs /tmp/sleeps -most 40
//
// Such a place makes the tests slow, and often wrong on a busy machine, so each needs a comment, on its line
// or above it, that says why. A sleep inside a call of synctest.Test is not real. In a helper of such tests the
// comment says so with the words "virtual time". A sleep is a call of time.Sleep, or a statement that only
// receives from time.After.
package main

import (
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"strings"
)

func main() {
	most := flag.Int("most", 0, "fail if there are `more` real sleeps")
	list := flag.Bool("list", false, "list them")
	flag.Parse()
	var real []place
	failed := false
	for _, name := range flag.Args() {
		found, err := sleeps(name)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		for _, p := range found {
			if p.why == "" {
				fmt.Fprintf(os.Stderr, "%s: a test sleeps: use testing/synctest, wait for a state, or say in a comment why it must\n", p.at)
				failed = true
			}
			if *list {
				fmt.Printf("%s: %s\n", p.at, p.why)
			}
		}
		real = append(real, found...)
	}
	if len(real) > *most {
		fmt.Fprintf(os.Stderr, "tests sleep for real in %d places, want at most %d: see them with -list\n", len(real), *most)
		failed = true
	}
	if failed {
		os.Exit(1)
	}
	fmt.Printf("tests sleep for real in %d places\n", len(real))
}

// place is a real sleep in a file of tests.
type place struct {
	at  token.Position
	why string // its comment
}

// sleeps returns the real sleeps of a file.
func sleeps(name string) (found []place, err error) {
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, name, nil, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	comments := make(map[int]string) // by the line on which they end
	for _, group := range file.Comments {
		comments[files.Position(group.End()).Line] = strings.TrimSpace(group.Text())
	}
	timeouts := make(map[ast.Stmt]bool) // of select statements
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CommClause:
			timeouts[n.Comm] = true
			return true
		case *ast.CallExpr:
			if isCall(n, "synctest", "Test") {
				return false
			}
			if !isCall(n, "time", "Sleep") {
				return true
			}
		case *ast.ExprStmt:
			receive, ok := n.X.(*ast.UnaryExpr)
			if timeouts[n] || !ok || receive.Op != token.ARROW || !isCall(receive.X, "time", "After") {
				return true
			}
		default:
			return true
		}
		at := files.Position(n.Pos())
		why := comments[at.Line]
		if why == "" {
			why = comments[at.Line-1]
		}
		if !strings.Contains(why, "virtual time") {
			found = append(found, place{at, why})
		}
		return true
	})
	return found, nil
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
