package simredis

import "fmt"

// The protocol of Redis, version 2.

// status is a reply such as OK.
type status string

// failure is an error that Redis replies. It begins with a code, such as ERR.
type failure string

func (f failure) Error() string { return string(f) }

// appendReply adds a reply: nil, a string, an int64, a status, a failure, or a list of replies.
func appendReply(b []byte, reply any) []byte {
	switch reply := reply.(type) {
	case nil:
		return append(b, "$-1\r\n"...)
	case string:
		return append(append(fmt.Appendf(b, "$%d\r\n", len(reply)), reply...), '\r', '\n')
	case int64:
		return fmt.Appendf(b, ":%d\r\n", reply)
	case status:
		return fmt.Appendf(b, "+%s\r\n", string(reply))
	case failure:
		return fmt.Appendf(b, "-%s\r\n", string(reply))
	case []any:
		b = fmt.Appendf(b, "*%d\r\n", len(reply))
		for _, one := range reply {
			b = appendReply(b, one)
		}
		return b
	}
	panic(fmt.Sprintf("simredis: a reply of type %T", reply))
}
