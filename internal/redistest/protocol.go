package redistest

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
)

// appendMessage reads one command or reply of Redis' protocol, version 2 or 3, and appends its bytes.
func appendMessage(b []byte, in *bufio.Reader) ([]byte, error) {
	start := len(b)
	for {
		part, err := in.ReadSlice('\n')
		b = append(b, part...)
		if err == nil {
			break
		} else if err != bufio.ErrBufferFull {
			return b, err
		}
	}
	line := b[start:]
	if len(line) < 3 {
		return b, fmt.Errorf("%q is not Redis' protocol", line)
	}
	n := 0
	if kind := line[0]; bytes.IndexByte([]byte("$=!*~>%|"), kind) >= 0 {
		var err error
		if n, err = strconv.Atoi(string(line[1 : len(line)-2])); err != nil {
			return b, err
		}
	}
	switch line[0] {
	case '$', '=', '!':
		if n < 0 {
			return b, nil // no text
		}
		end := len(b)
		b = slices.Grow(b, n+2)[:end+n+2]
		_, err := io.ReadFull(in, b[end:])
		return b, err
	case '%':
		n *= 2
	case '|': // precedes what it is about
		n = 2*n + 1
	}
	for range n {
		var err error
		if b, err = appendMessage(b, in); err != nil {
			return b, err
		}
	}
	return b, nil
}

// ReadCommand reads a command with its arguments, as clients of Redis send it.
func ReadCommand(in *bufio.Reader) (args []string, err error) {
	message, err := appendMessage(nil, in)
	if err != nil {
		return nil, err
	}
	value, _, err := parseValue(message)
	list, _ := value.([]any)
	for _, one := range list {
		arg, isText := one.(string)
		if !isText {
			return nil, fmt.Errorf("%q is no command", message)
		}
		args = append(args, arg)
	}
	if err == nil && len(args) == 0 {
		err = fmt.Errorf("%q is no command", message)
	}
	return args, err
}

// replyError is an error that Redis answers with.
type replyError string

// parseValue parses the first value of a message: a number, a text, an error or a list. rest is the rest of
// the message.
func parseValue(message []byte) (value any, rest []byte, err error) {
	line, rest, found := bytes.Cut(message, []byte("\r\n"))
	if !found || len(line) == 0 {
		return nil, nil, fmt.Errorf("%q is cut off", message)
	}
	text := string(line[1:])
	switch line[0] {
	case '-':
		return replyError(text), rest, nil
	case '+':
		return text, rest, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return nil, nil, err
	}
	switch line[0] {
	case ':':
		return n, rest, nil
	case '$':
		if n < 0 || n+2 > int64(len(rest)) {
			return nil, nil, fmt.Errorf("a text of %d bytes is cut off", n)
		}
		return string(rest[:n]), rest[n+2:], nil
	case '*':
		list := make([]any, 0, min(max(n, 0), int64(len(rest))))
		for range n {
			if value, rest, err = parseValue(rest); err != nil {
				return nil, nil, err
			}
			list = append(list, value)
		}
		return list, rest, nil
	}
	return nil, nil, fmt.Errorf("%q is no reply of a script", line)
}

// Malformed are beginnings of replies that no Redis sends.
var Malformed = []string{
	"$9223372036854775000\r\n", "*9223372036854775000\r\n", "%9223372036854775000\r\n", "~4611686018427387904\r\n", ">9223372036854775807\r\n",
	"=9223372036854775000\r\n", "!9223372036854775000\r\n", "|9223372036854775000\r\n",
	"$100000000000000\r\n", "*1000000000\r\n", "%1000000000\r\n", "$18446744073709551617\r\n", "$99999999999999999999999999\r\n",
	"$-2\r\n", "*-9223372036854775808\r\n", "$?\r\n", "*?\r\n", "$\r\n", "*\r\n", "$1x\r\n", "$ 1\r\n", "$0x7fffffff\r\n", "$1\r1\r\n",
	"|1\r\n+a\r\n+b\r\n", ";4\r\n", ".\r\n", "\r\n", "\n", "what\r\n", "\x00\r\n", "HTTP/1.1 400 Bad Request\r\n",
	strings.Repeat("*1\r\n", 100_000), strings.Repeat("%1\r\n+k\r\n", 100), strings.Repeat("|0\r\n", 100_000),
}
