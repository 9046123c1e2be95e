package storetest

import (
	"runtime"
	"unsafe"
	"weak"
)

// IsKept reports whether anything keeps a key, or the text it is part of, after use. It uses a long key, and a short one.
func IsKept(use func(key string)) bool {
	header := func() weak.Pointer[[12_000]byte] {
		header := new([12_000]byte)
		copy(header[:], "user=")
		use(unsafe.String(&header[5], 7_000))
		use(unsafe.String(&header[5], 20)) // short ones are parts of something larger, too
		return weak.Make(header)
	}()
	runtime.GC()
	return header.Value() != nil
}
