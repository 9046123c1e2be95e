// Command yardstick does a fixed piece of work, and prints how many microseconds of processor time it took.
// scripts/budget.sh compares it with what the same work takes on the machine that budgets are written for.
//
// The work is as mixed as that of a compiler or a test: it hashes, sorts, allocates, and follows pointers. It also starts a
// process, which needs fresh memory and talks through pipes: on virtual machines, these can cost ten times as much as on others.
package main

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"syscall"
)

const (
	pieces   = 3
	size     = 60_000   // numbers of a piece
	memory   = 12 << 20 // bytes that the process needs
	messages = 100      // that it answers
)

func main() {
	if len(os.Args) > 1 {
		answer()
		return
	}
	for n := range uint64(pieces) {
		if piece(n) != size {
			panic("two of the numbers are equal")
		}
	}
	if err := talk(); err != nil {
		panic(err)
	}
	total := int64(0)
	for _, who := range []int{syscall.RUSAGE_SELF, syscall.RUSAGE_CHILDREN} {
		var usage syscall.Rusage
		if err := syscall.Getrusage(who, &usage); err != nil {
			panic(err)
		}
		total += usage.Utime.Nano() + usage.Stime.Nano()
	}
	fmt.Println(total / 1000)
}

// talk starts a process, and sends messages to it, of which it answers each.
func talk() error {
	program, err := os.Executable()
	if err != nil {
		return err
	}
	c := exec.Command(program, "answer")
	in, err := c.StdinPipe()
	if err != nil {
		return err
	}
	out, err := c.StdoutPipe()
	if err != nil {
		return err
	}
	if err := c.Start(); err != nil {
		return err
	}
	for range messages {
		if _, err := in.Write([]byte{1}); err != nil {
			return err
		}
		if _, err := io.ReadFull(out, make([]byte, 1)); err != nil {
			return err
		}
	}
	if err := in.Close(); err != nil {
		return err
	}
	return c.Wait()
}

// answer is the process that talk starts.
func answer() {
	fresh := make([]byte, memory)
	for i := 0; i < len(fresh); i += 4096 {
		fresh[i] = 1
	}
	if _, err := io.Copy(os.Stdout, os.Stdin); err != nil {
		panic(err)
	}
}

// piece draws numbers by hashing, sorts them, and returns how many differ.
func piece(seed uint64) int {
	known := make(map[uint64]*[32]byte)
	numbers := make([]uint64, 0, size)
	var text [16]byte
	binary.LittleEndian.PutUint64(text[:], seed)
	for i := range uint64(size) {
		binary.LittleEndian.PutUint64(text[8:], i)
		sum := sha256.Sum256(text[:])
		n := binary.LittleEndian.Uint64(sum[:])
		known[n] = &sum
		numbers = append(numbers, n)
	}
	slices.Sort(numbers)
	for _, n := range numbers {
		if binary.LittleEndian.Uint64(known[n][:]) != n {
			panic("the map holds another number")
		}
	}
	return len(known)
}
