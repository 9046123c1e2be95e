package accesslog

import (
	"bytes"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// findTime returns the time of a line in the combined format, and the text before and after it. The time is in the last
// brackets before a quote. A user's name is before the time. It can have brackets and spaces, but each quote in it has a
// backslash.
func (p *Parser) findTime(line []byte) (end int64, before, after []byte) {
	tries := 0
	for begin := 0; ; {
		quote := bytes.IndexByte(line[begin:], '"')
		if quote < 0 {
			return 0, nil, nil
		}
		part := line[begin : begin+quote]
		for ; tries < maxBrackets; tries++ {
			closing := bytes.LastIndexByte(part, ']')
			opening := bytes.LastIndexByte(part[:max(0, closing)], '[')
			if opening < 0 {
				break
			}
			if end, ok := p.times.read(part[opening+1 : closing]); ok {
				return end, line[:begin+opening], line[begin+closing+1:]
			}
			part = part[:closing]
		}
		begin += quote + 1
	}
}

// maxBrackets bounds the search for the time.
const maxBrackets = 16

// parseCombined reads a line in the combined or the common format. The request is the text in quotes behind the time.
func (p *Parser) parseCombined(line []byte, r *Request) error {
	end, before, after := p.findTime(line)
	_, rest, hasQuote := bytes.Cut(after, []byte(`"`))
	if end == 0 || !hasQuote || !p.readClient(before, r) {
		return errFormat
	}
	request, rest, ok := p.cutQuoted(rest)
	if !ok {
		return errFormat
	}
	if rest, ok = readStatus(rest, r); !ok {
		return errFormat
	}
	duration, ok := p.readExtra(rest, r)
	if !ok {
		return errFormat
	}
	r.setClient()
	r.setTimes(end, duration)
	if !readRequestLine(request, r) {
		return ErrNotAccess
	}
	return nil
}

// readStatus reads the status and the size. A dash is no size.
func readStatus(text []byte, r *Request) (rest []byte, ok bool) {
	status, text := cutWord(text)
	size, rest := cutWord(text)
	n, ok := digits(status)
	r.Status = int(n)
	if !ok || len(status) != 3 || len(size) == 0 {
		return nil, false
	}
	if string(size) == "-" {
		return rest, true
	}
	r.Size, ok = digits(size)
	return rest, ok
}

// extraFields are the header fields after the size, which are in quotes.
var extraFields = [...]string{"Referer", "User-Agent", "X-Forwarded-For"}

// readExtra reads the fields after the size: Referer and User-Agent in quotes, then X-Forwarded-For in the format main of
// nginx, and the duration.
func (p *Parser) readExtra(text []byte, r *Request) (duration int64, ok bool) {
	for quoted := 0; ; {
		text = bytes.TrimLeft(text, " \t")
		switch {
		case len(text) == 0:
			return duration, true
		case text[0] == '"':
			var value string
			if value, text, ok = p.cutQuoted(text[1:]); !ok {
				return 0, false
			}
			first, _, _ := strings.Cut(value, ",") // many logs have something else there, such as the address of an upstream
			if isField := quoted < 2 || quoted == 2 && isAddress([]byte(strings.TrimSpace(first))); isField && value != "-" && value != "" {
				p.setExtra(quoted, value, r)
			}
			quoted++
		default:
			var word []byte
			word, text = cutWord(text)
			duration = max(duration, durationIn(word))
		}
	}
}

// setExtra sets the header field that is the quoted field with a number, counted from 0.
func (p *Parser) setExtra(quoted int, value string, r *Request) {
	p.values = append(p.values, value)
	r.Header[extraFields[quoted]] = p.values[len(p.values)-1 : len(p.values) : len(p.values)]
}

// maxDuration is the longest duration in the combined format. A larger number is a time.
const maxDuration = int64(time.Hour/time.Microsecond) * 24 * 7

// durationIn returns the duration in a word, or 0. It has a unit, a name such as rt= or request_time=, or at least three
// digits after the point, as $request_time of nginx. So $gzip_ratio is none. If a line has several, as the times of an upstream
// server, the longest is that of the request.
func durationIn(word []byte) int64 {
	number := word
	if name, value, ok := bytes.Cut(word, []byte("=")); ok {
		if string(name) != "rt" && !bytes.Contains(name, []byte("time")) && !bytes.Contains(name, []byte("duration")) {
			return 0
		}
		number = bytes.Trim(value, `",`)
	}
	if len(number) < 2 || number[0] < '0' || '9' < number[0] {
		return 0
	}
	if number[len(number)-1] == 's' {
		d, _ := time.ParseDuration(textOf(number))
		return max(0, d.Microseconds())
	}
	d, ok := microseconds(number, time.Second)
	point := bytes.IndexByte(number, '.')
	if !ok || point < 0 || d > maxDuration {
		return 0
	}
	if len(number)-point <= 3 && len(number) == len(word) {
		return 0
	}
	return d
}

// readRequestLine reads the line of the request, and reports whether it has a method and a URI. HTTP/0.9 has no
// protocol.
func readRequestLine(line string, r *Request) bool {
	method, uri, _ := strings.Cut(line, " ")
	if i := strings.LastIndex(uri, " HTTP/"); i >= 0 {
		uri, r.Proto = uri[:i], uri[i+1:]
	}
	r.Method, r.URI = method, uri
	for _, c := range []byte(method) {
		isLetter := 'A' <= c && c <= 'Z' || 'a' <= c && c <= 'z'
		if !isLetter && strings.IndexByte("-_", c) < 0 {
			return false
		}
	}
	return method != "" && method != "-" && uri != ""
}

// cutWord returns the text before the first space or tab, and the rest.
func cutWord(text []byte) (word, rest []byte) {
	for len(text) > 0 && (text[0] == ' ' || text[0] == '\t') {
		text = text[1:]
	}
	for i, c := range text {
		if c == ' ' || c == '\t' {
			return text[:i], text[i+1:]
		}
	}
	return text, nil
}

// cutQuoted returns the text before the closing quote, decoded, and what follows the quote.
func (p *Parser) cutQuoted(text []byte) (quoted string, rest []byte, ok bool) {
	for i := 0; i < len(text); i++ {
		switch text[i] {
		case '"':
			return p.decode(text[:i]), text[i+1:], true
		case '\\':
			i++
		}
	}
	return "", nil, false
}

// escapes are the characters after a backslash that stand for another one.
var escapes = [256]byte{
	'a': '\a', 'b': '\b', 'f': '\f', 'n': '\n', 'r': '\r', 't': '\t', 'v': '\v',
	'"': '"', '\\': '\\', '/': '/', '\'': '\'',
}

// decode decodes the escapes of Apache, nginx and Caddy: \", \n, \x16, \u00e9. Other backslashes stay.
func (p *Parser) decode(text []byte) string {
	backslash := bytes.IndexByte(text, '\\')
	if backslash < 0 {
		return textOf(text)
	}
	first := len(p.text)
	for ; backslash >= 0; backslash = bytes.IndexByte(text, '\\') {
		p.text = append(p.text, text[:backslash]...)
		text = text[backslash:]
		switch {
		case len(text) >= 4 && text[1] == 'x' && isHex(text[2:4]):
			p.text = append(p.text, byte(hexValue(text[2:4])))
			text = text[4:]
		case len(text) >= 6 && text[1] == 'u' && isHex(text[2:6]):
			p.text = utf8.AppendRune(p.text, hexValue(text[2:6]))
			text = text[6:]
		case len(text) >= 2 && escapes[text[1]] != 0:
			p.text = append(p.text, escapes[text[1]])
			text = text[2:]
		default:
			p.text = append(p.text, '\\')
			text = text[1:]
		}
	}
	p.text = append(p.text, text...)
	return textOf(p.text[first:])
}

// isHex reports whether a text has only hexadecimal digits.
func isHex(text []byte) bool {
	_, err := strconv.ParseUint(textOf(text), 16, 32)
	return err == nil
}

// hexValue returns the value of up to 4 hexadecimal digits.
func hexValue(text []byte) rune {
	n, _ := strconv.ParseUint(textOf(text), 16, 32)
	return rune(n)
}
