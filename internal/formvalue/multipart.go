package formvalue

import (
	"bytes"
	"errors"
	"io"
	"mime/multipart"
)

// maxParts is the number of parts that a body can have. Go's own form parser has the same bound.
const maxParts = 1000

var (
	errBoundary = errors.New("the boundary is empty")
	errParts    = errors.New("the body has more than 1,000 parts")
)

// Multipart returns the first value of a field from a body of the type multipart/form-data. ok is false when
// the body has no field of that name. A file is not a field: a part with a file name is skipped.
//
// The whole body must be complete and well-formed. mime/multipart decides about its parts. Their
// character sets are ignored.
func Multipart(body []byte, boundary, field string) (value string, ok bool, err error) {
	if boundary == "" {
		return "", false, errBoundary
	}
	parts := multipart.NewReader(bytes.NewReader(body), boundary)
	for count := 0; ; count++ {
		part, err := parts.NextPart()
		// Not errors.Is, because the error for an incomplete body wraps io.EOF.
		if err == io.EOF && bytes.Contains(body, []byte("--"+boundary+"--")) {
			return value, ok, nil
		}
		if err == io.EOF { // the body ends in the headers of a part
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			return "", false, err
		}
		if count == maxParts {
			return "", false, errParts
		}
		if ok || field == "" || part.FormName() != field || part.FileName() != "" {
			continue
		}
		text, err := io.ReadAll(part)
		if err != nil {
			return "", false, err
		}
		value, ok = string(validUTF8(text)), true
	}
}
