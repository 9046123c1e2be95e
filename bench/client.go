package main

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// client keeps connections to a server and sends requests over them: over each connection the
// next ones when those before are answered. One thread waits for all of them with epoll.
// Goroutines would take more processor time, and the server under load needs it.
type client struct {
	conns    []*conn
	epoll    int
	depth    int      // how many requests are sent at once
	fields   []string // that each response must have
	keys     int      // how many there are
	random   bool     // one of them for each request, or one after the other
	requests int      // how many were sent
	keyAt    []int    // where the key stands in a request: in X-Key, and in the body
	plan     int      // where X-Plan stands
}

// body is a body of requests. Its text has keyMark where the key stands.
type body struct{ contentType, text string }

type conn struct {
	fd      int
	out, in []byte // what is sent, and what was received
	sent    time.Time
	flying  int // requests without an answer
}

const (
	keyDigits  = 8
	planDigits = 4
	planValues = 1000
	patience   = 15 * time.Second // with a server that does not answer
	keyMark    = "00000000"       // keyDigits of them
)

// turn has the answers of a server for a while.
type turn struct {
	rate     float64 // per second
	statuses map[int]int
	lacking  int             // responses without one of the fields
	waits    []time.Duration // for each response
}

func dial(addr string, connections, depth, keys int, fields []string, b body) (*client, error) {
	epoll, err := syscall.EpollCreate1(0)
	if err != nil {
		return nil, err
	}
	c := &client{epoll: epoll, depth: depth, fields: fields, keys: keys}
	request := b.request(addr)
	for end := 0; strings.Contains(request[end:], keyMark); end += keyDigits {
		end += strings.Index(request[end:], keyMark)
		c.keyAt = append(c.keyAt, end)
	}
	c.plan = strings.Index(request, "X-Plan: ") + len("X-Plan: ")
	for i := range connections {
		fd, err := connect(addr)
		if err != nil {
			c.close()
			return nil, fmt.Errorf("connection %d of %d: %w", i+1, connections, err)
		}
		c.conns = append(c.conns, &conn{fd: fd, out: bytes.Repeat([]byte(request), depth)})
		event := syscall.EpollEvent{Events: syscall.EPOLLIN, Fd: int32(i)}
		if err := syscall.EpollCtl(epoll, syscall.EPOLL_CTL_ADD, fd, &event); err != nil {
			c.close()
			return nil, err
		}
	}
	return c, nil
}

// request returns a request with the body, or without one if the body is empty.
func (b body) request(addr string) string {
	method, fields := "GET", ""
	if b.text != "" {
		method, fields = "POST", fmt.Sprintf("Content-Type: %s\r\nContent-Length: %d\r\n", b.contentType, len(b.text))
	}
	return fmt.Sprintf("%s / HTTP/1.1\r\nHost: %s\r\n%sX-Plan: %0*d\r\nX-Key: %s\r\n\r\n%s",
		method, addr, fields, planDigits, 0, keyMark, b.text)
}

func connect(addr string) (fd int, err error) {
	tcp, err := net.ResolveTCPAddr("tcp4", addr)
	if err != nil {
		return 0, err
	}
	fd, err = syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	to := &syscall.SockaddrInet4{Port: tcp.Port, Addr: [4]byte(tcp.IP.To4())}
	if err = syscall.Connect(fd, to); err == nil {
		err = syscall.SetsockoptInt(fd, syscall.IPPROTO_TCP, syscall.TCP_NODELAY, 1)
	}
	if err != nil {
		_ = syscall.Close(fd)
	}
	return fd, err
}

func (c *client) close() {
	for _, conn := range c.conns {
		_ = syscall.Close(conn.fd)
	}
	_ = syscall.Close(c.epoll)
}

// load sends requests for random keys for a while.
func (c *client) load(d time.Duration) (turn, error) {
	c.random = true
	deadline := time.Now().Add(d)
	return c.send(func() bool { return time.Now().Before(deadline) })
}

// fill sends a request for each key that had none, up to last.
func (c *client) fill(last int) (turn, error) {
	c.random = false
	return c.send(func() bool { return c.requests < last })
}

// send sends requests for as long as more reports true, and waits for their responses.
func (c *client) send(more func() bool) (t turn, err error) {
	t.statuses = make(map[int]int)
	began, flying := time.Now(), 0
	for _, conn := range c.conns {
		if !more() {
			break
		}
		if err := c.next(conn); err != nil {
			return t, err
		}
		flying++
	}
	events := make([]syscall.EpollEvent, 256)
	ended, answered := time.Time{}, 0
	for flying > 0 {
		n, err := syscall.EpollWait(c.epoll, events, int(patience.Milliseconds()))
		if err == syscall.EINTR {
			continue
		}
		if err != nil {
			return t, err
		}
		if n == 0 {
			return t, fmt.Errorf("no answer over %d connections for %v", flying, patience)
		}
		for _, event := range events[:n] {
			conn := c.conns[event.Fd]
			err := c.receive(conn, &t)
			switch {
			case err != nil:
				return t, err
			case conn.flying > 0:
			case more():
				if err := c.next(conn); err != nil {
					return t, err
				}
			default:
				flying--
				if ended.IsZero() {
					ended, answered = time.Now(), len(t.waits)
				}
			}
		}
	}
	t.rate = float64(answered) / ended.Sub(began).Seconds()
	return t, nil
}

// next sends the next requests over a connection.
func (c *client) next(conn *conn) error {
	size := len(conn.out) / c.depth
	for request := range slices.Chunk(conn.out, size) {
		key := c.requests
		if c.random {
			key = rand.IntN(c.keys)
		}
		c.requests++
		for _, at := range c.keyAt {
			putDigits(request[at:][:keyDigits], key)
		}
		putDigits(request[c.plan:][:planDigits], key%planValues+1)
	}
	conn.sent, conn.flying = time.Now(), c.depth
	if n, err := syscall.Write(conn.fd, conn.out); err != nil || n < len(conn.out) {
		return errors.Join(errors.New("a request could not be sent"), err)
	}
	return nil
}

func putDigits(to []byte, n int) {
	for i := len(to) - 1; i >= 0; i-- {
		to[i] = byte('0' + n%10)
		n /= 10
	}
}

// receive reads once, and notes the responses that are whole.
func (c *client) receive(conn *conn, t *turn) error {
	conn.in = slices.Grow(conn.in, 1024)
	n, err := syscall.Read(conn.fd, conn.in[len(conn.in):cap(conn.in)])
	if err != nil {
		return err
	}
	if n == 0 {
		return errors.New("the server closed a connection")
	}
	conn.in = conn.in[:len(conn.in)+n]
	rest := conn.in
	for {
		header, body, found := bytes.Cut(rest, []byte("\r\n\r\n"))
		if !found {
			break
		}
		status, length, err := parseHeader(header)
		if err != nil {
			return err
		}
		if len(body) < length {
			break
		}
		rest = body[length:]
		conn.flying--
		t.waits = append(t.waits, time.Since(conn.sent))
		t.statuses[status]++
		if slices.ContainsFunc(c.fields, func(field string) bool { return !bytes.Contains(header, []byte(field)) }) {
			t.lacking++
		}
	}
	conn.in = conn.in[:copy(conn.in, rest)]
	if conn.flying < 0 {
		return errors.New("a response without a request")
	}
	return nil
}

// parseHeader returns the status of a response and the length of its body.
func parseHeader(header []byte) (status, length int, err error) {
	if len(header) < 12 || !bytes.HasPrefix(header, []byte("HTTP/1.1 ")) {
		return 0, 0, fmt.Errorf("no status line in %q", header)
	}
	status, err = strconv.Atoi(string(header[9:12]))
	if err != nil {
		return 0, 0, fmt.Errorf("no status in %q", header)
	}
	_, after, found := bytes.Cut(header, []byte("\r\nContent-Length: "))
	if !found {
		return 0, 0, fmt.Errorf("no Content-Length in %q", header)
	}
	text, _, _ := bytes.Cut(after, []byte("\r\n"))
	length, err = strconv.Atoi(string(text))
	return status, length, err
}
