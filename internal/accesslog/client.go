package accesslog

import (
	"bytes"
	"net/netip"
	"strings"
)

// readClient reads the words before the time: the client, the identity, and the user. Servers write a dash as the
// identity. Other programs can have written more before the client, and the empty fields of syslog are dashes, too. So the
// client is the first address with a dash behind it. Without an address, it is the first word with a dash behind it.
func (p *Parser) readClient(text []byte, r *Request) bool {
	begin, end := findClient(text)
	client := text[begin:end]
	if r.RemoteIP = textOf(firstAddress(client)); r.RemoteIP == "" {
		r.RemoteIP = p.decode(bytes.Trim(client, `"[](),`))
	}
	if r.RemoteIP == "" {
		return false
	}
	before := bytes.Fields(text[max(0, begin-maxHost):begin])
	if len(before) > 0 && isHost(before[len(before)-1]) {
		r.Host = p.decode(before[len(before)-1])
	}
	_, behind := cutWord(text[end:]) // the identity
	p.setUser(bytes.TrimSpace(behind), r)
	return true
}

// maxWords bounds the search for the client, because the name of a user can have any number of words. maxHost is the
// longest name of a host with its port. maxAddress is the longest word in which an address is looked for.
const maxWords, maxHost, maxAddress = 64, 262, 128

// findClient returns where the client is: a word, or a list of addresses with commas, as X-Forwarded-For is. The end is 0
// if there is none.
func findClient(text []byte) (begin, end int) {
	list, before := 0, 0 // the begin and the end of the list, or of the word, before the present word
	for n, at := 0, 0; n < maxWords; n++ {
		at += len(text[at:]) - len(bytes.TrimLeft(text[at:], " \t"))
		word, _ := cutWord(text[at:])
		if len(word) == 0 {
			return begin, end
		}
		if string(word) == "-" && before > 0 {
			if firstAddress(text[list:before]) != nil {
				return list, before
			}
			if end == 0 {
				begin, end = list, before
			}
		}
		if before == 0 || text[before-1] != ',' {
			list = at
		}
		at += len(word)
		before = at
	}
	return begin, end
}

// setUser sets the user, which can be in quotes. Caddy's transform encoder can write nothing for an unknown user.
func (p *Parser) setUser(user []byte, r *Request) {
	if n := len(user); n > 1 && user[0] == '"' && user[n-1] == '"' {
		user = user[1 : n-1]
	}
	if string(user) != "-" {
		r.User = p.decode(user)
	}
}

// firstAddress returns the first address in a list with commas, or nil. Of X-Forwarded-For it is the client.
func firstAddress(list []byte) []byte {
	for len(list) > 0 {
		var text []byte
		text, list, _ = bytes.Cut(list, []byte(","))
		for text = bytes.Trim(text[max(0, len(text)-maxAddress):], `"() `); len(text) > 0; {
			if address := withoutPort(text); address != nil {
				return address
			}
			i := bytes.IndexAny(text, "|>=:") // the address is behind the name of a file, as grep writes it
			if i < 0 {
				break
			}
			text = text[i+1:]
		}
	}
	return nil
}

// withoutPort returns an address without its port and zone, or nil. Caddy omits the zone, too.
func withoutPort(text []byte) []byte {
	address := bytes.Trim(text, "[]")
	if !isAddress(address) {
		i := max(0, bytes.LastIndexByte(text, ':'))
		address = bytes.Trim(text[:i], "[]")
		if _, ok := digits(text[min(i+1, len(text)):]); !ok || !isAddress(address) {
			return nil
		}
	}
	address, _, _ = bytes.Cut(address, []byte("%"))
	return address
}

// setClient sets the client of a line in the combined format. Behind a proxy in a private network, or on a unix socket, it is
// the first address in X-Forwarded-For.
func (r *Request) setClient() {
	r.LacksClientIP = true
	if values := r.Header["X-Forwarded-For"]; values != nil && (isPrivate([]byte(r.RemoteIP)) || !isAddress([]byte(r.RemoteIP))) {
		first, _, _ := strings.Cut(values[0], ",")
		r.ClientIP, r.LacksClientIP = strings.TrimSpace(first), false
	}
}

// sharedSpace has the addresses of RFC 6598, which are private, too.
var sharedSpace = netip.MustParsePrefix("100.64.0.0/10")

func isPrivate(address []byte) bool {
	a, err := netip.ParseAddr(textOf(address))
	a = a.Unmap()
	return err == nil && (a.IsPrivate() || a.IsLoopback() || a.IsLinkLocalUnicast() || sharedSpace.Contains(a))
}

// isHost reports whether a text is the name of a host with a dot or a port, or localhost.
func isHost(text []byte) bool {
	name, port, hasPort := bytes.Cut(text, []byte(":"))
	if n, ok := digits(port); hasPort && (!ok || n == 0) {
		return false
	}
	hasLetter := false
	for _, c := range name {
		isLetter := 'a' <= c|0x20 && c|0x20 <= 'z'
		hasLetter = hasLetter || isLetter
		if !isLetter && (c < '0' || '9' < c) && c != '.' && c != '-' && c != '_' {
			return false
		}
	}
	dot := bytes.LastIndexByte(name, '.') // the last label of an address is a number
	isName := dot > 0 && dot+1 < len(name) && name[dot+1] > '9'
	return hasLetter && (isName || hasPort || string(name) == "localhost")
}

// isAddress reports whether a text is an IP address.
func isAddress(text []byte) bool {
	if len(text) == 0 || !bytes.ContainsAny(text, ".:") {
		return false
	}
	_, err := netip.ParseAddr(textOf(text))
	return err == nil
}
