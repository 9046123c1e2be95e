package docs_test

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
)

// Pages have hundreds of curl commands. The start of a process for each costs more than all that Caddy does, so
// tests send these requests themselves. They send what curl sends, and print what it prints. A command with
// anything else in it is run by the real curl.

// curlCall is a curl command.
type curlCall struct {
	method, url string
	header      []string // lines
	body        string
	from        net.IP // an address of this machine

	include, dump, discard, fail, asIs bool // -i, -D -, -o /dev/null, --fail, --path-as-is

	format string // of -w
}

// curlOptions are the short options.
var curlOptions = map[rune]string{
	's': "--silent", 'S': "--show-error", 'i': "--include", 'H': "--header", 'X': "--request", 'd': "--data",
	'o': "--output", 'w': "--write-out", 'A': "--user-agent", 'u': "--user", 'D': "--dump-header",
}

// parseCurl reads the arguments of a curl command. If ok is false, the real curl must run it.
func parseCurl(args []string) (c *curlCall, ok bool) {
	c = &curlCall{}
	for len(args) > 0 {
		arg := args[0]
		args = args[1:]
		options := []string{arg}
		if letters, isShort := strings.CutPrefix(arg, "-"); !isShort {
			if c.url != "" {
				return nil, false
			}
			c.url = arg
			continue
		} else if !strings.HasPrefix(letters, "-") {
			options = nil
			for _, letter := range letters {
				options = append(options, curlOptions[letter])
			}
		}
		for i, option := range options {
			switch takesValue, known := c.set(option, append(args, "")[0]); {
			case !known, takesValue && (len(args) == 0 || i+1 < len(options)):
				return nil, false
			case takesValue:
				args = args[1:]
			}
		}
	}
	return c, c.isPlain()
}

// set sets an option.
func (c *curlCall) set(option, value string) (takesValue, known bool) {
	switch option {
	case "--silent", "--show-error":
		return false, true
	case "--include":
		c.include = true
		return false, true
	case "--fail":
		c.fail = true
		return false, true
	case "--path-as-is":
		c.asIs = true
		return false, true
	case "--header":
		c.header = append(c.header, value)
		return true, strings.Contains(value, ": ")
	case "--request":
		c.method = value
	case "--user-agent":
		c.header = append(c.header, "User-Agent: "+value)
	case "--user":
		c.header = append(c.header, "Authorization: Basic "+base64.StdEncoding.EncodeToString([]byte(value)))
	case "--data":
		if c.body != "" {
			c.body += "&"
		}
		c.body += value
		return true, value != "" && value[0] != '@'
	case "--json":
		c.header = append(c.header, "Content-Type: application/json", "Accept: application/json")
		c.body = value
		return true, value != "" && value[0] != '@'
	case "--interface":
		c.from = net.ParseIP(value)
		return true, c.from != nil
	case "--output":
		c.discard = true
		return true, value == "/dev/null"
	case "--dump-header":
		c.dump = true
		return true, value == "-"
	case "--write-out":
		c.format = value
		return true, !regexp.MustCompile(`%\{[^h]`).MatchString(value)
	default:
		return false, false
	}
	return true, true
}

// pageURL matches the URLs that pages have: of this machine, and with a number for each request in brackets.
var pageURL = regexp.MustCompile(`^(?:http://)?((?:[\w-]+\.)?localhost(?::\d+)?|127\.\d+\.\d+\.\d+:\d+)(/[^{}#\s]*|\?[^{}#\s]*)?$`)

var numbersInURL = regexp.MustCompile(`\[(\d+)-(\d+)\]`)

// isPlain reports whether the URL is one that pages have.
func (c *curlCall) isPlain() bool {
	m := pageURL.FindStringSubmatch(c.url)
	return m != nil && (c.asIs || !strings.Contains(m[2], "/.")) && len(numbersInURL.FindAllString(c.url, -1)) < 2 && c.method != "HEAD"
}

// urls returns the URLs that a pattern stands for.
func (c *curlCall) urls() (all []string) {
	m := numbersInURL.FindStringSubmatch(c.url)
	if m == nil {
		return []string{c.url}
	}
	first, _ := strconv.Atoi(m[1])
	last, _ := strconv.Atoi(m[2])
	for n := first; n <= last; n++ {
		all = append(all, strings.Replace(c.url, m[0], strconv.Itoa(n), 1))
	}
	return all
}

// errNothingSent means that the server wasn't reached. The real curl says that in its own words.
var errNothingSent = errors.New("no request was sent")

// do sends the requests. It returns the output and the exit code.
func (c *curlCall) do() (output []byte, code int, err error) {
	var out bytes.Buffer
	var conn *pageConn
	defer func() { conn.close() }()
	for i, url := range c.urls() {
		m := pageURL.FindStringSubmatch(url)
		if conn == nil {
			if conn, err = c.dial(m[1]); err != nil && i == 0 {
				return nil, 0, errNothingSent
			} else if err != nil {
				return out.Bytes(), 0, err
			}
		}
		response, head, err := conn.roundTrip(c.request(m[1], m[2]), c.method)
		if err != nil {
			return out.Bytes(), 0, err
		}
		body, err := io.ReadAll(response.Body)
		if err != nil {
			return out.Bytes(), 0, err
		}
		if response.Close {
			conn.close()
			conn = nil
		}
		if c.include || c.dump {
			out.Write(head)
		}
		if c.fail && response.StatusCode >= 400 {
			code = 22
		} else if !c.discard {
			out.Write(body)
		}
		out.WriteString(strings.NewReplacer("%{http_code}", strconv.Itoa(response.StatusCode), `\n`, "\n", "%%", "%").Replace(c.format))
	}
	return out.Bytes(), code, nil
}

// request returns the text of a request, with the fields that curl sends.
func (c *curlCall) request(host, path string) string {
	method := c.method
	if method == "" && c.body != "" {
		method = "POST"
	} else if method == "" {
		method = "GET"
	}
	if !strings.HasPrefix(path, "/") {
		path = "/" + path
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s HTTP/1.1\r\nHost: %s\r\n", method, path, host)
	fields := c.header
	for _, field := range []string{"User-Agent: curl/8.5.0", "Accept: */*", "Content-Type: application/x-www-form-urlencoded"} {
		name, _, _ := strings.Cut(field, " ")
		given := strings.Contains(strings.ToLower("\n"+strings.Join(c.header, "\n")), strings.ToLower("\n"+name))
		if given || name == "Content-Type:" && c.body == "" {
			continue
		}
		fields = append(fields, field)
	}
	for _, field := range fields {
		b.WriteString(field + "\r\n")
	}
	if c.body != "" {
		fmt.Fprintf(&b, "Content-Length: %d\r\n", len(c.body))
	}
	return b.String() + "\r\n" + c.body
}

// pageConn is a connection to a server.
type pageConn struct {
	net.Conn
	reader *bufio.Reader
}

func (c *curlCall) dial(host string) (*pageConn, error) {
	name, port, err := net.SplitHostPort(host)
	if err != nil {
		name, port = host, "80"
	}
	if strings.HasSuffix(name, ".localhost") {
		name = "localhost"
	}
	dialer := net.Dialer{Timeout: caddytest.Patient}
	dial := dialer.Dial
	if c.from != nil {
		dial = c.dialFrom
	}
	conn, err := dial("tcp", net.JoinHostPort(name, port))
	if err != nil {
		return nil, err
	}
	_ = conn.SetDeadline(time.Now().Add(caddytest.Patient))
	return &pageConn{conn, bufio.NewReader(conn)}, nil
}

// lastClientPort is the last port of a client with a separate address.
var lastClientPort atomic.Int64

// dialFrom dials with an address of a client. Its port is none that the system gives to others: a server of a test
// could not listen on that port, at all addresses, for a minute.
func (c *curlCall) dialFrom(network, address string) (conn net.Conn, err error) {
	dialer := net.Dialer{Timeout: caddytest.Patient}
	for range 1000 {
		dialer.LocalAddr = &net.TCPAddr{IP: c.from, Port: 12000 + int(lastClientPort.Add(1))%20000}
		if conn, err = dialer.Dial(network, address); err == nil || !errors.Is(err, syscall.EADDRINUSE) {
			break
		}
	}
	return conn, err
}

func (c *pageConn) close() {
	if c != nil {
		_ = c.Close()
	}
}

// roundTrip sends a request. It returns the response, and its head as the server wrote it.
func (c *pageConn) roundTrip(request, method string) (response *http.Response, head []byte, err error) {
	if _, err := io.WriteString(c, request); err != nil {
		return nil, nil, err
	}
	for !bytes.HasSuffix(head, []byte("\r\n\r\n")) {
		line, err := c.reader.ReadBytes('\n')
		if err != nil {
			return nil, nil, err
		}
		head = append(head, line...)
	}
	whole := bufio.NewReader(io.MultiReader(bytes.NewReader(head), c.reader))
	response, err = http.ReadResponse(whole, &http.Request{Method: method})
	if err == nil && response.StatusCode < 200 {
		err = fmt.Errorf("unexpected response: %s", response.Status)
	}
	return response, head, err
}
