// Package bodies reads values from the bodies of requests and responses. It never responds to a request,
// and it never logs or counts.
package bodies

import (
	"net/http"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/readahead"
)

const (
	maxBodyMemory    = 64 << 20 // of all bodies together, and once more of delayed requests, and of those without a timeout
	maxValueMemory   = 16 << 20 // of the values of all requests, for later handlers
	maxRequestValue  = 16 << 10 // bytes of a value in a request
	maxResponseValue = 64       // bytes of a value in a response: no number is longer
)

// Memory bounds the memory for the bodies of many requests. Responses and delays can be long, so they don't take
// the memory in which other bodies are read. It is safe for concurrent use.
type Memory struct {
	Bodies  *readahead.Memory // bodies, and values until the zones are collected
	Delayed *readahead.Memory // bodies of requests that may be delayed
	Untimed *readahead.Memory // bodies that a zone without a timeout reads
	Values  *readahead.Memory // values for later handlers
}

// NewMemory returns the memory for all requests of a process.
func NewMemory() *Memory {
	return &Memory{
		Bodies: readahead.NewMemory(maxBodyMemory), Delayed: readahead.NewMemory(maxBodyMemory),
		Untimed: readahead.NewMemory(maxBodyMemory), Values: readahead.NewMemory(maxValueMemory),
	}
}

// Policy says how a zone reads bodies.
type Policy struct {
	Limit   int           // bytes of the largest body
	Timeout time.Duration // 0: none, because the zone doesn't deny all requests whose body is late
	Pass    bool          // a body that can't be read has empty values
}

// Error says why a zone can't read a body.
type Error struct {
	Status int // of the response
	Reason string
}

// Error implements [error].
func (e *Error) Error() string { return "the body can't be read: " + e.Reason }

// statusClientClosedRequest is the status of a request whose client has left, as in nginx.
const statusClientClosedRequest = 499

// The errors of [RequestBody.Read].
var (
	ErrMemory = &Error{http.StatusServiceUnavailable, "the memory for bodies is full"}
	ErrGone   = &Error{statusClientClosedRequest, "the client has disconnected"}

	errTooLarge  = &Error{http.StatusRequestEntityTooLarge, "too large"}
	errLate      = &Error{http.StatusRequestTimeout, "not complete in time"}
	errMalformed = &Error{http.StatusBadRequest, "malformed"}
	errEncoded   = &Error{http.StatusUnsupportedMediaType, "content encoding, charset, parameters or a multipart form"}
)

// Errors returns all errors of [RequestBody.Read].
func Errors() []*Error {
	return []*Error{errTooLarge, errLate, errMalformed, errEncoded, ErrMemory, ErrGone}
}
