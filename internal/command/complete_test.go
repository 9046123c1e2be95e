package command

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/spf13/cobra"
)

// A shell waits a second for words, and then gets those that are known.
func TestCompletionTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ended := make(chan struct{})
		defer close(ended)
		cmd := new(cobra.Command)
		cmd.Flags().StringArray("address", []string{"localhost:2019"}, "")
		slow := func(_ instance, _ []string, add func(words ...string)) {
			add("first")
			add("needs quotes", "second")
			time.Sleep(completionTime / 2)
			add("later")
			<-ended
		}
		began := time.Now()
		words, _ := completeArguments(slow)(cmd, nil, "")
		if took := time.Since(began); !slices.Equal(words, []string{"first", "second", "later"}) || took != time.Second {
			t.Errorf("%q after %v", words, took)
		}
		all, _ := completeArguments(limitNames)(cmd, nil, "")
		if took := time.Since(began); len(all) < 5 || took != time.Second {
			t.Errorf("%q after %v", all, took)
		}
	})
}
