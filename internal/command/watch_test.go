package command

import (
	"errors"
	"io"
	"testing"

	"github.com/spf13/cobra"
)

// firstOutput is an output that fails after the first text.
type firstOutput struct{ text []byte }

var errFirst = errors.New("one text is enough")

func (o *firstOutput) Write(p []byte) (int, error) {
	o.text = append(o.text, p...)
	return 0, errFirst
}

// An error without a text ends a watch at the start. If there is a text, too, as of the instances that answer, the watch
// shows both and goes on.
func TestWatchBegins(t *testing.T) {
	failed := errors.New("10.0.0.2 doesn't answer")
	for _, test := range []struct {
		text string
		err  error
		want string
		ends error
	}{
		{"", failed, "", failed},
		{"10.0.0.1\n", failed, "10.0.0.1\nError: 10.0.0.2 doesn't answer\n", errFirst},
		{"10.0.0.1\n", nil, "10.0.0.1\n", errFirst},
		{"10.0.0.1\n", errStoreFails, "10.0.0.1\n", errFirst}, // which the text shows
	} {
		cmd := &cobra.Command{}
		addWatch(cmd)
		if err := cmd.Flags().Set("watch", "true"); err != nil {
			t.Fatal(err)
		}
		cmd.SetErr(io.Discard)
		out := new(firstOutput)
		c := &call{cmd: cmd, out: out}
		err := c.watch(func() (string, error) { return test.text, test.err })
		if got := string(out.text); got != test.want || !errors.Is(err, test.ends) {
			t.Errorf("text %q and error %v: %q, and the watch ends with %v; want %q and %v", test.text, test.err, got, err, test.want, test.ends)
		}
	}
}
