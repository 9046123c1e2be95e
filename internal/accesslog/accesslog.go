// Package accesslog reads access logs: those of Caddy's encoders json and console, and the combined format of
// Apache and nginx. It never writes a file, and never holds more than a bounded part of a log in memory.
//
// [Open] opens log files, [Log.Next] reads them in chunks of lines, and a [Parser] reads a line into a
// [Request]. Several goroutines can parse at the same time, each with its own Parser.
//
// # Files
//
// Files are plain, or compressed with gzip or zstd. Their first bytes decide, not their names. Several files
// are merged by the times of their lines, so rotated files and the logs of several instances can be named in any
// order. A file is open only while the merge reads it. Lines of one file keep their order. A line without a time
// follows the line before it. At most 128 files can overlap in time.
//
// A file can grow while it is read. A half-written last line is broken. If compressed data is cut or damaged,
// the lines before the damage count, and one broken line with the number of the next line reports it. A line
// of more than 1 MiB is broken, too. Empty lines don't count.
//
// # Caddy's JSON
//
// An access log line has a logger whose name is http.log.access, or begins with http.log.access followed by a
// dot. A line without a logger is an access log line if it has request and status, and no err_id. Other lines
// of Caddy are [ErrNotAccess].
//
// The field ts is in any time_format of Caddy. Numbers are seconds, milliseconds, microseconds or nanoseconds since
// the Unix epoch: their size decides. Texts are iso8601, rfc3339, rfc3339_nano, wall, wall_milli, wall_nano,
// common_log, or a similar layout. A text without a zone is read as UTC, also with time_local. A time
// format without fractions of a second, such as rfc3339, makes all requests of a second start at the same
// instant. If the log has another time_key, the fields time, timestamp, @timestamp, datetime, date and t are tried.
// Times are from 1990 to 2099. A line with another time is broken.
//
// The field duration is in any duration_format of Caddy. A number with a fraction is in seconds. A whole number is in
// milliseconds or nanoseconds, as [Open] detects from the first lines of all files. The start of a request is its end
// minus its duration. If a filter has deleted or replaced the duration, requests start when they end. A duration of
// decades counts as absent.
//
// Filters of the log can delete, replace, hash or mask every field. A field with an unexpected type counts as
// absent. A line is broken if it has no request, no time, or more than 50,000 values.
//
// Caddy replaces the values of Cookie, Set-Cookie, Authorization and Proxy-Authorization by REDACTED, unless the
// server option log_credentials is on.
//
// The field client_ip came with Caddy 2.7. An empty client_ip stays empty. Only a missing one makes [Request.LacksClientIP] true.
//
// # The combined format
//
// A line in the combined format has the address of the client, the user, the time, the request line, the
// status and the size. The common format has no more. The combined format adds the header fields Referer and
// User-Agent, and the format main of nginx adds X-Forwarded-For. A line can begin with the name of a virtual
// host, which becomes the host. A line without a valid request line, such as one for a TLS handshake on a port
// without TLS, is [ErrNotAccess].
//
// The client is before the identity, which is a dash. Of a list with commas it is the first address. If it is a private
// address, the client is the first address in X-Forwarded-For.
//
// A number behind the time is the duration if it has a unit or three digits after the point. After a name such as rt=,
// one digit after the point is enough. So $gzip_ratio of nginx is none. Of several durations the longest counts. Without
// a duration, requests start when they end.
//
// The format has no other header fields, no ports, no TLS, no sizes of request bodies and mostly no host. Times are
// whole seconds.
//
// # Lines that other programs pass on
//
// A line can have more before it: the header of syslog, the name of a container, a time. A line within JSON of another
// program is broken. If a container runtime has split a line, its parts are broken, too.
package accesslog

import (
	"errors"
	"net/http"
)

// ErrNotAccess reports a valid line that is not an access log line, such as another message of Caddy.
var ErrNotAccess = errors.New("the line is not an access log line")

// Request is a request as an access log has it. Fields that the log doesn't have are zero.
type Request struct {
	// Start and End are the instants at which the server received the header of the request, and at
	// which its response ended, in microseconds since the Unix epoch.
	Start, End int64
	// Instant is when the limits decided the request, in microseconds since the Unix epoch, by
	// the clock of their store. It is 0 if the log doesn't have the field [InstantField].
	Instant int64
	// Charged is the number of events that the request was charged in the end, by zone. It has the zones
	// of which the log has a field with [ChargedPrefix].
	Charged map[string]int64

	Method string
	Host   string // with the port, if the client sent it
	URI    string // as sent: path and query
	Proto  string // such as HTTP/2.0
	Header http.Header

	RemoteIP, RemotePort string
	ClientIP             string // as Caddy found it, which can be empty
	// LacksClientIP reports whether the log has no ClientIP. Then RemoteIP stands for the client.
	LacksClientIP bool
	User          string // the ID of the authenticated user
	TLS           *TLS   // nil for a connection without TLS

	Status         int
	BytesRead      int64 // of the body of the request
	Size           int64 // of the body of the response, in bytes
	ResponseHeader http.Header
}

// TLS is the part of a TLS connection that an access log has.
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

// ChargedPrefix is the beginning of the fields of a log line with the charge of a request in a zone. The name
// of the zone follows. The handler writes the field for zones with settle. For others, log_append writes it from
// the placeholder {http.rate_limit.<zone>.charged}.
const ChargedPrefix = "rate_limit_charged_"

// Client returns the address of the client, or the text that the log has in its place.
func (r *Request) Client() string {
	if r.LacksClientIP {
		return r.RemoteIP
	}
	return r.ClientIP
}

// setTimes sets the end, and the start from the duration. A duration of decades counts as absent.
func (r *Request) setTimes(end, duration int64) {
	r.End, r.Start = end, end-duration
	if !isPlausible(r.Start) {
		r.Start = end
	}
}

// maxHeaderFields is how many fields a header map has at most when the next line reuses it. Clearing a map takes
// time for the most fields that it ever had, and clients choose how many they send.
const maxHeaderFields = 128

// reset makes all fields zero. It keeps the maps.
func (r *Request) reset() {
	clear(r.Charged)
	*r = Request{Header: emptied(r.Header), ResponseHeader: emptied(r.ResponseHeader), Charged: r.Charged}
}

// emptied returns h without its fields, or a new header.
func emptied(h http.Header) http.Header {
	if h == nil || len(h) > maxHeaderFields {
		return make(http.Header)
	}
	clear(h)
	return h
}
