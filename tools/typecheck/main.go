// Command typecheck checks the types of all packages of the module for other systems and processors:
//
//	GOWORK=off go build -C tools -o /tmp/typecheck ./typecheck
//	/tmp/typecheck linux/arm windows/amd64
//
// A build would take minutes for each, because it compiles all of Caddy first. This command skips the
// bodies of functions in other modules, so it takes seconds. It finds what doesn't compile, such as a
// constant that doesn't fit into an int of 32 bits. The files of tests are not checked.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

func main() {
	c := checker{fset: token.NewFileSet(), files: make(map[string]*ast.File)}
	failed := false
	for _, target := range os.Args[1:] {
		if err := c.check(target); err != nil {
			fmt.Fprintf(os.Stderr, "%s:\n%v\n", target, err)
			failed = true
		}
	}
	if failed {
		os.Exit(1)
	}
}

// checker keeps the declarations of files for all targets.
type checker struct {
	fset  *token.FileSet
	files map[string]*ast.File
}

// listedPackage is a package in the output of go list.
type listedPackage struct {
	ImportPath, Dir string
	GoFiles         []string
	ImportMap       map[string]string
	Module          *struct{ Main bool }
}

// check checks all packages for a target such as linux/arm. The error has all that doesn't compile.
func (c *checker) check(target string) error {
	system, processor, _ := strings.Cut(target, "/")
	list := exec.Command("go", "list", "-deps", "-json=ImportPath,Dir,GoFiles,ImportMap,Module", "./...")
	list.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS="+system, "GOARCH="+processor)
	list.Stderr = os.Stderr
	output, err := list.Output()
	if err != nil {
		return err
	}
	var errs []error
	checked := map[string]*types.Package{"unsafe": types.Unsafe}
	for d := json.NewDecoder(strings.NewReader(string(output))); ; { // a package comes after those that it imports
		var p listedPackage
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			return errors.Join(errs...)
		} else if err != nil {
			return err
		}
		if p.ImportPath == "unsafe" {
			continue
		}
		ours := p.Module != nil && p.Module.Main
		files, err := c.parse(&p, ours)
		if err != nil {
			return err
		}
		config := types.Config{
			Importer: importerFunc(func(path string) (*types.Package, error) {
				if mapped := p.ImportMap[path]; mapped != "" {
					path = mapped
				}
				return checked[path], nil
			}),
			Sizes: types.SizesFor("gc", processor), IgnoreFuncBodies: !ours,
			Error: func(err error) { errs = append(errs, err) },
		}
		checked[p.ImportPath], _ = config.Check(p.ImportPath, c.fset, files, nil)
	}
}

// parse parses the files of a package. In other modules than this one it empties the bodies of functions,
// to save memory.
func (c *checker) parse(p *listedPackage, ours bool) (files []*ast.File, err error) {
	for _, name := range p.GoFiles {
		name = filepath.Join(p.Dir, name)
		file := c.files[name]
		if file == nil {
			if file, err = parser.ParseFile(c.fset, name, nil, parser.SkipObjectResolution); err != nil {
				return nil, err
			}
			for _, d := range file.Decls {
				if f, ok := d.(*ast.FuncDecl); ok && f.Body != nil && !ours {
					f.Body.List = nil
				}
			}
			c.files[name] = file
		}
		files = append(files, file)
	}
	return files, nil
}

// importerFunc returns the package that an import names.
type importerFunc func(path string) (*types.Package, error)

func (f importerFunc) Import(path string) (*types.Package, error) { return f(path) }
