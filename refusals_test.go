package ratelimit

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

func TestRefusalsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reports, count := 0, int64(0)
		f := newRefusals(func(r refusal) {
			reports++
			count += r.count
		})
		const keys, each, seconds = 5000, 3, 4
		for range seconds {
			for i := range keys * each {
				f.note(refusalKey{zone: "z", key: fmt.Sprint(i % keys)}, refusal{})
			}
			time.Sleep(time.Second)
			synctest.Wait()
		}
		if most := (seconds + 1) * (mostRecentRefusals + 1); reports > most {
			t.Errorf("%d reports in %d seconds, want at most %d", reports, seconds, most)
		}
		if len(f.recent) > mostRecentRefusals+1 {
			t.Errorf("%d keys are remembered", len(f.recent))
		}
		f.note(refusalKey{zone: "z", key: "0"}, refusal{})
		f.close()
		if want := int64(keys*each*seconds + 1); count != want {
			t.Errorf("%d refusals are reported, want %d", count, want)
		}
		f.note(refusalKey{zone: "z", key: "late"}, refusal{}) // of a request that outlives its configuration
		if want := int64(keys*each*seconds + 2); count != want {
			t.Errorf("%d refusals are reported, want %d", count, want)
		}
	})
}

func TestRefusalsForgetQuietKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newRefusals(func(refusal) {})
		defer f.close()
		f.note(refusalKey{zone: "z", key: "a"}, refusal{})
		time.Sleep(3 * time.Second)
		synctest.Wait()
		if len(f.recent) != 0 || f.timer != nil {
			t.Errorf("%d keys are remembered, timer %v", len(f.recent), f.timer)
		}
	})
}
