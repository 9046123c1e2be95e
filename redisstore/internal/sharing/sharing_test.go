package sharing

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestSharing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(false)
		check := func(what string, got, want bool) {
			t.Helper()
			if got != want {
				t.Errorf("%s: %v, want %v", what, got, want)
			}
		}
		shares := func(hashSlot int) bool { return s.Shares(hashSlot, time.Now()) }
		check("a try is needed", s.NeedsTry(), true)
		check("another one meanwhile", s.NeedsTry(), false)
		check("it is denied", s.Tried(true, false), false)
		check("a hash slot shares", shares(1), true)
		s.Pause(1)
		check("it pauses", shares(1), false)
		check("another one shares", shares(2), true)
		time.Sleep(pause) // virtual time, as below
		check("it shares again", shares(1), true)
		s.Forget()
		check("it shares without a try", shares(1), false)
		for n := range maxVain {
			check("a try is needed", s.NeedsTry(), true)
			check("it is denied", s.Tried(false, false), n == maxVain-1)
			check("the next try is needed at once", s.NeedsTry(), false)
			time.Sleep(pause)
		}
		check("a try is needed after many in vain", s.NeedsTry(), false)
		check("it counts as denied", s.Denied(), true)
		s.Forget()
		check("a try is needed when all is forgotten", s.NeedsTry(), true)
		check("none is needed if none may share", New(true).NeedsTry(), false)
	})
}
