package bodies

import (
	"mime"
	"net/http"
	"regexp"
	"slices"
	"strings"
)

const multipartForm = "multipart/form-data"

// readHeader finds out what a body holds. The next handler may decode a body otherwise than this
// package, because of a content encoding or a charset. Parsers of multipart forms differ most. Such a body is unsupported.
func (b *RequestBody) readHeader(header http.Header) {
	types := header["Content-Type"]
	for _, t := range types {
		b.kind = max(b.kind, kindOfMediaType(t))
	}
	if b.kind == 0 {
		return
	}
	media, parameters, err := mime.ParseMediaType(types[0])
	switch strings.ToLower(parameters["charset"]) {
	case "", "utf-8", "utf8", "us-ascii":
	default:
		b.unsupported = errEncoded
	}
	charsets := strings.Count(strings.ToLower(types[0]), "charset=") // as a parser finds them that only searches for the name
	if err != nil || len(types) > 1 || media == multipartForm || !plainParameters.MatchString(types[0]) || charsets > 1 {
		b.unsupported = errEncoded
	}
	for _, encoding := range header["Content-Encoding"] {
		if encoding != "" && !strings.EqualFold(encoding, "identity") {
			b.unsupported = errEncoded
		}
	}
}

// plainParameters matches a Content-Type whose parameters all parsers read alike. RFC 2231 allows
// charset*=us-ascii”utf-8, which only some parsers know. Others cut a text in quotation marks at a
// semicolon or a comma.
var plainParameters = regexp.MustCompile(`^[^;]*(;[ \t]*[0-9A-Za-z!#$&+.^_-]+=([^ \t";,\\]+|"[^";,\\]*")[ \t]*)*;?[ \t]*$`)

// kindOfMediaType returns the kind of a media type, which may have parameters; 0 is another one. Some servers end the type
// at a comma or a space. Such a type is malformed, so the zone can't read the body. It reads no multipart form, either.
func kindOfMediaType(text string) Kinds {
	media := strings.ToLower(strings.TrimSpace(text))
	if end := strings.IndexAny(media, ";, \t"); end >= 0 {
		media = media[:end]
	}
	switch {
	case media == "application/x-www-form-urlencoded", media == multipartForm:
		return kindForm
	case isJSONType(media):
		return kindJSON
	}
	return 0
}

// isJSONLinesType reports whether a media type, in lower case and without parameters, has a JSON text in each line. No
// type is registered, so servers write several names.
func isJSONLinesType(media string) bool {
	name, ok := strings.CutPrefix(media, "application/")
	return ok && slices.Contains([]string{"ndjson", "jsonl", "jsonlines"}, strings.TrimPrefix(name, "x-"))
}

// isJSONType reports whether a media type, in lower case and without parameters, is JSON. A gRPC message
// isn't, because bytes precede its JSON.
func isJSONType(media string) bool {
	return media == "application/json" || media == "text/json" ||
		strings.HasSuffix(media, "+json") && !strings.HasPrefix(media, "application/grpc")
}
