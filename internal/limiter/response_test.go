package limiter

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// noted is a response writer that notes what it is asked to write, and whether the charge of the request was final
// then, and its slots given back.
type noted struct {
	*httptest.ResponseRecorder
	answer *State
	notes  []string
}

func (n *noted) note(what string) {
	switch {
	case n.answer.corrected:
		what += " corrected"
	case n.answer.Entries[0].corrected:
		what += " final"
	}
	n.notes = append(n.notes, what)
}

func (n *noted) WriteHeader(status int) {
	n.note(fmt.Sprint(status))
	n.ResponseRecorder.WriteHeader(status)
}

func (n *noted) Write(b []byte) (int, error) {
	n.note(fmt.Sprint("write ", len(b)))
	return n.ResponseRecorder.Write(b)
}

func (n *noted) FlushError() error {
	n.note("flush")
	return nil
}

func (n *noted) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	n.note("hijack")
	return nil, nil, nil
}

// writing returns a writer for the response to a request of a zone with settle, whose charge the header makes final.
func writing(method string) (*responseWriter, *noted) {
	state := &State{Decided: true, Limiter: &Limiter{}}
	state.Entries = []Entry{{ZoneRequest: &store.ZoneRequest{Limits: make([]store.Limit, 1)}, Zone: &Zone{Settle: NewSettlePolicy("z", nil, nil)}}}
	under := &noted{ResponseRecorder: httptest.NewRecorder(), answer: state}
	return &responseWriter{
		ResponseWriterWrapper: caddyhttp.ResponseWriterWrapper{ResponseWriter: under},
		state:                 state, noBody: method == http.MethodHead, bodyLeft: unknownLength,
		settlement: state.NewSettlement(context.Background(), nil),
	}, under
}

// slow is a reader that gives what it has piece by piece.
type slow struct {
	left, piece int
	end         error
}

func (s *slow) Read(b []byte) (int, error) {
	if s.left == 0 {
		return 0, s.end
	}
	n := min(len(b), s.left, s.piece)
	s.left -= n
	return n, nil
}

// Slots are given back before the write that completes the response, and not before that. A charge that is final is
// corrected before the first part.
func TestResponseIsCorrectedBeforeItsEnd(t *testing.T) {
	write := func(sizes ...int) func(http.ResponseWriter) {
		return func(w http.ResponseWriter) {
			for _, size := range sizes {
				_, _ = w.Write(make([]byte, size))
			}
		}
	}
	status := func(status int, then ...func(http.ResponseWriter)) func(http.ResponseWriter) {
		return func(w http.ResponseWriter) {
			w.WriteHeader(status)
			for _, do := range then {
				do(w)
			}
		}
	}
	flush := func(w http.ResponseWriter) { _ = http.NewResponseController(w).Flush() }
	read := func(r io.Reader) func(http.ResponseWriter) {
		return func(w http.ResponseWriter) { _, _ = w.(io.ReaderFrom).ReadFrom(r) }
	}
	for _, test := range []struct {
		name, method, header string
		respond              func(http.ResponseWriter)
		want                 string
	}{
		{"no length", "GET", "", write(5, 5), "write 5 final, write 5 final"},
		{"a length", "GET", "Content-Length: 10", write(5, 4, 1), "write 5 final, write 4 final, write 1 corrected"},
		{"all at once", "GET", "Content-Length: 10", status(200, write(10)), "200, write 10 corrected"},
		{"less", "GET", "Content-Length: 10", write(5, 4), "write 5 final, write 4 final"},
		{"more", "GET", "Content-Length: 10", write(5, 6, 5), "write 5 final, write 6 corrected, write 5 corrected"},
		{"an empty body", "GET", "Content-Length: 0", status(200), "200 corrected"},
		{"no body", "GET", "", status(204), "204 corrected"},
		{"not modified", "GET", "Content-Length: 10", status(304), "304 corrected"},
		{"HEAD", "HEAD", "Content-Length: 10", status(200), "200 corrected"},
		{"HEAD without a length", "HEAD", "", flush, "flush corrected"},
		{"flushed", "GET", "Content-Length: 10", func(w http.ResponseWriter) { flush(w); write(10)(w) }, "flush final, write 10 corrected"},
		{"hints", "GET", "Content-Length: 10", status(103, status(200, write(10))), "103, 200, write 10 corrected"},
		{"hijacked", "GET", "", func(w http.ResponseWriter) {
			_, _, _ = http.NewResponseController(w).Hijack()
			w.(*responseWriter).ResponseWriter.(*noted).note("then")
		}, "hijack, then final"},
		{"another protocol", "GET", "Content-Length: 0", status(101), "101 final"},
		{"trailers", "GET", "Content-Length: 10\nTrailer: X-Tokens", write(10), "write 10 final"},
		{"no such length", "GET", "Content-Length: ten", write(10), "write 10 final"},
		{"a negative length", "GET", "Content-Length: -1", write(10), "write 10 final"},
		{"a long write", "GET", "Content-Length: 100000", write(100000), "write 95904 final, write 4096 corrected"},
		{"long writes", "GET", "Content-Length: 200000", write(100000, 100000), "write 100000 final, write 95904 final, write 4096 corrected"},
		{"a long write of no length", "GET", "", write(100000), "write 100000 final"},

		{"read", "GET", "", read(&slow{5000, 4000, io.EOF}), "write 4000 final, write 1000 final"},
		{"read a length", "GET", "Content-Length: 10", read(&slow{10, 4, io.EOF}), "write 4 final, write 4 final, write 2 corrected"},
		{"read less", "GET", "Content-Length: 10", read(&slow{9, 9, io.EOF}), "write 9 final"},
		{"read with an error", "GET", "Content-Length: 10", read(&slow{9, 9, errors.New("broken")}), "write 9 final"},
		{"read more", "GET", "Content-Length: 10", read(&slow{15, 5, io.EOF}), "write 5 final, write 5 corrected, write 5 corrected"},
	} {
		t.Run(test.name, func(t *testing.T) {
			w, under := writing(test.method)
			for line := range strings.Lines(test.header) {
				name, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
				w.Header().Set(name, value)
			}
			test.respond(w)
			if got := strings.Join(under.notes, ", "); got != test.want {
				t.Errorf("%s\nwant %s", got, test.want)
			}
		})
	}
}
