package ratelimit

import (
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/contentcoding"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/eventstream"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/jsonvalue"
)

// This file reads the values of a response's body that a true cost depends on. Each part of the body goes
// to the client first, and is read after that. The exception is the last part, because the true cost must
// be known before the response is complete.

// The placeholders of these values. Only cost of settle can have them.
const (
	responsePrefix     = placeholderPrefix + ".response."
	responseJSONPrefix = responsePrefix + "json."
	responseBytes      = responsePrefix + "bytes"
	responseSeconds    = responsePrefix + "seconds"
)

// maxResponseValue is the maximum length of a JSON value in a response, in bytes. No number is longer.
const maxResponseValue = 64

// bodyPlaceholders returns the placeholders in cost that depend on the body of the response.
func (s *Settle) bodyPlaceholders() (names []string) {
	all, _ := placeholderNames(string(s.Cost)) // checkPlaceholders reports the error
	for _, name := range all {
		if strings.HasPrefix(name, responsePrefix) {
			names = append(names, name)
		}
	}
	return names
}

// isResponseJSON reports whether a placeholder is a value in JSON.
func isResponseJSON(name string) bool { return strings.HasPrefix(name, responseJSONPrefix) }

// responseValues are the JSON values that the zones of a handler read from bodies of responses.
type responseValues struct {
	placeholders []string
	paths        []jsonvalue.Path // one per placeholder
}

// add adds the JSON values that a zone reads.
func (v *responseValues) add(s *Settle) error {
	if s == nil {
		return nil
	}
	for _, name := range s.bodyPlaceholders() {
		text, ok := strings.CutPrefix(name, responseJSONPrefix)
		if !ok || slices.Contains(v.placeholders, name) {
			continue
		}
		path, err := jsonvalue.ParsePath(text)
		if err != nil {
			return err
		}
		v.placeholders, v.paths = append(v.placeholders, name), append(v.paths, path)
	}
	return nil
}

// responseBody is the body of one response, as far as the true costs of its request depend on it.
type responseBody struct {
	values    *responseValues
	needsJSON bool // a true cost is a value in JSON
	began     time.Time

	kind     responseKind
	coding   string // the content coding; empty if the body isn't compressed
	switched bool   // the connection becomes another protocol, and its bytes aren't seen
	ended    bool   // no more is read, such as the body that a handler writes for HEAD

	length  int64
	took    time.Duration
	json    jsonBody              // nil until a part is seen
	decoder *contentcoding.Writer // nil if the body isn't compressed
}

// responseKind is the kind of a body.
type responseKind uint8

const (
	noJSON responseKind = iota
	oneJSONText
	eventStream // the data of its events are JSON texts
)

// jsonBody reads the values at the paths of a [responseValues] from a body that is written to it.
type jsonBody interface {
	io.Writer
	// value returns the value at the path with the number i, as far as the body has been written.
	value(i int) (string, bool)
}

// kindOf returns the kind of a body by its Content-Type.
func kindOf(contentType string) responseKind {
	mediaType, _, _ := strings.Cut(contentType, ";")
	switch mediaType = strings.ToLower(strings.TrimSpace(mediaType)); {
	case mediaType == "text/event-stream":
		return eventStream
	case isJSONType(mediaType):
		return oneJSONText
	}
	return noJSON
}

// readHeader prepares for the body that follows this header.
func (b *responseBody) readHeader(status int, header http.Header) {
	b.switched = b.switched || status == http.StatusSwitchingProtocols
	if !b.needsJSON || b.switched {
		return
	}
	b.kind = kindOf(header.Get("Content-Type"))
	b.coding = strings.TrimSpace(strings.Join(header.Values("Content-Encoding"), ", "))
	if strings.EqualFold(b.coding, "identity") {
		b.coding = ""
	}
}

// isRead reports whether the content of the next part is read, and not only its length. b is nil if no true
// cost depends on the body.
func (b *responseBody) isRead() bool {
	return b != nil && !b.ended && b.kind != noJSON && !b.hasUnknownCoding()
}

// hasUnknownCoding reports whether the body is compressed in a way that can't be decoded.
func (b *responseBody) hasUnknownCoding() bool {
	return b.coding != "" && !contentcoding.CanDecode(b.coding)
}

// wasUndecodable reports whether values are missing because the body was compressed in an unknown way.
// b can be nil.
func (b *responseBody) wasUndecodable() bool {
	return b != nil && b.kind != noJSON && b.hasUnknownCoding() && b.length > 0
}

// warnOfUndecodable warns of a zone whose responses can't be decoded.
func (z *zone) warnOfUndecodable(coding string) {
	if !z.warnedOfCoding.Swap(true) {
		z.logger.Warn("a response has a content coding that settle can't decode, so its charge stayed: "+
			"let the upstream compress with gzip or zstd, or heed Accept-Encoding, in which rate_limit offers no other coding (said once)",
			zap.String("zone", z.name), zap.String("coding", clipText(coding)))
	}
}

// see reads a part of the body. b can be nil.
func (b *responseBody) see(part []byte) {
	b.count(int64(len(part)))
	if !b.isRead() || len(part) == 0 {
		return
	}
	if b.json == nil {
		b.json = b.values.newJSONBody(b.kind)
		if b.coding != "" {
			b.decoder = contentcoding.NewWriter(b.coding, b.json)
		}
	}
	if b.decoder != nil {
		_, _ = b.decoder.Write(part)
		return
	}
	_, _ = b.json.Write(part)
}

// count counts bytes of the body. b can be nil. A connection that has become another protocol over
// HTTP/2 may still write when the handlers have returned. So its bytes change nothing.
func (b *responseBody) count(n int64) {
	if b != nil && !b.switched {
		b.length += n
	}
}

// end ends the body. Its values are known after that, and see reads nothing more.
func (b *responseBody) end() {
	b.ended, b.took = true, time.Since(b.began)
	if b.decoder != nil && b.decoder.Close() != nil {
		b.json = nil // the values so far are not the last ones
	}
}

// replace returns the value of a placeholder. It is a [caddy.ReplacementFunc], and leaves the values of
// other placeholders as they are.
func (b *responseBody) replace(placeholder string, value any) (any, error) {
	switch {
	case placeholder == responseSeconds:
		return strconv.FormatFloat(b.took.Seconds(), 'f', -1, 64), nil
	case placeholder == responseBytes && b.switched:
		return "", nil
	case placeholder == responseBytes:
		return strconv.FormatInt(b.length, 10), nil
	case isResponseJSON(placeholder) && b.json != nil:
		text, _ := b.json.value(slices.Index(b.values.placeholders, placeholder))
		return text, nil
	}
	return value, nil
}

// newJSONBody returns a reader of JSON values for a body.
func (v *responseValues) newJSONBody(kind responseKind) jsonBody {
	reader := jsonvalue.NewReader(maxResponseValue, v.paths...)
	if kind == oneJSONText {
		return &jsonText{Reader: reader}
	}
	events := &jsonEvents{event: reader, last: make([]string, len(v.paths))}
	events.Reader = eventstream.NewReader(events)
	return events
}

// jsonText is a body that is one JSON text. If the text is cut, the values before the cut count.
// A text that is malformed has no values.
type jsonText struct {
	*jsonvalue.Reader
	malformed bool
}

func (b *jsonText) Write(p []byte) (int, error) {
	if !b.malformed {
		_, err := b.Reader.Write(p)
		b.malformed = err != nil
	}
	return len(p), nil
}

func (b *jsonText) value(i int) (string, bool) {
	if b.malformed {
		return "", false
	}
	return b.Value(i)
}

// jsonEvents is a body that is an event stream. Each value is the one of the last complete event that
// has it. Events that aren't JSON don't count.
type jsonEvents struct {
	*eventstream.Reader
	event     *jsonvalue.Reader
	malformed bool     // the current event
	last      []string // the last values; empty if there was none
}

// Data implements [eventstream.Events].
func (b *jsonEvents) Data(piece []byte) {
	if !b.malformed {
		_, err := b.event.Write(piece)
		b.malformed = err != nil
	}
}

// End implements [eventstream.Events].
func (b *jsonEvents) End() {
	if !b.malformed && b.event.Close() == nil {
		for i := range b.last {
			if text, ok := b.event.Value(i); ok {
				b.last[i] = text
			}
		}
	}
	b.event.Reset()
	b.malformed = false
}

func (b *jsonEvents) value(i int) (string, bool) { return b.last[i], b.last[i] != "" }

// acceptOnlyDecodable takes the content codings out of Accept-Encoding that can't be decoded, such as br.
func acceptOnlyDecodable(header http.Header) {
	accepted := header["Accept-Encoding"]
	if len(accepted) == 0 {
		return
	}
	var decodable []string
	for item := range strings.SplitSeq(strings.Join(accepted, ","), ",") {
		coding, _, _ := strings.Cut(item, ";")
		if coding = strings.TrimSpace(coding); contentcoding.CanDecode(coding) || strings.EqualFold(coding, "identity") {
			decodable = append(decodable, strings.TrimSpace(item))
		}
	}
	if len(decodable) == 0 { // without the field, any coding would be accepted
		decodable = []string{"identity"}
	}
	header["Accept-Encoding"] = []string{strings.Join(decodable, ", ")}
}
