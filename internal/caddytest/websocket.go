package caddytest

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"
)

// WebSocket is a side of a WebSocket (RFC 6455). It sends each message in one frame, and doesn't
// know pings.
type WebSocket struct {
	Conn   io.ReadWriteCloser
	in     *bufio.Reader
	client bool
}

// The key of the handshake and the answer to it that are the example of RFC 6455, section 1.3.
const (
	webSocketKey    = "dGhlIHNhbXBsZSBub25jZQ=="
	webSocketAccept = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
)

// DialWebSocket opens a WebSocket with a request.
func DialWebSocket(client *http.Client, r *http.Request) (*WebSocket, *http.Response, error) {
	r.Header.Set("Connection", "Upgrade")
	r.Header.Set("Upgrade", "websocket")
	r.Header.Set("Sec-WebSocket-Version", "13")
	r.Header.Set("Sec-WebSocket-Key", webSocketKey)
	response, err := client.Transport.RoundTrip(r) // the timeout of the client would end the WebSocket
	if err != nil {
		return nil, nil, err
	}
	conn, upgraded := response.Body.(io.ReadWriteCloser)
	if accept := response.Header.Get("Sec-WebSocket-Accept"); !upgraded || accept != webSocketAccept {
		_ = response.Body.Close()
		return nil, nil, fmt.Errorf("no WebSocket: status %d, Sec-WebSocket-Accept %q", response.StatusCode, accept)
	}
	return &WebSocket{Conn: conn, in: bufio.NewReader(conn), client: true}, response, nil
}

// AcceptWebSocket opens a WebSocket at the side of the server.
func AcceptWebSocket(w http.ResponseWriter, r *http.Request) (*WebSocket, error) {
	if !strings.EqualFold(r.Header.Get("Upgrade"), "websocket") || r.Header.Get("Sec-WebSocket-Key") != webSocketKey {
		http.Error(w, "no WebSocket", http.StatusBadRequest)
		return nil, errors.New("no WebSocket")
	}
	w.Header().Set("Connection", "Upgrade")
	w.Header().Set("Upgrade", "websocket")
	w.Header().Set("Sec-WebSocket-Accept", webSocketAccept)
	w.WriteHeader(http.StatusSwitchingProtocols)
	conn, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return nil, err
	}
	return &WebSocket{Conn: conn, in: buffered.Reader}, nil
}

// Kinds of frames, each the last of its message.
const (
	textFrame  = 0x81
	CloseFrame = 0x88
)

// WriteFrame writes a frame of one kind.
func (s *WebSocket) WriteFrame(kind byte, payload string) error {
	frame := []byte{kind, byte(len(payload))}
	if len(payload) > 125 {
		frame = binary.BigEndian.AppendUint16([]byte{kind, 126}, uint16(len(payload)))
	}
	if s.client {
		frame[1] |= 0x80
		frame = append(frame, 0, 0, 0, 0) // the mask, which leaves the payload as it is
	}
	_, err := s.Conn.Write(append(frame, payload...))
	return err
}

// Write sends a message.
func (s *WebSocket) Write(text string) error { return s.WriteFrame(textFrame, text) }

// Read returns the next message. When the other side closes, read does, too, and returns io.EOF.
func (s *WebSocket) Read() (string, error) {
	var head [2]byte
	if _, err := io.ReadFull(s.in, head[:]); err != nil {
		return "", err
	}
	length := uint16(head[1] & 0x7f)
	if length == 126 {
		if err := binary.Read(s.in, binary.BigEndian, &length); err != nil {
			return "", err
		}
	}
	var mask [4]byte
	if head[1]&0x80 != 0 {
		if _, err := io.ReadFull(s.in, mask[:]); err != nil {
			return "", err
		}
	}
	payload := make([]byte, length)
	if _, err := io.ReadFull(s.in, payload); err != nil {
		return "", err
	}
	for i := range payload {
		payload[i] ^= mask[i%4]
	}
	switch {
	case head[0] == textFrame:
		return string(payload), nil
	case head[0] == CloseFrame:
		_ = s.WriteFrame(CloseFrame, "")
		_ = s.Conn.Close()
		return "", io.EOF
	}
	return "", fmt.Errorf("a frame begins with %#x", head[0])
}

// Hear is read with a message that must come soon.
func (s *WebSocket) Hear(t *testing.T) (string, error) {
	t.Helper()
	late := time.AfterFunc(20*time.Second, func() { _ = s.Conn.Close() })
	text, err := s.Read()
	if !late.Stop() {
		t.Fatal("what the upstream has sent did not arrive")
	}
	return text, err
}

// Close ends the WebSocket, and waits for the other side to agree.
func (s *WebSocket) Close(t *testing.T) error {
	t.Helper()
	if err := s.WriteFrame(CloseFrame, ""); err != nil {
		return err
	}
	if _, err := s.Hear(t); err != io.EOF {
		return fmt.Errorf("instead of its end came: %w", err)
	}
	return nil
}
