package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Tests of real faults are apart from the others, and each names tests of the others that simulate the same.
func TestTwinsOfRealTests(t *testing.T) {
	out, err := exec.Command("git", "ls-files", "-co", "--exclude-standard", "*_test.go").Output()
	if err != nil {
		t.Skip("this is not a checkout: ", err)
	}
	simulated := make(map[string]bool)
	twins := make(map[string]string) // by test
	for file := range strings.FieldsSeq(string(out)) {
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			continue // a file that is deleted, but not yet in git
		}
		tagged := len(parsed.Comments) > 0 && parsed.Comments[0].Pos() < parsed.Package && parsed.Comments[0].List[0].Text == "//go:build real"
		if tagged != strings.HasPrefix(filepath.Base(file), "real_") {
			t.Errorf("%s: only a file with the tag real, and each, is named real_…", file)
		}
		for _, d := range parsed.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok || !regexp.MustCompile(`^(Test[A-Z0-9]|Fuzz)`).MatchString(f.Name.Name) {
				continue
			}
			if tagged != strings.HasPrefix(f.Name.Name, "TestReal") {
				t.Errorf("%s: only a test with the tag real, and each, is named TestReal…: %s", file, f.Name.Name)
			}
			if tagged {
				twins[f.Name.Name] = f.Doc.Text()
			} else {
				simulated[f.Name.Name] = true
			}
		}
	}
	if len(twins) == 0 {
		t.Error("there are no tests of real faults")
	}
	for test, comment := range twins {
		_, names, ok := strings.Cut(strings.Join(strings.Fields(comment), " "), "Simulated: ")
		if !ok {
			t.Errorf("the comment of %s doesn't end with Simulated:, and the tests that simulate the same", test)
			continue
		}
		for name := range strings.SplitSeq(strings.TrimSuffix(names, "."), ", ") {
			if !simulated[name] {
				t.Errorf("%s: there is no test %s", test, name)
			}
		}
	}
}
