package formvalue

import (
	"bytes"
	"errors"
	"mime"
	"regexp"
	"strings"
)

const (
	// maxParts is the number of parts that a body can have. Go's own form parser has the same bound.
	maxParts = 1000
	// maxPartHeader is the size of a part's header fields, in bytes. Other parsers ignore fields of a
	// long header, and no client sends one.
	maxPartHeader = 8 << 10
)

var (
	errBoundary = errors.New("the boundary is empty, or has characters that are not allowed")
	errParts    = errors.New("the body has more than 1,000 parts")
	errPart     = errors.New("the parts of the body are malformed, or parsers disagree about them")
)

var (
	lineEnd     = []byte("\r\n")
	dashes      = []byte("--")
	endOfHeader = []byte("\r\n\r\n")
	bom         = []byte("\uFEFF") // the byte order mark, in UTF-8

	// validBoundary are the boundaries of RFC 2046, without spaces and commas.
	validBoundary = regexp.MustCompile(`^[0-9A-Za-z'()+_./:=?-]{1,70}$`)
	// headerField is a field of a part's header on one line.
	headerField = regexp.MustCompile(`^([0-9A-Za-z-]+):[ \t]*([^\x00-\x08\x0A-\x1F\x7F]*)$`)
	// parameter is the first parameter of a text, up to the semicolon after it.
	parameter = regexp.MustCompile(`^[ \t]*([0-9A-Za-z*-]+)=(?:"([^"]*)"|([^ \t";]+))[ \t]*(?:;|$)`)
)

// Multipart returns the value of a field from a body of the type multipart/form-data. ok is false when
// the body has no field of that name. A file has no value. A value of more than maxValue bytes is [ErrTooLong].
//
// The body must have the form that browsers send. Parsers disagree about other forms, so a client could show one
// value to this package and another one to the application. Where they could concern the field, these are errors:
//
//   - two parts with the name of the field, or with names that PHP reads as the same one,
//   - text before the first boundary or after the last one,
//   - lines that end in LF, and spaces behind a boundary,
//   - header fields that are repeated, or are on several lines,
//   - two names, names in another encoding, and file names that are empty or encoded,
//   - a transfer encoding, and a charset,
//   - a byte order mark at the beginning of a name or a value. The formData of JavaScript leaves it out.
func Multipart(body []byte, boundary, field string, maxValue int) (value string, ok bool, err error) {
	if !validBoundary.MatchString(boundary) {
		return "", false, errBoundary
	}
	delimiter := []byte("--" + boundary)
	seen := false  // the field, or a file of its name
	other := false // another name that PHP reads as the field
	rest, found := bytes.CutPrefix(bytes.TrimPrefix(body, lineEnd), delimiter)
	for count := 0; found; count++ {
		if after, isLast := bytes.CutPrefix(rest, dashes); isLast {
			if len(bytes.Trim(after, "\r\n")) > 0 {
				break
			}
			if ok && other {
				return "", false, ErrAmbiguous
			}
			return value, ok, nil
		}
		if count == maxParts {
			return "", false, errParts
		}
		var text []byte
		if rest, found = bytes.CutPrefix(rest, lineEnd); !found {
			break
		}
		if text, rest, found = bytes.Cut(rest, delimiter); !found {
			break
		}
		if text, found = bytes.CutSuffix(text, lineEnd); !found {
			break
		}
		p, err := readPart(text)
		switch {
		case err != nil:
			return "", false, err
		case p.name != field:
			same, strange := likeField(p.name, field)
			if strange {
				return "", false, ErrAmbiguous
			}
			other = other || same
			continue
		case seen || !p.isFile() && !p.isPlainText():
			return "", false, errPart
		case !p.isFile():
			if value, err = validValue(p.content, maxValue); err != nil {
				return "", false, err
			}
			ok = true
		}
		seen = true
	}
	return "", false, errPart
}

// part is a part of a multipart body.
type part struct {
	name        string
	fileName    string // empty if there is none
	otherName   bool   // a file name that is empty or encoded, which some parsers ignore
	contentType string
	encoding    string // the transfer encoding
	content     []byte
}

func (p *part) isFile() bool { return p.fileName != "" }

// isPlainText reports whether the content is text, as it is.
func (p *part) isPlainText() bool {
	if bytes.HasPrefix(p.content, bom) {
		return false
	}
	switch strings.ToLower(p.encoding) {
	case "", "7bit", "8bit", "binary":
	default:
		return false
	}
	if p.contentType == "" {
		return !p.otherName
	}
	media, parameters, err := mime.ParseMediaType(p.contentType)
	if err != nil || media != "text/plain" || p.otherName {
		return false
	}
	switch strings.ToLower(parameters["charset"]) {
	case "", "utf-8", "utf8":
		return true
	case "us-ascii", "iso-8859-1":
		return !bytes.ContainsFunc(p.content, func(c rune) bool { return c >= 0x80 })
	}
	return false
}

// readPart reads the text between two boundaries.
func readPart(text []byte) (p part, err error) {
	header, content, found := bytes.Cut(text, endOfHeader)
	if !found || len(header) > maxPartHeader {
		return p, errPart
	}
	p.content = content
	disposition := ""
	for line := range strings.SplitSeq(string(header), "\r\n") {
		m := headerField.FindStringSubmatch(line)
		if m == nil {
			return p, errPart
		}
		field := new(string)
		switch strings.ToLower(m[1]) {
		case "content-disposition":
			field = &disposition
		case "content-type":
			field = &p.contentType
		case "content-transfer-encoding":
			field = &p.encoding
		}
		if *field != "" {
			return p, errPart
		}
		*field = strings.TrimRight(m[2], " \t")
	}
	if strings.HasPrefix(strings.ToLower(p.contentType), "multipart/") { // parts within a part
		return p, errPart
	}
	return p, p.readDisposition(disposition)
}

// readDisposition reads Content-Disposition.
func (p *part) readDisposition(text string) error {
	kind, rest, _ := strings.Cut(text, ";")
	if !strings.EqualFold(strings.TrimRight(kind, " \t"), "form-data") {
		return errPart
	}
	seen := make(map[string]bool, 2)
	for strings.Trim(rest, " \t") != "" {
		m := parameter.FindStringSubmatch(rest)
		if m == nil {
			return errPart
		}
		rest = rest[len(m[0]):]
		name, value := strings.ToLower(m[1]), m[2]+m[3]
		if seen[name] || strings.HasSuffix(value, `\`) { // \" is a quotation mark for some parsers
			return errPart
		}
		seen[name] = true
		switch {
		case name == "name":
			p.name = value
		case name == "filename":
			p.fileName, p.otherName = value, p.otherName || value == ""
		case strings.HasPrefix(name, "filename*"):
			p.otherName = true
		case strings.Contains(name, "*"):
			return errPart
		}
	}
	if !seen["name"] || strings.Contains(p.name, `\`) || strings.Contains(p.name, "=?") || // encodings of names
		strings.HasPrefix(p.name, string(bom)) {
		return errPart
	}
	return nil
}
