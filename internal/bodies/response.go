package bodies

import (
	"bytes"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/contentcoding"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/eventstream"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/jsonvalue"
)

// The placeholders of values in responses. Only cost of settle can have them.
const (
	responsePrefix     = "http.rate_limit.response."
	responseJSONPrefix = responsePrefix + "json."
	responseBytes      = responsePrefix + "bytes"
	responseSeconds    = responsePrefix + "seconds"
)

// IsOfResponse reports whether a placeholder is a value in responses.
func IsOfResponse(placeholder string) bool { return strings.HasPrefix(placeholder, responsePrefix) }

// IsResponseJSON reports whether a placeholder is a JSON value in responses.
func IsResponseJSON(placeholder string) bool {
	return strings.HasPrefix(placeholder, responseJSONPrefix)
}

// ResponseValues are the JSON values that the zones of a handler read from bodies of responses.
type ResponseValues struct {
	placeholders []string
	paths        []jsonvalue.Path // one per placeholder
}

// Add adds the values of those placeholders that are JSON in responses.
func (v *ResponseValues) Add(placeholders ...string) error {
	for _, placeholder := range placeholders {
		text, ok := strings.CutPrefix(placeholder, responseJSONPrefix)
		if !ok || slices.Contains(v.placeholders, placeholder) {
			continue
		}
		path, err := jsonvalue.ParsePath(text)
		if err != nil {
			return err
		}
		v.placeholders, v.paths = append(v.placeholders, placeholder), append(v.paths, path)
	}
	return nil
}

// ResponseBody is the body of one response, as far as the true costs of its request depend on it. Each part of the
// body goes to the client first, and is read after that. The exception is the last part, because the true cost must
// be known before the response is complete. A nil ResponseBody is a body on which no true cost depends.
type ResponseBody struct {
	values *ResponseValues // nil: no true cost is a value in JSON
	began  time.Time

	kind     responseKind
	coding   string // the content coding; empty if the body isn't compressed
	switched bool   // the connection becomes another protocol, and its bytes aren't seen
	ended    bool   // no more is read, such as the body that a handler writes for HEAD

	length  int64
	took    time.Duration
	json    jsonBody              // nil until a part is seen
	decoder *contentcoding.Writer // nil if the body isn't compressed
}

// NewResponseBody returns the body of the response that is about to begin. values is nil if no true cost is a value in
// JSON. Otherwise NewResponseBody takes the content codings out of the request that can't be decoded.
func NewResponseBody(r *http.Request, values *ResponseValues) *ResponseBody {
	if values != nil {
		acceptOnlyDecodable(r.Header)
	}
	return &ResponseBody{
		values: values, began: time.Now(),
		switched: r.Method == http.MethodConnect, // over HTTP/2 for a WebSocket, whose response has status 200
	}
}

// NewLoggedResponseBody returns the body of a response of which only the length and the duration are known.
func NewLoggedResponseBody(method string, length int64, took time.Duration) *ResponseBody {
	return &ResponseBody{length: length, took: took, switched: method == http.MethodConnect}
}

// responseKind is the kind of a body.
type responseKind uint8

const (
	noJSON responseKind = iota
	oneJSONText
	eventStream // the data of its events are JSON texts
	jsonLines   // each line is a JSON text
)

// jsonBody reads the values at the paths of a [ResponseValues] from a body that is written to it.
type jsonBody interface {
	io.Writer
	// Value returns the value at the path with the number i, as far as the body has been written.
	Value(i int) (string, bool)
}

// responseKindOf returns the kind of a body by its Content-Type.
func responseKindOf(contentType string) responseKind {
	mediaType, _, _ := strings.Cut(contentType, ";")
	switch mediaType = strings.ToLower(strings.TrimSpace(mediaType)); {
	case mediaType == "text/event-stream":
		return eventStream
	case isJSONType(mediaType):
		return oneJSONText
	case isJSONLinesType(mediaType):
		return jsonLines
	}
	return noJSON
}

// ReadHeader prepares for the body that follows this header.
func (b *ResponseBody) ReadHeader(status int, header http.Header) {
	if b == nil {
		return
	}
	b.switched = b.switched || status == http.StatusSwitchingProtocols
	if b.values == nil || b.switched {
		return
	}
	b.kind = responseKindOf(header.Get("Content-Type"))
	b.coding = strings.TrimSpace(strings.Join(header.Values("Content-Encoding"), ", "))
	if strings.EqualFold(b.coding, "identity") {
		b.coding = ""
	}
}

// isRead reports whether the content of the next part is read, and not only its length.
func (b *ResponseBody) isRead() bool {
	return !b.ended && b.kind != noJSON && (b.coding == "" || contentcoding.CanDecode(b.coding))
}

// See reads a part of the body. A connection that has become another protocol over HTTP/2 may still write when the
// handlers have returned. So its bytes change nothing.
func (b *ResponseBody) See(part []byte) {
	if b == nil || b.switched {
		return
	}
	if b.length += int64(len(part)); !b.isRead() || len(part) == 0 {
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

// End ends the body. Its values are known after that, and See reads nothing more.
func (b *ResponseBody) End() {
	if b == nil {
		return
	}
	b.ended, b.took = true, time.Since(b.began)
	if b.decoder != nil && b.decoder.Close() != nil {
		b.json = nil // the values so far are not the last ones
	}
}

// Replace returns the value of a placeholder. It is a ReplacementFunc of Caddy, and leaves the values of
// other placeholders as they are.
func (b *ResponseBody) Replace(placeholder string, value any) (any, error) {
	switch {
	case placeholder == responseSeconds:
		return strconv.FormatFloat(b.took.Seconds(), 'f', -1, 64), nil
	case placeholder == responseBytes && b.switched:
		return "", nil
	case placeholder == responseBytes:
		return strconv.FormatInt(b.length, 10), nil
	case IsResponseJSON(placeholder) && b.json != nil:
		text, _ := b.json.Value(slices.Index(b.values.placeholders, placeholder))
		return text, nil
	}
	return value, nil
}

// newJSONBody returns a reader of JSON values for a body.
func (v *ResponseValues) newJSONBody(kind responseKind) jsonBody {
	reader := jsonvalue.NewReader(maxResponseValue, v.paths...)
	if kind == oneJSONText {
		return reader // if the text is cut or malformed, the values before that place count
	}
	events := &jsonEvents{event: reader, last: make([]string, len(v.paths))}
	if kind == jsonLines {
		return &jsonLinesBody{events}
	}
	return &jsonEventStream{eventstream.NewReader(events), events}
}

// jsonEvents are JSON texts that follow each other. Each value is the one of the last complete event that
// has it. Events that aren't JSON don't count.
type jsonEvents struct {
	event *jsonvalue.Reader
	last  []string // the last values; empty if there was none
}

// Data implements [eventstream.Events].
func (b *jsonEvents) Data(piece []byte) { _, _ = b.event.Write(piece) }

// End implements [eventstream.Events].
func (b *jsonEvents) End() {
	if b.event.Close() == nil {
		for i := range b.last {
			if text, ok := b.event.Value(i); ok {
				b.last[i] = text
			}
		}
	}
	b.event.Reset()
}

// Value implements jsonBody.
func (b *jsonEvents) Value(i int) (string, bool) { return b.last[i], b.last[i] != "" }

// jsonEventStream is a body that is an event stream. The data of its events are JSON texts.
type jsonEventStream struct {
	io.Writer
	*jsonEvents
}

// jsonLinesBody is a body with a JSON text in each line. The last line may lack its end.
type jsonLinesBody struct{ *jsonEvents }

func (b *jsonLinesBody) Write(p []byte) (int, error) {
	for line := range bytes.Lines(p) {
		if b.Data(line); line[len(line)-1] == '\n' {
			b.End()
		}
	}
	return len(p), nil
}

// Value implements jsonBody.
func (b *jsonLinesBody) Value(i int) (string, bool) {
	b.End()
	return b.jsonEvents.Value(i)
}

// acceptOnlyDecodable takes the content codings out of Accept-Encoding that can't be decoded, such as br. It changes
// the header itself, because a copy would hide later changes from placeholders. Behind a handler such as tracing, these
// read the header of an earlier copy of the request.
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
