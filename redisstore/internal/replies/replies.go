// Package replies bounds the replies that a client of Redis reads. It never changes them.
package replies

import (
	"bytes"
	"fmt"
	"net"
	"strconv"
	"strings"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/wire"
)

// The client allocates as much memory as a reply announces, before the rest of the reply has come. So
// a few bytes could end the process. A boundedConn reads each reply before the client does, and fails
// at one that is larger than any reply to a command of this package.

const (
	// maxReplyBytes is the maximum length of all texts and lines of a reply together. The script
	// replies about 50 bytes for each limit of a request.
	maxReplyBytes = 16 << 20
	// maxReplyValues is the maximum number of values in all lists and maps of a reply. CLUSTER SLOTS
	// has the most: 18 for each of at most 16,384 ranges of slots with two replicas.
	maxReplyValues = 1 << 20
	// maxReplyDepth is the maximum number of lists and maps within one another. CLUSTER SLOTS has 4.
	maxReplyDepth = 16
)

// Bound returns a connection that fails at a reply beyond the bounds.
func Bound(conn net.Conn) net.Conn { return &boundedConn{Conn: conn} }

type boundedConn struct {
	net.Conn
	replies replyScanner
}

func (c *boundedConn) Read(b []byte) (n int, err error) {
	if c.replies.err == nil { // the client reads again after some errors
		n, err = c.Conn.Read(b)
	}
	if failure := c.replies.scan(b[:n]); failure != nil {
		return 0, failure
	}
	return n, err
}

// replyScanner follows the replies in a stream of Redis' protocol, version 2 or 3. It parses lengths
// as the client does, so both agree on where a value ends.
type replyScanner struct {
	kind   byte               // the first byte of the line that is read; 0 between lines
	length []byte             // the rest of the line so far, if it is a length
	skip   int                // bytes of a text that are still to come, with the end of its line
	bytes  int                // length of the reply so far, with texts that are announced
	values int                // number of values that are announced in lists and maps of the reply
	left   [maxReplyDepth]int // values that are still to come in each list or map that has begun
	depth  int                // how many of left are in use
	err    error
}

// scan reads the next bytes. After an error it returns the same error for all further bytes.
func (s *replyScanner) scan(b []byte) error {
	for len(b) > 0 && s.err == nil {
		switch {
		case s.skip > 0:
			n := min(s.skip, len(b))
			s.skip, b = s.skip-n, b[n:]
		case s.kind == 0:
			if s.depth == 0 { // another reply
				s.bytes, s.values = 0, 0
			}
			s.kind, s.length, b = b[0], s.length[:0], b[1:]
			if !isAnnouncement(s.kind) && strings.IndexByte("+-:,#_(", s.kind) < 0 { // and no attribute, which only modules send
				s.err = wire.ReplyError(fmt.Sprintf("has a line that begins with %q", s.kind))
			}
		default:
			line, end := b, bytes.IndexByte(b, '\n')
			if end >= 0 {
				line = b[:end+1]
			}
			b = b[len(line):]
			s.bytes += len(line)
			if isAnnouncement(s.kind) && s.bytes <= maxReplyBytes {
				s.length = append(s.length, line...)
			}
			if end >= 0 {
				s.err = s.endLine()
				s.kind = 0
			}
		}
		if s.bytes > maxReplyBytes || s.values > maxReplyValues {
			s.err = wire.ReplyError(fmt.Sprintf("has more than %d bytes or %d values", maxReplyBytes, maxReplyValues))
		}
	}
	return s.err
}

// isAnnouncement reports whether a line of a kind announces the length of a text, a list or a map.
func isAnnouncement(kind byte) bool {
	switch kind {
	case '*', '~', '>', '%':
		return true
	}
	return isText(kind)
}

// isText reports whether a line of a kind announces the length of a text.
func isText(kind byte) bool { return kind == '$' || kind == '=' || kind == '!' }

// endLine reads the line that ends. The line is a value, or begins one.
func (s *replyScanner) endLine() error {
	if s.depth > 0 {
		s.left[s.depth-1]--
	}
	if isAnnouncement(s.kind) {
		n, err := strconv.Atoi(string(bytes.TrimSuffix(s.length, []byte("\r\n"))))
		if err != nil || n < -1 || n > maxReplyBytes {
			return wire.ReplyError(fmt.Sprintf("announces the length %.30q", s.length))
		}
		if err := s.begin(n); err != nil {
			return err
		}
	}
	for s.depth > 0 && s.left[s.depth-1] == 0 {
		s.depth--
	}
	return nil
}

// begin begins a text of n bytes, or a list or map of n values. With -1 there is none.
func (s *replyScanner) begin(n int) error {
	switch {
	case n < 0:
	case isText(s.kind):
		s.skip = n + len("\r\n")
		s.bytes += n
	case n > 0:
		if s.depth == maxReplyDepth {
			return wire.ReplyError(fmt.Sprintf("has more than %d lists within one another", maxReplyDepth))
		}
		if s.kind == '%' {
			n *= 2
		}
		s.values += n
		s.left[s.depth] = n
		s.depth++
	}
	return nil
}
