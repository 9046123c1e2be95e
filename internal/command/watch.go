package command

import (
	"context"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"
)

// interval is the time between two outputs of --watch, and the time over which status counts.
const interval = time.Second

func addWatch(cmd *cobra.Command) {
	cmd.Flags().BoolP("watch", "w", false, "Repeat every second, until Ctrl-C")
}

// watch prints a text once, or with --watch every second. On a terminal each text replaces the one
// before. If render returns a text and an error, both are printed.
func (c *call) watch(render func() (string, error)) error {
	if !boolFlag(c.cmd, "watch") {
		text, err := render()
		if printErr := c.print(text); printErr != nil {
			return printErr
		}
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	type frame struct {
		text string
		err  error
	}
	show := c.printBlocks()
	if c.onTerminal() {
		s := newScreen(c)
		defer s.close()
		show = s.show
	}
	for first := true; ; first = false {
		frames := make(chan frame, 1)
		go func() { // a signal needn't wait for an answer
			text, err := render()
			frames <- frame{text, err}
		}()
		select {
		case <-ctx.Done():
			return nil
		case f := <-frames:
			if f.err != nil && f.err != errStoreFails { // the text shows this failure
				if first && f.text == "" {
					return f.err
				}
				failure := "Error: " + printable(f.err.Error()) + "\n" // it may pass, for example when Caddy restarts
				if c.json {
					c.cmd.PrintErr(failure)
				} else {
					f.text += failure
				}
			}
			if err := show(f.text); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(interval):
		}
	}
}

// printBlocks returns a function that prints texts with empty lines between. JSON has a line for
// each document.
func (c *call) printBlocks() func(string) error {
	first := true
	return func(text string) error {
		if !first && !c.json {
			text = "\n" + text
		}
		first = false
		return c.print(text)
	}
}

// screen shows one text at a time on a terminal. It uses the terminal's second screen, so that the
// lines before the command stay.
type screen struct {
	call *call
	last string
}

const (
	enterScreen = "\x1b[?1049h\x1b[?25l\x1b[?7l" // without a cursor, and long lines are cut
	leaveScreen = "\x1b[?7h\x1b[?25h\x1b[?1049l"
	topLeft     = "\x1b[H"
	clearLine   = "\x1b[K"
	clearBelow  = "\x1b[J"
)

func newScreen(c *call) *screen {
	_ = c.print(enterScreen)
	return &screen{call: c}
}

// show replaces the text. Lines that don't fit are left out.
func (s *screen) show(text string) error {
	s.last = text
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	if file, ok := s.call.out.(*os.File); ok {
		if _, height, err := term.GetSize(int(file.Fd())); err == nil && height > 1 && len(lines) > height-1 {
			lines = append(lines[:height-2], "…")
		}
	}
	return s.call.print(topLeft + strings.Join(lines, clearLine+"\n") + clearLine + "\n" + clearBelow)
}

// close restores the terminal, and leaves the last text on it.
func (s *screen) close() { _ = s.call.print(leaveScreen + s.last) }
