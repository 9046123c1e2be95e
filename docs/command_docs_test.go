package docs_test

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
)

// docs/command.md lists all commands, and for each flag the commands that have it.
func TestCommandReference(t *testing.T) {
	var commands []string
	flags := make(map[string][]string) // the commands of a flag, by --name, -n
	cmd := caddytest.RateLimitCommand()
	for _, flag := range flagsIn(cmd.PersistentFlags().FlagUsages()) {
		flags[flag] = []string{"all"}
	}
	for _, sub := range cmd.Commands() {
		commands = append(commands, sub.Use)
		for _, flag := range flagsIn(sub.LocalNonPersistentFlags().FlagUsages()) {
			if !slices.Contains(flags[flag], "all") { // simulate describes some of these differently
				flags[flag] = append(flags[flag], sub.Name())
			}
		}
		if sub.Short == "" || sub.Long == "" || !strings.Contains(sub.Example, "$ caddy rate-limit "+sub.Name()) {
			t.Errorf("%s: its help lacks a sentence or an example", sub.Name())
		}
	}
	code := regexp.MustCompile("`([^`]+)`")
	var rows []string
	for _, row := range caddytest.TableRows(caddytest.SectionOf(t, "docs/command.md", "Commands")) {
		rows = append(rows, strings.Trim(row[0], "` |"))
	}
	if slices.Sort(rows); !slices.Equal(rows, slices.Sorted(slices.Values(commands))) {
		t.Errorf("docs/command.md has the commands %q, want %q", rows, commands)
	}
	seen := make(map[string]bool)
	for _, row := range caddytest.TableRows(caddytest.SectionOf(t, "docs/command.md", "Flags")) {
		name := strings.ReplaceAll(strings.Trim(row[0], "| "), "`", "")
		seen[name] = true
		want, got := flags[name], []string{"all"}
		if row[1] != "all" {
			got = nil
			for _, m := range code.FindAllStringSubmatch(row[1], -1) {
				got = append(got, m[1])
			}
			slices.Sort(got)
		}
		if len(want) == len(commands) {
			want = []string{"all"}
		}
		if slices.Sort(want); !slices.Equal(got, want) {
			t.Errorf("docs/command.md: %s is a flag of %q, want %q", name, got, want)
		}
	}
	for name := range flags {
		if !seen[name] {
			t.Errorf("docs/command.md lacks %s", name)
		}
	}
}

// Commands in the text and in the tables of pages exist, with their flags. TestPages runs those in blocks.
func TestCommandsInText(t *testing.T) {
	command := regexp.MustCompile("`caddy rate-limit ([^`]+)`")
	found := 0
	for _, page := range caddytest.Pages(t) {
		for _, m := range command.FindAllStringSubmatch(prose(t, page), -1) {
			sub, arguments, err := caddytest.RateLimitCommand().Find(wordsOf(m[1]))
			if strings.HasPrefix(m[1], "<command>") {
				continue
			}
			if found++; err != nil || !sub.HasParent() || sub.Name() == "rate-limit" {
				t.Errorf("%s: there is no command %q", page, m[1])
			} else if err := sub.ParseFlags(arguments); err != nil && !slices.Contains(arguments, "--help") {
				t.Errorf("%s: %q: %v", page, m[1], err)
			}
		}
	}
	if found < 10 {
		t.Errorf("only %d commands found", found)
	}
}

// wordsOf splits a command line as a shell does. Single quotes keep spaces together.
func wordsOf(line string) (words []string) {
	for _, m := range regexp.MustCompile(`'([^']*)'|(\S+)`).FindAllStringSubmatch(line, -1) {
		words = append(words, m[1]+m[2])
	}
	return words
}

// flagsIn returns the names of the flags in a help text, as the table has them: --name, -n.
func flagsIn(help string) (flags []string) {
	for _, m := range regexp.MustCompile(`(?m)^ +(?:(-\w), )?(--[\w-]+)`).FindAllStringSubmatch(help, -1) {
		name := m[2]
		if m[1] != "" {
			name += ", " + m[1]
		}
		flags = append(flags, name)
	}
	return flags
}
