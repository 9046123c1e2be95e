package limiter

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"sync"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/bodies"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/httpfields"
)

// A request gives back its slots, and charges that were too high, before its response is complete
// for the client. So the client's next request finds both. Charges that the header makes final are corrected before the
// first part of a response that takes longer. A response is complete with the last
// byte of its Content-Length, or with its header if it has no body. Otherwise it is complete when
// its handlers have returned.

// passUndecided passes a request that no zone has decided to the next handler.
func (state *State) passUndecided(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
	state.passed = true
	if state.Body.Held() {
		w = state.newResponseWriter(w, r)
	}
	return next.ServeHTTP(w, r)
}

// newResponseWriter returns a writer of the response that the next handler writes to w.
func (state *State) newResponseWriter(w http.ResponseWriter, r *http.Request) *responseWriter {
	return &responseWriter{
		ResponseWriterWrapper: caddyhttp.ResponseWriterWrapper{ResponseWriter: w},
		state:                 state, request: r, noBody: r.Method == http.MethodHead, bodyLeft: unknownLength,
	}
}

// passOn passes a request to the next handler. When the header of the response is about to be
// sent, it adds the families of header fields, and reads the true cost.
func (state *State) passOn(w http.ResponseWriter, r *http.Request, repl *caddy.Replacer, next caddyhttp.Handler) (err error) {
	state.passed = true
	families, settling := state.Limiter.HeaderForms.families, state.NewSettlement(r.Context(), repl)
	if !state.HasEnforcedZone() {
		families = nil
	}
	if len(families) == 0 && settling == nil && !state.hasSlotsOrHolds() && !state.Body.Held() {
		return next.ServeHTTP(w, r)
	}
	rw := state.newResponseWriter(w, r)
	rw.families, rw.settlement = families, settling
	if settling != nil {
		state.limitReservations()
		rw.body = settling.beginBody(r)
		returned := false
		defer func() { settling.finish(w.Header(), returned, err) }() // also after a panic
		err = next.ServeHTTP(rw, r)
		returned = true
	} else {
		err = next.ServeHTTP(rw, r)
	}
	if !rw.headerSent { // an outer handler will write the response, past rw
		state.setFamilies(w.Header(), families)
	}
	return err
}

// hasSlotsOrHolds reports whether the request has taken a slot, or its response can begin a hold.
func (state *State) hasSlotsOrHolds() bool {
	return slices.ContainsFunc(state.Entries, func(e Entry) bool { return e.Outcome.Slots.Taken || e.Zone.Hold != nil })
}

// responseWriter writes the response to a request that passed. Just before the header is sent,
// it adds header fields, reads the true cost, and gives back the memory of a body that nobody reads. Just before the
// response is complete, it corrects the charges.
type responseWriter struct {
	caddyhttp.ResponseWriterWrapper
	state      *State
	request    *http.Request
	families   []httpfields.Family
	settlement *Settlement          // nil if no zone settles
	body       *bodies.ResponseBody // nil if no true cost depends on it
	noBody     bool                 // responses to this request have no body
	headerSent bool
	bodyLeft   int64 // how many bytes of the body are still to be written, or unknownLength
}

// unknownLength means that the response ends when the handlers return, or that the charges are
// corrected already.
const unknownLength = -1

const (
	// lastPartSize is how many bytes a long Write leaves for a last Write of their own, because
	// the charges are corrected before it.
	lastPartSize = 4 << 10
	// minLongWrite is the length above which a Write may block for a while. A shorter Write
	// fits into the buffers of a connection, and is not worth another system call.
	minLongWrite = 64 << 10
)

// beforeHeader is called before anything is sent.
func (w *responseWriter) beforeHeader(status int) {
	if w.headerSent {
		return
	}
	w.headerSent = true
	w.state.Body.ReleaseUnread()
	if w.state.Decided {
		w.state.ban(w.request, status, w.Header())
	}
	if w.settlement != nil {
		w.settlement.ReadHeader(status, w.Header())
	}
	w.state.setFamilies(w.Header(), w.families)
	if w.bodyLeft = w.bodyLength(status); w.bodyLeft == 0 {
		w.complete()
	}
}

// bodyLength returns the length of the response's body, or unknownLength. For a response with
// trailers it returns unknownLength, because a trailer may hold the true cost.
func (w *responseWriter) bodyLength(status int) int64 {
	header := w.Header()
	switch {
	case len(header["Trailer"]) > 0 || status == http.StatusSwitchingProtocols:
		return unknownLength
	case w.noBody || status == http.StatusNoContent || status == http.StatusNotModified:
		return 0
	}
	if length := header["Content-Length"]; len(length) > 0 {
		if n, err := strconv.ParseInt(length[0], 10, 64); err == nil && n >= 0 {
			return n
		}
	}
	return unknownLength
}

// isLast reports whether n further bytes complete the body.
func (w *responseWriter) isLast(n int) bool {
	return w.bodyLeft != unknownLength && int64(n) >= w.bodyLeft
}

// complete is called before the last bytes are written.
func (w *responseWriter) complete() {
	w.bodyLeft = unknownLength
	if w.settlement != nil {
		w.settlement.readEnd()
	}
	w.state.sendCorrections()
}

// correctFinal is called before a part of the response is sent that doesn't complete it.
func (w *responseWriter) correctFinal() {
	if w.settlement != nil {
		w.state.correct(false)
	}
}

// writePart writes a part of the body that doesn't complete it. The client has the part before the
// part is read.
func (w *responseWriter) writePart(b []byte) (int, error) {
	w.correctFinal()
	if w.bodyLeft != unknownLength {
		w.bodyLeft -= int64(len(b))
	}
	n, err := w.ResponseWriterWrapper.Write(b)
	w.body.See(b[:n])
	return n, err
}

// WriteHeader implements [http.ResponseWriter].
func (w *responseWriter) WriteHeader(status int) {
	if status >= 200 || status == http.StatusSwitchingProtocols {
		w.beforeHeader(status)
	}
	if status == http.StatusSwitchingProtocols {
		w.correctFinal()
	}
	w.ResponseWriterWrapper.WriteHeader(status)
}

// Write implements [http.ResponseWriter].
func (w *responseWriter) Write(b []byte) (n int, err error) {
	w.beforeHeader(http.StatusOK)
	if !w.isLast(len(b)) {
		return w.writePart(b)
	}
	if len(b) > minLongWrite {
		if n, err = w.writePart(b[:len(b)-lastPartSize]); err != nil {
			return n, err
		}
		b = b[n:]
	}
	w.body.See(b)
	w.complete()
	last, err := w.ResponseWriterWrapper.Write(b)
	return n + last, err
}

// ReadFrom implements [io.ReaderFrom]. It copies, because only a Write shows which bytes complete the response.
func (w *responseWriter) ReadFrom(r io.Reader) (int64, error) {
	buffer := copyBuffers.Get().(*[32 << 10]byte)
	defer copyBuffers.Put(buffer)
	return io.CopyBuffer(struct{ io.Writer }{w}, struct{ io.Reader }{r}, buffer[:])
}

var copyBuffers = sync.Pool{New: func() any { return new([32 << 10]byte) }}

// Hijack implements [http.Hijacker]. A handler that hijacks the connection before it has sent a header
// sends its response past w, and that response is nearly always 101.
func (w *responseWriter) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, stream, err := http.NewResponseController(w.ResponseWriter).Hijack()
	if err == nil {
		w.beforeHeader(http.StatusSwitchingProtocols)
		w.correctFinal()
	}
	return conn, stream, err
}

// FlushError sends the buffered data, after the header; see [http.ResponseController].
func (w *responseWriter) FlushError() error {
	w.beforeHeader(http.StatusOK)
	w.correctFinal()
	return http.NewResponseController(w.ResponseWriter).Flush()
}
