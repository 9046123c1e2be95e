package main

import (
	"net"
	"time"
)

const oneWay = 5 * time.Millisecond

// startRelay listens for connections to addr, and keeps the bytes of each for oneWay, there
// and back. Nothing limits how many are under way.
func startRelay(addr string) (net.Listener, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	go func() {
		for {
			near, err := l.Accept()
			if err != nil {
				return
			}
			far, err := net.Dial("tcp", addr)
			if err != nil {
				_ = near.Close()
				continue
			}
			go relay(far, near)
			go relay(near, far)
		}
	}()
	return l, nil
}

type late struct {
	due   time.Time
	bytes []byte
}

func relay(to, from net.Conn) {
	held := make(chan late, 10_000)
	go func() {
		defer to.Close()
		for l := range held {
			time.Sleep(time.Until(l.due))
			if _, err := to.Write(l.bytes); err != nil {
				_ = from.Close()
			}
		}
	}()
	defer close(held)
	buffer := make([]byte, 64<<10)
	for {
		n, err := from.Read(buffer)
		if err != nil {
			return
		}
		held <- late{time.Now().Add(oneWay), append([]byte(nil), buffer[:n]...)}
	}
}
