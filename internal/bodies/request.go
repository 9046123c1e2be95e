package bodies

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/formvalue"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/jsonvalue"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/readahead"
)

// RequestBody is the body of a request, with the values that the zones of one handler have read from it. The next
// handler reads the same bytes. A nil RequestBody is a body that no zone needs; it has no values, and nothing to
// release. It is not safe for concurrent use.
type RequestBody struct {
	request    *http.Request
	connection deadliner
	fields     *Fields
	memory     *Memory

	ahead       *readahead.Body // nil if the request has no body that is read
	kind        Kinds
	unsupported *Error // the body is encoded, or a multipart form

	read    bool      // the whole body is read, and values are known
	hidden  bool      // until EndZone, because the present zone can't read the body
	invalid *Error    // why it has no values, if it is invalid
	values  []string  // of the fields
	taken   int       // for the values, from memory.Values if they are kept, else from memory.Bodies
	kept    bool      // for later handlers
	started time.Time // when a zone began to read the body
}

// deadliner is a connection or stream, such as an [http.ResponseController].
type deadliner interface{ SetReadDeadline(time.Time) error }

// NewRequestBody returns the body of a request. If it is JSON or a form, it replaces r.Body, so that the body
// can be read before the next handler reads it. If the connection supports no deadlines, only those of the server apply.
func NewRequestBody(r *http.Request, connection deadliner, fields *Fields, memory *Memory) *RequestBody {
	b := &RequestBody{request: r, connection: connection, fields: fields, memory: memory}
	if r.Body == nil || r.Body == http.NoBody || r.ContentLength == 0 || r.Method == http.MethodConnect {
		return b
	}
	if b.readHeader(r.Header); b.kind != 0 {
		b.ahead = readahead.New(r.Body, r.ContentLength, memory.Bodies)
		r.Body = b.ahead
	}
	return b
}

// Read reads the body and its values for a zone with a text that needs bodies of these kinds. A body of another kind is
// not read. If the zone can't read the body, [RequestBody.Value] returns empty values until EndZone. Read returns an error
// if the zone must deny the request.
func (b *RequestBody) Read(kinds Kinds, policy Policy) *Error {
	if b.kind&kinds == 0 {
		b.hidden = b.hidden || !b.read
		return nil
	}
	err := b.readWithin(policy)
	if b.hidden = err != nil; policy.Pass {
		return nil
	}
	return err
}

// EndZone is called when all texts of a zone are complete. From here on, [RequestBody.Value] returns all values that were
// read.
func (b *RequestBody) EndZone() {
	if b != nil {
		b.hidden = false
	}
}

// Value returns the value of a placeholder, and whether it is known. It reads nothing.
func (b *RequestBody) Value(placeholder string) (value string, known bool) {
	if b == nil || !b.read && !b.hidden {
		return "", false
	}
	i := b.fields.index(placeholder)
	if i < 0 || b.hidden {
		return "", i >= 0
	}
	return b.values[i], true
}

// readWithin reads the whole body and its values, within the bounds of a zone.
func (b *RequestBody) readWithin(policy Policy) *Error {
	if b.unsupported != nil {
		return b.unsupported
	}
	body, err := b.readUntil(policy)
	if err != nil {
		return b.errorOf(err)
	}
	if !b.read {
		if err := b.readValues(body); err != nil {
			return err
		}
	}
	return b.invalid
}

// readUntil reads the whole body. A body that misses the deadline of its connection can't be read on, so only a zone that
// denies the request sets one. The deadline stays if the body doesn't end, because the server reads the rest when it
// closes the connection. Other zones wait as long as the client likes, so their bodies take other memory.
func (b *RequestBody) readUntil(policy Policy) ([]byte, error) {
	if b.ahead.Ended() {
		return b.ahead.ReadAhead(policy.Limit)
	}
	if b.started.IsZero() {
		b.started = time.Now()
	}
	memory := b.memory.Bodies
	if policy.Timeout == 0 {
		memory = b.memory.Untimed
	}
	if !b.ahead.Move(memory) {
		return nil, readahead.ErrMemory
	}
	timed := policy.Timeout > 0 && b.connection.SetReadDeadline(b.started.Add(policy.Timeout)) == nil
	body, err := b.ahead.ReadAhead(policy.Limit)
	if timed && b.ahead.Ended() {
		_ = b.connection.SetReadDeadline(time.Time{})
	}
	return body, err
}

// readValues reads all values that the zones of the handler may need. A body without bytes has none.
func (b *RequestBody) readValues(body []byte) *Error {
	values := make([]string, len(b.fields.all))
	var err error
	switch {
	case len(body) == 0:
	case b.kind == kindJSON:
		err = b.readJSON(body, values)
	default:
		err = b.readForm(body, values)
	}
	if err != nil {
		clear(values)
		b.invalid = errMalformed
		if err == formvalue.ErrTooLong {
			b.invalid = errTooLarge
		}
	}
	taken := 0
	for _, value := range values {
		taken += len(value)
	}
	if !b.memory.Bodies.Take(taken) {
		return ErrMemory
	}
	b.read, b.values, b.taken, b.kept = true, values, taken, false
	return nil
}

// KeepValues keeps the values for placeholders of later handlers, if the memory for values has room. The zones don't
// need them any more. If the zones are collected again, they read the body again.
func (b *RequestBody) KeepValues() {
	if b == nil || !b.read || b.kept {
		return
	}
	b.memory.Bodies.GiveBack(b.taken)
	if b.kept = b.memory.Values.Take(b.taken); !b.kept {
		b.read, b.values, b.taken = false, nil, 0
	}
}

func (b *RequestBody) readJSON(body []byte, values []string) error {
	var paths []jsonvalue.Path
	var indexes []int
	for i, f := range b.fields.all {
		if f.kind == kindJSON {
			paths, indexes = append(paths, f.path), append(indexes, i)
		}
	}
	if !json.Valid(body) {
		return jsonvalue.ErrSyntax
	}
	reader := jsonvalue.NewReader(maxRequestValue, paths...)
	_, _ = reader.Write(body)
	_ = reader.Close()
	if reader.Repeated() {
		return formvalue.ErrAmbiguous
	}
	for n, i := range indexes {
		if reader.TooLong(n) {
			return formvalue.ErrTooLong
		}
		values[i], _ = reader.Value(n)
	}
	return nil
}

func (b *RequestBody) readForm(body []byte, values []string) (err error) {
	for i, f := range b.fields.all {
		if f.kind != kindForm {
			continue
		}
		if values[i], _, err = formvalue.URLEncoded(body, f.name, maxRequestValue); err != nil {
			return err
		}
	}
	return nil
}

// errorOf returns what an error of reading the body means for the request.
func (b *RequestBody) errorOf(err error) *Error {
	var tooLarge *http.MaxBytesError
	switch {
	case err == readahead.ErrTooLarge, errors.As(err, &tooLarge): // the latter from request_body
		return errTooLarge
	case errors.Is(err, os.ErrDeadlineExceeded): // of the zone or of the server
		return errLate
	case err == readahead.ErrMemory:
		return ErrMemory
	case b.request.Context().Err() != nil, errors.Is(err, io.ErrUnexpectedEOF):
		return ErrGone
	}
	return errMalformed // for example its chunks
}

// Held reports whether the body can be read ahead, so that there may be memory to release.
func (b *RequestBody) Held() bool { return b != nil && b.ahead != nil }

// MoveToDelayed moves the body to the memory for delayed requests. It reports false if there is no room.
func (b *RequestBody) MoveToDelayed() bool { return !b.Held() || b.ahead.Move(b.memory.Delayed) }

// CloseAfterDenial has the server close the connection after the response that denies the request, if the body
// has not ended. Otherwise the server reads the rest of the body before it sends the response.
func (b *RequestBody) CloseAfterDenial(response http.Header) {
	if b.request.ProtoMajor == 1 && !b.ahead.Ended() {
		response.Set("Connection", "close")
	}
}

// ReleaseUnread gives the memory of the body back if the next handler responds without having begun to read the
// body. Over HTTP/1.1 the server discards an unread body then, too. The response may take long.
func (b *RequestBody) ReleaseUnread() {
	if b.Held() {
		b.ahead.ReleaseUnread()
	}
}

// ReleaseAfter gives the memory of the body back when the handler returns this error. After an error, error routes may
// read the body, so the memory is given back when the request has ended.
func (b *RequestBody) ReleaseAfter(err error) {
	if b.Held() && err != nil {
		context.AfterFunc(b.request.Context(), b.Release)
		return
	}
	b.Release()
}

// Release gives the memory of the body and of its values back.
func (b *RequestBody) Release() {
	if !b.Held() {
		return
	}
	if b.kept {
		b.memory.Values.GiveBack(b.taken)
	} else {
		b.memory.Bodies.GiveBack(b.taken)
	}
	b.taken = 0
	b.ahead.Release()
}
