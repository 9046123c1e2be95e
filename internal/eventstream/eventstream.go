// Package eventstream reads event streams (text/event-stream) while they stream past. It never holds a whole
// event.
package eventstream

import "bytes"

// Reader finds the data of the events in an event stream. The stream is written to it in pieces of any
// size. A Reader must be made by [NewReader]. It must not be used by several goroutines at once.
//
// A Reader follows the [HTML standard]. Lines end in CR, LF or both. LF joins several lines of data. An event
// without the empty line at its end is no event. A Reader passes invalid UTF-8 on as it is.
// It keeps no data, so its memory doesn't depend on the stream.
//
// [HTML standard]: https://html.spec.whatwg.org/multipage/server-sent-events.html#event-stream-interpretation
type Reader struct {
	events  Events
	state   state
	matched int  // how many bytes of a byte order mark or of the field name data have been read
	afterCR bool // the last byte was CR, so LF would belong to the same end of a line
	hasData bool // the current event has data
}

// Events receives the data of events.
type Events interface {
	// Data receives the next piece of the current event's data. It must not keep the piece.
	Data(piece []byte)
	// End ends the current event, which may have no pieces if its data is empty.
	End()
}

// state says what the next byte belongs to.
type state uint8

const (
	atStart    state = iota // of the stream, where a byte order mark can be
	atLine                  // the beginning of a line
	inName                  // a field name that may become data
	afterColon              // the value of data, where one space is skipped
	inData                  // the value of data
	inRest                  // the rest of a line that is a comment or another field
)

const (
	byteOrderMark = "\xEF\xBB\xBF"
	dataField     = "data"
)

var lineFeed = []byte("\n")

// NewReader returns a Reader that passes on the data of events.
func NewReader(events Events) *Reader { return &Reader{events: events} }

// Write reads the next piece of the stream. It returns no error, because every text is an event stream.
func (r *Reader) Write(p []byte) (int, error) {
	for n := 0; n < len(p); {
		if r.state == inData || r.state == inRest {
			length := lengthOfLine(p[n:])
			if r.state == inData && length > 0 {
				r.events.Data(p[n : n+length])
			}
			if n += length; n == len(p) {
				break
			}
		}
		if r.read(p[n]) {
			n++
		}
	}
	return len(p), nil
}

// lengthOfLine returns the length of the line at the beginning of p.
func lengthOfLine(p []byte) int {
	if end := bytes.IndexAny(p, "\r\n"); end >= 0 {
		return end
	}
	return len(p)
}

// read reads a byte, or reports false if the byte must be read again in another state.
func (r *Reader) read(c byte) bool {
	if c == '\n' && r.afterCR {
		r.afterCR = false
		return true
	}
	r.afterCR = c == '\r'
	if c == '\n' || c == '\r' {
		r.endLine()
		return true
	}
	switch r.state {
	case atStart:
		if c != byteOrderMark[r.matched] {
			if r.state = inRest; r.matched == 0 {
				r.state = atLine
			}
			return false
		}
		if r.matched++; r.matched == len(byteOrderMark) {
			r.state = atLine
		}
	case atLine:
		r.state, r.matched = inName, 0
		return false
	case inName:
		switch {
		case r.matched < len(dataField) && c == dataField[r.matched]:
			r.matched++
		case r.matched == len(dataField) && c == ':':
			r.beginData()
			r.state = afterColon
		default:
			r.state = inRest
		}
	case afterColon:
		r.state = inData
		return c == ' '
	}
	return true
}

// beginData begins a line of data.
func (r *Reader) beginData() {
	if r.hasData {
		r.events.Data(lineFeed)
	}
	r.hasData = true
}

// endLine ends a line. An empty line ends the event.
func (r *Reader) endLine() {
	switch {
	case r.state == atLine:
		if r.hasData {
			r.events.End()
		}
		r.hasData = false
	case r.state == inName && r.matched == len(dataField): // a field without a colon has an empty value
		r.beginData()
	}
	r.state = atLine
}
