//go:build unix

package redisstore_test

import (
	"syscall"
	"time"
)

// ownTime is how much CPU time this process has used.
func ownTime() time.Duration {
	var own syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &own)
	return time.Duration(own.Utime.Nano() + own.Stime.Nano())
}
