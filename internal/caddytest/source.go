package caddytest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// The pages of log messages, metrics and events.
// The pages of log messages, metrics and events.
const (
	RunbookPage   = "docs/operations.md"
	ReferencePage = "docs/metrics-and-logs.md"
)

// LogMessage is a message that the module logs. A … stands for a part that differs.
type LogMessage struct {
	Text, Level string
	Fields      []string
}

// Source is the syntax of a package.
type Source []*ast.File

// ParseSource parses the files of a package, without its tests.
// ParseSource parses the files of a package, without its tests.
func ParseSource(t *testing.T, directory string) (s Source) {
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
func (s Source) functions(f func(*ast.FuncDecl)) {
	for _, file := range s {
		for _, d := range file.Decls {
			if function, ok := d.(*ast.FuncDecl); ok && function.Body != nil {
				f(function)
			}
		}
	}
}

// Constants returns the texts of the constants whose names begin with a prefix.
func (s Source) Constants(prefix string) (texts []string) {
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
		return strings.EqualFold(e.Sel.Name, "logger")
	case *ast.Ident:
		return e.Name == "logger"
	case *ast.CallExpr:
		return isLogger(e.Fun)
	}
	return false
}

// texts returns the texts that an expression can be.
func (s Source) texts(e ast.Expr) (texts []string) {
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

// Messages returns the messages that a package logs.
func (s Source) Messages() (found []LogMessage) {
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
				found = append(found, LogMessage{text, level, fields(made)})
			}
		})
	})
	return found
}
