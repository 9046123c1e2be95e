// Command recording runs a command and draws a terminal in which its output appears line by line. It draws the
// picture of the README. Run it from the root of the repository:
//
//	go run ./docs/recording ./scripts/three-caddys.sh >docs/three-caddys.svg
package main

import (
	"bufio"
	"fmt"
	"html"
	"io"
	"log"
	"os"
	"os/exec"
	"strings"
	"time"
)

// line is a line of the terminal, and how long after the start it appears.
type line struct {
	text string
	at   time.Duration
}

func main() {
	if len(os.Args) < 2 {
		log.Fatal("usage: recording <command> [<argument>...]")
	}
	lines, err := record(exec.Command(os.Args[1], os.Args[2:]...))
	if err == nil {
		err = draw(os.Stdout, lines)
	}
	if err != nil {
		log.Fatal(err)
	}
}

// Lines follow each other after at least shortestPause, so that they can be read, and after at most longestPause.
const (
	shortestPause = 200 * time.Millisecond
	longestPause  = 1200 * time.Millisecond
)

// record runs a command and returns the prompt and all lines that the command prints.
func record(command *exec.Cmd) ([]line, error) {
	command.Stderr = os.Stderr
	output, err := command.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := command.Start(); err != nil {
		return nil, err
	}
	lines := []line{{text: "$ " + strings.Join(command.Args, " ")}}
	last, at := time.Now(), time.Duration(0)
	for scanner := bufio.NewScanner(output); scanner.Scan(); last = time.Now() {
		at += min(max(time.Since(last), shortestPause), longestPause)
		lines = append(lines, line{scanner.Text(), at})
	}
	return lines, command.Wait()
}

// The measures of the picture, in pixels.
const (
	margin     = 20
	titleBar   = 34
	lineHeight = 20
	width      = 640
)

// The terminal is dark on light and on dark pages alike. Without animations all lines are there at once.
const style = `<style>
text{font:14px ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;fill:#e6edf3;white-space:pre}
.typed{fill:#7ee787}.sum{font-weight:bold}
g{animation:appear .2s both}
@keyframes appear{from{opacity:0}to{opacity:1}}
@media (prefers-reduced-motion:reduce){g{animation:none}}
</style>
`

func draw(w io.Writer, lines []line) error {
	height := titleBar + len(lines)*lineHeight + margin
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" role="img">`+"\n",
		width, height, width, height)
	fmt.Fprintf(&b, "<title>%s</title>\n%s", html.EscapeString(lines[0].text), style)
	fmt.Fprintf(&b, `<rect width="%d" height="%d" rx="10" fill="#0d1117"/>`+"\n", width, height)
	for i, color := range []string{"#ff5f56", "#ffbd2e", "#27c93f"} {
		fmt.Fprintf(&b, `<circle cx="%d" cy="18" r="6" fill="%s"/>`+"\n", margin+i*20, color)
	}
	for i, l := range lines {
		class := ""
		switch {
		case i == 0:
			class = ` class="typed"`
		case i == len(lines)-1:
			class = ` class="sum"`
		}
		fmt.Fprintf(&b, `<g style="animation-delay:%.2fs"><text x="%d" y="%d"%s xml:space="preserve">%s</text></g>`+"\n",
			l.at.Seconds(), margin, titleBar+(i+1)*lineHeight-6, class, html.EscapeString(l.text))
	}
	b.WriteString("</svg>\n")
	_, err := io.WriteString(w, b.String())
	return err
}
