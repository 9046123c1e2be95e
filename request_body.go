package ratelimit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/dustin/go-humanize"
	"go.uber.org/zap"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/formvalue"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/httpfields"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/jsonvalue"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/readahead"
)

// This file reads values from the bodies of requests, for the placeholders
// {http.rate_limit.request.json.<path>} and {http.rate_limit.request.form.<field>}. The body is
// read when a zone needs one of these values, and only then. The next handler reads the same bytes.

// MaxBody bounds the bodies that a zone reads.
type MaxBody struct {
	// The size of the largest body that the zone reads, 1 to 10485760 bytes. A request with a larger
	// body is denied with status 413 (default 65536).
	Bytes int64 `json:"bytes,omitempty" zero:"65536"`

	// Pass requests whose bodies can't be read, instead of denying them. All values from the body
	// are then empty. This applies to bodies that are too large, late, malformed or compressed, and
	// to bodies without room in memory (default false).
	Pass bool `json:"pass,omitempty"`
}

const (
	defaultMaxBody     = 64 << 10
	largestMaxBody     = 10 << 20
	defaultBodyTimeout = 5 * time.Second
	leastBodyTimeout   = time.Millisecond
	maxBodyMemory      = 64 << 20 // of all bodies together, and once more of those of delayed requests
	maxValueMemory     = 16 << 20 // of the values of all requests, for later handlers
	maxRequestValue    = 16 << 10 // bytes of a value in a body
	bodyLogInterval    = 10 * time.Second
)

// These are the memories for all requests in this process. Responses and delays can be long, so they don't take
// the memory in which other bodies are read.
var (
	bodyMemory    = readahead.NewMemory(maxBodyMemory) // bodies, and values until the zones are collected
	delayedMemory = readahead.NewMemory(maxBodyMemory) // bodies that zones with delay have read
	valueMemory   = readahead.NewMemory(maxValueMemory)
)

func checkMaxBody(m *MaxBody) error {
	if m.Bytes < 0 || m.Bytes > largestMaxBody {
		return maxBodyRangeError(m.Bytes)
	}
	return nil
}

func maxBodyRangeError(n any) error {
	return fmt.Errorf("max_body must be from 1 byte to 10MiB (%d), not %v: write for example max_body 64KiB", largestMaxBody, n)
}

func checkBodyTimeout(d caddy.Duration) error {
	if timeout := time.Duration(d); timeout < leastBodyTimeout {
		example := "5s"
		if timeout > 0 && timeout < time.Microsecond {
			example += inNanoseconds
		}
		return fmt.Errorf("body_timeout must be at least %v, not %v: write for example %s", leastBodyTimeout, timeout, example)
	}
	return nil
}

// unmarshalMaxBody reads max_body <bytes> [pass].
func unmarshalMaxBody(d *caddyfile.Dispenser) (*MaxBody, error) {
	args := d.RemainingArgs()
	if len(args) == 0 || len(args) > 2 || len(args) == 2 && args[1] != "pass" {
		return nil, fmt.Errorf("max_body takes a number of bytes and optionally pass, not %q: write for example max_body 64KiB pass",
			strings.Join(args, " "))
	}
	n, err := humanize.ParseBytes(args[0])
	if err != nil {
		return nil, fmt.Errorf("max_body must be a number of bytes, not %q: write for example 64KiB or 1MB", args[0])
	}
	if n == 0 || n > largestMaxBody {
		return nil, maxBodyRangeError(args[0])
	}
	return &MaxBody{Bytes: int64(n), Pass: len(args) == 2}, nil
}

// bodyPolicy says how a zone reads bodies.
type bodyPolicy struct {
	limit   int
	timeout time.Duration
	pass    bool
}

func (p *bodyPolicy) compile(c *Zone) {
	p.limit, p.timeout = defaultMaxBody, cmp.Or(time.Duration(c.BodyTimeout), defaultBodyTimeout)
	if c.MaxBody != nil {
		p.limit, p.pass = cmp.Or(int(c.MaxBody.Bytes), defaultMaxBody), c.MaxBody.Pass
	}
}

// The placeholders of bodies begin with one of these.
const (
	jsonBodyPrefix = placeholderPrefix + ".request.json."
	formBodyPrefix = placeholderPrefix + ".request.form."
)

// bodyField is a value in bodies that a zone of the handler uses.
type bodyField struct {
	placeholder string
	kind        bodyKind       // kindJSON or kindForm
	path        jsonvalue.Path // of kindJSON
	field       string         // of kindForm
}

// bodyFields returns the values in bodies that the zone uses.
func (c *Zone) bodyFields() (fields []bodyField) {
	for _, t := range c.decidingTexts() {
		names, _ := placeholderNames(t.text) // checkPlaceholders reports the error
		for _, name := range names {
			if field, ok := strings.CutPrefix(name, formBodyPrefix); ok {
				fields = append(fields, bodyField{placeholder: name, kind: kindForm, field: field})
			} else if text, ok := strings.CutPrefix(name, jsonBodyPrefix); ok {
				path, _ := jsonvalue.ParsePath(text) // checkPlaceholders reports the error
				fields = append(fields, bodyField{placeholder: name, kind: kindJSON, path: path})
			}
		}
	}
	return fields
}

// addBodyFields adds the values in bodies that a zone uses to those of the handler.
func (h *Handler) addBodyFields(c *Zone) {
	for _, f := range c.bodyFields() {
		if h.bodyFieldIndex(f.placeholder) < 0 {
			h.bodyFields = append(h.bodyFields, f)
		}
	}
}

// bodyFieldIndex returns the index of a placeholder in bodyFields, or -1.
func (h *Handler) bodyFieldIndex(placeholder string) int {
	return slices.IndexFunc(h.bodyFields, func(f bodyField) bool { return f.placeholder == placeholder })
}

// requestBody is the body of a request, with the values that a handler has read from it.
type requestBody struct {
	ahead       *readahead.Body // nil if the request has no body that is read
	kind        bodyKind
	multipart   bool       // a kindForm that is multipart/form-data
	boundary    string     // of multipart
	unsupported *bodyError // the body is encoded

	read    bool       // the whole body is read, and values are known
	invalid *bodyError // why it has no values, if it is invalid
	values  []string   // of the handler's bodyFields
	taken   int        // for the values, from valueMemory if they are kept, else from bodyMemory
	kept    bool       // for later handlers
	late    bool       // the body was not complete in time, and is detached from the server's trailer
}

// bodyError says why a zone can't read a body.
type bodyError struct {
	status int
	reason string
}

func (e *bodyError) Error() string { return "the body can't be read: " + e.reason }

var (
	errBodyTooLarge  = &bodyError{http.StatusRequestEntityTooLarge, "too large"}
	errBodyLate      = &bodyError{http.StatusRequestTimeout, "not complete in time"}
	errBodyMalformed = &bodyError{http.StatusBadRequest, "malformed"}
	errBodyEncoded   = &bodyError{http.StatusUnsupportedMediaType, "content encoding, charset or parameters"}
	errBodyMemory    = &bodyError{http.StatusServiceUnavailable, "the memory for bodies is full"}
	errBodyGone      = &bodyError{statusClientClosedRequest, "the client has left"}

	bodyErrors = []*bodyError{errBodyTooLarge, errBodyLate, errBodyMalformed, errBodyEncoded, errBodyMemory, errBodyGone}
)

// isOfBody reports whether a placeholder is a value of the request's body.
func isOfBody(placeholder string) bool {
	return strings.HasPrefix(placeholder, jsonBodyPrefix) || strings.HasPrefix(placeholder, formBodyPrefix)
}

// lookUpBody returns the value of a placeholder of the body, and whether there is one of this name.
// While a zone is collected, the body is read for it. Otherwise the value is known if a zone has
// read it before, and it was kept. It is called on the outermost state.
func (state *requestState) lookUpBody(placeholder string) (value any, ok bool) {
	if !isOfBody(placeholder) {
		return nil, false
	}
	for s := state.innermost; s != nil; s = s.outer {
		i := s.handler.bodyFieldIndex(placeholder)
		if i < 0 {
			continue
		}
		if s.collecting != nil {
			return s.readBodyField(i), true
		}
		if s.body != nil && s.body.read {
			return s.body.values[i], true
		}
	}
	return "", true
}

// readBodyField reads a value from the body, for the zone that is being collected.
func (state *requestState) readBodyField(i int) string {
	if state.body == nil {
		state.body = newRequestBody(state.request)
	}
	b, policy := state.body, &state.collecting.body
	if b.ahead == nil || b.kind != state.handler.bodyFields[i].kind {
		return ""
	}
	if err := b.readFor(state.handler, state.request, policy); err != nil {
		if !policy.pass && state.bodyError == nil {
			state.bodyError = err
		}
		return ""
	}
	return b.values[i]
}

// newRequestBody returns the body of a request. If it is JSON or a form, it will be read ahead.
func newRequestBody(r *http.Request) *requestBody {
	b := new(requestBody)
	if r.Body == nil || r.Body == http.NoBody || r.ContentLength == 0 || r.Method == http.MethodConnect {
		return b
	}
	if b.readHeader(r.Header); b.kind != kindOther {
		b.ahead = readahead.New(r.Body, r.ContentLength, bodyMemory)
		r.Body = b.ahead
	}
	return b
}

// readFor reads the whole body and its values, within the bounds of a zone.
func (b *requestBody) readFor(h *Handler, r *http.Request, policy *bodyPolicy) *bodyError {
	if b.unsupported != nil {
		return b.unsupported
	}
	body, err := b.ahead.ReadAhead(policy.limit, policy.timeout)
	if err == readahead.ErrTimeout && !b.late {
		r.Trailer, b.late = b.ahead.DetachTrailer(r.Trailer), true
	}
	if err != nil {
		return bodyErrorOf(r, err)
	}
	if !b.read {
		if err := b.readValues(h, body); err != nil {
			return err
		}
	}
	return b.invalid
}

// readValues reads all values that the zones of the handler may need. A body without bytes has none.
func (b *requestBody) readValues(h *Handler, body []byte) *bodyError {
	values := make([]string, len(h.bodyFields))
	var err error
	switch {
	case len(body) == 0:
	case b.kind == kindJSON:
		err = readJSONFields(body, h.bodyFields, values)
	default:
		err = b.readFormFields(body, h.bodyFields, values)
	}
	if err != nil {
		clear(values)
		b.invalid = errBodyMalformed
		if err == formvalue.ErrTooLong {
			b.invalid = errBodyTooLarge
		}
	}
	taken := 0
	for _, value := range values {
		taken += len(value)
	}
	if !bodyMemory.Take(taken) {
		return errBodyMemory
	}
	b.read, b.values, b.taken, b.kept = true, values, taken, false
	return nil
}

// keepValues keeps the values for placeholders of later handlers, if valueMemory has room. The zones don't need
// them any more. If the zones are collected again, they read the body again.
func (b *requestBody) keepValues() {
	if !b.read || b.kept {
		return
	}
	bodyMemory.GiveBack(b.taken)
	if b.kept = valueMemory.Take(b.taken); !b.kept {
		b.read, b.values, b.taken = false, nil, 0
	}
}

func readJSONFields(body []byte, fields []bodyField, values []string) error {
	var paths []jsonvalue.Path
	var indexes []int
	for i, f := range fields {
		if f.kind == kindJSON {
			paths, indexes = append(paths, f.path), append(indexes, i)
		}
	}
	reader := jsonvalue.NewReader(maxRequestValue, paths...)
	if _, err := reader.Write(body); err != nil {
		return err
	}
	if err := reader.Close(); err != nil {
		return err
	}
	for n, i := range indexes {
		if reader.TooLong(n) {
			return formvalue.ErrTooLong
		}
		values[i], _ = reader.Value(n)
	}
	return nil
}

func (b *requestBody) readFormFields(body []byte, fields []bodyField, values []string) (err error) {
	for i, f := range fields {
		if f.kind != kindForm {
			continue
		}
		if b.multipart {
			values[i], _, err = formvalue.Multipart(body, b.boundary, f.field, maxRequestValue)
		} else {
			values[i], _, err = formvalue.URLEncoded(body, f.field, maxRequestValue)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// bodyErrorOf returns what an error of reading a body means for the request.
func bodyErrorOf(r *http.Request, err error) *bodyError {
	var tooLarge *http.MaxBytesError
	switch {
	case err == readahead.ErrTooLarge, errors.As(err, &tooLarge): // the latter from request_body
		return errBodyTooLarge
	case err == readahead.ErrTimeout, errors.Is(err, os.ErrDeadlineExceeded): // the latter from a timeout of the server
		return errBodyLate
	case err == readahead.ErrMemory:
		return errBodyMemory
	case r.Context().Err() != nil, errors.Is(err, io.ErrUnexpectedEOF):
		return errBodyGone
	}
	return errBodyMalformed // for example its chunks
}

// checkBody returns an error if a zone needed the body for this key, but could not read it. A zone
// in shadow mode denies nothing, so it logs the error instead.
func (state *requestState) checkBody(z *zone, key requestKey) error {
	err := state.bodyError
	if err == nil {
		return nil
	}
	if !z.enforces(key.text) {
		if state.explained {
			return nil
		}
		if count := z.bodyLogs[err].due(bodyLogInterval); count > 0 {
			z.logger.Warn("a zone in shadow mode could not read the body of a request, so its values are empty",
				zap.String("zone", z.name), zap.String("reason", err.reason), zap.Int64("count", count))
		}
		return nil
	}
	return &deniedBody{err, z}
}

// deniedBody is the error of a request that a zone denies because of its body.
type deniedBody struct {
	*bodyError
	zone *zone
}

// denyBody responds to a request whose body a zone can't read.
func (h *Handler) denyBody(w http.ResponseWriter, r *http.Request, state *requestState, denied *deniedBody) error {
	if denied.bodyError == errBodyGone {
		return h.respondWithStatus(w, r, denied.status)
	}
	z := denied.zone
	state.countOutcome(z, outcomeBadBody)
	state.trace.setDenial(z, denied.reason)
	if count := z.bodyLogs[denied.bodyError].due(bodyLogInterval); count > 0 {
		z.logger.Warn("a zone denied a request because it could not read the body",
			zap.String("zone", z.name), zap.String("reason", denied.reason), zap.Int64("count", count))
	}
	if r.ProtoMajor == 1 && !state.body.ahead.Ended() {
		// Otherwise the server reads the rest of the body before it sends the response.
		w.Header().Set("Connection", "close")
	}
	if denied.bodyError == errBodyMemory {
		httpfields.SetRetryAfter(w.Header(), 1_000_000)
		return h.respondWithProblem(w, r, httpfields.ReducedCapacity(denied.status))
	}
	return h.respondWithProblem(w, r, httpfields.Plain(denied.status))
}

// closeAfterLateBody has the server close the connection after the response, if the body was late. The next
// handler may not read all of it, and releaseBody then interrupts the body. The rest of the body must not be
// read as another request.
func (state *requestState) closeAfterLateBody(w http.ResponseWriter, r *http.Request) {
	if b := state.body; b != nil && b.late && r.ProtoMajor == 1 {
		w.Header().Set("Connection", "close")
	}
}

// holdsBody reports whether a zone has read the body ahead.
func (state *requestState) holdsBody() bool { return state.body != nil && state.body.ahead != nil }

// releaseUnreadBody gives the memory of the body back if the next handler responds without having begun to read the
// body. Over HTTP/1.1 the server discards an unread body then, too. The response may take long.
func (state *requestState) releaseUnreadBody() {
	if state.holdsBody() {
		state.body.ahead.ReleaseUnread()
	}
}

// releaseBody gives the memory of the body back when the handler returns. It ends a read that is still
// under way, because the server would wait for it. After an error, error routes may read the body, so
// the memory is given back when the request has ended.
func (state *requestState) releaseBody(w http.ResponseWriter, r *http.Request, err error) {
	if !state.holdsBody() {
		return
	}
	b := state.body
	b.ahead.Interrupt(http.NewResponseController(w).SetReadDeadline)
	if err != nil {
		context.AfterFunc(r.Context(), b.release)
		return
	}
	b.release()
}

func (b *requestBody) release() {
	if b.kept {
		valueMemory.GiveBack(b.taken)
	} else {
		bodyMemory.GiveBack(b.taken)
	}
	b.taken = 0
	b.ahead.Release()
}
