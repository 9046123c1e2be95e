package ratelimit

import (
	"io"
	"net/http"
	"strconv"
	"sync"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
)

// A request gives back its slots, and charges that were too high, before its response is complete
// for the client. So the client's next request finds both. A response is complete with the last
// byte of its Content-Length, or with its header if it has no body, or else when its handlers have
// returned.

// proceed passes a request on. When the header of its response is known, pass adds the families of
// fields to the header, and reads the worth of the request from it.
func (state *requestState) passOn(w http.ResponseWriter, r *http.Request, repl *caddy.Replacer, next caddyhttp.Handler) (err error) {
	families, settling := state.handler.headerForms.families, state.newSettlement(repl)
	if !state.enforced() {
		families = nil
	}
	if len(families) == 0 && settling == nil && !state.holdsSlots() {
		return next.ServeHTTP(w, r)
	}
	rw := &responseWriter{
		ResponseWriterWrapper: caddyhttp.ResponseWriterWrapper{ResponseWriter: w},
		answer:                state, families: families, settling: settling, bodiless: r.Method == http.MethodHead, left: unknownLength,
	}
	if settling != nil {
		returned := false
		defer func() { settling.finish(w.Header(), returned, err) }() // also after a panic
		err = next.ServeHTTP(rw, r)
		returned = true
	} else {
		err = next.ServeHTTP(rw, r)
	}
	if !rw.begun { // nothing may be written yet, or an error be rendered past rw
		state.setFamilies(w.Header(), families)
	}
	return err
}

// holdsSlots reports whether the request has a slot to give back.
func (state *requestState) holdsSlots() bool {
	for i := range state.entries {
		if state.entries[i].Outcome.Slots.Taken {
			return true
		}
	}
	return false
}

// responseWriter writes the response to a request that passes. When the header is about to be sent,
// responseWriter reads the worth of the request from it. Just before the response is complete,
// responseWriter corrects the charges.
type responseWriter struct {
	caddyhttp.ResponseWriterWrapper
	answer   *requestState
	families []family
	settling *settlement // nil if no zone settles
	bodiless bool        // no response to this request has a body
	begun    bool        // the header is sent
	left     int64       // how much of the body is still to be written, or unknownLength
}

// unknownLength means that the response ends when the handlers return, or that nothing is left to
// correct.
const unknownLength = -1

const (
	// lastPart is how many bytes ReadFrom and a long Write keep for a last write of their own.
	// The charges are corrected before that write. ReadFrom copies these bytes; the rest may go
	// by sendfile.
	lastPart = 4 << 10
	// longWrite is the length of a Write above which it may block for a while. A shorter Write
	// fits into the buffers of a connection, and is not worth another system call.
	longWrite = 64 << 10
)

// begin is called before anything is sent.
func (w *responseWriter) begin(status int) {
	if w.begun {
		return
	}
	w.begun = true
	if w.settling != nil {
		w.settling.observeHeader(status, w.Header())
	}
	w.answer.setFamilies(w.Header(), w.families)
	w.left = w.bodyLength(status)
	w.coming(0)
}

// bodyLength returns how long the body of the response will be, or unknownLength. For a response
// with trailers it returns unknownLength, because a trailer may hold the worth of the request.
func (w *responseWriter) bodyLength(status int) int64 {
	header := w.Header()
	switch {
	case len(header["Trailer"]) > 0 || status == http.StatusSwitchingProtocols:
		return unknownLength
	case w.bodiless || status == http.StatusNoContent || status == http.StatusNotModified:
		return 0
	}
	if length := header["Content-Length"]; len(length) > 0 {
		if n, err := strconv.ParseInt(length[0], 10, 64); err == nil && n >= 0 {
			return n
		}
	}
	return unknownLength
}

// coming is called before n further bytes of the body are written.
func (w *responseWriter) coming(n int) {
	if w.left == unknownLength {
		return
	}
	if w.left -= int64(n); w.left <= 0 {
		w.left = unknownLength
		w.answer.correct()
	}
}

// WriteHeader implements [http.ResponseWriter].
func (w *responseWriter) WriteHeader(status int) {
	if status >= 200 || status == http.StatusSwitchingProtocols {
		w.begin(status)
	}
	w.ResponseWriterWrapper.WriteHeader(status)
}

// Write implements [http.ResponseWriter].
func (w *responseWriter) Write(b []byte) (n int, err error) {
	w.begin(http.StatusOK)
	if len(b) > longWrite && w.left != unknownLength && int64(len(b)) >= w.left {
		n, err = w.ResponseWriterWrapper.Write(b[:len(b)-lastPart])
		w.left -= int64(n)
		if err != nil {
			return n, err
		}
		b = b[n:]
	}
	w.coming(len(b))
	last, err := w.ResponseWriterWrapper.Write(b)
	return n + last, err
}

// ReadFrom implements [io.ReaderFrom]. If the length is known, ReadFrom leaves all but the last
// part to the underlying writer, which may use sendfile. It copies the last part, because only a
// Write shows that the source has these bytes.
func (w *responseWriter) ReadFrom(r io.Reader) (n int64, err error) {
	w.begin(http.StatusOK)
	if w.left == unknownLength {
		return w.ResponseWriterWrapper.ReadFrom(r)
	}
	if first := w.left - lastPart; first > 0 {
		n, err = w.readFirst(r, first)
		w.left -= n
		if err != nil || n < first {
			return n, err
		}
	}
	buffer := lastParts.Get().(*[lastPart]byte)
	defer lastParts.Put(buffer)
	last, err := io.CopyBuffer(struct{ io.Writer }{w}, r, buffer[:])
	return n + last, err
}

var lastParts = sync.Pool{New: func() any { return new([lastPart]byte) }}

// readFirst reads up to n bytes. It uses only one [io.LimitedReader], because sendfile doesn't look
// through two.
func (w *responseWriter) readFirst(r io.Reader, n int64) (int64, error) {
	limited, ok := r.(*io.LimitedReader)
	if !ok {
		return w.ResponseWriterWrapper.ReadFrom(&io.LimitedReader{R: r, N: n})
	}
	n, err := w.ResponseWriterWrapper.ReadFrom(&io.LimitedReader{R: limited.R, N: min(n, limited.N)})
	limited.N -= n
	return n, err
}

// FlushError sends the header, too, if it isn't sent yet; see
// [http.ResponseController].
func (w *responseWriter) FlushError() error {
	w.begin(http.StatusOK)
	return http.NewResponseController(w.ResponseWriter).Flush()
}
