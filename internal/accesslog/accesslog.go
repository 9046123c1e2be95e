// Package accesslog reads access logs: Caddy's JSON, and the combined format.
package accesslog

import "net/http"

// Request is a request as an access log has it. Fields that the log doesn't have are zero.
type Request struct {
	// Start and End are the instants at which the server received the header of the request, and at
	// which its response ended, in microseconds since the Unix epoch.
	Start, End int64
	// Instant is when the limits decided about the request, in microseconds since the Unix epoch, by
	// the clock of their store. It is 0 if the log doesn't have the field [InstantField].
	Instant int64

	Method string
	Host   string // with the port, if the client sent it
	URI    string // as sent: path and query
	Proto  string // such as HTTP/2.0
	Header http.Header

	RemoteIP, RemotePort string
	ClientIP             string // empty if the log doesn't have it
	User                 string // the ID of the authenticated user
	TLS                  *TLS   // nil for a connection without TLS

	Status         int
	BytesRead      int64 // of the body of the request
	Size           int64 // of the body of the response, in bytes
	ResponseHeader http.Header
}

// TLS is what an access log has of a TLS connection.
type TLS struct {
	Version     uint16
	CipherSuite uint16
	ALPN        string
	ServerName  string
	Resumed     bool
	CommonName  string // of the client's certificate
}

// InstantField is the field of a log line with the instant at which the limits decided, in
// microseconds since the Unix epoch. In Caddy, log_append writes it from the placeholder
// {http.rate_limit.instant}.
const InstantField = "rate_limit_instant"
