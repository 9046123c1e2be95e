package caddytest

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// filesOf returns a new directory for the files of a test. After a failure it stays, else it ends with the test.
func filesOf(t testing.TB) string {
	t.Helper()
	name := regexp.MustCompile(`[^0-9A-Za-z]+`).ReplaceAllString(t.Name(), "-")
	dir, err := os.MkdirTemp("", "rate-limit-"+name+"-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if !t.Failed() {
			_ = os.RemoveAll(dir)
		}
	})
	return dir
}

// report ends a test of c: it says what the log of c tells about a failure, and where the files are. A panic or a data
// race in the log is a failure, too.
func (c *Caddy) report(t testing.TB) {
	t.Helper()
	log := c.Logged()
	panicked := strings.Contains(log, "panic") && !strings.Contains(log, "as the request wants")
	if strings.Contains(log, "DATA RACE") || panicked {
		t.Errorf("Caddy %s has panicked, or has a data race", c.Site)
	}
	if t.Failed() {
		t.Logf("the files of Caddy %s are in %s; of its log this matters:\n%s", c.Site, filepath.Dir(c.File), TellingLines(log))
	}
}

// logLine is a line of Caddy's log: level, instant, logger if there is one, message, and fields.
var logLine = regexp.MustCompile(`^\{"level":"(\w+)","ts":([0-9.]+),(?:"logger":"([^"]*)",)?"msg":("(?:[^"\\]|\\.)*")(?:,(.*))?\}$`)

// usual are the warnings of each Caddy in a test.
var usual = regexp.MustCompile(
	`is not formatted|requires TLS|no automatic HTTPS|automatic HTTP->HTTPS redirects are disabled|admin endpoint disabled|byeee`)

// TellingLines returns the part of Caddy's log that tells about a failure: the first and the last warnings, errors, and
// lines of this module. Lines with the logger and the message of an earlier one are only counted there. It has
// each panic in full, and all text that is no line of the log, such as a data race.
func TellingLines(log string) string {
	const first, last = 5, 20
	var lines []string
	var shortened []int              // the lines of the log in lines, without panics
	times := make(map[[2]string]int) // by logger and message
	at := make(map[[2]string]int)    // where the first one is in lines
	for line := range strings.Lines(log) {
		line = strings.TrimSuffix(line, "\n")
		m := logLine.FindStringSubmatch(line)
		switch {
		case m == nil:
		case strings.Contains(line, "panic"):
			line = strings.NewReplacer(`\n`, "\n", `\t`, "\t").Replace(line) // the stack
		case strings.Contains(m[3], "rate_limit"), m[1] != "info" && m[1] != "debug" && !usual.MatchString(line):
			kind := [2]string{m[3], m[4]}
			if times[kind]++; times[kind] > 1 {
				continue
			}
			at[kind] = len(lines)
			shortened = append(shortened, len(lines))
			line = readable(m)
		default:
			continue
		}
		lines = append(lines, line)
	}
	for kind, i := range at {
		if times[kind] > 1 {
			lines[i] += fmt.Sprintf(" … %d times", times[kind])
		}
	}
	if left := len(shortened) - first - last; left > 0 {
		out := shortened[first : first+left]
		lines[out[0]] = fmt.Sprintf("… %d more lines …", left)
		for _, i := range out[1:] {
			lines[i] = ""
		}
		lines = slices.DeleteFunc(lines, func(line string) bool { return line == "" })
	}
	return strings.Join(lines, "\n")
}

// readable returns a match of logLine as a shorter text.
func readable(m []string) string {
	seconds, _ := strconv.ParseFloat(m[2], 64)
	text := time.UnixMilli(int64(seconds * 1000)).Format("15:04:05.000")
	for _, part := range []string{strings.ToUpper(m[1]), m[3], m[4], m[5]} {
		if part != "" {
			text += " " + part
		}
	}
	return text
}
