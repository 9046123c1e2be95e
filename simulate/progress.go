package simulate

import (
	"fmt"
	"io"
	"math"
	"os"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/schollz/progressbar/v3"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/simulate"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/terminal"
)

// progressBar shows how far a simulation is, with its rate and the time left. It is nil if the output is no
// terminal.
type progressBar struct {
	bar   *progressbar.ProgressBar
	began time.Time
	shown time.Time
}

// progressInterval is the time between two changes of a bar.
const progressInterval = 200 * time.Millisecond

func newProgressBar(w io.Writer) *progressBar {
	file := terminal.Of(w)
	if file == nil || os.Getenv("TERM") == "dumb" {
		return nil
	}
	return &progressBar{began: time.Now(), bar: progressbar.NewOptions64(-1,
		progressbar.OptionSetWriter(file), progressbar.OptionSetWidth(20), progressbar.OptionClearOnFinish(),
		progressbar.OptionSetPredictTime(false), progressbar.OptionSetElapsedTime(false),
		progressbar.OptionShowDescriptionAtLineEnd(), progressbar.OptionSpinnerType(14),
	)}
}

// show shows the progress, if the last change was long enough ago.
func (b *progressBar) show(p simulate.Progress) {
	now := time.Now()
	if b == nil || now.Sub(b.shown) < progressInterval && !p.Proposing {
		return
	}
	b.shown = now
	elapsed := now.Sub(b.began).Seconds()
	text := fmt.Sprintf("%s lines, %s/s", humanize.Comma(p.Lines), humanize.Comma(int64(float64(p.Lines)/elapsed)))
	switch {
	case p.Proposing:
		text = "proposing limits"
	case p.Total > 0 && p.Read > 0:
		left := elapsed / float64(p.Read) * float64(p.Total-p.Read)
		text += ", " + (time.Duration(math.Ceil(left)) * time.Second).String() + " left"
	}
	if p.Total > 0 {
		b.bar.ChangeMax64(p.Total)
	}
	b.bar.Describe(text)
	_ = b.bar.Set64(min(p.Read, p.Total-1)) // the last byte would end the bar before the last lines are decided
}

// clear removes the bar until it is shown again.
func (b *progressBar) clear() {
	if b != nil {
		_ = b.bar.Clear()
	}
}

// close removes the bar.
func (b *progressBar) close() {
	if b != nil {
		_ = b.bar.Finish()
	}
}
