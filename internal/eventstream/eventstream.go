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
	line    lineKind // unknown until its head is read
	head    [maxHead]byte
	length  int  // of the head so far
	begun   bool // the kind of the first line is known, so no byte order mark can follow
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

// lineKind is the kind of a line.
type lineKind uint8

const (
	unknownLine lineKind = iota
	emptyLine
	dataLine
	otherLine // a comment or another field
)

const (
	byteOrderMark = "\xEF\xBB\xBF"
	// maxHead is how many bytes of a line show its kind.
	maxHead = len(byteOrderMark + "data: ")
)

var lineFeed = []byte("\n")

// NewReader returns a Reader that passes on the data of events.
func NewReader(events Events) *Reader { return &Reader{events: events} }

// Write reads the next piece of the stream. It returns no error, because every text is an event stream.
func (r *Reader) Write(p []byte) (int, error) {
	for rest := p; len(rest) > 0; {
		end := bytes.IndexAny(rest, "\r\n")
		if end < 0 {
			r.afterCR = false
			r.readLine(rest)
			break
		}
		if end > 0 || rest[0] != '\n' || !r.afterCR {
			r.readLine(rest[:end])
			r.endLine()
		}
		r.afterCR = rest[end] == '\r'
		rest = rest[end+1:]
	}
	return len(p), nil
}

// readLine reads a piece of a line.
func (r *Reader) readLine(piece []byte) {
	if r.line == unknownLine {
		n := copy(r.head[r.length:], piece)
		if r.length += n; r.length < maxHead {
			return
		}
		r.readHead()
		piece = piece[n:]
	}
	if r.line == dataLine && len(piece) > 0 {
		r.events.Data(piece)
	}
}

// readHead finds the kind of a line by its head, and passes on the data in the head. A field without a colon has an
// empty value.
func (r *Reader) readHead() {
	head := r.head[:r.length]
	if !r.begun {
		head = bytes.TrimPrefix(head, []byte(byteOrderMark))
	}
	r.begun, r.length = true, 0
	name, value, _ := bytes.Cut(head, []byte(":"))
	switch {
	case len(head) == 0:
		r.line = emptyLine
	case string(name) != "data":
		r.line = otherLine
	default:
		if r.hasData {
			r.events.Data(lineFeed)
		}
		r.line, r.hasData = dataLine, true
		if value = bytes.TrimPrefix(value, []byte(" ")); len(value) > 0 {
			r.events.Data(value)
		}
	}
}

// endLine ends a line. An empty line ends the event.
func (r *Reader) endLine() {
	if r.line == unknownLine {
		r.readHead()
	}
	if r.line == emptyLine {
		if r.hasData {
			r.events.End()
		}
		r.hasData = false
	}
	r.line = unknownLine
}
