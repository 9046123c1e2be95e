package limiter

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
)

// noted is a response writer that notes what it is asked to write, and whether the charges
// of the request were corrected then.
type noted struct {
	*httptest.ResponseRecorder
	answer *State
	notes  []string
	source io.Reader // of the last ReadFrom
}

func (n *noted) note(what string) {
	if n.answer.corrected {
		what += " corrected"
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

func (n *noted) ReadFrom(r io.Reader) (int64, error) {
	n.source = r
	var b bytes.Buffer
	read, err := b.ReadFrom(r)
	n.note(fmt.Sprint("read ", read))
	_, _ = b.WriteTo(n.ResponseRecorder)
	return read, err
}

func (n *noted) FlushError() error {
	n.note("flush")
	return nil
}

// writing returns a writer for the response to a request with slots.
func writing(method string) (*responseWriter, *noted) {
	state := &State{Decided: true}
	under := &noted{ResponseRecorder: httptest.NewRecorder(), answer: state}
	return &responseWriter{
		ResponseWriterWrapper: caddyhttp.ResponseWriterWrapper{ResponseWriter: under},
		state:                 state, noBody: method == http.MethodHead, bodyLeft: unknownLength,
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

// The charges are corrected before the write that completes the response, and not before
// that.
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
	broken := errors.New("broken")
	for _, test := range []struct {
		name, method, header string
		respond              func(http.ResponseWriter)
		want                 string
	}{
		{"no length", "GET", "", write(5, 5), "write 5, write 5"},
		{"a length", "GET", "Content-Length: 10", write(5, 4, 1), "write 5, write 4, write 1 corrected"},
		{"all at once", "GET", "Content-Length: 10", status(200, write(10)), "200, write 10 corrected"},
		{"less", "GET", "Content-Length: 10", write(5, 4), "write 5, write 4"},
		{"more", "GET", "Content-Length: 10", write(5, 6, 5), "write 5, write 6 corrected, write 5 corrected"},
		{"an empty body", "GET", "Content-Length: 0", status(200), "200 corrected"},
		{"no body", "GET", "", status(204), "204 corrected"},
		{"not modified", "GET", "Content-Length: 10", status(304), "304 corrected"},
		{"HEAD", "HEAD", "Content-Length: 10", status(200), "200 corrected"},
		{"HEAD without a length", "HEAD", "", flush, "flush corrected"},
		{"flushed", "GET", "Content-Length: 10", func(w http.ResponseWriter) { flush(w); write(10)(w) }, "flush, write 10 corrected"},
		{"hints", "GET", "Content-Length: 10", status(103, status(200, write(10))), "103, 200, write 10 corrected"},
		{"another protocol", "GET", "Content-Length: 0", status(101), "101"},
		{"trailers", "GET", "Content-Length: 10\nTrailer: X-Tokens", write(10), "write 10"},
		{"no such length", "GET", "Content-Length: ten", write(10), "write 10"},
		{"a negative length", "GET", "Content-Length: -1", write(10), "write 10"},
		{"a long write", "GET", "Content-Length: 100000", write(100000), "write 95904, write 4096 corrected"},
		{"long writes", "GET", "Content-Length: 200000", write(100000, 100000), "write 100000, write 95904, write 4096 corrected"},
		{"a long write of no length", "GET", "", write(100000), "write 100000"},

		{"read", "GET", "", read(&slow{100000, 1000, io.EOF}), "read 100000"},
		{"read a length", "GET", "Content-Length: 100000", read(&slow{100000, 2000, io.EOF}), "read 95904, write 2000, write 2000, write 96 corrected"},
		{"read little", "GET", "Content-Length: 10", read(&slow{10, 4, io.EOF}), "write 4, write 4, write 2 corrected"},
		{"read less", "GET", "Content-Length: 100000", read(&slow{90000, 1000, io.EOF}), "read 90000"},
		{"read a little less", "GET", "Content-Length: 10000", read(&slow{9999, 10000, io.EOF}), "read 5904, write 4095"},
		{"read with an error", "GET", "Content-Length: 100000", read(&slow{90000, 1000, broken}), "read 90000"},
		{"read more", "GET", "Content-Length: 10", read(&slow{15, 5, io.EOF}), "write 5, write 5 corrected, write 5 corrected"},
		{"read in parts", "GET", "Content-Length: 10000", func(w http.ResponseWriter) {
			read(&slow{3000, 3000, io.EOF})(w)
			write(3000)(w)
			read(&slow{4000, 3000, io.EOF})(w)
		}, "read 3000, write 3000, write 3000, write 1000 corrected"},
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

// ReadFrom returns, and leaves in its source, the same as without a length.
func TestResponseReadsAll(t *testing.T) {
	content := []byte(strings.Repeat("0123456789", 2000))
	broken := errors.New("broken")
	for _, length := range []int{0, 1, 100, lastPartSize, 10_000, len(content), len(content) + 1} {
		for _, limit := range []int64{-1, 0, 1, 100, 10_000, int64(len(content))} {
			for _, end := range []error{nil, broken} {
				t.Run(fmt.Sprint(length, limit, end), func(t *testing.T) {
					w, under := writing("GET")
					w.Header().Set("Content-Length", fmt.Sprint(length))
					source := io.MultiReader(bytes.NewReader(content), &slow{end: end})
					if end == nil {
						source = bytes.NewReader(content)
					}
					want, from := len(content), source
					limited := &io.LimitedReader{R: source, N: limit}
					if limit >= 0 {
						want, from = int(limit), limited
					}
					wantErr := end
					if limit >= 0 {
						wantErr = nil
					}
					n, err := w.ReadFrom(from)
					if n != int64(want) || !errors.Is(err, wantErr) || wantErr == nil && err != nil {
						t.Errorf("%d %v, want %d %v", n, err, want, wantErr)
					}
					if got := under.Body.Bytes(); !bytes.Equal(got, content[:want]) {
						t.Errorf("%d bytes written, not the first %d", len(got), want)
					}
					if limit >= 0 && limited.N != 0 {
						t.Errorf("%d bytes of the source are said to be left", limited.N)
					}
					if rest, _ := io.ReadAll(source); limit >= 0 && len(rest) != len(content)-want {
						t.Errorf("%d bytes of the source are left, want %d", len(rest), len(content)-want)
					}
				})
			}
		}
	}
}

// The writer beneath may use sendfile: it gets the file, in at most one [io.LimitedReader].
func TestResponseMaySendFiles(t *testing.T) {
	name := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(name, caddytest.LargeBody, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, length := range []string{"", fmt.Sprint(len(caddytest.LargeBody))} {
		for _, limited := range []bool{false, true} {
			file, err := os.Open(name)
			if err != nil {
				t.Fatal(err)
			}
			defer file.Close()
			w, under := writing("GET")
			if length != "" {
				w.Header().Set("Content-Length", length)
			}
			if limited {
				_, err = io.CopyN(w, file, int64(len(caddytest.LargeBody)))
			} else {
				_, err = w.ReadFrom(file)
			}
			if err != nil || !bytes.Equal(under.Body.Bytes(), caddytest.LargeBody) {
				t.Errorf("%d bytes arrive, %v", under.Body.Len(), err)
			}
			source := under.source
			if l, ok := source.(*io.LimitedReader); ok {
				source = l.R
			}
			if _, isFile := source.(interface {
				io.Seeker
				Stat() (os.FileInfo, error)
			}); !isFile {
				t.Errorf("length %q: the writer beneath reads from %T", length, source)
			}
			if length != "" && (len(under.notes) < 2 || under.notes[0] != fmt.Sprint("read ", len(caddytest.LargeBody)-lastPartSize)) {
				t.Errorf("notes %q", under.notes)
			}
		}
	}
}
