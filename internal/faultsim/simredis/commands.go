package simredis

import (
	"crypto/sha1"
	"encoding/hex"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// run runs a command, with mu locked.
func (s *Server) run(at *session, name string, args []string) any {
	asking := at.asking
	at.asking = false
	if s.sentinel != nil {
		return s.sentinel.run(at, name, args)
	}
	if s.denied != "" && strings.EqualFold(s.denied, name) {
		return failure(fmt.Sprintf("NOPERM User default has no permissions to run the '%s' command", strings.ToLower(name)))
	}
	if s.loading && name != "HELLO" && name != "CLIENT" {
		return failure("LOADING Redis is loading the dataset in memory")
	}
	switch name {
	case "HELLO":
		return failure("ERR unknown command 'HELLO'")
	case "CLIENT", "SELECT":
		return status("OK")
	case "PING":
		return status("PONG")
	case "ASKING":
		at.asking = true
		return status("OK")
	case "INFO":
		return "# Memory\r\nmaxmemory:0\r\nmaxmemory_policy:noeviction\r\n"
	case "SCRIPT": // LOAD
		sum := sha1.Sum([]byte(args[2]))
		hash := hex.EncodeToString(sum[:])
		s.scripts[hash] = args[2]
		return hash
	case "EVALSHA":
		return s.evalSHA(asking, args)
	case "SCAN":
		return s.scan(args)
	case "CLUSTER":
		if s.cluster == nil {
			return failure("ERR This instance has cluster support disabled")
		}
		return s.cluster.describe(strings.ToUpper(args[1]))
	}
	if s.cluster != nil && len(args) > 1 {
		if f := s.cluster.redirect(s, args[1:2], asking); f != "" {
			return f
		}
	}
	return s.do(name, args)
}

// evalSHA runs a script. args are EVALSHA, the hash, the number of keys, the keys and the arguments.
func (s *Server) evalSHA(asking bool, args []string) any {
	n, err := strconv.Atoi(args[2])
	if err != nil || n > len(args)-3 {
		return failure("ERR Number of keys can't be greater than number of args")
	}
	keys := args[3 : 3+n]
	if s.cluster != nil {
		if f := s.cluster.redirect(s, keys, asking); f != "" {
			return f
		}
	}
	script, known := s.scripts[args[1]]
	if !known {
		return failure("NOSCRIPT No matching script. Please use EVAL.")
	}
	return s.machine.run(args[1], script, keys, args[3+n:])
}

// writes has the commands that change a value, and whether they need memory.
var writes = map[string]bool{"SET": true, "SETRANGE": true, "BITOP": true, "DEL": false, "PEXPIRE": false}

// do runs a command that a script can run, too.
func (s *Server) do(name string, args []string) any {
	if _, is := writes[name]; is && s.replica {
		return failure("READONLY You can't write against a read only replica.")
	}
	switch name {
	case "TIME":
		now := s.now()
		return []any{strconv.FormatInt(now/1_000_000, 10), strconv.FormatInt(now%1_000_000, 10)}
	case "GET":
		if v, ok := s.get(args[1]); ok {
			return v.text
		}
		return nil
	case "MGET":
		all := make([]any, len(args)-1)
		for i, key := range args[1:] {
			if v, ok := s.get(key); ok {
				all[i] = v.text
			}
		}
		return all
	case "EXISTS":
		_, ok := s.get(args[1])
		return oneIf(ok)
	case "STRLEN":
		v, _ := s.get(args[1])
		return int64(len(v.text))
	case "GETRANGE":
		v, _ := s.get(args[1])
		first, last := number(args[2]), min(number(args[3]), int64(len(v.text))-1)
		if first > last {
			return ""
		}
		return v.text[first : last+1]
	case "SET":
		return s.setValue(args)
	case "SETRANGE":
		v, _ := s.get(args[1])
		at, text := int(number(args[2])), args[3]
		if text == "" {
			return int64(len(v.text))
		}
		b := make([]byte, max(len(v.text), at+len(text)))
		copy(b, v.text)
		copy(b[at:], text)
		v.text = string(b)
		s.data[args[1]] = v
		return int64(len(b))
	case "BITOP": // OR of a value with itself, which makes a copy without expiry
		v, _ := s.get(args[3])
		if v.text == "" {
			delete(s.data, args[2])
			return int64(0)
		}
		s.data[args[2]] = value{text: v.text}
		return int64(len(v.text))
	case "PEXPIRE":
		v, ok := s.get(args[1])
		if ok {
			v.expires = s.now()/1000 + number(args[2])
			s.data[args[1]] = v
		}
		return oneIf(ok)
	case "PTTL":
		v, ok := s.get(args[1])
		switch {
		case !ok:
			return int64(-2)
		case v.expires == 0:
			return int64(-1)
		}
		return v.expires - s.now()/1000
	case "DEL":
		n := int64(0)
		for _, key := range args[1:] {
			if _, ok := s.get(key); ok {
				delete(s.data, key)
				n++
			}
		}
		return n
	}
	return failure(fmt.Sprintf("ERR unknown command '%s'", name))
}

func oneIf(b bool) int64 {
	if b {
		return 1
	}
	return 0
}

func number(text string) int64 {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		panic("simredis: " + err.Error())
	}
	return n
}

// get returns a value that has not expired.
func (s *Server) get(key string) (value, bool) {
	v, ok := s.data[key]
	if ok && v.expires > 0 && v.expires < s.now()/1000 {
		delete(s.data, key)
		return value{}, false
	}
	return v, ok
}

// setValue runs SET, with the options NX, KEEPTTL and PX.
func (s *Server) setValue(args []string) any {
	old, exists := s.get(args[1])
	v := value{text: args[2]}
	for i := 3; i < len(args); i++ {
		switch strings.ToUpper(args[i]) {
		case "NX":
			if exists {
				return nil
			}
		case "KEEPTTL":
			v.expires = old.expires
		case "PX":
			i++
			ttl := number(args[i])
			if ttl <= 0 {
				return failure("ERR invalid expire time in 'set' command")
			}
			v.expires = s.now()/1000 + ttl
		default:
			return failure("ERR syntax error")
		}
	}
	s.data[args[1]] = v
	return status("OK")
}

// matches reports whether a text matches a pattern with *, ? and \.
func matches(pattern, text string) bool {
	for pattern != "" {
		c := pattern[0]
		pattern = pattern[1:]
		switch {
		case c == '*':
			for i := range len(text) + 1 {
				if matches(pattern, text[i:]) {
					return true
				}
			}
			return false
		case text == "":
			return false
		case c == '\\' && pattern != "":
			c, pattern = pattern[0], pattern[1:]
			fallthrough
		default:
			if c != text[0] {
				return false
			}
		case c == '?':
		}
		text = text[1:]
	}
	return text == ""
}

// scan runs SCAN. It passes the keys in the order of their hashes, so no change makes it miss a key that stays. A cursor is
// the hash of the next key.
func (s *Server) scan(args []string) any {
	cursor, _ := strconv.ParseUint(args[1], 10, 64)
	pattern, count := "*", 10
	for i := 2; i+1 < len(args); i += 2 {
		switch strings.ToUpper(args[i]) {
		case "MATCH":
			pattern = args[i+1]
		case "COUNT":
			count = int(number(args[i+1]))
		}
	}
	byHash := make(map[uint64]string)
	for key := range s.data {
		h := fnv.New64a()
		_, _ = h.Write([]byte(key))
		byHash[h.Sum64()] = key
	}
	found := []any{}
	for _, hash := range slices.Sorted(maps.Keys(byHash)) {
		if hash < cursor {
			continue
		}
		if count--; count < 0 {
			return []any{strconv.FormatUint(hash, 10), found}
		}
		if key := byHash[hash]; matches(pattern, key) {
			if _, lives := s.get(key); lives {
				found = append(found, key)
			}
		}
	}
	return []any{"0", found}
}
