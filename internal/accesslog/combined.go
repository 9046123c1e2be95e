package accesslog

import (
	"bytes"
	"net/netip"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// combinedTime returns the time of a line in the combined format, and the text before it. A user's name is before the
// time. It can have brackets and spaces, but each quote in it has a backslash.
func combinedTime(line []byte) (text, before []byte) {
	end := bytes.Index(line, []byte(`] "`))
	if end < 0 {
		return nil, nil
	}
	begin := bytes.LastIndexByte(line[:end], '[')
	if begin < 0 {
		return nil, nil
	}
	return line[begin+1 : end], bytes.TrimSpace(line[:begin])
}

// parseCombined reads a line in the combined or the common format.
func (p *Parser) parseCombined(line []byte, r *Request) error {
	text, before := combinedTime(line)
	switch {
	case text == nil && p.format == formatCombined:
		return errNoTimeInBrackets
	case text == nil:
		return errFormat
	}
	end, ok := p.times.read(text)
	if !ok {
		return errNoTime
	}
	if !p.readClient(before, r) {
		return errCombined
	}
	_, rest, _ := bytes.Cut(line, []byte(`] "`))
	request, rest, ok := p.cutQuoted(rest)
	if !ok {
		return errCombined
	}
	status, rest := cutWord(rest)
	size, rest := cutWord(rest)
	n, ok := digits(status)
	if !ok || len(status) != 3 {
		return errCombined
	}
	r.Status = int(n)
	if r.Size, ok = digits(size); (!ok || len(size) == 0) && string(size) != "-" {
		return errCombined
	}
	duration, ok := p.readExtra(rest, r)
	if !ok {
		return errCombined
	}
	r.setTimes(end, duration)
	if !readRequestLine(request, r) {
		return ErrNotAccess
	}
	return nil
}

// readClient reads the fields before the time: the virtual host in some logs, the address, the identity, and
// the user. Servers leave the identity empty today.
func (p *Parser) readClient(text []byte, r *Request) bool {
	first, rest := cutWord(text)
	second, others := cutWord(rest)
	if !isAddress(first) && isAddress(second) {
		r.Host = p.decode(first)
		first, rest = second, others
	}
	identity, user := cutWord(rest)
	if len(identity) == 0 {
		return false
	}
	r.RemoteIP = textOf(first)
	// Caddy's transform encoder can write nothing for an unknown user.
	if user = bytes.TrimSpace(user); string(user) != "-" && string(user) != `""` {
		r.User = p.decode(user)
	}
	return true
}

// readExtra reads the fields after the size: Referer and User-Agent in quotes, then X-Forwarded-For in the format main of
// nginx, and the duration in seconds.
func (p *Parser) readExtra(text []byte, r *Request) (duration int64, ok bool) {
	for quoted := 0; ; {
		text = bytes.TrimLeft(text, " ")
		switch {
		case len(text) == 0:
			return duration, true
		case text[0] == '"':
			var value string
			if value, text, ok = p.cutQuoted(text[1:]); !ok {
				return 0, false
			}
			p.setExtra(quoted, value, r)
			quoted++
		default:
			var word []byte
			word, text = cutWord(text)
			if d, ok := microseconds(word, time.Second); ok && bytes.IndexByte(word, '.') > 0 && duration == 0 {
				duration = d
			}
		}
	}
}

// setExtra sets the header field that is the quoted field with a number, counted from 0.
func (p *Parser) setExtra(quoted int, value string, r *Request) {
	if value == "-" || value == "" {
		return
	}
	name := ""
	switch quoted {
	case 0:
		name = "Referer"
	case 1:
		name = "User-Agent"
	case 2: // many logs have something else there
		name = "X-Forwarded-For"
		if address, _, _ := strings.Cut(value, ","); !isAddress([]byte(address)) {
			return
		}
	default:
		return
	}
	p.values = append(p.values, value)
	r.Header[name] = p.values[len(p.values)-1 : len(p.values) : len(p.values)]
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

// isAddress reports whether a text is an IP address.
func isAddress(text []byte) bool {
	if len(text) == 0 || !bytes.ContainsAny(text, ".:") {
		return false
	}
	_, err := netip.ParseAddr(textOf(text))
	return err == nil
}

// cutWord returns the text before the first space, and the rest.
func cutWord(text []byte) (word, rest []byte) {
	word, rest, _ = bytes.Cut(bytes.TrimLeft(text, " "), []byte(" "))
	return word, rest
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
