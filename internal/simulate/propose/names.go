package propose

import (
	"encoding/binary"
	"sort"
)

// names keeps how each key of a zone is shown, and the User-Agent of its first request. An access log can have millions
// of keys, so the texts are kept in a spool.
type names struct {
	spool  *spool
	pieces []piece
	begins []int64 // the positions at which the pieces begin
	tail   []byte
	end    int64 // the position after the pieces, where the tail begins
}

// add keeps the name of a key, and returns its position.
func (n *names) add(shown, userAgent string) (position int64) {
	position = n.end + int64(len(n.tail))
	for _, text := range []string{shown, userAgent} {
		n.tail = binary.AppendUvarint(n.tail, uint64(len(text)))
		n.tail = append(n.tail, text...)
	}
	if len(n.tail) < n.spool.pieceSize() {
		return position
	}
	length := int64(len(n.tail))
	p, kept := n.spool.keep(n.tail)
	n.pieces, n.begins = append(n.pieces, p), append(n.begins, n.end)
	n.end += length
	if n.tail = n.tail[:0]; kept {
		n.tail = nil
	}
	return position
}

// at returns the name at a position.
func (n *names) at(position int64) (shown, userAgent string, err error) {
	bytes, begins := n.tail, n.end
	if position < n.end {
		at := sort.Search(len(n.begins), func(i int) bool { return n.begins[i] > position }) - 1
		begins = n.begins[at]
		if bytes, err = n.spool.read(n.pieces[at], make([]byte, n.pieces[at].fileLength)); err != nil {
			return "", "", err
		}
	}
	rest := bytes[position-begins:]
	for _, text := range []*string{&shown, &userAgent} {
		length, size := binary.Uvarint(rest)
		if size <= 0 || length > uint64(len(rest)-size) {
			return "", "", errChanged
		}
		*text = string(rest[size:][:length])
		rest = rest[size+int(length):]
	}
	return shown, userAgent, nil
}
