package accesslog

import (
	"bytes"
	"net/netip"
	"slices"
)

// word is a word of the text before the time.
type word struct {
	begin    int    // in the text
	core     []byte // without quotes, brackets and commas
	address  []byte // in the word; empty if it has none
	port     int64  // of the address; 0 if it has none
	isNil    bool   // it stands for nothing
	inList   bool   // a comma is before or after it
	isQuoted bool
}

// maxWords and maxAddress bound the search for the client. The name of a user can have more words, and a word more bytes
// before its address.
const maxWords, maxAddress = 64, 128

// readClient reads the fields before the time: the address, the identity, and the user. Servers leave the identity
// empty today.
func (p *Parser) readClient(text []byte, r *Request) bool {
	first, rest := cutWord(text)
	identity, user := cutWord(rest)
	user = bytes.TrimSpace(user)
	if string(identity) != "-" || len(user) == 0 || bytes.IndexByte(user, ' ') >= 0 || bytes.IndexByte(first, '%') >= 0 || !isAddress(first) {
		return p.findClient(text, r)
	}
	r.RemoteIP = textOf(first)
	p.setUser(user, r)
	return true
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

// findClient finds the client in a text that other programs have begun: with the header of syslog, the name of a
// container, a host, or the header field X-Forwarded-For. If no word is an address, the word before the
// identity is the client.
func (p *Parser) findClient(text []byte, r *Request) bool {
	text = p.withoutColors(text)
	p.splitWords(text)
	words := p.words
	begin, end := addressRun(words)
	client, last := -1, -1 // the words of the client, and of the last address
	isKnown := false       // a word behind a dash can be the name of a user
	for i, rank := begin, 0; i < end; i++ {
		w := &words[i]
		if len(w.address) == 0 {
			isKnown = isKnown || w.isNil && rank > 1
			continue
		}
		if last = i; rank == 0 && isServerPort(w.port) && !w.inList && !w.isQuoted && hasAddress(words[i+1:end]) {
			r.Host, begin = p.decode(w.core), i+1
			continue
		}
		if n := w.rank(); n > rank && !isKnown {
			client, rank = i, n
		}
	}
	if client >= 0 {
		r.RemoteIP = textOf(words[client].address)
	} else if client = textBeforeIdentity(words); client >= 0 {
		begin, last = client, client
		r.RemoteIP = p.decode(words[client].core)
	} else {
		return false
	}
	if host := hostBefore(words, begin); host >= 0 && r.Host == "" {
		r.Host = p.decode(words[host].core)
	}
	if after := words[min(last+2, len(words)):]; len(after) > 0 { // behind the identity
		if !after[0].isNil {
			p.setUser(bytes.TrimSpace(text[after[0].begin:]), r)
		} else if len(after) > 1 && r.Host == "" && isHost(after[1].core) {
			r.Host = p.decode(after[1].core)
		}
	}
	return true
}

// splitWords sets p.words to the words of a text.
func (p *Parser) splitWords(text []byte) {
	p.words = p.words[:0]
	afterComma, inQuotes := false, false
	for at := 0; len(p.words) < maxWords; {
		at += len(text[at:]) - len(bytes.TrimLeft(text[at:], " \t"))
		found, _ := cutWord(text[at:])
		if len(found) == 0 {
			return
		}
		if comma := bytes.IndexByte(found, ','); comma >= 0 {
			found = found[:comma+1]
		}
		w := word{begin: at}
		hasComma := bytes.HasSuffix(bytes.TrimRight(found, `"`), []byte(","))
		w.inList, afterComma = hasComma || afterComma, hasComma
		w.isQuoted = inQuotes || found[0] == '"'
		inQuotes = w.isQuoted && (len(found) == 1 || found[len(found)-1] != '"')
		w.core = bytes.Trim(found, "\"'(){}<>,;\ufeff")
		w.isNil = len(w.core) == 0 || string(w.core) == "-" || string(w.core) == "unknown"
		if len(w.core) == 0 {
			w.core = found
		}
		w.address, w.port = addressIn(w.core)
		p.words = append(p.words, w)
		at += len(found)
	}
}

// addressIn returns the address in a word, and its port: [2001:db8::7]:443, access.log:192.0.2.1, ip=192.0.2.1.
func addressIn(text []byte) (address []byte, port int64) {
	text = text[max(0, len(text)-maxAddress):]
	for {
		if address, port = splitPort(text); address != nil {
			return address, port
		}
		i := bytes.IndexAny(text, "|>=:")
		if i < 0 {
			return nil, 0
		}
		text = text[i+1:]
	}
}

// splitPort returns an address without its port and zone. Caddy leaves out the zone, too. The address is nil if the text
// is none.
func splitPort(text []byte) (address []byte, port int64) {
	address = bytes.Trim(text, "[]")
	if !isAddress(address) {
		i := max(0, bytes.LastIndexByte(text, ':'))
		address = bytes.Trim(text[:i], "[]")
		if !isAddress(address) {
			return nil, 0
		}
		var ok bool
		if port, ok = digits(text[i+1:]); !ok {
			return nil, 0
		}
	}
	address, _, _ = bytes.Cut(address, []byte("%"))
	return address, port
}

// forwardedClient returns the first address in the header field X-Forwarded-For, or nil.
func forwardedClient(value []byte) []byte {
	first, rest, isList := bytes.Cut(value, []byte(","))
	for string(bytes.TrimSpace(first)) == "unknown" && len(rest) > 0 {
		first, rest, _ = bytes.Cut(rest, []byte(","))
	}
	address, port := splitPort(bytes.TrimSpace(first))
	if isServerPort(port) && !isList { // it is another field
		return nil
	}
	return address
}

// setClient sets the client of a line in the combined format. Behind a proxy in a private network, or on a unix socket, it is
// the first address in X-Forwarded-For.
func (r *Request) setClient() {
	r.LacksClientIP = true
	if values := r.Header["X-Forwarded-For"]; values != nil && (isPrivate([]byte(r.RemoteIP)) || !isAddress([]byte(r.RemoteIP))) {
		r.ClientIP, r.LacksClientIP = textOf(forwardedClient([]byte(values[0]))), false
	}
}

// addressRun returns the consecutive words among which the client is. Each is an address, stands for nothing, or is in a
// list. If one of the addresses is before an identity, the run is the first such run, because clients choose the name
// of the user behind it. Otherwise it is the last one.
func addressRun(words []word) (begin, end int) {
	for i := 0; i < len(words); i++ {
		nils, isBeforeNil, first := 0, false, i
		for ; i < len(words) && (len(words[i].address) > 0 || words[i].isNil || words[i].inList && !isBeforeNil); i++ {
			switch {
			case words[i].isNil:
				isBeforeNil = isBeforeNil || i > first && len(words[i-1].address) > 0
				nils++
				continue
			case nils > 2: // the empty fields of syslog
				first, isBeforeNil = i, false
			}
			nils = 0
		}
		if hasAddress(words[first:i]) {
			begin, end = first, i
			if isBeforeNil {
				break
			}
		}
	}
	return begin, end
}

func hasAddress(words []word) bool {
	return slices.ContainsFunc(words, func(w word) bool { return w.address != nil })
}

// isServerPort reports whether a port is one on which servers listen. Clients have others.
func isServerPort(port int64) bool { return 0 < port && port < 1024 || 8000 <= port && port < 10_000 }

// rank is higher for an address that is more probably that of the client, if there are several. A list is the header
// field X-Forwarded-For, which begins with the client. Proxies have private addresses.
func (w *word) rank() int {
	switch {
	case w.inList || w.isQuoted:
		return 3
	case !isPrivate(w.address):
		return 2
	}
	return 1
}

// sharedSpace has the addresses of RFC 6598, which are private, too.
var sharedSpace = netip.MustParsePrefix("100.64.0.0/10")

func isPrivate(address []byte) bool {
	a, err := netip.ParseAddr(textOf(address))
	a = a.Unmap()
	return err == nil && (a.IsPrivate() || a.IsLoopback() || a.IsLinkLocalUnicast() || sharedSpace.Contains(a))
}

// textBeforeIdentity returns the word before the identity, or -1.
func textBeforeIdentity(words []word) int {
	isIdentity := func(i int) bool { return i > 0 && string(words[i].core) == "-" }
	if i := len(words) - 2; isIdentity(i) {
		return i - 1
	}
	for i := range words {
		if isIdentity(i) {
			return i - 1
		}
	}
	return -1
}

// hostBefore returns the word that is the virtual host, or -1. The hosts are directly before the client, and nothing is
// before them but a prefix that ends there.
func hostBefore(words []word, client int) int {
	host := client
	for host > 0 && isHost(words[host-1].core) {
		host--
	}
	if host == client {
		return -1
	}
	if host == 0 || bytes.IndexByte(words[host].core, ':') > 0 {
		return host
	}
	before := words[host-1].core
	if end := before[max(0, len(before)-1):]; words[host-1].isNil || string(end) == ":" || string(end) == "|" || string(before) == "F" {
		return host
	}
	return -1
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

// withoutColors returns a text without the escape sequences of terminals.
func (p *Parser) withoutColors(text []byte) []byte {
	if bytes.IndexByte(text, '\x1b') < 0 {
		return text
	}
	first := len(p.text)
	for len(text) > 0 {
		plain, sequence, _ := bytes.Cut(text, []byte("\x1b"))
		p.text = append(p.text, plain...)
		_, text, _ = bytes.Cut(sequence, []byte("m"))
	}
	return p.text[first:]
}

// isAddress reports whether a text is an IP address.
func isAddress(text []byte) bool {
	if len(text) == 0 || !bytes.ContainsAny(text, ".:") {
		return false
	}
	_, err := netip.ParseAddr(textOf(text))
	return err == nil
}
