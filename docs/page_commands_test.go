package docs_test

import (
	"errors"
	"os/exec"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/errtest"
)

// notRun are the beginnings of the commands that tests don't run, and why.
var notRun = map[string]string{
	"xcaddy build":      "the module is not published; scripts/xcaddy.sh builds it from the checkout",
	"./scripts/test.sh": "it runs this test",
	"git clone":         "it needs the network",
	"docker ":           "it needs a Docker engine; TestImage checks what the Dockerfile relies on",
	"sudo ":             "it changes the system",
	"go doc ":           "it needs the module's directory",
	"fail2ban-regex":    "it may not be installed; TestFail2ban does the same",
	"cscli":             "CrowdSec is checked by hand",
}

// No exception outlives the command that it was made for.
func TestNotRunIsUsed(t *testing.T) {
	var all strings.Builder
	for _, page := range caddytest.Pages(t) {
		for _, b := range caddytest.BlocksOf(t, page) {
			for _, c := range commandsOf(b) {
				all.WriteString("\n" + c.line)
			}
		}
	}
	for beginning := range notRun {
		if !strings.Contains(all.String(), "\n"+beginning) {
			t.Errorf("no page has a command that begins with %q", beginning)
		}
	}
	for part := range inRealTime {
		if !strings.Contains(all.String(), part) {
			t.Errorf("no page has a command with %q", part)
		}
	}
}

// inRealTime are parts of commands that need real time, or a real outage, and why. Blocks with one of them, and the blocks
// below them that use the same configuration, run in make real, in TestRealPages.
var inRealTime = map[string]string{
	"shutdown nosave": "Redis is gone",
	"sleep 1.2":       "requests wait for a refill",
	"& done":          "requests overlap",
	"& sleep":         "requests overlap",
}

func needsRealTime(b caddytest.Block) bool {
	for part := range inRealTime {
		if strings.Contains(b.Text, part) {
			return slices.ContainsFunc(commandsOf(b), func(c pageCommand) bool { return strings.Contains(c.line, part) })
		}
	}
	return false
}

// Every command on a page does what the page shows.
func TestPages(t *testing.T) {
	t.Parallel()
	runPages(t, func(s pageSection) pageSection {
		if i := slices.IndexFunc(s.commands, needsRealTime); i >= 0 {
			s.commands = s.commands[:i]
		}
		return s
	})
}

// runPages runs the commands of all pages, as far as choose leaves some in a section.
func runPages(t *testing.T, choose func(pageSection) pageSection) {
	t.Helper()
	for _, program := range []string{"bash", "curl"} {
		errtest.None(t, errtest.Of(exec.LookPath(program)))
	}
	for _, page := range caddytest.Pages(t) {
		if page == "CONTRIBUTING.md" {
			continue
		}
		sections := sectionsOf(caddytest.BlocksOf(t, page))
		var commands []caddytest.Block
		for i := range sections {
			sections[i] = choose(sections[i])
			commands = append(commands, sections[i].commands...)
		}
		if len(commands) == 0 {
			continue
		}
		t.Run(page, func(t *testing.T) {
			t.Parallel()
			if runtime.GOOS != "linux" && slices.ContainsFunc(commands, onLinuxOnly) {
				t.Skip("it uses addresses such as 127.0.0.2, or shows what uniq -c prints on Linux")
			}
			newPageRun(t, commands).all(page, sections)
		})
	}
}

// onLinuxOnly reports whether the commands of a block do the same only on Linux.
func onLinuxOnly(b caddytest.Block) bool {
	return b.Language == "console" && (strings.Contains(b.Text, "--interface 127.") || strings.Contains(b.Text, "uniq -c"))
}

// pageCommand is a line to run, and the output that it should have.
type pageCommand struct {
	line, want string
	compare    bool // whether there is an output to compare
}

// commandsOf splits a block. In a console block commands begin with a dollar sign.
func commandsOf(b caddytest.Block) (commands []pageCommand) {
	lines := strings.SplitAfter(strings.ReplaceAll(b.Text, "\\\n", "\\\x00"), "\n")
	for _, line := range lines {
		line = strings.ReplaceAll(line, "\\\x00", "\\\n")
		switch entered, isCommand := strings.CutPrefix(line, "$ "); {
		case b.Language == "sh" && strings.TrimSpace(line) != "":
			commands = append(commands, pageCommand{line: strings.TrimSpace(line)})
		case b.Language == "console" && isCommand:
			commands = append(commands, pageCommand{line: strings.TrimSpace(entered), compare: true})
		case b.Language == "console" && len(commands) > 0:
			commands[len(commands)-1].want += line
		}
	}
	return commands
}

// pageOutput is the output of the commands of a block. It has a bound, because a command that unexpectedly
// succeeds can print a whole download.
type pageOutput struct{ text strings.Builder }

func (o *pageOutput) Write(text []byte) (int, error) {
	const most = 1 << 20
	if o.text.Len()+len(text) > most {
		return 0, errors.New("the commands print too much")
	}
	return o.text.Write(text)
}

// tidyOutput removes spaces at the ends of lines, and empty lines at the end, which can't be seen. The width of
// a column does not matter, because ports of tests can be longer than those of pages.
func tidyOutput(output string) string {
	output = regexp.MustCompile(`(?m)[ \t]+$`).ReplaceAllString(output, "")
	output = regexp.MustCompile(` {2,}`).ReplaceAllLiteralString(output, "  ")
	if output = strings.Trim(output, "\n"); output != "" {
		output += "\n"
	}
	return output
}

// outputPattern matches an output like the one on the page, in which … is any text, and a line …
// any lines.
func outputPattern(want string) *regexp.Regexp {
	pattern := regexp.QuoteMeta(tidyOutput(want))
	pattern = regexp.MustCompile(`(?m)^…\n`).ReplaceAllLiteralString(pattern, `(?:.*\n)*?`)
	pattern = strings.ReplaceAll(pattern, "…", `.*?`)
	return regexp.MustCompile(`^` + pattern + `$`)
}
