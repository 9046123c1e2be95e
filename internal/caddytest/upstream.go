package caddytest

import (
	"bytes"
)

// LargeBody is more than any buffer on its way holds.
var LargeBody = bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
