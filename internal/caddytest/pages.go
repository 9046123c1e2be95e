package caddytest

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// rowBeginning matches the first cell of a table's row that begins with code.
var rowBeginning = regexp.MustCompile("(?m)^\\| (`[^|\n]*) \\|")

// rows returns the options or fields that the rows of tables begin with, in the section of a
// reference that has this heading; those in subsections don't count. Without a heading it returns
// those of the whole page. A name occurs as often as there are rows that begin with it.
func rows(t *testing.T, file, heading string) (names []string) {
	t.Helper()
	section := ReadFile(t, file)
	if heading != "" {
		section = SectionOf(t, file, heading)
	}
	for _, row := range rowBeginning.FindAllStringSubmatch(section, -1) {
		begin := len(names)
		for _, name := range regexp.MustCompile("`(\\w+)").FindAllStringSubmatch(row[1], -1) {
			if !slices.Contains(names[begin:], name[1]) {
				names = append(names, name[1])
			}
		}
	}
	return names
}

// WantRows checks that a section of a reference is about these, and about nothing else.
func WantRows(t *testing.T, file, heading string, names []string) {
	t.Helper()
	got := rows(t, file, heading)
	for _, name := range names {
		if !slices.Contains(got, name) {
			t.Errorf("%s: no row of %q begins with %s", file, heading, name)
		}
	}
	for _, name := range got {
		if !slices.Contains(names, name) {
			t.Errorf("%s: a row of %q begins with %s, which there isn't", file, heading, name)
		}
	}
}

// WantOneRowEach checks that a page has one row about each option or field of these blocks. So
// nothing is said in two places. A name that several blocks have needs a row for each block.
func WantOneRowEach(t *testing.T, file string, blocks ...[]string) {
	t.Helper()
	want := make(map[string]int)
	for _, names := range blocks {
		for _, name := range slices.Compact(slices.Sorted(slices.Values(names))) {
			want[name]++
		}
	}
	got := make(map[string]int)
	for _, name := range rows(t, file, "") {
		got[name]++
	}
	for name, n := range want {
		if got[name] != n {
			t.Errorf("%s: rows of tables begin with %s %d times, want %d: a reference has one row about each option or field",
				file, name, got[name], n)
		}
	}
}

// JSONFields are the names of the fields that structs have in JSON.
func JSONFields(structs ...any) (fields []string) {
	for _, v := range structs {
		for i := range reflect.TypeOf(v).NumField() {
			f := reflect.TypeOf(v).Field(i)
			if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "" {
				fields = append(fields, name)
			}
		}
	}
	return fields
}

// LogsOnPage is where the Caddyfiles of pages write logs. In a test another directory stands for it.
const LogsOnPage = "/var/log/caddy"

// Pages returns all Markdown files that users read.
func Pages(t testing.TB) (files []string) {
	t.Helper()
	err := filepath.WalkDir(".", func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && (path == ".git" || path == "bench" || path == "testdata"):
			return filepath.SkipDir
		case filepath.Ext(path) == ".md":
			files = append(files, filepath.ToSlash(path))
		}
		return nil
	})
	if err != nil || len(files) < 5 {
		t.Fatal("pages:", files, err)
	}
	return files
}

// Block is a fenced block of a page.
type Block struct {
	Language string
	Text     string
	Line     int
}

// Fence matches a fenced block: its indentation, language and text.
var Fence = regexp.MustCompile("(?ms)^( *)```(\\w*)\n(.*?)^ *```$")

// BlocksOf returns the fenced blocks of a page, without the indentation that they have in lists.
func BlocksOf(t testing.TB, page string) (blocks []Block) {
	t.Helper()
	content, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range Fence.FindAllSubmatchIndex(content, -1) {
		indent, text := string(content[m[2]:m[3]]), string(content[m[6]:m[7]])
		if indent != "" {
			text = strings.ReplaceAll("\n"+text, "\n"+indent, "\n")[1:]
		}
		blocks = append(blocks, Block{
			Language: string(content[m[4]:m[5]]),
			Text:     text,
			Line:     1 + bytes.Count(content[:m[0]], []byte("\n")),
		})
	}
	return blocks
}

// Fences returns the blocks of a page that are in a language.
func Fences(t testing.TB, page, language string) (found []string) {
	t.Helper()
	for _, b := range BlocksOf(t, page) {
		if b.Language == language {
			found = append(found, b.Text)
		}
	}
	return found
}

// SectionOf returns the section of a page with this heading, without the sections below it.
func SectionOf(t *testing.T, page, heading string) string {
	t.Helper()
	section := regexp.MustCompile(`(?ms)^##+ ` + regexp.QuoteMeta(heading) + `$(.*?)(^##|\z)`).FindString(ReadFile(t, page))
	if section == "" {
		t.Fatalf("%s has no section %q", page, heading)
	}
	return section
}

// TableRows returns the cells of the rows of a section whose first cell begins with code.
func TableRows(section string) (rows [][]string) {
	for _, row := range regexp.MustCompile("(?m)^\\| (`.*) \\|$").FindAllStringSubmatch(section, -1) {
		rows = append(rows, strings.Split(row[1], " | "))
	}
	return rows
}

// FirstColumn returns the texts in backticks that the first cells of the rows of a section have.
func FirstColumn(t *testing.T, page, heading string) (found []string) {
	t.Helper()
	for _, row := range TableRows(SectionOf(t, page, heading)) {
		found = append(found, CodeIn(row[0])...)
	}
	return found
}

// CodeIn returns the texts in backticks.
func CodeIn(text string) (found []string) {
	for _, c := range regexp.MustCompile("`([^`]*)`").FindAllStringSubmatch(text, -1) {
		found = append(found, c[1])
	}
	return found
}
