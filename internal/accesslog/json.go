package accesslog

import (
	"bytes"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/valyala/fastjson"
)

// entry collects the fields of a JSON line that decide whether it is an access log line, and when its request ran.
type entry struct {
	logger     string // empty if the line has none
	hasRequest bool
	hasLevel   bool
	hasMessage bool
	hasStatus  bool
	isError    bool // the line has err_id, as the log of errors
	end        int64
	otherEnd   int64 // from a field with another name than ts
	duration   int64 // in microseconds
}

// isAccess reports whether the line is an access log line.
func (e *entry) isAccess() bool {
	if e.logger == "" {
		return e.hasRequest && e.hasStatus && !e.isError
	}
	name, isAccess := strings.CutPrefix(e.logger, "http.log.access")
	return isAccess && (name == "" || name[0] == '.')
}

// isCaddy reports whether Caddy has written the line.
func (e *entry) isCaddy() bool {
	return e.logger != "" || e.hasLevel && e.end > 0 || e.hasRequest && e.hasStatus
}

// parseJSON reads a JSON object. Before has the fields that the console encoder writes before it: time, level, logger and
// message, with a tab after each. Programs that pass logs on can write more before it, and something after it.
func (p *Parser) parseJSON(text, before []byte, r *Request) error {
	text = text[:1+max(0, bytes.LastIndexByte(text, '}'))]
	if len(text) > keptMemory && countValues(text) > maxValues {
		return errValues
	}
	v, err := p.json.ParseBytes(text)
	if err != nil {
		return errSyntax
	}
	if len(text) > keptMemory {
		defer func() { p.json = fastjson.Parser{} }()
	}
	var e entry
	p.readEntry(v, r, &e)
	if before = bytes.TrimSpace(before); len(before) > 0 {
		p.readConsole(before, &e)
	}
	isCaddy := e.isCaddy()
	if e.end == 0 {
		e.end = e.otherEnd
	}
	switch {
	case !isCaddy && e.hasLevel && e.hasMessage && e.end > 0: // a message of Caddy with another time_key
		return ErrNotAccess
	case !isCaddy:
		return errFormat
	case !e.isAccess():
		return ErrNotAccess
	case !e.hasRequest:
		return errNoRequest
	case e.end == 0:
		return errNoTime
	}
	if !isPlausible(r.Instant) {
		r.Instant = 0
	}
	r.setTimes(e.end, e.duration)
	return nil
}

// countValues returns about how many values JSON has, and never fewer.
func countValues(text []byte) (n int) {
	for _, before := range []string{",", "[", "{"} {
		n += bytes.Count(text, []byte(before))
	}
	return n + 1
}

// readConsole reads the fields that the console encoder writes before the JSON. Rsyslog replaces the tabs between them. Other
// programs write something before the time.
func (p *Parser) readConsole(text []byte, e *entry) {
	separator := []byte("\t")
	if bytes.Contains(text, []byte("#011")) {
		separator = []byte("#011")
	}
	for i := 0; i < maxWords && len(text) > 0; i++ {
		var field []byte
		field, text, _ = bytes.Cut(text, separator)
		for ; i == 0 && e.end == 0 && len(field) > 0; _, field = cutWord(field) {
			e.end, _ = p.times.read(field)
		}
		e.hasLevel = e.hasLevel || i == 2
		if bytes.HasPrefix(field, []byte("http.")) {
			e.logger = textOf(field)
			return // the next field is the message
		}
	}
}

// readEntry reads the fields of a line.
func (p *Parser) readEntry(v *fastjson.Value, r *Request, e *entry) {
	eachField(v, func(name []byte, v *fastjson.Value) {
		switch string(name) {
		case "ts":
			if end, ok := p.times.read(p.scalar(v)); ok {
				e.end = end
			}
		case "logger":
			setText(&e.logger, v)
		case "request":
			e.hasRequest = e.hasRequest || v.Type() == fastjson.TypeObject
			p.readRequest(v, r)
		case "bytes_read":
			p.setInteger(&r.BytesRead, v)
		case "user_id":
			setText(&r.User, v)
		case "duration":
			p.readDuration(v, e)
		case "size":
			p.setInteger(&r.Size, v)
		case "status":
			status := int64(-1)
			if p.setInteger(&status, v); 0 <= status && status <= 999 {
				r.Status = int(status)
			}
			e.hasStatus = true
		case "resp_headers":
			p.readHeader(v, r.ResponseHeader)
		case "level":
			e.hasLevel = true
		case "msg":
			e.hasMessage = len(v.GetStringBytes()) > 0
		case "err_id":
			e.isError = true
		case InstantField:
			p.setInteger(&r.Instant, v)
		case "time", "timestamp", "@timestamp", "datetime", "date", "t":
			if end, ok := p.times.read(p.scalar(v)); ok && e.otherEnd == 0 {
				e.otherEnd = end
			}
		default:
			if zone, ok := strings.CutPrefix(textOf(name), ChargedPrefix); ok {
				p.readCharge(zone, v, r)
			}
		}
	})
}

// readCharge reads the charge in a zone.
func (p *Parser) readCharge(zone string, v *fastjson.Value, r *Request) {
	charged := int64(-1)
	if p.setInteger(&charged, v); charged >= 0 {
		if r.Charged == nil {
			r.Charged = make(map[string]int64)
		}
		r.Charged[zone] = charged
	}
}

// readRequest reads the field request.
func (p *Parser) readRequest(v *fastjson.Value, r *Request) {
	r.LacksClientIP = true
	eachField(v, func(name []byte, v *fastjson.Value) {
		switch string(name) {
		case "remote_ip":
			setText(&r.RemoteIP, v)
		case "remote_port":
			setText(&r.RemotePort, v)
		case "client_ip":
			setText(&r.ClientIP, v)
			r.LacksClientIP = v.Type() != fastjson.TypeString
		case "proto":
			setText(&r.Proto, v)
		case "method":
			setText(&r.Method, v)
		case "host":
			setText(&r.Host, v)
		case "uri":
			setText(&r.URI, v)
		case "headers":
			p.readHeader(v, r.Header)
		case "tls":
			if v.Type() == fastjson.TypeObject {
				p.tls = TLS{}
				r.TLS = &p.tls
				p.readTLS(v)
			}
		}
	})
}

// readTLS reads the field tls of a request.
func (p *Parser) readTLS(v *fastjson.Value) {
	eachField(v, func(name []byte, v *fastjson.Value) {
		switch string(name) {
		case "resumed":
			p.tls.Resumed = v.Type() == fastjson.TypeTrue
		case "version":
			p.setUint16(&p.tls.Version, v)
		case "cipher_suite":
			p.setUint16(&p.tls.CipherSuite, v)
		case "proto":
			setText(&p.tls.ALPN, v)
		case "server_name":
			setText(&p.tls.ServerName, v)
		case "client_common_name":
			setText(&p.tls.CommonName, v)
		}
	})
}

// readHeader reads header fields. Each has a list of values. A filter makes one text of them.
func (p *Parser) readHeader(v *fastjson.Value, h http.Header) {
	eachField(v, func(name []byte, v *fastjson.Value) {
		first := len(p.values)
		if values, err := v.Array(); err == nil {
			for _, v := range values {
				p.appendValue(v)
			}
		} else {
			p.appendValue(v)
		}
		h[textOf(name)] = p.values[first:len(p.values):len(p.values)]
	})
}

// appendValue appends a value of a header field, if it is a text.
func (p *Parser) appendValue(v *fastjson.Value) {
	if text, err := v.StringBytes(); err == nil {
		p.values = append(p.values, textOf(text))
	}
}

// readDuration reads the duration of the request.
func (p *Parser) readDuration(v *fastjson.Value, e *entry) {
	text := p.scalar(v)
	if v.Type() == fastjson.TypeNumber {
		p.duration = append(p.duration[:0], text...)
	} else if d, err := time.ParseDuration(textOf(text)); err == nil {
		e.duration = max(0, d.Microseconds())
		return
	}
	unit := time.Second
	if p.unit != 0 && bytes.IndexByte(text, '.') < 0 {
		unit = p.unit
	}
	if d, ok := microseconds(text, unit); ok {
		e.duration = d
	}
}

// eachField calls read for each field of an object, in their order. Any other value has no fields.
func eachField(v *fastjson.Value, read func(name []byte, v *fastjson.Value)) {
	if o, err := v.Object(); err == nil {
		o.Visit(read)
	}
}

// scalar returns a number as it is written, or a text. Other values are empty.
func (p *Parser) scalar(v *fastjson.Value) []byte {
	switch v.Type() {
	case fastjson.TypeNumber:
		p.number = v.MarshalTo(p.number[:0])
		return p.number
	case fastjson.TypeString:
		text, _ := v.StringBytes()
		return text
	}
	return nil
}

// setText sets *to to a text. Other values leave it as it is.
func setText(to *string, v *fastjson.Value) {
	if text, err := v.StringBytes(); err == nil {
		*to = textOf(text)
	}
}

// setInteger sets *to to an integer from 0, which can be written as a text. Other values leave it as it is.
func (p *Parser) setInteger(to *int64, v *fastjson.Value) {
	if n, err := strconv.ParseInt(textOf(p.scalar(v)), 10, 64); err == nil && n >= 0 {
		*to = n
	}
}

// setUint16 sets *to to a number. Other values leave it as it is.
func (p *Parser) setUint16(to *uint16, v *fastjson.Value) {
	if n, err := strconv.ParseUint(textOf(p.scalar(v)), 10, 16); err == nil {
		*to = uint16(n)
	}
}
