package accesslog

import (
	"bytes"
	"errors"
	"time"
	"unsafe"

	"github.com/valyala/fastjson"
)

// Errors of broken lines. They have no details, because a log can have many broken lines.
var (
	errSyntax = errors.New("the line is not valid JSON: it was cut, or another program has written it. " +
		"If a container runtime has split it, read the output of docker logs or kubectl logs")
	errNoRequest = errors.New("the line has no field request: remove the log's filter of this field")
	errNoTime    = errors.New("the line has no readable time between 1990 and 2099: " +
		"use the time_key ts, and a time_format of Caddy's log encoders")
	errValues = errors.New("the line has more than 50,000 values: a client probably sent many header fields")
	errFormat = errors.New("simulate reads the formats of Caddy, and combined: nginx and Apache can write it, " +
		"Traefik with format: common, and HAProxy with option httplog clf. " +
		"If another program has put the lines into JSON, extract them, for example with jq -r .log")
)

// maxValues is how many values a JSON line can have. Each takes about 100 bytes of memory while the line is read, but
// two bytes of the line. A comma within a text also counts.
const maxValues = 50_000

// keptMemory is how much memory for one line a Parser keeps for the next line.
const keptMemory = 64 << 10

// Parser reads lines of access logs. It reuses its memory for the next line. A Parser must not be used by several
// goroutines at once.
//
// A Parser detects the format of each line. [Log.NewParser] returns one that knows the unit of durations that are whole
// numbers. The zero Parser reads them as seconds.
type Parser struct {
	unit  time.Duration // of durations that are whole numbers; 0 is a second
	times timeReader

	json   fastjson.Parser
	number []byte   // the text of a number
	values []string // of header fields
	text   []byte   // decoded texts of a line in the combined format
	tls    TLS
	// duration is the duration of the last line as it is written, if it is a number.
	duration []byte
}

// Parse reads a line into r. It returns [ErrNotAccess] for a valid line that is not an access log line, and
// another error for a broken line. After an error r has no meaning.
//
// Parse reuses the maps of r. The strings in r and in its maps, and r.TLS, refer to memory of the Parser and of the
// line. They are valid until the next Parse of the same Parser.
func (p *Parser) Parse(line []byte, r *Request) error {
	r.reset()
	if cap(p.text) > keptMemory || cap(p.values) > keptMemory/16 {
		p.text, p.values = nil, nil
	}
	p.text, p.values, p.duration = p.text[:0], p.values[:0], p.duration[:0]
	start := jsonStart(line)
	if start != 0 {
		if err := p.parseCombined(line, r); err == nil || err == ErrNotAccess || start < 0 {
			return err
		}
		r.reset()
	}
	return p.parseJSON(line[start:], line[:start], r)
}

// jsonStart returns where the JSON of a line begins, or -1. The console encoder writes other fields before it, and so do
// programs that pass logs on.
func jsonStart(line []byte) int {
	if object := bytes.TrimLeft(line, " \t"); len(object) > 0 && object[0] == '{' {
		if inside := bytes.TrimLeft(object[1:], " \t"); len(inside) == 0 || inside[0] == '"' || inside[0] == '}' {
			return len(line) - len(object)
		}
	}
	return bytes.Index(line, []byte(`{"`))
}

// timeOf returns the time of a line, in microseconds since the Unix epoch, and whether it has one. It is
// faster than Parse, and also reads lines that are not access log lines.
func (p *Parser) timeOf(line []byte, r *Request) (int64, bool) {
	start := jsonStart(line)
	text := line[:0]
	switch {
	case start < 0:
		if t, _, _ := p.findTime(line); t > 0 {
			return t, true
		}
	case len(bytes.TrimSpace(line[:max(0, start)])) > 0:
		text, _, _ = bytes.Cut(line, []byte("\t"))
	default:
		text = rawField(line, `"ts":`)
	}
	if t, ok := p.times.read(text); ok {
		return t, true
	}
	err := p.Parse(line, r)
	return r.End, err == nil
}

// rawField returns the number or the text after the first occurrence of a name with its quotes and colon. Caddy
// writes the time before all fields that clients choose. Quotes within texts have a backslash.
func rawField(line []byte, name string) []byte {
	_, value, _ := bytes.Cut(line, []byte(name))
	value = bytes.TrimLeft(value, " ")
	if len(value) > 0 && value[0] == '"' {
		value, _, _ = bytes.Cut(value[1:], []byte(`"`))
		return value
	}
	return value[:max(0, bytes.IndexAny(value, ",} "))]
}

// textOf returns the text in b, without a copy.
func textOf(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }
