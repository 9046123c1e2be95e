package sharing

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestSharing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tries := 0
		s := New(false, func() { tries++ })
		check := func(what string, got, want bool) {
			t.Helper()
			if got != want {
				t.Errorf("%s: %v, want %v", what, got, want)
			}
		}
		shares := func(hashSlot int) bool { return s.Shares(hashSlot, time.Now()) }
		begins := func() bool {
			before := tries
			s.TryIfDue()
			synctest.Wait()
			return tries > before
		}
		check("a try begins", begins(), true)
		check("another one meanwhile", begins(), false)
		check("it is denied", s.Tried(true, false), false)
		check("a hash slot shares", shares(1), true)
		s.Pause(1)
		check("it pauses", shares(1), false)
		check("another one shares", shares(2), true)
		time.Sleep(pause) // virtual time, as below
		check("it shares again", shares(1), true)
		s.Forget()
		check("it shares without a try", shares(1), false)
		for range maxVain + 1 {
			check("a try begins", begins(), true)
			s.NotTried()
			check("the next try begins at once", begins(), false)
			time.Sleep(pause)
		}
		for n := range maxVain {
			check("a try begins", begins(), true)
			check("it is denied", s.Tried(false, false), n == maxVain-1)
			check("the next try begins at once", begins(), false)
			time.Sleep(pause)
		}
		check("a try begins after many in vain", begins(), false)
		check("it counts as denied", s.Denied(), true)
		s.Forget()
		check("a try begins when all is forgotten", begins(), true)
		check("it shares if none may", New(true, nil).Shares(1, time.Now()), false)
	})
}
